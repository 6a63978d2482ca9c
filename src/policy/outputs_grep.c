/* SPDX-License-Identifier: Apache-2.0 */

/* Searches a stored output for a regular expression, a bounded step at a time. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/regex.h"
#include "base/str.h"
#include "policy/outputs_internal.h"

#define CHUNK (64U << 10)

struct output_grep {
    struct output *out;  /* pinned */
    struct regex *regex; /* owned */
    size_t matches_left;
    uint64_t at; /* offset of chunk[used] */
    uint64_t line, line_at;
    char shown[GREP_LINE_MAX]; /* the beginning of the line */
    size_t n_shown;
    bool matched;    /* the line has; the rest of it is skipped */
    bool fresh_line; /* nothing of the line was seen */
    bool ended;
    char chunk[CHUNK];
    size_t len, used;
};

int output_grep_new(struct outputs *o, const struct output_ref *ref,
                    const struct grep_options *options, struct output_grep **ret, struct err *err)
{
    struct output *out = outputs_find(o, ref, err);
    struct regex *regex = NULL;

    if (out == NULL)
        return err_code_errno(ERR_NOT_FOUND);
    int r = regex_new(options->pattern, options->pattern_len, options->flags, &regex, err);
    if (r < 0)
        return r;
    struct output_grep *g = xnew(struct output_grep);
    g->out = out;
    output_pin(out);
    g->regex = regex;
    g->matches_left = options->max_matches > 0 && options->max_matches < GREP_MATCHES_MAX
                          ? options->max_matches
                          : GREP_MATCHES_MAX;
    g->at = g->line_at = options->offset;
    g->line = options->line > 0 ? options->line : 1;
    g->fresh_line = true;
    *ret = g;
    return 0;
}

void output_grep_free(struct output_grep *g)
{
    if (g == NULL)
        return;
    output_unpin(g->out);
    regex_free(g->regex);
    free(g);
}

/* More bytes behind those that are left. 0: there are none. */
static ssize_t refill(struct output_grep *g)
{
    size_t left = g->len - g->used;

    memmove(g->chunk, g->chunk + g->used, left);
    g->used = 0;
    g->len = left;
    ssize_t n = output_pread(g->out, g->at + left, g->chunk + left, CHUNK - left);
    if (n > 0)
        g->len += (size_t)n;
    return n;
}

static void consume(struct output_grep *g, size_t n, bool show)
{
    size_t room = GREP_LINE_MAX - g->n_shown, part = n < room ? n : room;

    if (show)
        memcpy(g->shown + g->n_shown, g->chunk + g->used, part);
    g->n_shown += show ? part : 0;
    g->fresh_line = false;
    g->used += n;
    g->at += n;
}

static void end_line(struct output_grep *g, grep_fn *fn, void *arg)
{
    if (!g->matched)
        g->matched = regex_feed(g->regex, REGEX_END);
    if (g->matched) {
        const struct grep_match m = {g->line, g->line_at, g->shown, g->n_shown};
        fn(arg, &m);
        g->matches_left--;
    }
}

static void begin_line(struct output_grep *g)
{
    g->line++;
    g->line_at = g->at;
    g->n_shown = 0;
    g->matched = false;
    g->fresh_line = true;
    regex_begin(g->regex);
}

/* Bytes of this line that cannot be part of a match, or are not needed any more. */
static size_t skippable(const struct output_grep *g)
{
    const char *s = g->chunk + g->used;
    size_t len = g->len - g->used;
    const char *end = memchr(s, '\n', len);
    int first = regex_skip_to(g->regex);

    if (end != NULL)
        len = (size_t)(end - s);
    if (g->matched)
        return len;
    if (first < 0)
        return 0;
    const char *candidate = memchr(s, first, len);
    return candidate != NULL ? (size_t)(candidate - s) : len;
}

static void one_character(struct output_grep *g)
{
    int32_t c;

    consume(g, regex_char(g->chunk + g->used, g->len - g->used, &c), true);
    g->matched = regex_feed(g->regex, c);
}

/* A step of reading: 1: there is more; 0: the end. */
static int advance(struct output_grep *g, grep_fn *fn, void *arg, uint64_t *work)
{
    /* A character may have up to four bytes. */
    if (g->len - g->used < 4) {
        ssize_t n = refill(g);
        if (n < 0)
            return (int)n;
        if (g->len == 0) {
            if (!g->fresh_line)
                end_line(g, fn, arg);
            return 0;
        }
    }
    if (g->chunk[g->used] == '\n') {
        g->fresh_line = false;
        end_line(g, fn, arg);
        consume(g, 1, false);
        begin_line(g);
        *work += 1;
        return 1;
    }
    size_t skip = skippable(g);
    if (skip == 0) {
        one_character(g);
        return 1;
    }
    *work += 1 + skip / 16;
    consume(g, skip, true);
    /* Only an ASCII character before the candidate could be part of a word. */
    regex_skipped(g->regex,
                  (unsigned char)g->chunk[g->used - 1] < 0x80 ? g->chunk[g->used - 1] : 0xfffd);
    return 1;
}

int output_grep_step(struct output_grep *g, uint64_t work, grep_fn *fn, void *arg, struct err *err)
{
    uint64_t start = regex_work(g->regex), done = 0;

    while (!g->ended && g->matches_left > 0) {
        int r = advance(g, fn, arg, &done);
        if (r < 0)
            return err_sys(err, -r, "search output '%s'", g->out->id);
        g->ended = r == 0;
        if (r > 0 && done + (regex_work(g->regex) - start) >= work)
            return 1;
    }
    return 0;
}

bool output_grep_next(const struct output_grep *g, uint64_t *ret_offset, uint64_t *ret_line)
{
    if (g->ended || g->at >= g->out->kept)
        return false;
    *ret_offset = g->line_at;
    *ret_line = g->line;
    return true;
}
