/* SPDX-License-Identifier: Apache-2.0 */

/* Reads for box-files: what a path names, content by bytes or lines, a page of a directory. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "inside/files/files_internal.h"

static int op_stat(struct files_job *j)
{
    AUTO_DONE(files_place) struct files_place p = {.dir = -1};
    struct stat st;
    int r = walk_to(j, j->path, j->req.flags & FILES_NOFOLLOW, &p);
    if (r == 0)
        r = place_stat(&p, &st);
    return r < 0 ? r : job_send_stat(j, &st);
}

/* The regular file at the path, open for reading. */
static int open_file(struct files_job *j, struct stat *ret)
{
    AUTO_CLOSE int fd = job_open(j, ret);
    if (fd < 0)
        return fd;
    return S_ISDIR(ret->st_mode) ? -EISDIR : TAKE_FD(fd);
}

/* Which bytes of `size` were asked for. */
static int choose_range(struct files_job *j, struct files_stat *s)
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

static int op_read(struct files_job *j)
{
    static char data[FILES_DATA_MAX];
    struct stat st;
    AUTO_CLOSE int fd = open_file(j, &st);
    if (fd < 0)
        return fd;
    struct files_stat s = stat_of(&st);
    int r = choose_range(j, &s);
    if (r == 0)
        r = JOB_SEND(j, FILES_FRAME_STAT, {&s, sizeof(s)});
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
struct lines_found {
    struct buf text;
    size_t whole;        /* of it, up to the last complete line */
    uint64_t line;       /* that is being read, from 1 */
    uint64_t n_lines;    /* in `whole` */
    uint64_t bytes, now; /* as they are in the file: of whole lines, and of this one so far */
    bool fresh;          /* nothing of this line was read yet */
};

/* A piece of a line that is wanted. False when there is no room for it. */
static bool take_piece(struct lines_found *f, const char *data, size_t len, bool ends, uint64_t max)
{
    if (f->bytes + f->now + len + ends > max)
        return false;
    if (f->fresh && f->n_lines > 0)
        (void)buf_putc(&f->text, '\n');
    (void)buf_append(&f->text, data, len);
    f->now += len;
    return true;
}

static void end_line(struct lines_found *f, bool wanted)
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

static int scan_lines(struct files_job *j, struct lines *l, struct lines_found *f)
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

static int op_lines(struct files_job *j)
{
    static struct lines l;
    struct stat st;
    AUTO_CLOSE int fd = open_file(j, &st);
    if (fd < 0)
        return fd;
    struct lines_found f = {.line = 1, .fresh = true};
    buf_init(&f.text, (size_t)(j->req.max < FILES_STRING_MAX ? j->req.max : FILES_STRING_MAX) + 16);
    l = (struct lines){.fd = fd};
    int r = scan_lines(j, &l, &f);
    if (r == 0)
        r = job_send_stat(j, &st);
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

/* Directories. */

/* The first names behind a given one, of a directory of any size, in memory for twice as many. */
struct list_page {
    char **names; /* owned, each */
    size_t n, want;
    uint64_t total;
    bool more;
};

static void page_sort(struct list_page *p)
{
    if (p->n > 0)
        qsort(p->names, p->n, sizeof(p->names[0]), tree_by_name);
    while (p->n > p->want) {
        free(p->names[--p->n]);
        p->more = true;
    }
}

static void page_add(struct list_page *p, const char *name, const char *after)
{
    p->total++;
    if (strcmp(name, after) <= 0)
        return;
    if (p->n == 2 * p->want)
        page_sort(p);
    p->names[p->n++] = xstrdup(name);
}

static int page_fill(int fd, struct list_page *p, const char *after)
{
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        int error = errno;
        (void)close(fd);
        return -error;
    }
    const struct dirent *e;
    while ((errno = 0, e = readdir(dir)) != NULL)
        if (!str_eq(e->d_name, ".") && !str_eq(e->d_name, ".."))
            page_add(p, e->d_name, after);
    int error = errno;
    (void)closedir(dir);
    page_sort(p);
    return -error;
}

static int send_entry(struct files_job *j, int dir, const char *name)
{
    char target[FILES_PATH_MAX];
    struct stat st;
    ssize_t n = 0;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno; /* it has gone meanwhile */
    if (S_ISLNK(st.st_mode))
        n = readlinkat(dir, name, target, sizeof(target));
    struct files_entry e = {.stat = stat_of(&st),
                            .name_len = (uint32_t)strlen(name),
                            .target_len = n > 0 ? (uint32_t)n : 0};
    return JOB_SEND(j, FILES_FRAME_ENTRY, {&e, sizeof(e)}, {name, e.name_len},
                    {target, e.target_len});
}

static int op_list(struct files_job *j)
{
    struct list_page page = {.want = j->req.length};
    AUTO_CLOSE int fd = job_open_dir(j);
    if (fd < 0)
        return fd;
    if (page.want == 0 || page.want > FILES_LIST_MAX)
        return -EINVAL;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0)
        return -errno;
    page.names = xcalloc(2 * page.want, sizeof(page.names[0]));
    int r = page_fill(own, &page, j->a);
    for (size_t i = 0; i < page.n; i++) {
        if (r == 0)
            r = send_entry(j, fd, page.names[i]);
        free(page.names[i]);
    }
    free(page.names);
    j->done.total = page.total;
    j->done.cut = page.more ? FILES_CUT_ENTRIES : FILES_CUT_NONE;
    return r;
}

const struct job_op job_read_ops[] = {
    {FILES_STAT, op_stat},
    {FILES_READ, op_read},
    {FILES_LINES, op_lines},
    {FILES_LIST, op_list},
    {0, NULL},
};
