/* SPDX-License-Identifier: Apache-2.0 */

/* Writes, appends to and edits files for box-files; a new content takes its place by rename. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/compat.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/files/files_internal.h"

#define LOCK_TRIES 500 /* of ten milliseconds */
#define LOCK_NS 10000000L
#define NEW_MODE 0644U

/* A file that is not there yet: beside its place, under a name of its own. */
struct draft {
    int fd; /* owned */
    char name[32];
};

static int draft_open(struct draft *d, const struct place *p)
{
    char id[17];

    id_random(id);
    (void)snprintf(d->name, sizeof(d->name), ".box-%s.tmp", id);
    d->fd = openat(p->dir, d->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return d->fd < 0 ? -errno : 0;
}

static void draft_drop(struct draft *d, const struct place *p)
{
    if (d->fd >= 0)
        (void)unlinkat(p->dir, d->name, 0);
    fd_close_many(&d->fd, 1);
}

/* Who changes a file on a condition does so alone, among those who ask. */
static int lock_dir(struct job *j, const struct place *p, int *ret)
{
    static const struct timespec pause = {.tv_nsec = LOCK_NS};

    *ret = openat(p->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*ret < 0)
        return -errno;
    for (int i = 0; flock(*ret, LOCK_EX | LOCK_NB) < 0; i++) {
        if (errno != EWOULDBLOCK)
            return -errno;
        if (i == LOCK_TRIES)
            return job_fail(j, FILES_WHY_BUSY, EBUSY);
        (void)nanosleep(&pause, NULL);
    }
    return 0;
}

/* What is there now, and whether that is what the caller thinks. *ret_mode is 0 for nothing. */
static int check_target(struct job *j, const struct place *p, mode_t *ret_mode)
{
    struct stat st;
    int r = place_stat(p, &st);

    *ret_mode = 0;
    if (r == -ENOENT)
        return job_has(j, FILES_MUST_EXIST) || job_has(j, FILES_MUST_MATCH)
                   ? job_fail(j, FILES_WHY_CHANGED, ENOENT)
                   : 0;
    if (r < 0)
        return r;
    if (job_has(j, FILES_MUST_NOT_EXIST))
        return job_fail(j, FILES_WHY_CHANGED, EEXIST);
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    if (!S_ISREG(st.st_mode))
        return job_fail(j, FILES_WHY_SPECIAL, EINVAL);
    struct files_tag tag = tag_of(&st);
    if (job_has(j, FILES_MUST_MATCH) && !tag_eq(&tag, &j->req.expect))
        return job_fail(j, FILES_WHY_CHANGED, 0);
    /* A new file in its place needs no right to the old one: its owner may have meant it. */
    if (faccessat(p->dir, p->name, W_OK, 0) < 0)
        return -errno;
    *ret_mode = st.st_mode;
    return 0;
}

static int sync_all(struct job *j, int fd, const struct place *p)
{
    if (!job_has(j, FILES_SYNC))
        return 0;
    AUTO_CLOSE int dir = openat(p->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fsync(fd) < 0 || (dir >= 0 && fsync(dir) < 0))
        return -errno;
    return 0;
}

static int tell(struct job *j, int fd)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    struct files_stat s = stat_of(&st);
    return job_send_stat(j, &s);
}

/* The draft takes its place, in one step. */
static int draft_commit(struct job *j, struct draft *d, const struct place *p)
{
    mode_t old, mode = (j->req.mode != 0 ? j->req.mode : NEW_MODE) & 0777U;
    int r = check_target(j, p, &old);

    if (r < 0)
        return r;
    if (fchmod(d->fd, old != 0 ? old & 0777U : mode) < 0)
        return -errno;
    if (job_has(j, FILES_SYNC) && fsync(d->fd) < 0)
        return -errno;
    unsigned how = job_has(j, FILES_MUST_NOT_EXIST) ? RENAME_NOREPLACE : 0;
    if (renameat2(p->dir, d->name, p->dir, p->name, how) < 0)
        return errno == EEXIST ? job_fail(j, FILES_WHY_CHANGED, EEXIST) : -errno;
    j->done.created = old == 0;
    r = sync_all(j, d->fd, p);
    if (r == 0)
        r = tell(j, d->fd);
    fd_close_many(&d->fd, 1);
    return r;
}

static int receive(struct job *j, int fd)
{
    static char data[FILES_FRAME_MAX];
    ssize_t n;
    int r = 0;

    while (r == 0 && (n = job_receive(j, data, sizeof(data))) != 0)
        r = n < 0 ? (int)n : fd_write_all(fd, data, (size_t)n);
    return r;
}

