/* SPDX-License-Identifier: Apache-2.0 */
#include "core/truncate.h"

#include <stdio.h>
#include <string.h>

#include "util/buf.h"
#include "util/str.h"

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

size_t truncate_count(const char *text, size_t len)
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

int truncate_text(const char *text, size_t len, int64_t limit, struct buf *out, bool *ret_cut)
{
    size_t max = limit > 0 ? (size_t)limit : 0, start = out->len;
    /* Bytes are at least as many as code points: most output needs no counting. */
    size_t total = len <= max ? len : truncate_count(text, len);
    struct cut c;

    *ret_cut = total > max;
    if (total <= max)
        return buf_append(out, text, len);
    if (max == 0)
        return 0;
    find_cut(total, max, &c);
    size_t head_end = skip(text, len, 0, c.head);
    size_t tail_at = c.tail > 0 ? skip(text, len, head_end, total - c.head - c.tail) : len;
    int r = buf_append(out, text, head_end);
    if (r == 0)
        r = buf_append(out, c.notice, c.notice_len);
    if (r == 0)
        r = buf_append(out, text + tail_at, len - tail_at);
    if (r < 0)
        out->len = start;
    return r;
}
