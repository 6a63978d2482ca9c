/* SPDX-License-Identifier: Apache-2.0 */

/* The files of the audit log: finding the end, rotation, removal of old ones. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "policy/audit/audit_internal.h"

#define PREFIX "audit-"
#define SUFFIX ".log"

/* The number in the name of a full file; 0: it is none. */
static uint64_t number_of(const char *name)
{
    char digits[21];
    uint64_t n = 0;

    if (!str_starts(name, PREFIX) || strlen(name) != sizeof(PREFIX SUFFIX) - 1 + 20 ||
        !str_ends(name, SUFFIX))
        return 0;
    memcpy(digits, name + sizeof(PREFIX) - 1, 20);
    digits[20] = '\0';
    return str_to_u64(digits, &n) < 0 ? 0 : n;
}

static void name_for(uint64_t first, char ret[static AUDIT_NAME_MAX])
{
    (void)str_fmt(ret, AUDIT_NAME_MAX, PREFIX "%020llu" SUFFIX, (unsigned long long)first);
}

/* Lowest and highest number of the full files, and how many there are. */
struct numbers {
    uint64_t low, high;
    size_t n;
};

static int list(int dir_fd, struct numbers *ret)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;

    *ret = (struct numbers){0};
    if (dir == NULL) {
        int error = errno;
        if (fd >= 0)
            (void)close(fd);
        return -error;
    }
    while ((e = readdir(dir)) != NULL) {
        uint64_t n = number_of(e->d_name);
        if (n == 0)
            continue;
        ret->low = ret->n == 0 || n < ret->low ? n : ret->low;
        ret->high = n > ret->high ? n : ret->high;
        ret->n++;
    }
    (void)closedir(dir);
    return 0;
}

/* The last whole line of a file: *ret_len 0 when there is none. *ret_end is where it ends, with its
 * newline. `text` has room for two lines. */
static int last_line(int fd, uint64_t size, struct buf *text, size_t *ret_at, size_t *ret_len,
                     uint64_t *ret_end)
{
    size_t want = size < text->max ? (size_t)size : text->max;
    uint64_t from = size - want;

    buf_reset(text);
    int r = buf_reserve(text, want);
    if (r < 0)
        return r;
    ssize_t n = pread(fd, text->data, want, (off_t)from);
    if (n < 0)
        return -errno;
    text->len = (size_t)n;
    *ret_len = 0;
    const char *end = memrchr(text->data, '\n', text->len);
    *ret_end = end != NULL ? from + (uint64_t)(end - text->data) + 1 : from;
    if (end == NULL)
        return from > 0 ? -EBADMSG : 0;
    const char *before = memrchr(text->data, '\n', (size_t)(end - text->data));
    if (before == NULL && from > 0)
        return -EBADMSG;
    *ret_at = before != NULL ? (size_t)(before + 1 - text->data) : 0;
    *ret_len = (size_t)(end - text->data) - *ret_at;
    return *ret_len > 0 ? 0 : -EBADMSG;
}

/* Takes number and digest from the end of a file. 0; 1: it holds no record; -EBADMSG. */
static int take_end(struct audit *a, int fd, uint64_t size, uint64_t *ret_end)
{
    AUTO_DONE(buf) struct buf text;
    struct audit_place place;
    size_t at = 0, len = 0;

    buf_init(&text, 2 * (AUDIT_LINE_MAX + 1));
    int r = last_line(fd, size, &text, &at, &len, ret_end);
    if (r < 0)
        return r;
    if (len == 0)
        return 1;
    r = audit_line_place(text.data + at, len, &place);
    if (r < 0)
        return r;
    a->seq = place.seq;
    return audit_line_hash(text.data + at, len, a->head);
}

/* The number of a file's first record, by which it will be named when it is full. */
static int take_first(struct audit *a)
{
    AUTO_DONE(buf) struct buf text;
    struct audit_place place;

    buf_init(&text, AUDIT_LINE_MAX + 1);
    (void)buf_reserve(&text, text.max);
    ssize_t n = pread(a->fd, text.data, text.max, 0);
    const char *end = n > 0 ? memchr(text.data, '\n', (size_t)n) : NULL;
    if (end == NULL)
        return -EBADMSG;
    int r = audit_line_place(text.data, (size_t)(end - text.data), &place);
    a->first = place.seq;
    return r;
}

