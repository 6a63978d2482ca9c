/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* box-files from the inside: one request, then the end. It may block wherever it likes. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "inside/files/wire.h"

struct files_job {
    struct files_request req;
    char *root, *path, *a, *b; /* owned; NUL-terminated, and NULs inside only in a and b of EDIT */
    int in, out;               /* borrowed */
    int root_fd;               /* owned; O_PATH */
    struct files_done done;
    struct files_fail fail; /* filled by job_fail() */
    char text[200];
};

/* serve.c */
int job_fail(struct files_job *j, enum files_why why, int error); /* remembers; returns -EPROTO */
bool job_has(const struct files_job *j, enum files_flag flag);
struct files_part {
    const void *p;
    size_t len;
};
/* One frame of `n` parts; blocks until boxd takes it. */
int job_send(struct files_job *j, enum files_type type, const struct files_part *parts, size_t n);
#define JOB_SEND(j, type, ...)                                                                     \
    job_send(j, type, (const struct files_part[]){__VA_ARGS__},                                    \
             sizeof((const struct files_part[]){__VA_ARGS__}) / sizeof(struct files_part))
int job_send_stat(struct files_job *j, const struct stat *st);
/* The next frame of content: its length, 0 at END, or -EPROTO with CUT_OFF. */
ssize_t job_receive(struct files_job *j, char *data, size_t size);
struct files_tag tag_of(const struct stat *st);
bool tag_eq(const struct files_tag *a, const struct files_tag *b);
struct files_stat stat_of(const struct stat *st);

/* walk.c: the way to a path, one component at a time. A link is read and its text walked, never
 * followed by the kernel: so no link of procfs leads anywhere, and a swap gains nothing. */
struct files_place {
    int dir;                   /* owned; O_PATH */
    char name[256];            /* in it; "" for the root itself */
    char real[FILES_PATH_MAX]; /* of the directory, from the root, without a leading slash */
};
/* What `path` names; the last component need not exist. With FILES_PARENTS of `flags` directories
 * on the way are made; with FILES_NOFOLLOW a link at the end is left alone. */
int walk_to(struct files_job *j, const char *path, unsigned flags, struct files_place *ret);
void files_place_done(struct files_place *p);
DEFINE_CLEANUP_DONE(files_place)
/* lstat of the place itself. 0 or a negative errno. */
int place_stat(const struct files_place *p, struct stat *ret);
/* Opens what is there, not following, not waiting, not becoming a terminal's owner. A file that is
 * neither regular nor a directory is FILES_WHY_SPECIAL and never opened. The descriptor, or a
 * negative errno. */
int place_open(struct files_job *j, const struct files_place *p, int flags, struct stat *ret);
/* What the path of the request names, for reading: anything ordinary, or a directory only. */
int job_open(struct files_job *j, struct stat *ret);
int job_open_dir(struct files_job *j);

/* match.c: *, ?, [a-z], **, {a,b}. */
struct globs;
struct globs *globs_new(const char *pattern); /* NULL: too many alternatives */
void globs_free(struct globs *g);
/* `path` is relative, without "." and "..". A pattern matches at any depth. */
bool globs_match(const struct globs *g, const char *path);

/* walk.c: everything below a directory, names sorted, links not followed. */
struct tree_entry {
    int dir;          /* borrowed; holds it */
    const char *name; /* in it */
    const char *path; /* from where the walk began */
    struct stat st;   /* of itself */
};
/* 0: go on; 1: it is enough; or a negative errno. */
typedef int tree_fn(void *arg, const struct tree_entry *e);
/* 1 when it ended early: too many entries, or a tree too deep. `fd` is borrowed. `skip`: what is
 * noise in every project is left out (.git, node_modules and the like). */
int tree_walk(int fd, bool skip, tree_fn *fn, void *arg);

/* read.c: a file line by line. */
struct lines {
    int fd;
    char data[64U << 10];
    size_t len, pos;
    bool eof;
};
/* The next piece of a line: its bytes without the newline, at *ret. *ret_end: the line ends here.
 * Its length, or -1 at the end of the file, or a negative errno. */
int lines_next(struct lines *l, const char **ret, size_t *ret_len, bool *ret_end);

int tree_by_name(const void *a, const void *b); /* of strings, for qsort */

/* Operations. 0, or a negative errno; -EPROTO when job_fail() has said more. */
typedef int job_fn(struct files_job *j);
struct job_op {
    enum files_op op;
    job_fn *fn; /* NULL: the table ends */
};
extern const struct job_op job_read_ops[], job_write_ops[], job_search_ops[], job_watch_ops[];
