/* SPDX-License-Identifier: Apache-2.0 */

/* Stores outputs in memory or files, within the caps of all and of each token. */

#include "policy/outputs.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "policy/outputs_internal.h"
#include "policy/share.h"

struct outputs {
    struct outputs_options options;
    int dir_fd; /* owned; -1: memory only */
    struct output *oldest, *newest;
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

static int sweep(int dir_fd)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;

    if (dir == NULL) {
        int error = errno;
        if (fd >= 0)
            (void)close(fd);
        return -error;
    }
    while ((e = readdir(dir)) != NULL)
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
    if (options->dir_fd >= 0) {
        o->dir_fd = openat(options->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int r = o->dir_fd < 0 ? -errno : sweep(o->dir_fd);
        if (r < 0)
            return err_sys(err, -r, "open the directory of outputs");
    }
    *ret = TAKE_PTR(o);
    return 0;
}

static void unlink_from(struct outputs *o, struct output *out)
{
    assert((out->older == NULL) == (o->oldest == out));
    if (out->older != NULL)
        out->older->newer = out->newer;
    else
        o->oldest = out->newer;
    if (out->newer != NULL)
        out->newer->older = out->older;
    else
        o->newest = out->older;
    out->older = out->newer = NULL;
    o->n--;
}

static void link_newest(struct outputs *o, struct output *out)
{
    out->older = o->newest;
    out->newer = NULL;
    if (o->newest != NULL)
        o->newest->newer = out;
    else
        o->oldest = out;
    o->newest = out;
    o->n++;
}

static void drop(struct outputs *o, struct output *out)
{
    unlink_from(o, out);
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
    while (o->oldest != NULL)
        drop(o, o->oldest);
    fd_close_many(&o->dir_fd, 1);
    free(o);
}

/* Drops the least recently used one, of that payer (NULL: of all); false: there is none that may
 * go. */
static bool drop_oldest(struct outputs *o, const struct share *payer)
{
    struct output *out = o->oldest;

    /* clang-tidy does not know that neighbours in the list know each other.
     * NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
    while (out != NULL && (out->open || out->pins > 0 || (payer != NULL && out->payer != payer)))
        out = out->newer;
    if (out == NULL)
        return false;
    drop(o, out);
    return true;
}

static size_t count_of(const struct outputs *o, const struct share *payer)
{
    size_t n = 0;

    for (const struct output *out = o->oldest; out != NULL; out = out->newer)
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
    link_newest(o, out);
    return out;
}

static uint64_t share_left(const struct output *out)
{
    uint64_t max = share_max(out->payer, SHARE_OUTPUT), used = share_used(out->payer, SHARE_OUTPUT);

    return max > used ? max - used : 0;
}

/* How much of `len` more bytes there is room for, at the cost of older outputs: first in the share
 * of whoever pays, at its own cost. */
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

static int keep(struct output *out, const char *data, size_t len)
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
    if (keep(out, data, room) < 0) {
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
        drop(out->store, out);
}

void outputs_put(struct outputs *o, const char *owner, const char *data, size_t len,
                 char ret_id[static OUTPUT_ID_SIZE])
{
    struct output *out = output_new(o, owner, NULL);

    output_append(out, data, len);
    output_finish(out, ret_id);
}

struct output *outputs_find(struct outputs *o, const struct output_ref *ref, struct err *err)
{
    for (struct output *out = o->newest; out != NULL; out = out->older)
        if (str_eq(out->id, ref->id) && str_eq(out->owner, ref->owner)) {
            unlink_from(o, out);
            link_newest(o, out);
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

ssize_t output_pread(struct output *out, uint64_t offset, void *data, size_t size)
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
    struct output *next;

    for (struct output *out = o->oldest; out != NULL; out = next) {
        next = out->newer;
        if (!out->open && out->pins == 0 && str_eq(out->owner, owner))
            drop(o, out);
    }
}

void output_pin(struct output *out)
{
    out->pins++;
}

void output_unpin(struct output *out)
{
    out->pins--;
}

uint64_t outputs_bytes(const struct outputs *o)
{
    return o->bytes;
}

size_t outputs_count(const struct outputs *o)
{
    return o->n;
}
