/* SPDX-License-Identifier: Apache-2.0 */

/* Reads the audit log: records by number, found by binary search, and the verification of the chain
 * over its files. */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "http/codec/crypto.h"
#include "policy/audit/audit_internal.h"

/* The chain ------------------------------------------------------------------------------------ */

#define CHUNK (64U << 10)

const char audit_no_head[] = "0000000000000000000000000000000000000000000000000000000000000000";

int audit_line_place(const char *line, size_t len, struct audit_place *ret)
{
    AUTO(json) struct json *v = NULL;

    if (json_parse(line, len, &v, NULL) < 0)
        return -EBADMSG;
    const struct json *seq = json_get(v, "seq"), *lost = json_get(v, "lost");
    const char *prev = json_str(json_get(v, "prev"));
    if (json_type(seq) != JSON_INT || json_int(seq) < 1 || json_int(lost) < 0 || prev == NULL ||
        strlen(prev) != AUDIT_HASH_LEN || strspn(prev, "0123456789abcdef") != AUDIT_HASH_LEN)
        return -EBADMSG;
    ret->seq = (uint64_t)json_int(seq);
    ret->lost = (uint64_t)json_int(lost);
    return str_copy(ret->prev, sizeof(ret->prev), prev);
}

static const char *wrong_with(const struct audit_chain *c, const char *line, size_t len,
                              struct audit_place *ret)
{
    if (len > AUDIT_LINE_MAX)
        return "the line is too long";
    if (audit_line_place(line, len, ret) < 0)
        return "the line is no record";
    if (c->last == 0)
        return ret->seq == 1 && !str_eq(ret->prev, audit_no_head)
                   ? "the first record names one before it"
                   : NULL;
    if (!str_eq(ret->prev, c->head))
        return "the record does not follow from the line before";
    if (ret->seq != c->last + 1)
        return "the number does not follow from the line before";
    return NULL;
}

/* 0: it is right; 1: it is not. */
static int check_line(struct audit_chain *c, const char *line, size_t len)
{
    struct audit_place place = {0};

    c->bad_line++;
    c->bad_reason = wrong_with(c, line, len, &place);
    if (c->bad_reason == NULL && http_sha256_hex(line, len, c->head) < 0)
        c->bad_reason = "the digest cannot be computed";
    if (c->bad_reason != NULL)
        return 1;
    if (c->first == 0)
        c->first = place.seq;
    c->last = place.seq;
    c->lost += place.lost;
    c->found = c->found || (c->wanted != NULL && str_eq(c->wanted, c->head));
    return 0;
}

/* Whole lines of what has been read; the rest stays. */
static int check_lines(struct audit_chain *c, struct buf *text)
{
    size_t at = 0;
    int r = 0;

    while (r == 0) {
        const char *end = memchr(text->data + at, '\n', text->len - at);
        if (end == NULL)
            break;
        size_t len = (size_t)(end - (text->data + at));
        r = check_line(c, text->data + at, len);
        at += len + 1;
    }
    buf_consume(text, at);
    return r;
}

static int check_rest(struct audit_chain *c, const struct buf *text)
{
    if (text->len == 0)
        return 0;
    c->bad_line++;
    c->bad_reason =
        text->len > AUDIT_LINE_MAX ? "the line is too long" : "the last line is not complete";
    return 1;
}

int audit_verify(struct audit_chain *chain, int fd, const char *name, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(AUDIT_LINE_MAX + 1 + CHUNK);
    int r = 0;

    chain->bad_line = 0;
    while (r == 0 && text.len <= AUDIT_LINE_MAX) {
        r = buf_reserve(&text, CHUNK);
        if (r < 0)
            return err_sys(err, -r, "read '%s'", name);
        ssize_t n = fd_read_full(fd, text.data + text.len, CHUNK);
        if (n < 0)
            return err_sys(err, (int)-n, "read '%s'", name);
        text.len += (size_t)n;
        r = n == 0 ? 2 : check_lines(chain, &text);
    }
    if (r != 1)
        r = check_rest(chain, &text);
    if (r == 1)
        chain->bad_file = name;
    return r;
}

/* Reading back --------------------------------------------------------------------------------- */

#define WINDOW (AUDIT_LINE_MAX + 1) /* holds one whole line wherever it begins */
#define READ_BYTES (1U << 20)       /* of lines, in one call */

/* A file of the log that is read. */
struct audit_source {
    int fd; /* owned */
    uint64_t size;
    struct buf window; /* bytes from `at` on */
    uint64_t at;
};

static int load(struct audit_source *s, uint64_t at)
{
    buf_reset(&s->window);
    int r = buf_reserve(&s->window, 2 * (size_t)WINDOW);
    if (r < 0)
        return r;
    uint64_t left = at < s->size ? s->size - at : 0;
    size_t want = left < 2 * (uint64_t)WINDOW ? (size_t)left : 2 * (size_t)WINDOW;
    ssize_t n = pread(s->fd, s->window.data, want, (off_t)at);
    if (n < 0)
        return -errno;
    s->window.len = (size_t)n;
    s->at = at;
    return 0;
}

