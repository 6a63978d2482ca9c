/* SPDX-License-Identifier: Apache-2.0 */

/* Searches trees for box-files: names by glob pattern, contents by regular expression. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/regex.h"
#include "inside/files/files_internal.h"

#define BINARY_LOOK 8192U

static int bad_pattern(struct files_job *j, const char *why)
{
    (void)snprintf(j->text, sizeof(j->text), "%.*s", (int)sizeof(j->text) - 1, why);
    return job_fail(j, FILES_WHY_PATTERN, EINVAL);
}

/* GLOB: the newest are kept, in a heap whose top is the oldest of them. */

struct hit {
    struct files_stat st;
    char *path; /* owned */
};

struct newest {
    struct globs *globs;
    struct hit *hits; /* owned */
    size_t n, max;
    uint64_t total;
};

/* Whether a goes before b: newer, or the same age and later by name, as Python's tuples compare. */
static int newer(const void *a, const void *b)
{
    const struct hit *x = a, *y = b;
    if (x->st.tag.mtime_ns != y->st.tag.mtime_ns)
        return x->st.tag.mtime_ns > y->st.tag.mtime_ns ? -1 : 1;
    return -strcmp(x->path, y->path);
}

static void swap_hits(struct hit *a, struct hit *b)
{
    struct hit t = *a;
    *a = *b;
    *b = t;
}

static void sift_up(struct newest *w, size_t i)
{
    for (; i > 0 && newer(&w->hits[i], &w->hits[(i - 1) / 2]) > 0; i = (i - 1) / 2)
        swap_hits(&w->hits[i], &w->hits[(i - 1) / 2]);
}

static void sift_down(struct newest *w)
{
    size_t i = 0;
    for (;;) {
        size_t oldest = i;
        for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < w->n; child++)
            if (newer(&w->hits[child], &w->hits[oldest]) > 0)
                oldest = child;
        if (oldest == i)
            return;
        swap_hits(&w->hits[i], &w->hits[oldest]);
        i = oldest;
    }
}

static int glob_entry(void *arg, const struct tree_entry *e)
{
    struct newest *w = arg;
    if (!globs_match(w->globs, e->path))
        return 0;
    w->total++;
    struct hit hit = {.st = stat_of(&e->st), .path = xstrdup(e->path)};
    if (w->n < w->max) {
        w->hits[w->n] = hit;
        sift_up(w, w->n++);
    } else if (newer(&hit, &w->hits[0]) < 0) {
        free(w->hits[0].path);
        w->hits[0] = hit;
        sift_down(w);
    } else {
        free(hit.path);
    }
    return 0;
}

static int send_hits(struct files_job *j, struct newest *w)
{
    int r = 0;
    qsort(w->hits, w->n, sizeof(w->hits[0]), newer);
    for (size_t i = 0; i < w->n && r == 0; i++) {
        struct files_entry e = {.stat = w->hits[i].st,
                                .name_len = (uint32_t)strlen(w->hits[i].path)};
        r = JOB_SEND(j, FILES_FRAME_ENTRY, {&e, sizeof(e)}, {w->hits[i].path, e.name_len});
    }
    return r;
}

static int op_glob(struct files_job *j)
{
    struct newest w = {.max = j->req.length};
    AUTO_CLOSE int fd = job_open_dir(j);
    if (fd < 0)
        return fd;
    if (w.max == 0 || w.max > FILES_LIST_MAX)
        return -EINVAL;
    w.globs = globs_new(j->a);
    if (w.globs == NULL)
        return bad_pattern(j, "too many alternatives in braces");
    w.hits = xcalloc(w.max, sizeof(w.hits[0]));
    int r = tree_walk(fd, true, glob_entry, &w);
    j->done.total = w.total;
    if (r > 0)
        j->done.cut = FILES_CUT_SCAN;
    else if (w.total > w.n)
        j->done.cut = FILES_CUT_MATCHES;
    if (r >= 0)
        r = send_hits(j, &w);
    for (size_t i = 0; i < w.n; i++)
        free(w.hits[i].path);
    free(w.hits);
    globs_free(w.globs);
    return r;
}

/* GREP. */

struct grep {
    struct files_job *job;
    struct regex *regex;   /* owned */
    struct globs *include; /* owned, or NULL: all */
    uint64_t files, bytes; /* looked at */
    uint64_t matches;
    uint64_t in_file; /* lines of this file that match */
    struct lines lines;
    char shown[4 * FILES_GREP_LINE_MAX]; /* the beginning of the line */
    size_t n_shown, n_chars;
    bool shown_cut, matched;
};

static void grep_cut(struct grep *g, enum files_cut why)
{
    if (g->job->done.cut == FILES_CUT_NONE || why == FILES_CUT_SCAN)
        g->job->done.cut = why;
}

/* Keeps characters for display: a byte that is no UTF-8 stays as it is and counts as one. */
static void grep_show(struct grep *g, const char *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        int32_t c;
        size_t n = regex_char(data + at, len - at, &c);
        if (g->n_chars == FILES_GREP_LINE_MAX) {
            g->shown_cut = true;
            return;
        }
        memcpy(g->shown + g->n_shown, data + at, n);
        g->n_shown += n;
        g->n_chars++;
        at += n;
    }
}

static void grep_feed(struct grep *g, const char *data, size_t len)
{
    for (size_t at = 0; at < len && !g->matched;) {
        int first = regex_skip_to(g->regex);
        const char *next = first >= 0 ? memchr(data + at, first, len - at) : NULL;
        size_t skip = first < 0 ? 0 : (next != NULL ? (size_t)(next - data) : len) - at;
        int32_t c;
        if (skip > 0) {
            at += skip;
            unsigned char last = (unsigned char)data[at - 1];
            regex_skipped(g->regex, last < 0x80 ? last : 0xfffd);
            continue;
        }
        at += regex_char(data + at, len - at, &c);
        g->matched = regex_feed(g->regex, c);
    }
}

