/* SPDX-License-Identifier: Apache-2.0 */

/* Stats files, and reads ranges of bytes or lines of them for box-files. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "inside/files/files_internal.h"

int op_stat(struct job *j)
{
    struct place p;
    struct stat st;
    int r = walk_to(j, j->path, j->req.flags & FILES_NOFOLLOW, &p);

    if (r < 0)
        return r;
    r = place_stat(&p, &st);
    place_done(&p);
    if (r < 0)
        return r;
    struct files_stat s = stat_of(&st);
    return job_send_stat(j, &s);
}

/* The regular file at the path, open for reading. */
static int open_file(struct job *j, struct stat *ret)
{
    struct place p;
    int r = walk_to(j, j->path, 0, &p);

    if (r < 0)
        return r;
    AUTO_CLOSE int fd = place_open(j, &p, O_RDONLY, ret);
    place_done(&p);
    if (fd < 0)
        return fd;
    return S_ISDIR(ret->st_mode) ? -EISDIR : TAKE_FD(fd);
}

/* Which bytes of `size` were asked for. */
static int choose_range(struct job *j, struct files_stat *s)
{
    const struct files_request *q = &j->req;
    uint64_t size = s->tag.size;

    s->begin = 0;
    s->end = size;
    if (!job_has(j, FILES_RANGE) || (job_has(j, FILES_IF_MATCH) && !tag_eq(&q->expect, &s->tag)))
        return 0;
    if (job_has(j, FILES_SUFFIX)) {
        s->begin = q->length < size ? size - q->length : 0;
    } else {
        s->begin = q->offset;
        s->end = q->length < size && q->offset < size - q->length ? q->offset + q->length : size;
    }
    if (s->begin < size && q->length > 0)
        return 0;
    j->fail.n = size;
    return job_fail(j, FILES_WHY_RANGE, ERANGE);
}

int op_read(struct job *j)
{
    static char data[FILES_DATA_MAX];
    struct stat st;
    AUTO_CLOSE int fd = open_file(j, &st);

    if (fd < 0)
        return fd;
    struct files_stat s = stat_of(&st);
    int r = choose_range(j, &s);
    if (r == 0)
        r = job_send_stat(j, &s);
    for (uint64_t at = s.begin; r == 0 && at < s.end;) {
        size_t want = s.end - at < sizeof(data) ? (size_t)(s.end - at) : sizeof(data);
        ssize_t n = pread(fd, data, want, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0) /* it is shorter than it was: what was promised is not there */
            return job_fail(j, FILES_WHY_CHANGED, 0);
        r = JOB_SEND(j, FILES_FRAME_DATA, {data, (size_t)n});
        at += (uint64_t)n;
    }
    return r;
}

/* Lines. */

int lines_next(struct lines *l, const char **ret, size_t *ret_len, bool *ret_end)
{
    if (l->pos == l->len) {
        ssize_t n;
        do
            n = read(l->fd, l->data, sizeof(l->data));
        while (n < 0 && errno == EINTR);
        if (n <= 0)
            return n < 0 ? -errno : 0;
        l->len = (size_t)n;
        l->pos = 0;
    }
    const char *at = l->data + l->pos;
    const char *newline = memchr(at, '\n', l->len - l->pos);
    *ret = at;
    *ret_end = newline != NULL;
    *ret_len = newline != NULL ? (size_t)(newline - at) : l->len - l->pos;
    l->pos += *ret_len + (newline != NULL);
    return 1;
}

/* What LINES has found so far. */
struct found {
    struct buf text;
    size_t whole;        /* of it, up to the last complete line */
    uint64_t line;       /* that is being read, from 1 */
    uint64_t n_lines;    /* in `whole` */
    uint64_t bytes, now; /* as they are in the file: of whole lines, and of this one so far */
    bool fresh;          /* nothing of this line was read yet */
};

/* A piece of a line that is wanted. False when there is no room for it. */
static bool take_piece(struct found *f, const char *data, size_t len, bool ends, uint64_t max)
{
    if (f->bytes + f->now + len + ends > max)
        return false;
    if (f->fresh && f->n_lines > 0)
        (void)buf_putc(&f->text, '\n');
    (void)buf_append(&f->text, data, len);
    f->now += len;
    return true;
}

static void end_line(struct found *f, bool wanted)
{
    if (wanted) {
        f->bytes += f->now + 1;
        f->whole = f->text.len;
        f->n_lines++;
    }
    f->now = 0;
    f->line++;
    f->fresh = true;
}

static int scan_lines(struct job *j, struct lines *l, struct found *f)
{
    const struct files_request *q = &j->req;
    const char *data = NULL;
    bool ends = false;
    size_t len = 0;
    int r;

    while ((r = lines_next(l, &data, &len, &ends)) > 0) {
        bool wanted = f->line >= q->offset;
        if (wanted && (f->n_lines >= q->length || !take_piece(f, data, len, ends, q->max))) {
            j->done.cut = f->n_lines >= q->length ? FILES_CUT_LINES : FILES_CUT_BYTES;
            j->done.next = f->line;
            return 0;
        }
        f->fresh = false;
        if (ends)
            end_line(f, wanted);
    }
    if (r == 0 && !f->fresh) /* the last line has no newline */
        end_line(f, f->line >= q->offset);
    return r;
}

int op_lines(struct job *j)
{
    static struct lines l;
    struct stat st;
    AUTO_CLOSE int fd = open_file(j, &st);

    if (fd < 0)
        return fd;
    struct files_stat s = stat_of(&st);
    struct found f = {.line = 1, .fresh = true};
    buf_init(&f.text, (size_t)(j->req.max < FILES_STRING_MAX ? j->req.max : FILES_STRING_MAX) + 16);
    l = (struct lines){.fd = fd};
    int r = scan_lines(j, &l, &f);
    if (r == 0)
        r = job_send_stat(j, &s);
    for (size_t at = 0; r == 0 && at < f.whole;) {
        size_t n = f.whole - at < FILES_DATA_MAX ? f.whole - at : FILES_DATA_MAX;
        r = JOB_SEND(j, FILES_FRAME_DATA, {f.text.data + at, n});
        at += n;
    }
    buf_done(&f.text);
    j->done.first = j->req.offset;
    j->done.last = j->req.offset + f.n_lines - 1;
    j->done.total = f.line - 1;
    return r;
}