/* The line at `at`, which is where one begins. 1, 0 at the end, or a negative errno. */
static int line_at(struct audit_source *s, uint64_t at, const char **ret, size_t *ret_len)
{
    const char *end = NULL;

    if (at >= s->at && at < s->at + s->window.len)
        end = memchr(s->window.data + (at - s->at), '\n', s->at + s->window.len - at);
    if (end == NULL) {
        int r = load(s, at);
        if (r < 0 || s->window.len == 0)
            return r;
        end = memchr(s->window.data, '\n', s->window.len);
    }
    if (end == NULL)
        return 0; /* the last one is not written to its end */
    *ret = s->window.data + (at - s->at);
    *ret_len = (size_t)(end - *ret);
    return 1;
}

/* Where the first line behind `at` begins; the end of the file when there is none. */
static int next_line(struct audit_source *s, uint64_t at, uint64_t *ret)
{
    int r = load(s, at);
    const char *end = r == 0 ? memchr(buf_str(&s->window), '\n', s->window.len) : NULL;

    *ret = end != NULL ? at + (uint64_t)(end - s->window.data) + 1 : s->size;
    return r;
}

static int number_at(struct audit_source *s, uint64_t at, uint64_t *ret)
{
    struct audit_place place;
    const char *line = NULL;
    size_t len = 0;
    int r = line_at(s, at, &line, &len);

    *ret = UINT64_MAX;
    if (r <= 0)
        return r;
    r = audit_line_place(line, len, &place);
    if (r >= 0)
        *ret = place.seq;
    return r;
}

/* A place at or before the line of that number: numbers only grow. */
static int search(struct audit_source *s, uint64_t number, uint64_t *ret)
{
    uint64_t low = 0, high = s->size;
    int r = 0;

    while (r >= 0 && high - low > WINDOW) {
        uint64_t middle = low + (high - low) / 2, line, seq = UINT64_MAX;
        r = next_line(s, middle, &line);
        if (r >= 0 && line < high)
            r = number_at(s, line, &seq);
        if (seq <= number)
            low = line;
        else
            high = middle;
    }
    *ret = low;
    return r < 0 ? r : 0;
}

/* The file that has the record, or the first of those that follow it. 0: none. */
static int open_source(const struct audit *a, uint64_t number, struct audit_source *ret)
{
    char name[AUDIT_NAME_MAX];
    struct stat st;
    int r = audit_file_of(a, number, name);

    if (r <= 0)
        return r;
    ret->fd = openat(a->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (ret->fd < 0 || fstat(ret->fd, &st) < 0)
        return -errno;
    ret->size = (uint64_t)st.st_size;
    return 1;
}

struct audit_reading {
    uint64_t next; /* number */
    size_t left, bytes;
    audit_line_fn *fn;
    void *arg;
};

static int read_source(struct audit_source *s, struct audit_reading *rd)
{
    uint64_t at;
    struct audit_place place;
    const char *line = NULL;
    size_t len = 0;
    int r = search(s, rd->next, &at);

    while (r >= 0 && rd->left > 0 && rd->bytes < READ_BYTES) {
        r = line_at(s, at, &line, &len);
        if (r <= 0)
            break;
        r = audit_line_place(line, len, &place);
        at += len + 1;
        if (r < 0 || place.seq < rd->next)
            continue;
        rd->fn(rd->arg, place.seq, line, len);
        rd->next = place.seq + 1;
        rd->left--;
        rd->bytes += len;
    }
    return r < 0 ? r : 0;
}

int audit_read(const struct audit *a, uint64_t after, size_t limit, audit_line_fn *fn, void *arg,
               struct err *err)
{
    struct audit_reading rd = {.next = after + 1, .left = limit, .fn = fn, .arg = arg};
    int r = 0;

    while (r >= 0 && rd.left > 0 && rd.bytes < READ_BYTES && rd.next <= a->seq) {
        struct audit_source s = {.fd = -1};
        uint64_t before = rd.next;
        buf_init(&s.window, 2 * (size_t)WINDOW);
        r = open_source(a, rd.next, &s);
        if (r > 0)
            r = read_source(&s, &rd);
        buf_done(&s.window);
        if (s.fd >= 0)
            (void)close(s.fd);
        if (r >= 0 && rd.next == before)
            break;
    }
    if (r == -EBADMSG)
        return err_set(err, ERR_STATE, "the record behind number %llu cannot be read",
                       (unsigned long long)(rd.next - 1));
    return r < 0 ? err_sys(err, -r, "read the audit log") : 0;
}
