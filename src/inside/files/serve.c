/* SPDX-License-Identifier: Apache-2.0 */

/* Reads the one request of box-files, runs its operation and sends the answer. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/files/files.h"
#include "inside/files/files_internal.h"

int job_fail(struct files_job *j, enum files_why why, int error)
{
    j->fail.why = why;
    j->fail.error = error;
    return -EPROTO;
}

bool job_has(const struct files_job *j, enum files_flag flag)
{
    return (j->req.flags & flag) != 0;
}

int job_send(struct files_job *j, enum files_type type, const struct files_part *parts, size_t n)
{
    char frame[sizeof(struct files_head) + FILES_FRAME_MAX];
    struct files_head h = {.type = type};
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (parts[i].len > FILES_FRAME_MAX - len)
            return -EMSGSIZE;
        if (parts[i].len > 0)
            memcpy(frame + sizeof(h) + len, parts[i].p, parts[i].len);
        len += parts[i].len;
    }
    h.len = (uint32_t)len;
    memcpy(frame, &h, sizeof(h));
    /* One write, so that what a peer sees is mostly whole frames. */
    return fd_write_all(j->out, frame, sizeof(h) + len);
}

static int64_t ns_of(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

struct files_tag tag_of(const struct stat *st)
{
    return (struct files_tag){.ino = st->st_ino,
                              .size = (uint64_t)st->st_size,
                              .mtime_ns = ns_of(&st->st_mtim),
                              .ctime_ns = ns_of(&st->st_ctim)};
}

bool tag_eq(const struct files_tag *a, const struct files_tag *b)
{
    return a->ino == b->ino && a->size == b->size && a->mtime_ns == b->mtime_ns &&
           a->ctime_ns == b->ctime_ns;
}

struct files_stat stat_of(const struct stat *st)
{
    return (struct files_stat){.tag = tag_of(st),
                               .mode = st->st_mode,
                               .uid = st->st_uid,
                               .gid = st->st_gid,
                               .nlink = (uint32_t)st->st_nlink};
}

int job_send_stat(struct files_job *j, const struct stat *st)
{
    struct files_stat s = stat_of(st);
    return JOB_SEND(j, FILES_FRAME_STAT, {&s, sizeof(s)});
}

ssize_t job_receive(struct files_job *j, char *data, size_t size)
{
    struct files_head h;
    if (fd_read_full(j->in, &h, sizeof(h)) != (ssize_t)sizeof(h))
        return job_fail(j, FILES_WHY_CUT_OFF, 0);
    if (h.type == FILES_FRAME_END)
        return 0;
    if (h.type != FILES_FRAME_DATA || h.len == 0 || h.len > size)
        return job_fail(j, FILES_WHY_REQUEST, EBADMSG);
    if (fd_read_full(j->in, data, h.len) != (ssize_t)h.len)
        return job_fail(j, FILES_WHY_CUT_OFF, 0);
    return (ssize_t)h.len;
}

static int read_string(struct files_job *j, uint32_t len, uint32_t max, char **ret)
{
    if (len > max)
        return -EBADMSG;
    *ret = xcalloc(1, (size_t)len + 1);
    return fd_read_full(j->in, *ret, len) == (ssize_t)len ? 0 : -EBADMSG;
}

static job_fn *find_op(uint32_t op)
{
    static const struct job_op *const tables[] = {job_read_ops, job_write_ops, job_search_ops,
                                                  job_watch_ops};
    for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
        for (const struct job_op *o = tables[i]; o->fn != NULL; o++)
            if (o->op == op)
                return o->fn;
    return NULL;
}

static int read_request(struct files_job *j)
{
    const struct files_request *q = &j->req;
    if (fd_read_full(j->in, &j->req, sizeof(j->req)) != (ssize_t)sizeof(j->req) ||
        q->version != FILES_WIRE_VERSION || find_op(q->op) == NULL)
        return -EBADMSG;
    int r = read_string(j, q->root_len, FILES_PATH_MAX - 1, &j->root);
    if (r == 0)
        r = read_string(j, q->path_len, FILES_PATH_MAX - 1, &j->path);
    if (r == 0)
        r = read_string(j, q->a_len, FILES_STRING_MAX, &j->a);
    if (r == 0)
        r = read_string(j, q->b_len, FILES_STRING_MAX, &j->b);
    if (r < 0)
        return r;
    /* A name cannot hold a NUL; what a caller meant by one is not ours to guess. */
    return strlen(j->root) != q->root_len || strlen(j->path) != q->path_len ? -EINVAL : 0;
}

static int run_request(struct files_job *j)
{
    int r = read_request(j);
    if (r < 0)
        return job_fail(j, r == -EINVAL ? FILES_WHY_ERRNO : FILES_WHY_REQUEST, -r);
    j->root_fd = open(j->root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    r = j->root_fd < 0 ? -errno : find_op(j->req.op)(j);
    if (r < 0 && r != -EPROTO)
        return job_fail(j, FILES_WHY_ERRNO, -r);
    return r;
}

int files_serve(int in, int out)
{
    static struct files_job j;

    /* Programs of our own user id run beside us: they are not to look into us, or write. */
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    (void)prctl(PR_SET_NAME, "box-files", 0, 0, 0);
    j = (struct files_job){.in = in, .out = out, .root_fd = -1};
    int r = run_request(&j);
    if (r < 0)
        r = JOB_SEND(&j, FILES_FRAME_FAIL, {&j.fail, sizeof(j.fail)}, {j.text, strlen(j.text)});
    else
        r = JOB_SEND(&j, FILES_FRAME_DONE, {&j.done, sizeof(j.done)});
    fd_close_many(&j.root_fd, 1);
    free(j.root);
    free(j.path);
    free(j.a);
    free(j.b);
    return r < 0 ? 1 : 0;
}
