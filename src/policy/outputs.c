/* SPDX-License-Identifier: Apache-2.0 */

/* Stores outputs in memory or files, within the caps of all and of each token, and searches them a
 * bounded step at a time. */

#include "policy/outputs.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/regex.h"
#include "base/str.h"
#include "policy/share.h"

struct output {
    struct outputs *store;    /* borrowed */
    TAILQ_ENTRY(output) link; /* by last use */
    char id[OUTPUT_ID_SIZE];
    char *owner;         /* owned */
    struct share *payer; /* held; NULL: none */
    struct buf memory;   /* while it is small */
    int fd;              /* owned while it is open and large; -1 */
    bool spooled;
    bool open;
    bool stopped;  /* something was left out: nothing that follows is kept */
    unsigned pins; /* searches under way */
    uint64_t produced, kept;
};

struct outputs {
    struct outputs_options options;
    int dir_fd;                           /* owned; -1: memory only */
    TAILQ_HEAD(output_list, output) list; /* the least recently used first */
    size_t n;
    uint64_t bytes;  /* of all */
    uint64_t memory; /* of those in memory */
};

/* Names that we made, and nothing else, are ours to remove. */
static bool is_ours(const char *name)
{
    return strlen(name) == OUTPUT_ID_SIZE - 1 &&
           strspn(name, "0123456789abcdef") == OUTPUT_ID_SIZE - 1;
}

static int remove_leftovers(int dir_fd)
{
    DIR *dir = fd_opendir(dir_fd);

    if (dir == NULL)
        return -errno;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;)
        if (is_ours(e->d_name))
            (void)unlinkat(dir_fd, e->d_name, 0);
    (void)closedir(dir);
    return 0;
}

