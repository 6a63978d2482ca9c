/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Full outputs of commands, for callers that were shown a part of them: bounded, addressed by an
 * id, readable by range, searchable. Small ones are kept in memory, others in a file each; the
 * least recently used go first. Nothing outlives the process. What a store cannot keep (too much,
 * disk full) is counted and left out at the end; it never fails a command. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"

struct err;
struct output;
struct output_grep;
struct outputs;
struct shares;

#define OUTPUT_ID_SIZE 17 /* with the NUL */
#define OUTPUTS_MEMORY_EACH (64U << 10)
#define OUTPUTS_MEMORY_MAX (8U << 20)
#define OUTPUTS_COUNT_MAX 4096U
#define OUTPUTS_COUNT_SHARE 1024U /* of one token */

struct outputs_options {
    int dir_fd;          /* borrowed for the call; a directory of our own. -1: memory only */
    uint64_t max_bytes;  /* of all */
    uint64_t each_bytes; /* of one */
    /* Borrowed; what a token has kept counts to its share. Beyond that its own outputs make way,
     * least recently used first, and no other token's. NULL: nothing is counted. */
    struct shares *shares;
};

/* Removes what an earlier process left. */
int outputs_new(const struct outputs_options *options, struct outputs **ret, struct err *err);
void outputs_free(struct outputs *o); /* no output may be open any more */
DEFINE_CLEANUP(outputs)

/* Writing. Only `owner` (a session, a tenant) may read it; `payer` is the token that is charged for
 * it (NULL: none is). An open output is never dropped. */
struct output *output_new(struct outputs *o, const char *owner, const char *payer);
void output_append(struct output *out, const char *data, size_t len);
/* It stays in the store; `ret_id` may be NULL. The pointer is not to be used any more. */
void output_finish(struct output *out, char ret_id[OUTPUT_ID_SIZE]);
void output_discard(struct output *out);

/* Which output, and the owner that asks for it. */
struct output_ref {
    const char *owner, *id;
};

/* Reading. ERR_NOT_FOUND for an output that is gone, never was, or has another owner. */
struct output_info {
    uint64_t produced; /* bytes */
    uint64_t kept;     /* the first of them; these can be read */
};
int outputs_stat(struct outputs *o, const struct output_ref *ref, struct output_info *ret,
                 struct err *err);
/* As pread(2): 0 at the end. */
ssize_t outputs_read(struct outputs *o, const struct output_ref *ref, uint64_t offset, void *data,
                     size_t size, struct err *err);
/* Drops all of one owner, when its session goes. */
void outputs_forget(struct outputs *o, const char *owner);

/* Searching, in steps, so that no other request waits. The output stays while it is searched. */

#define GREP_LINE_MAX 1024U  /* bytes of a line that are shown */
#define GREP_STEP 2000000ULL /* work at a time, around ten milliseconds */
#define GREP_MATCHES_MAX 1000U

struct grep_options {
    const char *pattern;
    size_t pattern_len;
    unsigned flags;     /* of enum regex_flag */
    uint64_t offset;    /* where to begin, at a line */
    uint64_t line;      /* the number of that line, from 1; 0 counts as 1 */
    size_t max_matches; /* 0 counts as GREP_MATCHES_MAX */
};

struct grep_match {
    uint64_t line;    /* from 1 */
    uint64_t offset;  /* where the line begins */
    const char *text; /* its first GREP_LINE_MAX bytes */
    size_t len;
};

typedef void grep_fn(void *arg, const struct grep_match *match);

int output_grep_new(struct outputs *o, const struct output_ref *ref,
                    const struct grep_options *options, struct output_grep **ret, struct err *err);
void output_grep_free(struct output_grep *g);
DEFINE_CLEANUP(output_grep)
/* 1: call again; 0: done; or a negative errno. */
int output_grep_step(struct output_grep *g, uint64_t work, grep_fn *fn, void *arg, struct err *err);
/* After 0: where a search that ended at max_matches goes on. False: everything was searched. */
bool output_grep_next(const struct output_grep *g, uint64_t *ret_offset, uint64_t *ret_line);