/* 1: that is enough. */
static int tell_match(struct grep *g, const char *path, uint64_t line)
{
    struct files_job *j = g->job;
    while (g->n_shown > 0 && strchr(" \t\r\n\v\f", g->shown[g->n_shown - 1]) != NULL &&
           !g->shown_cut)
        g->n_shown--;
    struct files_match m = {.line = line,
                            .path_len = (uint32_t)strlen(path),
                            .text_len = (uint32_t)g->n_shown,
                            .flags = g->shown_cut ? FILES_MATCH_CUT : 0};
    if (g->shown_cut)
        grep_cut(g, FILES_CUT_LINE);
    int r =
        JOB_SEND(j, FILES_FRAME_MATCH, {&m, sizeof(m)}, {path, m.path_len}, {g->shown, m.text_len});
    if (r < 0)
        return r;
    if (++g->matches < j->req.length)
        return 0;
    grep_cut(g, FILES_CUT_MATCHES);
    return 1;
}

static void begin_line(struct grep *g)
{
    g->n_shown = g->n_chars = 0;
    g->shown_cut = g->matched = false;
    regex_begin(g->regex);
}

static int finish_line(struct grep *g, const char *path, uint64_t line)
{
    if (!g->matched)
        g->matched = regex_feed(g->regex, REGEX_END);
    if (!g->matched)
        return 0;
    g->in_file++;
    return job_has(g->job, FILES_GREP_NAMES) ? 0 : tell_match(g, path, line);
}

/* The lines of one open file. */
static int grep_lines(struct grep *g, const char *path)
{
    uint64_t line = 1, bytes = 0;
    bool ends, fresh = true;
    const char *data;
    size_t len;
    int r = 0;
    begin_line(g);
    while (r == 0 && lines_next(&g->lines, &data, &len, &ends) > 0) {
        bytes += len + ends;
        g->bytes += len + ends;
        if (bytes > FILES_GREP_FILE_BYTES || g->bytes > FILES_GREP_TOTAL_BYTES) {
            grep_cut(g, FILES_CUT_SCAN);
            return g->bytes > FILES_GREP_TOTAL_BYTES;
        }
        if (!g->shown_cut)
            grep_show(g, data, len);
        grep_feed(g, data, len);
        fresh = ends;
        if (!ends)
            continue;
        r = finish_line(g, path, line++);
        begin_line(g);
    }
    if (r == 0 && !fresh)
        r = finish_line(g, path, line);
    return r;
}

/* Takes fd. A NUL near the beginning: a binary file, whose lines are not sent. */
static int grep_file(struct grep *g, int fd, const char *path)
{
    struct lines *l = &g->lines;
    int r = 0;
    ssize_t n = pread(fd, l->data, BINARY_LOOK, 0);
    l->fd = fd;
    l->len = l->pos = 0;
    g->in_file = 0;
    if (n > 0 && memchr(l->data, 0, (size_t)n) == NULL) {
        r = grep_lines(g, path);
        if (r >= 0 && g->in_file > 0 && job_has(g->job, FILES_GREP_NAMES)) {
            g->n_shown = 0;
            int more = tell_match(g, path, g->in_file);
            r = more != 0 ? more : r;
        }
    }
    (void)close(fd);
    return r;
}

static int grep_entry(void *arg, const struct tree_entry *e)
{
    struct grep *g = arg;
    struct stat st;
    if (!S_ISREG(e->st.st_mode) || (g->include != NULL && !globs_match(g->include, e->path)))
        return 0;
    if (g->files++ == FILES_GREP_FILES_MAX) {
        grep_cut(g, FILES_CUT_SCAN);
        return 1;
    }
    int fd = openat(e->dir, e->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd);
        return 0;
    }
    return grep_file(g, fd, e->path);
}

/* A file, or everything below a directory. */
static int grep_place(struct files_job *j, struct grep *g)
{
    struct stat st;
    AUTO_CLOSE int fd = job_open(j, &st);
    if (fd < 0)
        return fd;
    if (S_ISREG(st.st_mode))
        return grep_file(g, TAKE_FD(fd), "");
    int r = tree_walk(fd, true, grep_entry, g);
    if (r > 0 && j->done.cut == FILES_CUT_NONE)
        grep_cut(g, FILES_CUT_SCAN);
    return r;
}

static int op_grep(struct files_job *j)
{
    static struct grep g;
    struct err err = {0};
    unsigned flags = (job_has(j, FILES_LITERAL) ? REGEX_LITERAL : 0) |
                     (job_has(j, FILES_IGNORE_CASE) ? REGEX_IGNORE_CASE : 0);
    if (j->req.length == 0)
        return -EINVAL;
    g = (struct grep){.job = j};
    if (regex_new(j->a, j->req.a_len, flags, &g.regex, &err) < 0)
        return bad_pattern(j, err.msg);
    if (j->req.b_len > 0 && (g.include = globs_new(j->b)) == NULL) {
        regex_free(g.regex);
        return bad_pattern(j, "too many alternatives in braces");
    }
    int r = grep_place(j, &g);
    regex_free(g.regex);
    globs_free(g.include);
    j->done.total = g.matches;
    return r < 0 ? r : 0;
}

const struct job_op job_search_ops[] = {
    {FILES_GLOB, op_glob},
    {FILES_GREP, op_grep},
    {0, NULL},
};
