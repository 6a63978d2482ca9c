/* SPDX-License-Identifier: Apache-2.0 */

/* Changes files for box-files: writes, edits, removes, makes and moves them. A new content takes
 * its place by rename. */

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
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "inside/files/files_internal.h"

#define LOCK_TRIES 500 /* of ten milliseconds */
#define LOCK_NS 10000000L
#define NEW_MODE 0644U

/* A file that is not there yet: beside its place, under a name of its own. */
struct file_draft {
    int fd; /* owned */
    char name[32];
};

static int draft_open(struct file_draft *d, const struct files_place *p)
{
    char id[17];
    id_random(id);
    (void)snprintf(d->name, sizeof(d->name), ".box-%s.tmp", id);
    d->fd = openat(p->dir, d->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return d->fd < 0 ? -errno : 0;
}

static void draft_drop(struct file_draft *d, const struct files_place *p)
{
    if (d->fd >= 0)
        (void)unlinkat(p->dir, d->name, 0);
    fd_close_many(&d->fd, 1);
}

/* Conditional changes of one directory exclude each other by a lock on it. */
static int lock_dir(struct files_job *j, const struct files_place *p, int *ret)
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
static int check_target(struct files_job *j, const struct files_place *p, mode_t *ret_mode)
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

static int sync_all(struct files_job *j, int fd, const struct files_place *p)
{
    if (!job_has(j, FILES_SYNC))
        return 0;
    AUTO_CLOSE int dir = openat(p->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fsync(fd) < 0 || (dir >= 0 && fsync(dir) < 0))
        return -errno;
    return 0;
}

static int send_stat(struct files_job *j, int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    return job_send_stat(j, &st);
}

/* The draft takes its place, in one step. */
static int draft_commit(struct files_job *j, struct file_draft *d, const struct files_place *p)
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
        r = send_stat(j, d->fd);
    fd_close_many(&d->fd, 1);
    return r;
}

static int receive_content(struct files_job *j, int fd)
{
    static char data[FILES_FRAME_MAX];
    ssize_t n;
    int r = 0;
    while (r == 0 && (n = job_receive(j, data, sizeof(data))) != 0)
        r = n < 0 ? (int)n : fd_write_all(fd, data, (size_t)n);
    return r;
}

static int replace_file(struct files_job *j, const struct files_place *p)
{
    struct file_draft d = {.fd = -1};
    AUTO_CLOSE int lock = -1;
    int r = draft_open(&d, p);
    if (r == 0)
        r = receive_content(j, d.fd);
    if (r == 0 && (job_has(j, FILES_MUST_EXIST) || job_has(j, FILES_MUST_MATCH)))
        r = lock_dir(j, p, &lock);
    if (r == 0)
        r = draft_commit(j, &d, p);
    draft_drop(&d, p);
    return r;
}

/* Behind what is there. What was begun and cannot be finished is taken away again. */
static int append_file(struct files_job *j, const struct files_place *p, bool exists)
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
    int r = receive_content(j, fd);
    if (r < 0 && exists && ftruncate(fd, st.st_size) < 0)
        return -errno;
    if (r < 0 && !exists)
        (void)unlinkat(p->dir, p->name, 0);
    if (r == 0)
        r = sync_all(j, fd, p);
    j->done.created = !exists;
    return r == 0 ? send_stat(j, fd) : r;
}

static int op_write(struct files_job *j)
{
    AUTO_DONE(files_place) struct files_place p = {.dir = -1};
    mode_t old = 0;
    int r = walk_to(j, j->path, j->req.flags & FILES_PARENTS, &p);
    if (r == 0) /* before the content comes: it may be large */
        r = p.name[0] == '\0' ? -EISDIR : check_target(j, &p, &old);
    if (r < 0)
        return r;
    return job_has(j, FILES_APPEND) ? append_file(j, &p, old != 0) : replace_file(j, &p);
}

/* Editing. */

static int load_text(struct files_job *j, const struct files_place *p, struct buf *ret)
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

