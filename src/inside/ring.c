/* SPDX-License-Identifier: Apache-2.0 */

/* Creates, fills, reads and checks the rings of a managed process's output. */

#include "inside/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "inside/wire.h"

#define READ_MAX (64U << 10) /* then others get their turn */
#define ERR_READ_MAX 4096U   /* so much of stderr is given up while more of it is read */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static char *out_of(const struct ring_head *head)
{
    return (char *)(uintptr_t)head + RING_HEAD_SIZE;
}

static struct ring_tail *tail_of(const struct ring_head *head)
{
    return (struct ring_tail *)((char *)(uintptr_t)head + RING_TAIL_AT);
}

static char *err_of(const struct ring_head *head)
{
    return out_of(head) + RING_OUT_SIZE;
}

/* The part of a ring from offset `at` on, as one or two pieces.
 * NOLINTNEXTLINE(readability-non-const-parameter): the pieces are written to. */
static int pieces(char *ring, size_t ring_size, uint64_t at, size_t len, struct iovec ret[2])
{
    size_t pos = (size_t)(at & (ring_size - 1));
    size_t first = len < ring_size - pos ? len : ring_size - pos;
    ret[0] = (struct iovec){.iov_base = ring + pos, .iov_len = first};
    ret[1] = (struct iovec){.iov_base = ring, .iov_len = len - first};
    return len > first ? 2 : 1;
}

int ring_writer_init(struct ring_writer *w)
{
    AUTO_CLOSE int fd = memfd_create("box-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create("box-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, RING_SIZE) < 0 || fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) < 0)
        return -errno;
    void *p = mmap(NULL, RING_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    *w = (struct ring_writer){.head = p};
    return TAKE_FD(fd);
}

void ring_writer_done(struct ring_writer *w)
{
    if (w->head != NULL)
        (void)munmap(w->head, RING_SIZE);
    w->head = NULL;
}

uint64_t ring_released(struct ring_writer *w)
{
    uint64_t begin = __atomic_load_n(&tail_of(w->head)->begin, __ATOMIC_SEQ_CST);
    if (begin > w->out_begin && begin <= w->out_end) /* nonsense releases nothing */
        w->out_begin = begin;
    return w->out_begin;
}

static size_t room(struct ring_writer *w)
{
    return RING_OUT_SIZE - (size_t)(w->out_end - ring_released(w));
}

size_t ring_room(struct ring_writer *w)
{
    size_t n = room(w);
    if (n == 0) {
        w->held = true;
        __atomic_store_n(&w->head->held, 1, __ATOMIC_SEQ_CST);
        n = room(w);
    }
    if (n > 0 && w->held) {
        w->held = false;
        __atomic_store_n(&w->head->held, 0, __ATOMIC_SEQ_CST);
    }
    return n;
}

/* Straight into the ring. Without memory for a page of it the call fails; a copy of our own would
 * be the end of us. */
