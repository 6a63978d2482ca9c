/* SPDX-License-Identifier: Apache-2.0 */

/* Cuts a text that comes in pieces to head, notice and tail. */

#include "policy/truncate.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/str.h"

#define ROUNDS 4
#define HEAD_SHARE 0.6

/* Past `n` code points from `at` on. */
static size_t skip(const char *text, size_t len, size_t at, size_t n)
{
    bool incomplete;

    for (; n > 0 && at < len; n--) {
        int step = utf8_next(text + at, len - at, &incomplete);
        at += (size_t)(step < 0 ? -step : step);
    }
    return at;
}

static size_t count_chars(const char *text, size_t len)
{
    size_t n = 0;

    for (size_t at = 0; at < len; n++)
        at = skip(text, len, at, 1);
    return n;
}

struct cut {
    char notice[80]; /* ASCII */
    size_t notice_len;
    size_t head, tail; /* code points */
};

/* The number in the notice depends on the room, and the room on the length of the number. It may
 * not settle; head, notice and tail of one round fill the limit exactly all the same. */
static void find_cut(size_t total, size_t limit, struct cut *c)
{
    *c = (struct cut){0};
    for (int i = 0; i < ROUNDS; i++) {
        c->notice_len = (size_t)snprintf(c->notice, sizeof(c->notice),
                                         "\n\n... [%zu characters truncated] ...\n\n",
                                         total - c->head - c->tail);
        if (limit <= c->notice_len) {
            c->notice_len = limit;
            c->head = c->tail = 0;
            return;
        }
        size_t room = limit - c->notice_len;
        size_t head = (size_t)((double)room * HEAD_SHARE);
        if (head == c->head && room - head == c->tail)
            return;
        c->head = head;
        c->tail = room - head;
    }
}

#define CHAR_BYTES 4U

struct truncator {
    size_t limit;    /* code points */
    size_t total;    /* of them so far */
    struct buf head; /* the first `limit` */
    struct buf tail; /* at least the last `limit`, from a boundary on */
    char rest[CHAR_BYTES];
    size_t n_rest; /* bytes of a character that is not complete yet */
};

struct truncator *truncator_new(int64_t limit)
{
    struct truncator *t = xnew(struct truncator);

    t->limit = limit > 0 ? (size_t)limit : 0;
    assert(t->limit <= SIZE_MAX / (4 * CHAR_BYTES));
    buf_init(&t->head, t->limit * CHAR_BYTES);
    buf_init(&t->tail, 2 * t->limit * CHAR_BYTES + CHAR_BYTES);
    return t;
}

void truncator_free(struct truncator *t)
{
    if (t == NULL)
        return;
    buf_done(&t->head);
    buf_done(&t->tail);
    free(t);
}

static void truncator_add(struct truncator *t, const char *s, size_t len)
{
    if (++t->total <= t->limit)
        (void)buf_append(&t->head, s, len);
    /* The last `limit` characters have at most this many bytes. */
    size_t enough = t->limit * CHAR_BYTES;
    if (t->tail.len + len > t->tail.max) {
        size_t drop = 0;
        while (t->tail.len - drop > enough)
            drop = skip(t->tail.data, t->tail.len, drop, 1);
        buf_consume(&t->tail, drop);
    }
    (void)buf_append(&t->tail, s, len);
}

/* One character from what is left of the last piece and the beginning of this one. */
static size_t complete(struct truncator *t, const char *data, size_t len)
{
    size_t taken = 0;
    bool incomplete = true;

    while (t->n_rest > 0 && taken < len && incomplete) {
        t->rest[t->n_rest++] = data[taken++];
        int n = utf8_next(t->rest, t->n_rest, &incomplete);
        if (incomplete)
            continue;
        size_t used = (size_t)(n < 0 ? -n : n);
        truncator_add(t, t->rest, used);
        /* A broken part ends before the byte that broke it, which begins something new. */
        taken -= t->n_rest - used;
        t->n_rest = 0;
    }
    return taken;
}

void truncator_feed(struct truncator *t, const char *data, size_t len)
{
    size_t at = complete(t, data, len);

    while (at < len) {
        bool incomplete = false;
        int n = utf8_next(data + at, len - at, &incomplete);
        size_t used = (size_t)(n < 0 ? -n : n);
        if (incomplete) {
            memcpy(t->rest, data + at, used);
            t->n_rest = used;
        } else {
            truncator_add(t, data + at, used);
        }
        at += used;
    }
}

int truncator_finish(struct truncator *t, struct buf *out, bool *ret_cut)
{
    size_t start = out->len;
    struct cut c = {0};

    if (t->n_rest > 0)
        truncator_add(t, t->rest, t->n_rest);
    t->n_rest = 0;
    *ret_cut = t->total > t->limit;
    if (!*ret_cut)
        return buf_append(out, buf_str(&t->head), t->head.len);
    if (t->limit == 0)
        return 0;
    find_cut(t->total, t->limit, &c);
    size_t kept = count_chars(t->tail.data, t->tail.len);
    size_t tail_at = skip(t->tail.data, t->tail.len, 0, kept - c.tail);
    int r = buf_append(out, t->head.data, skip(t->head.data, t->head.len, 0, c.head));
    if (r == 0)
        r = buf_append(out, c.notice, c.notice_len);
    if (r == 0)
        r = buf_append(out, t->tail.data + tail_at, t->tail.len - tail_at);
    if (r < 0)
        out->len = start;
    return r;
}