static int change_text(struct files_job *j, const struct buf *text, struct buf *ret)
{
    const char *from = text->len > 0 ? text->data : "", *end = from + text->len, *at;
    uint64_t places = 0;
    int r = 0;
    while (text->len > 0 && (at = memmem(from, (size_t)(end - from), j->a, j->req.a_len)) != NULL) {
        places++;
        if (r == 0)
            r = buf_append(ret, from, (size_t)(at - from));
        if (r == 0)
            r = buf_append(ret, j->b, j->req.b_len);
        from = at + j->req.a_len;
    }
    if (r == 0 && text->len > 0)
        r = buf_append(ret, from, (size_t)(end - from));
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

static int edit_at(struct files_job *j, const struct files_place *p)
{
    AUTO_DONE(buf) struct buf text;
    AUTO_DONE(buf) struct buf changed;
    AUTO_CLOSE int lock = -1;
    struct file_draft d = {.fd = -1};
    mode_t old;
    buf_init(&text, FILES_EDIT_MAX);
    buf_init(&changed, FILES_EDIT_MAX);
    int r = lock_dir(j, p, &lock);
    if (r == 0)
        r = check_target(j, p, &old);
    if (r == 0)
        r = load_text(j, p, &text);
    if (r == 0)
        r = change_text(j, &text, &changed);
    if (r == 0)
        r = draft_open(&d, p);
    if (r == 0)
        r = fd_write_all(d.fd, buf_str(&changed), changed.len);
    if (r == 0)
        r = draft_commit(j, &d, p);
    draft_drop(&d, p);
    return r;
}

static int op_edit(struct files_job *j)
{
    AUTO_DONE(files_place) struct files_place p = {.dir = -1};
    struct stat st;
    if (j->req.a_len == 0)
        return -EINVAL;
    int r = walk_to(j, j->path, 0, &p);
    if (r == 0) /* what is missing is not made */
        r = p.name[0] == '\0' ? -EISDIR : place_stat(&p, &st);
    return r == 0 ? edit_at(j, &p) : r;
}

/* Names. */

/* Tells what is there now. */
static int send_place(struct files_job *j, const struct files_place *p)
{
    struct stat st;
    int r = place_stat(p, &st);
    return r < 0 ? r : job_send_stat(j, &st);
}

static int remove_at(struct files_job *j, const struct files_place *p)
{
    struct stat st;
    int r = place_stat(p, &st);
    if (r == -ENOENT && (job_has(j, FILES_MUST_EXIST) || job_has(j, FILES_MUST_MATCH)))
        return job_fail(j, FILES_WHY_CHANGED, ENOENT);
    if (r < 0)
        return r;
    struct files_tag tag = tag_of(&st);
    if (job_has(j, FILES_MUST_MATCH) && !tag_eq(&tag, &j->req.expect))
        return job_fail(j, FILES_WHY_CHANGED, 0);
    if (S_ISDIR(st.st_mode) && job_has(j, FILES_RECURSIVE))
        return path_remove_tree_at(p->dir, p->name);
    return unlinkat(p->dir, p->name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0) < 0 ? -errno : 0;
}

static int op_remove(struct files_job *j)
{
    AUTO_DONE(files_place) struct files_place p = {.dir = -1};
    int r = walk_to(j, j->path, FILES_NOFOLLOW, &p);
    if (r < 0)
        return r;
    return p.name[0] == '\0' ? -EBUSY : remove_at(j, &p);
}

static int op_mkdir(struct files_job *j)
{
    AUTO_DONE(files_place) struct files_place p = {.dir = -1};
    struct stat st;
    int r = walk_to(j, j->path, j->req.flags & FILES_PARENTS, &p);
    if (r < 0)
        return r;
    bool there = p.name[0] == '\0';
    if (!there && mkdirat(p.dir, p.name, (j->req.mode != 0 ? j->req.mode : 0755U) & 0777U) < 0)
        r = -errno;
    /* As `mkdir -p`: one that is there is fine. */
    if ((there && !job_has(j, FILES_PARENTS)) ||
        (r == -EEXIST &&
         (!job_has(j, FILES_PARENTS) || place_stat(&p, &st) < 0 || !S_ISDIR(st.st_mode))))
        r = -EEXIST;
    else if (r == -EEXIST)
        there = true, r = 0;
    j->done.created = r == 0 && !there;
    return r == 0 ? send_place(j, &p) : r;
}

static int op_move(struct files_job *j)
{
    AUTO_DONE(files_place) struct files_place from = {.dir = -1};
    AUTO_DONE(files_place) struct files_place to = {.dir = -1};
    if (strlen(j->a) != j->req.a_len || j->req.a_len >= FILES_PATH_MAX)
        return -EINVAL;
    int r = walk_to(j, j->path, FILES_NOFOLLOW, &from);
    if (r == 0)
        r = walk_to(j, j->a, (j->req.flags & FILES_PARENTS) | FILES_NOFOLLOW, &to);
    if (r == 0 && (from.name[0] == '\0' || to.name[0] == '\0'))
        r = -EBUSY;
    unsigned how = job_has(j, FILES_MUST_NOT_EXIST) ? RENAME_NOREPLACE : 0;
    if (r == 0 && renameat2(from.dir, from.name, to.dir, to.name, how) < 0)
        r = errno == EEXIST && how != 0 ? job_fail(j, FILES_WHY_CHANGED, EEXIST) : -errno;
    return r == 0 ? send_place(j, &to) : r;
}

const struct job_op job_write_ops[] = {
    {FILES_WRITE, op_write}, {FILES_EDIT, op_edit}, {FILES_REMOVE, op_remove},
    {FILES_MKDIR, op_mkdir}, {FILES_MOVE, op_move}, {0, NULL},
};