static ssize_t read_pieces(int fd, const struct iovec *iov, int n)
{
    ssize_t got;
    do
        got = readv(fd, iov, n);
    while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

ssize_t ring_fill_out(struct ring_writer *w, int fd)
{
    struct iovec iov[2];
    size_t left = ring_room(w);
    if (left == 0)
        return -ENOBUFS;
    int n_iov =
        pieces(out_of(w->head), RING_OUT_SIZE, w->out_end, left < READ_MAX ? left : READ_MAX, iov);
    ssize_t n = read_pieces(fd, iov, n_iov);
    if (n == 0) {
        w->out_eof = true;
        __atomic_store_n(&w->head->out_eof, 1, __ATOMIC_SEQ_CST);
    } else if (n > 0) {
        w->out_end += (size_t)n;
        __atomic_store_n(&w->head->out_end, w->out_end, __ATOMIC_SEQ_CST);
    }
    return n;
}

static uint64_t err_kept(uint64_t end)
{
    return end > RING_ERR_SIZE ? end - RING_ERR_SIZE : 0;
}

ssize_t ring_fill_err(struct ring_writer *w, int fd)
{
    struct iovec iov[2];
    int n_iov = pieces(err_of(w->head), RING_ERR_SIZE, w->err_end, ERR_READ_MAX, iov);
    /* Before the first byte changes, so that a reader which copies meanwhile can tell. */
    __atomic_store_n(&w->head->err_begin, err_kept(w->err_end + ERR_READ_MAX), __ATOMIC_SEQ_CST);
    ssize_t n = read_pieces(fd, iov, n_iov);
    if (n > 0)
        w->err_end += (size_t)n;
    __atomic_store_n(&w->head->err_end, w->err_end, __ATOMIC_RELEASE);
    __atomic_store_n(&w->head->err_begin, err_kept(w->err_end), __ATOMIC_RELEASE);
    return n;
}

/* The bytes between a place in the ring and `data`. */
static void ring_copy(const struct ring_head *head, uint64_t at, void *data, size_t len, bool put)
{
    struct iovec iov[2];
    (void)pieces(out_of(head), RING_OUT_SIZE, at, len, iov);
    for (int i = 0; i < 2; i++) {
        memcpy(put ? iov[i].iov_base : data, put ? data : iov[i].iov_base, iov[i].iov_len);
        data = (char *)data + iov[i].iov_len;
    }
}

/* The first record that stays when so many bytes follow. One that makes no sense takes all of the
 * others along. */
static uint64_t log_kept(const struct ring_writer *w, size_t more)
{
    uint64_t begin = w->out_begin;
    while (w->out_end + more - begin > RING_OUT_SIZE) {
        struct inside_log old;
        ring_copy(w->head, begin, &old, sizeof(old), false);
        size_t size = inside_log_size(&old, (size_t)(w->out_end - begin));
        begin = size > 0 ? begin + size : w->out_end;
    }
    return begin;
}

ssize_t ring_fill_log(struct ring_writer *w, int fd, uint32_t stream)
{
    struct inside_log record = {.stream = stream};
    struct timespec now = {0};
    struct iovec iov[2];
    int n_iov =
        pieces(out_of(w->head), RING_OUT_SIZE, w->out_end + sizeof(record), INSIDE_LOG_MAX, iov);
    /* Before the first byte changes, as above. */
    uint64_t kept = log_kept(w, sizeof(record) + INSIDE_LOG_MAX);
    __atomic_store_n(&w->head->log_begin, kept, __ATOMIC_SEQ_CST);
    ssize_t n = read_pieces(fd, iov, n_iov);
    if (n > 0) {
        (void)clock_gettime(CLOCK_REALTIME, &now);
        record.time_ns = (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
        record.len = (uint32_t)n;
        w->out_begin = kept; /* the heads of those before are overwritten now, or may be */
        ring_copy(w->head, w->out_end, &record, sizeof(record), true);
        w->out_end += sizeof(record) + (size_t)n;
        __atomic_store_n(&w->head->out_end, w->out_end, __ATOMIC_SEQ_CST);
    }
    __atomic_store_n(&w->head->log_begin, w->out_begin, __ATOMIC_SEQ_CST);
    return n;
}

void ring_end_log(struct ring_writer *w)
{
    w->out_eof = true;
    __atomic_store_n(&w->head->out_eof, 1, __ATOMIC_SEQ_CST);
}

bool ring_must_tell(const struct ring_writer *w)
{
    uint64_t waits = __atomic_load_n(&tail_of(w->head)->waits, __ATOMIC_SEQ_CST);
    /* A reader that was told before and has not looked yet is about to look. */
    return waits > w->told && waits <= ring_position(w->out_end, w->out_eof);
}

void ring_told(struct ring_writer *w)
{
    w->told = ring_position(w->out_end, w->out_eof);
}

void ring_reader_left(struct ring_writer *w)
{
    (void)ring_released(w);
    w->told = 0;
    __atomic_store_n(&tail_of(w->head)->waits, 0, __ATOMIC_SEQ_CST);
}

/* A memfd that can neither shrink (reading it would kill us) nor grow, of the right size, in
 * ordinary pages. A file of the sandbox can have none of these seals. */
static bool is_ring(int fd)
{
    struct stat st;
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &st) == 0 &&
           st.st_size == RING_SIZE && fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

int ring_reader_init(struct ring_reader *r, int fd, uint64_t begin, bool log)
{
    if (!is_ring(fd))
        return -EBADMSG;
    void *p = mmap(NULL, RING_SIZE, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    *r = (struct ring_reader){.head = p, .begin = begin, .end = begin, .log = log};
    if (mprotect(p, RING_HEAD_SIZE, PROT_READ | PROT_WRITE) == 0 && ring_reader_look(r) >= 0)
        return 0;
    ring_reader_done(r);
    return -EBADMSG;
}

void ring_reader_done(struct ring_reader *r)
{
    if (r->head != NULL)
        (void)munmap((void *)(uintptr_t)r->head, RING_SIZE);
    r->head = NULL;
}

/* The end is looked at first: the beginning can have moved beyond it meanwhile. */
static uint64_t log_begin(const struct ring_reader *r, uint64_t end)
{
    uint64_t begin = __atomic_load_n(&r->head->log_begin, __ATOMIC_SEQ_CST);
    return begin < end ? begin : end;
}

uint64_t ring_reader_begin(const struct ring_reader *r)
{
    return r->log && r->head != NULL ? log_begin(r, r->end) : r->begin;
}

int ring_reader_look(struct ring_reader *r)
{
    if (r->broken || r->head == NULL)
        return -EBADMSG;
    /* The flag first: what it says is about the end that was there before it. */
    bool eof = __atomic_load_n(&r->head->out_eof, __ATOMIC_SEQ_CST) != 0;
    uint64_t end = __atomic_load_n(&r->head->out_end, __ATOMIC_SEQ_CST);
    uint64_t begin = r->log ? log_begin(r, end) : r->begin;
    if (end < r->end || end - begin > RING_OUT_SIZE || (r->eof && (!eof || end != r->end))) {
        r->broken = true;
        return -EBADMSG;
    }
    int news = end != r->end || eof != r->eof;
    r->end = end;
    r->eof = eof;
    return news;
}

int ring_reader_wait(struct ring_reader *r)
{
    if (r->head != NULL)
        __atomic_store_n(&tail_of(r->head)->waits, 1 + ring_position(r->end, r->eof),
                         __ATOMIC_SEQ_CST);
    return ring_reader_look(r);
}

static void copy_out(char *buf, const struct iovec iov[2])
{
    memcpy(buf, iov[0].iov_base, iov[0].iov_len);
    if (iov[1].iov_len > 0)
        memcpy(buf + iov[0].iov_len, iov[1].iov_base, iov[1].iov_len);
}

ssize_t ring_read(const struct ring_reader *r, uint64_t from, char *buf, size_t size)
{
    struct iovec iov[2];
    if (from < ring_reader_begin(r) || from > r->end || r->head == NULL)
        return -ERANGE;
    size_t n = (size_t)(r->end - from) < size ? (size_t)(r->end - from) : size;
    if (n == 0)
        return 0;
    (void)pieces(out_of(r->head), RING_OUT_SIZE, from, n, iov);
    copy_out(buf, iov);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return from < ring_reader_begin(r) ? -ERANGE : (ssize_t)n; /* overwritten meanwhile */
}

/* What of stderr is there; false: nothing that could be read. */
static bool err_window(const struct ring_reader *r, uint64_t *ret_begin, uint64_t *ret_end)
{
    if (r->head == NULL)
        return false;
    uint64_t end = __atomic_load_n(&r->head->err_end, __ATOMIC_ACQUIRE);
    uint64_t begin = __atomic_load_n(&r->head->err_begin, __ATOMIC_ACQUIRE);
    *ret_begin = begin < err_kept(end) ? err_kept(end) : begin;
    *ret_end = end;
    return *ret_begin < end;
}

/* Copies, and drops from the front what the writer has overwritten meanwhile. */
static size_t copy_err(const struct ring_reader *r, uint64_t from, size_t n, char *buf)
{
    struct iovec iov[2];
    (void)pieces(err_of(r->head), RING_ERR_SIZE, from, n, iov);
    copy_out(buf, iov);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    uint64_t now = __atomic_load_n(&r->head->err_begin, __ATOMIC_ACQUIRE);
    size_t lost = now <= from ? 0 : now - from < n ? (size_t)(now - from) : n;
    memmove(buf, buf + lost, n - lost);
    return n - lost;
}

size_t ring_read_err(const struct ring_reader *r, char *buf, size_t size)
{
    uint64_t begin, end;
    if (size == 0 || !err_window(r, &begin, &end))
        return 0;
    size_t n = (size_t)(end - begin) < size ? (size_t)(end - begin) : size;
    return copy_err(r, end - n, n, buf);
}

size_t ring_read_err_from(const struct ring_reader *r, uint64_t *at, char *buf, size_t size)
{
    uint64_t begin, end;
    if (size == 0 || !err_window(r, &begin, &end) || *at >= end)
        return 0;
    if (*at < begin)
        *at = begin;
    size_t n = (size_t)(end - *at) < size ? (size_t)(end - *at) : size;
    size_t got = copy_err(r, *at, n, buf);
    *at += n;
    return got;
}

int ring_reader_release(struct ring_reader *r, uint64_t until)
{
    if (r->log || until < r->begin || until > r->end)
        return -ERANGE;
    r->begin = until;
    if (r->head == NULL)
        return 0;
    __atomic_store_n(&tail_of(r->head)->begin, until, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&r->head->held, __ATOMIC_SEQ_CST) != 0;
}