/* The chain goes on from the newest full file. */
static int take_full(struct audit *a)
{
    struct numbers numbers;
    char name[AUDIT_NAME_MAX];
    struct stat st;
    uint64_t end;
    int r = list(a->dir_fd, &numbers);

    if (r < 0 || numbers.n == 0)
        return r;
    name_for(numbers.high, name);
    AUTO_CLOSE int fd = openat(a->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    r = take_end(a, fd, (uint64_t)st.st_size, &end);
    return r > 0 ? -EBADMSG : r;
}

static int open_current(struct audit *a, int flags)
{
    a->fd = openat(a->dir_fd, AUDIT_CURRENT,
                   O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0600);
    return a->fd < 0 ? -errno : 0;
}

/* Out of the way, but not lost: it is evidence. The new chain counts on from the names that are
 * taken, so that its own files find theirs free. */
static int set_aside(struct audit *a)
{
    char name[AUDIT_NAME_MAX];
    struct numbers numbers;
    int r = list(a->dir_fd, &numbers);

    if (r < 0)
        return r;
    a->first = a->size = 0;
    a->seq = numbers.high;
    (void)str_copy(a->head, sizeof(a->head), audit_no_head);

    (void)str_fmt(name, sizeof(name), PREFIX "bad-%llu" SUFFIX,
                  (unsigned long long)clock_real(a->options.clock));
    fd_close_many(&a->fd, 1);
    if (renameat(a->dir_fd, AUDIT_CURRENT, a->dir_fd, name) < 0)
        return -errno;
    return open_current(a, O_CREAT | O_EXCL);
}

int audit_find_end(struct audit *a, uint64_t *ret_dropped, bool *ret_bad, struct err *err)
{
    struct stat st = {0};
    uint64_t end = 0;

    (void)str_copy(a->head, sizeof(a->head), audit_no_head);
    int r = open_current(a, O_CREAT);
    if (r == 0 && fstat(a->fd, &st) < 0)
        r = -errno;
    if (r == 0 && !S_ISREG(st.st_mode))
        r = -EISDIR;
    if (r < 0)
        return err_sys(err, -r, "open " AUDIT_CURRENT);
    r = take_end(a, a->fd, (uint64_t)st.st_size, &end);
    if (r == 0)
        r = take_first(a);
    else if (r == 1)
        r = take_full(a);
    if (r == 0 && end < (uint64_t)st.st_size) {
        *ret_dropped = (uint64_t)st.st_size - end;
        r = ftruncate(a->fd, (off_t)end) < 0 ? -errno : 0;
    }
    a->size = end;
    if (r == -EBADMSG) {
        *ret_bad = true;
        r = set_aside(a);
    }
    return r < 0 ? err_sys(err, -r, "read the end of " AUDIT_CURRENT) : 0;
}

static void remove_old(struct audit *a)
{
    struct numbers numbers;
    char name[AUDIT_NAME_MAX];

    while (a->options.keep_files > 0 && list(a->dir_fd, &numbers) == 0 &&
           numbers.n > a->options.keep_files) {
        name_for(numbers.low, name);
        if (unlinkat(a->dir_fd, name, 0) < 0)
            return;
    }
}

/* When no new file can be made, the old one goes on: too long a file is better than none. */
int audit_rotate(struct audit *a)
{
    char name[AUDIT_NAME_MAX];
    int old = a->fd;

    name_for(a->first, name);
    /* What was reserved and not used is given back. */
    if (ftruncate(old, (off_t)a->size) < 0)
        return -errno;
    a->reserved = a->size;
    if (a->options.sync)
        (void)fsync(old);
    if (renameat2(a->dir_fd, AUDIT_CURRENT, a->dir_fd, name, RENAME_NOREPLACE) < 0)
        return -errno;
    int r = open_current(a, O_CREAT | O_EXCL);
    if (r < 0) {
        a->fd = old;
        (void)renameat(a->dir_fd, name, a->dir_fd, AUDIT_CURRENT);
        return r;
    }
    (void)close(old);
    (void)fsync(a->dir_fd);
    a->first = a->size = a->reserved = 0;
    remove_old(a);
    return 0;
}

int audit_reserve(struct audit *a, size_t len)
{
    if (a->no_reserve || a->size + len + AUDIT_RESERVE / 2 <= a->reserved)
        return 0;
    uint64_t want = a->size + len + AUDIT_RESERVE;
    if (fallocate(a->fd, FALLOC_FL_KEEP_SIZE, (off_t)a->size, (off_t)(want - a->size)) < 0) {
        a->no_reserve = errno == EOPNOTSUPP || errno == ENOSYS;
        return a->no_reserve ? 0 : -errno;
    }
    a->reserved = want;
    return 0;
}

int audit_file_of(const struct audit *a, uint64_t number, char ret[static AUDIT_NAME_MAX])
{
    uint64_t at_or_before = 0, after = UINT64_MAX;
    int fd = openat(a->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    (void)str_copy(ret, AUDIT_NAME_MAX, AUDIT_CURRENT);
    if (dir == NULL) {
        int error = errno;
        if (fd >= 0)
            (void)close(fd);
        return -error;
    }
    for (const struct dirent *e; a->first == 0 || number < a->first;) {
        if ((e = readdir(dir)) == NULL)
            break;
        uint64_t n = number_of(e->d_name);
        if (n > 0 && n <= number && n > at_or_before)
            at_or_before = n;
        if (n > number && n < after)
            after = n;
    }
    (void)closedir(dir);
    if (a->first != 0 && number >= a->first)
        return 1;
    if (at_or_before == 0 && after == UINT64_MAX)
        return a->first != 0 ? 1 : 0;
    name_for(at_or_before > 0 ? at_or_before : after, ret);
    return 1;
}