int outputs_new(const struct outputs_options *options, struct outputs **ret, struct err *err)
{
    AUTO(outputs) struct outputs *o = xnew(struct outputs);

    o->options = *options;
    o->dir_fd = -1;
    TAILQ_INIT(&o->list);
    if (options->dir_fd >= 0) {
        o->dir_fd = openat(options->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int r = o->dir_fd < 0 ? -errno : remove_leftovers(o->dir_fd);
        if (r < 0)
            return err_sys(err, -r, "open the directory of outputs");
    }
    *ret = TAKE_PTR(o);
    return 0;
}

static void output_drop(struct outputs *o, struct output *out)
{
    TAILQ_REMOVE(&o->list, out, link);
    o->n--;
    o->bytes -= out->kept;
    share_sub(out->payer, SHARE_OUTPUT, out->kept);
    o->memory -= out->spooled ? 0 : out->kept;
    if (out->spooled)
        (void)unlinkat(o->dir_fd, out->id, 0);
    fd_close_many(&out->fd, 1);
    buf_done(&out->memory);
    free(out->owner);
    share_put(out->payer);
    free(out);
}

void outputs_free(struct outputs *o)
{
    if (o == NULL)
        return;
    while (!TAILQ_EMPTY(&o->list))
        output_drop(o, TAILQ_FIRST(&o->list));
    fd_close_many(&o->dir_fd, 1);
    free(o);
}

/* Drops the least recently used one, of that payer (NULL: of all); false: there is none that may
 * go. */
static bool drop_oldest(struct outputs *o, const struct share *payer)
{
    struct output *out;

    TAILQ_FOREACH (out, &o->list, link) {
        if (out->open || out->pins > 0 || (payer != NULL && out->payer != payer))
            continue;
        output_drop(o, out);
        return true;
    }
    return false;
}

static size_t count_of(const struct outputs *o, const struct share *payer)
{
    const struct output *out;
    size_t n = 0;

    TAILQ_FOREACH (out, &o->list, link)
        n += out->payer == payer ? 1 : 0;
    return n;
}

struct output *output_new(struct outputs *o, const char *owner, const char *payer)
{
    struct output *out = xnew(struct output);

    out->payer = shares_get(o->options.shares, payer);
    if (out->payer != NULL && count_of(o, out->payer) >= OUTPUTS_COUNT_SHARE)
        (void)drop_oldest(o, out->payer);
    while (o->n >= OUTPUTS_COUNT_MAX && drop_oldest(o, NULL))
        continue;
    out->store = o;
    out->owner = xstrdup(owner);
    out->fd = -1;
    out->open = true;
    buf_init(&out->memory, OUTPUTS_MEMORY_EACH);
    id_random(out->id);
    TAILQ_INSERT_TAIL(&o->list, out, link);
    o->n++;
    return out;
}

static uint64_t share_left(const struct output *out)
{
    uint64_t max = share_max(out->payer, SHARE_OUTPUT), used = share_used(out->payer, SHARE_OUTPUT);

    return max > used ? max - used : 0;
}

/* How much of `len` more bytes there is room for. Older outputs are dropped for it: first the
 * payer's own, until they fit its share, then those of all. */
static size_t room_for(struct output *out, size_t len)
{
    struct outputs *o = out->store;
    uint64_t each = o->options.each_bytes - out->kept;

    len = len < each ? len : (size_t)each;
    while (share_left(out) < len && drop_oldest(o, out->payer))
        continue;
    len = share_left(out) < len ? (size_t)share_left(out) : len;
    while (o->bytes + len > o->options.max_bytes && drop_oldest(o, NULL))
        continue;
    uint64_t all = o->options.max_bytes > o->bytes ? o->options.max_bytes - o->bytes : 0;
    return len < all ? len : (size_t)all;
}

/* From memory to a file. */
static int spool(struct output *out)
{
    struct outputs *o = out->store;

    if (o->dir_fd < 0)
        return -ENOSPC;
    int fd = openat(o->dir_fd, out->id, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int r = fd < 0 ? -errno : fd_write_all(fd, buf_str(&out->memory), out->memory.len);
    if (r < 0) {
        if (fd >= 0) {
            (void)close(fd);
            (void)unlinkat(o->dir_fd, out->id, 0);
        }
        return r;
    }
    out->fd = fd;
    out->spooled = true;
    o->memory -= out->memory.len;
    buf_done(&out->memory);
    return 0;
}

static int output_keep(struct output *out, const char *data, size_t len)
{
    struct outputs *o = out->store;
    bool fits =
        out->memory.len + len <= OUTPUTS_MEMORY_EACH && o->memory + len <= OUTPUTS_MEMORY_MAX;

    if (!out->spooled && fits && buf_append(&out->memory, data, len) == 0) {
        o->memory += len;
        return 0;
    }
    int r = out->spooled ? 0 : spool(out);
    if (r == 0)
        r = fd_write_all(out->fd, data, len);
    /* A part that was written is not counted, so it is never read; others can use the space. */
    if (r < 0 && out->spooled && ftruncate(out->fd, (off_t)out->kept) < 0)
        return -errno;
    return r;
}

void output_append(struct output *out, const char *data, size_t len)
{
    assert(out->open);
    out->produced += len;
    if (out->stopped || len == 0)
        return;
    size_t room = room_for(out, len);
    out->stopped = room < len;
    if (room == 0)
        return;
    if (output_keep(out, data, room) < 0) {
        out->stopped = true;
        return;
    }
    out->kept += room;
    out->store->bytes += room;
    share_add(out->payer, SHARE_OUTPUT, room);
}

void output_finish(struct output *out, char ret_id[OUTPUT_ID_SIZE])
{
    out->open = false;
    fd_close_many(&out->fd, 1);
    if (ret_id != NULL)
        memcpy(ret_id, out->id, OUTPUT_ID_SIZE);
}

void output_discard(struct output *out)
{
    output_finish(out, NULL);
    if (out->pins == 0)
        output_drop(out->store, out);
}

/* NULL: not found, with err filled. Moves it to the newest. */
static struct output *outputs_find(struct outputs *o, const struct output_ref *ref, struct err *err)
{
    struct output *out;

    TAILQ_FOREACH_REVERSE(out, &o->list, output_list, link)
    {
        if (!str_eq(out->id, ref->id) || !str_eq(out->owner, ref->owner))
            continue;
        TAILQ_REMOVE(&o->list, out, link);
        TAILQ_INSERT_TAIL(&o->list, out, link);
        return out;
    }
    (void)err_missing(err, ERR_THING_OUTPUT,
                      "no output '%.32s'; it may have made room for newer ones", ref->id);
    return NULL;
}

int outputs_stat(struct outputs *o, const struct output_ref *ref, struct output_info *ret,
                 struct err *err)
{
    const struct output *out = outputs_find(o, ref, err);

    if (out == NULL)
        return err_code_errno(ERR_NOT_FOUND);
    *ret = (struct output_info){.produced = out->produced, .kept = out->kept};
    return 0;
}

static ssize_t output_pread(struct output *out, uint64_t offset, void *data, size_t size)
{
    if (offset >= out->kept)
        return 0;
    size = size < out->kept - offset ? size : (size_t)(out->kept - offset);
    if (!out->spooled) {
        memcpy(data, out->memory.data + offset, size);
        return (ssize_t)size;
    }
    AUTO_CLOSE int own = -1;
    if (out->fd < 0) {
        own = openat(out->store->dir_fd, out->id, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (own < 0)
            return -errno;
    }
    ssize_t n = pread(own >= 0 ? own : out->fd, data, size, (off_t)offset);
    return n < 0 ? -errno : n;
}

ssize_t outputs_read(struct outputs *o, const struct output_ref *ref, uint64_t offset, void *data,
                     size_t size, struct err *err)
{
    struct output *out = outputs_find(o, ref, err);

    if (out == NULL)
        return err_code_errno(ERR_NOT_FOUND);
    ssize_t n = output_pread(out, offset, data, size);
    return n < 0 ? err_sys(err, (int)-n, "read output '%s'", ref->id) : n;
}

void outputs_forget(struct outputs *o, const char *owner)
{
    struct output *out, *next;

    TAILQ_FOREACH_SAFE (out, &o->list, link, next)
        if (!out->open && out->pins == 0 && str_eq(out->owner, owner))
            output_drop(o, out);
}

/* Searching ------------------------------------------------------------------------------------ */

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
    out->pins++;
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
    assert(g->out->pins > 0);
    g->out->pins--;
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
