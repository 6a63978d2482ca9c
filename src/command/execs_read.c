/* SPDX-License-Identifier: Apache-2.0 */

/* Readers of an exec's output, and the pace at which the program may write. */

#include <string.h>

#include "command/execs_internal.h"

/* Output that a reader has not taken: above the first the program is held back, until all are below
 * the second. */
#define LAG_HIGH (128U * 1024U)
#define LAG_LOW (32U * 1024U)
/* The same in memory: a program that changes streams with every byte has a segment for each. */
#define MEMORY_HIGH (2U * LAG_HIGH)
#define MEMORY_LOW (2U * LAG_LOW)

enum named_exec_state named_exec_state(const struct named_exec *k)
{
    return k->state;
}

bool named_exec_ran(const struct named_exec *k)
{
    return k->ran;
}

const char *named_exec_id(const struct named_exec *k)
{
    return k->id;
}

const char *named_exec_session_id(const struct named_exec *k)
{
    return k->session_id;
}

uint64_t named_exec_started(const struct named_exec *k)
{
    return k->started_real;
}

const struct run_result *named_exec_result(const struct named_exec *k)
{
    return &k->result;
}

const struct err *named_exec_error(const struct named_exec *k)
{
    return k->err.code != ERR_NONE ? &k->err : NULL;
}

bool named_exec_keeps(const struct named_exec *k)
{
    return k->keep;
}

void named_exec_range(const struct named_exec *k, uint64_t *ret_begin, uint64_t *ret_end)
{
    *ret_begin = log_begin(&k->log);
    *ret_end = k->log.end;
}

uint64_t named_exec_stdin_bytes(const struct named_exec *k)
{
    return k->stdin_bytes;
}

/* What lies before this position is needed by nobody who is here. */
static uint64_t unread(const struct named_exec *k)
{
    uint64_t least = k->log.end;

    for (const struct named_exec_reader *r = k->readers; r != NULL; r = r->next)
        least = r->at < least ? r->at : least;
    return least;
}

static void drop_first(struct named_exec *k)
{
    size_t before = k->log.bytes;

    for (struct named_exec_reader *r = k->readers; r != NULL; r = r->next)
        if (r->segment == k->log.first)
            r->segment = NULL;
    log_drop(&k->log);
    k->x->bytes -= before - k->log.bytes;
}

static void trim(struct named_exec *k)
{
    const struct execs *x = k->x;
    uint64_t upto = unread(k);

    while (k->log.first != NULL && k->log.first->at + k->log.first->len <= upto &&
           (k->log.end - k->log.first->at > k->log_max || x->bytes > x->options.max_bytes))
        drop_first(k);
}

/* The segment with the reader's next byte; NULL: there is none yet. */
static struct log_segment *next_segment(struct named_exec_reader *r)
{
    struct log_segment *s = r->segment != NULL ? r->segment : log_find(&r->kept->log, r->at);

    while (s != NULL && s->at + s->len <= r->at)
        s = s->next;
    if (s != NULL)
        r->segment = s;
    return s;
}

/* Memory that is held for the slowest reader. */
static uint64_t unread_memory(const struct named_exec *k)
{
    uint64_t most = 0;

    for (struct named_exec_reader *r = k->readers; r != NULL; r = r->next) {
        const struct log_segment *s = next_segment(r);
        uint64_t memory = s != NULL ? k->log.taken - s->taken : 0;
        most = memory > most ? memory : most;
    }
    return most;
}

static void set_pace(struct named_exec *k)
{
    uint64_t lag = k->log.end - unread(k);
    bool pause = lag > (k->paused ? LAG_LOW : LAG_HIGH) ||
                 unread_memory(k) > (k->paused ? MEMORY_LOW : MEMORY_HIGH);

    if (pause == k->paused)
        return;
    k->paused = pause;
    if (k->run != NULL)
        run_pause(k->run, pause);
}

void named_exec_settle(struct named_exec *k)
{
    trim(k);
    set_pace(k);
}

void named_exec_tell_readers(struct named_exec *k)
{
    for (struct named_exec_reader *r = k->readers, *next; r != NULL; r = next) {
        next = r->next;
        r->events->ready(r->arg);
    }
}

void named_exec_attach(struct named_exec *k, struct named_exec_reader *r, uint64_t from,
                       const struct named_exec_events *events, void *arg)
{
    uint64_t begin = log_begin(&k->log);

    *r = (struct named_exec_reader){.kept = k, .at = from, .events = events, .arg = arg};
    r->next = k->readers;
    if (r->next != NULL)
        r->next->prev = r;
    k->readers = r;
    if (r->at > k->log.end)
        r->at = k->log.end;
    if (r->at < begin) {
        r->dropped = begin - r->at;
        r->at = begin;
    }
}

void named_exec_detach(struct named_exec_reader *r)
{
    struct named_exec *k = r->kept;

    if (k == NULL)
        return;
    *(r->prev != NULL ? &r->prev->next : &k->readers) = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
    r->kept = NULL;
    named_exec_settle(k);
    /* Nobody listens any more, and nobody asked for it to go on. */
    if (k->readers == NULL && !k->keep)
        named_exec_dismiss(k);
}

size_t named_exec_read(struct named_exec_reader *r, enum exec_stream *ret_stream, char *ret,
                       size_t size)
{
    const struct log_segment *s = next_segment(r);
    size_t done = 0;

    if (s == NULL)
        return 0;
    *ret_stream = s->stream;
    for (; s != NULL && s->stream == *ret_stream && done < size; s = s->next) {
        size_t skip = (size_t)(r->at + done - s->at), n = s->len - skip;
        n = n < size - done ? n : size - done;
        memcpy(ret + done, s->data + skip, n);
        done += n;
    }
    return done;
}

bool named_exec_may_grow(const struct named_exec_reader *r, size_t len)
{
    const struct log_segment *s = r->segment;
    enum exec_stream stream = s->stream;

    while (s != NULL && s->at + s->len <= r->at + len)
        s = s->next;
    return s != NULL ? s->stream == stream : r->kept->run != NULL;
}

void named_exec_advance(struct named_exec_reader *r, size_t len)
{
    r->at += len;
    if (r->kept->paused)
        set_pace(r->kept);
}

uint64_t named_exec_take_dropped(struct named_exec_reader *r)
{
    uint64_t dropped = r->dropped;

    r->dropped = 0;
    return dropped;
}

bool named_exec_at_end(const struct named_exec_reader *r)
{
    return r->kept->state == NAMED_EXEC_ENDED && r->at == r->kept->log.end;
}
