/* SPDX-License-Identifier: Apache-2.0 */

/* Directories of the host that are no skill store. */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "fetch/fetch_internal.h"

#define MARKER_PREFIX ".langbot-box-volume-probe-"
#define MARKER_DIGITS 32U
#define MARKER_MAX 1024

/* It was made, if need be, before we were confined to it. */
int op_make_dir(struct fetch *f)
{
    jw_object(f->out);
    jw_object_end(f->out);
    return 0;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static int check_marker_name(struct fetch *f, const char *name)
{
    size_t prefix = strlen(MARKER_PREFIX);
    if (!str_starts(name, MARKER_PREFIX) || strlen(name) != prefix + MARKER_DIGITS ||
        strspn(name + prefix, "0123456789abcdef") != MARKER_DIGITS)
        return fetch_fail(f, "Invalid Box shared Workspace probe basename");
    return 0;
}

static int unreadable(struct fetch *f)
{
    return fetch_fail(f, "Box Runtime cannot read the Core shared Workspace probe");
}

/* Reads at most `size` bytes and sees whether it was all of it, and still the same file. */
static int read_marker(struct fetch *f, int fd, unsigned char *data, size_t size, size_t *ret)
{
    struct stat before, after;
    if (fstat(fd, &before) < 0)
        return unreadable(f);
    if (!S_ISREG(before.st_mode))
        return fetch_fail(f, "Box shared Workspace probe is not a regular file");
    if (before.st_size < 1 || before.st_size > MARKER_MAX)
        return fetch_fail(f, "Box shared Workspace probe has an invalid size");
    ssize_t n = fd_read_full(fd, data, size);
    if (n < 0 || fstat(fd, &after) < 0)
        return unreadable(f);
    if (n > MARKER_MAX)
        return fetch_fail(f, "Box shared Workspace probe exceeds the size limit");
    if (n != before.st_size || !same_file(&before, &after))
        return fetch_fail(f, "Box shared Workspace probe changed while being verified");
    *ret = (size_t)n;
    return 0;
}

/* The content goes back as hexadecimal digits: whoever asked has the library that digests it. */
int op_read_marker(struct fetch *f)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char data[MARKER_MAX + 1];
    char hex[2 * MARKER_MAX + 1];
    char *name = NULL;
    size_t n = 0;
    int r = fetch_need(f, f->data, "marker_name", &name);
    AUTO_FREE char *owned = name;
    if (r == 0)
        r = check_marker_name(f, name);
    if (r < 0)
        return r;
    if (faccessat(f->root_fd, ".", R_OK | W_OK | X_OK, 0) < 0)
        return fetch_fail(f, "Managed sandbox workspace path is not writable");
    AUTO_CLOSE int fd = fetch_open(f, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        return unreadable(f);
    r = read_marker(f, fd, data, sizeof(data), &n);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        hex[2 * i] = digits[data[i] >> 4];
        hex[2 * i + 1] = digits[data[i] & 15];
    }
    hex[2 * n] = '\0';
    jw_object(f->out);
    jw_kstr(f->out, "content", hex);
    jw_object_end(f->out);
    return 0;
}