static int replace(struct job *j, const struct place *p)
{
    struct draft d = {.fd = -1};
    AUTO_CLOSE int lock = -1;
    int r = draft_open(&d, p);

    if (r == 0)
        r = receive(j, d.fd);
    if (r == 0 && (job_has(j, FILES_MUST_EXIST) || job_has(j, FILES_MUST_MATCH)))
        r = lock_dir(j, p, &lock);
    if (r == 0)
        r = draft_commit(j, &d, p);
    draft_drop(&d, p);
    return r;
}

/* Behind what is there. What was begun and cannot be finished is taken away again. */
static int append(struct job *j, const struct place *p, bool exists)
{
    mode_t mode = (j->req.mode != 0 ? j->req.mode : NEW_MODE) & 0777U;
    struct stat st = {0};
    AUTO_CLOSE int fd = -1;

    if (exists)
        fd = place_open(j, p, O_WRONLY | O_APPEND, &st);
    else
        fd = openat(p->dir, p->name,
                    O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return exists ? fd : -errno;
    if (exists && !S_ISREG(st.st_mode))
        return -EISDIR;
    int r = receive(j, fd);
    if (r < 0 && exists && ftruncate(fd, st.st_size) < 0)
        return -errno;
    if (r < 0 && !exists)
        (void)unlinkat(p->dir, p->name, 0);
    if (r == 0)
        r = sync_all(j, fd, p);
    j->done.created = !exists;
    return r == 0 ? tell(j, fd) : r;
}

int op_write(struct job *j)
{
    struct place p;
    mode_t old = 0;
    int r = walk_to(j, j->path, j->req.flags & FILES_PARENTS, &p);

    if (r < 0)
        return r;
    if (p.name[0] == '\0')
        r = -EISDIR;
    if (r == 0)
        r = check_target(j, &p, &old); /* before the content comes: it may be large */
    if (r == 0)
        r = job_has(j, FILES_APPEND) ? append(j, &p, old != 0) : replace(j, &p);
    place_done(&p);
    return r;
}

/* Editing. */

static int load(struct job *j, const struct place *p, struct buf *ret)
{
    struct stat st;
    AUTO_CLOSE int fd = place_open(j, p, O_RDONLY, &st);

    if (fd < 0)
        return fd;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    int r = fd_read_to_buf(fd, ret);
    if (r != -ENOBUFS)
        return r;
    j->fail.n = FILES_EDIT_MAX;
    return job_fail(j, FILES_WHY_TOO_LARGE, EFBIG);
}

/* Where `a` begins next, or NULL. */
static const char *next_place(const struct job *j, const struct buf *text, const char *from)
{
    return memmem(from, (size_t)(text->data + text->len - from), j->a, j->req.a_len);
}

static int change(struct job *j, const struct buf *text, struct buf *ret)
{
    const char *from = text->data, *at;
    uint64_t places = 0;
    int r = 0;

    while (text->len > 0 && (at = next_place(j, text, from)) != NULL) {
        places++;
        if (r == 0)
            r = buf_append(ret, from, (size_t)(at - from));
        if (r == 0)
            r = buf_append(ret, j->b, j->req.b_len);
        from = at + j->req.a_len;
    }
    if (r == 0 && text->len > 0)
        r = buf_append(ret, from, (size_t)(text->data + text->len - from));
    j->fail.n = places;
    j->done.total = places;
    if (places == 0)
        return job_fail(j, FILES_WHY_NO_PLACE, ENOENT);
    if (places > 1 && !job_has(j, FILES_ALL))
        return job_fail(j, FILES_WHY_PLACES, EEXIST);
    if (r == 0)
        return 0;
    j->fail.n = FILES_EDIT_MAX;
    return job_fail(j, FILES_WHY_TOO_LARGE, EOVERFLOW);
}

static int edit_at(struct job *j, const struct place *p)
{
    AUTO_DONE(buf) struct buf text;
    AUTO_DONE(buf) struct buf changed;
    AUTO_CLOSE int lock = -1;
    struct draft d = {.fd = -1};
    mode_t old;

    buf_init(&text, FILES_EDIT_MAX);
    buf_init(&changed, FILES_EDIT_MAX);
    int r = lock_dir(j, p, &lock);
    if (r == 0)
        r = check_target(j, p, &old);
    if (r == 0)
        r = load(j, p, &text);
    if (r == 0)
        r = change(j, &text, &changed);
    if (r == 0)
        r = draft_open(&d, p);
    if (r == 0)
        r = fd_write_all(d.fd, buf_str(&changed), changed.len);
    if (r == 0)
        r = draft_commit(j, &d, p);
    draft_drop(&d, p);
    return r;
}

int op_edit(struct job *j)
{
    struct place p;

    if (j->req.a_len == 0)
        return -EINVAL;
    int r = walk_to(j, j->path, 0, &p);
    if (r < 0)
        return r;
    struct stat st;
    r = p.name[0] == '\0' ? -EISDIR : place_stat(&p, &st); /* what is missing is not made */
    if (r == 0)
        r = edit_at(j, &p);
    place_done(&p);
    return r;
}
