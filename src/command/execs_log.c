/* SPDX-License-Identifier: Apache-2.0 */

/* The log of an exec's output: segments by position, the oldest dropped first. */

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "command/execs_internal.h"

#define SEGMENT_MIN 1024U
#define SEGMENT_MAX (32U * 1024U)

static struct log_segment *segment_new(struct exec_log *log, enum exec_stream stream, size_t len)
{
    size_t cap = len < SEGMENT_MIN ? SEGMENT_MIN : len < SEGMENT_MAX ? len : SEGMENT_MAX;
    struct log_segment *s = xmalloc(sizeof(*s) + cap);

    *s = (struct log_segment){.at = log->end, .taken = log->taken};
    s->cap = (uint32_t)cap;
    s->stream = stream;
    if (log->last != NULL)
        log->last->next = s;
    else
        log->first = s;
    log->last = s;
    log->bytes += sizeof(*s) + cap;
    log->taken += sizeof(*s) + cap;
    return s;
}

/* A program that writes byte by byte must not cost a segment each. */
void log_append(struct exec_log *log, enum exec_stream stream, const char *data, size_t len)
{
    while (len > 0) {
        struct log_segment *s = log->last;
        if (s == NULL || s->stream != stream || s->len == s->cap)
            s = segment_new(log, stream, len);
        size_t room = s->cap - s->len;
        size_t n = len < room ? len : room;
        memcpy(s->data + s->len, data, n);
        s->len += (uint32_t)n;
        log->end += n;
        data += n;
        len -= n;
    }
}

uint64_t log_begin(const struct exec_log *log)
{
    return log->first != NULL ? log->first->at : log->end;
}

struct log_segment *log_find(const struct exec_log *log, uint64_t at)
{
    struct log_segment *s = log->first;

    while (s != NULL && s->at + s->len < at)
        s = s->next;
    return s;
}

void log_drop(struct exec_log *log)
{
    struct log_segment *s = log->first;

    log->first = s->next;
    if (log->first == NULL)
        log->last = NULL;
    log->bytes -= sizeof(*s) + s->cap;
    free(s);
}

void log_done(struct exec_log *log)
{
    while (log->first != NULL)
        log_drop(log);
}
