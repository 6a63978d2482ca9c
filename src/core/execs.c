/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/execs_internal.h"
#include "core/manager.h"
#include "util/alloc.h"
#include "util/clock.h"
#include "util/err.h"
#include "util/str.h"

#define BUCKETS 256U
/* Output that a reader has not taken: above the first the program is held back, until all are below
 * the second. */
#define LAG_HIGH (128U * 1024U)
#define LAG_LOW (32U * 1024U)

const struct execs_options execs_defaults = {
    .max_running = 4096, .max_ended = 256, .ended_ns = 300 * NSEC_PER_SEC, .max_bytes = 64U << 20};

struct kept {
    struct execs *x;
    struct kept *bucket_next, *prev, *next; /* in order of start */
    struct kept *older, *newer;             /* of those that ended, in that order */
    char *id, *session_id, *who;            /* owned */
    struct run *run;                        /* owned; NULL once it ended */
    struct run_result result;               /* without text; valid once it ended */
    bool keep, ended, paused;
    size_t log_max;
    struct exec_log log;
    uint64_t started_real, ended_now, stdin_bytes;
    struct kept_reader *readers;
};

struct execs {
    struct loop *loop; /* borrowed */
    struct execs_options options;
    struct kept *buckets[BUCKETS];
    struct kept *first, *last;
    struct kept *ended_first, *ended_last;
    size_t n_running, n_ended, bytes;
    struct loop_timer timer;
    struct loop_defer sweep;
};

struct execs *execs_new(struct loop *loop, const struct execs_options *options)
{
    struct execs *x = xnew(struct execs);

    x->loop = loop;
    x->options = *options;
    return x;
}

static struct kept **bucket_of(struct execs *x, const char *id)
{
    return &x->buckets[str_hash(id) % BUCKETS];
}

static void list(struct execs *x, struct kept *k)
{
    struct kept **bucket = bucket_of(x, k->id);

    k->bucket_next = *bucket;
    *bucket = k;
    k->prev = x->last;
    *(x->last != NULL ? &x->last->next : &x->first) = k;
    x->last = k;
    x->n_running++;
}

static void unlist_ended(struct kept *k)
{
    struct execs *x = k->x;

    *(k->older != NULL ? &k->older->newer : &x->ended_first) = k->newer;
    *(k->newer != NULL ? &k->newer->older : &x->ended_last) = k->older;
    x->n_ended--;
}

static void kept_free(struct kept *k)
{
    struct execs *x = k->x;
    struct kept **at = bucket_of(x, k->id);

    assert(k->readers == NULL);
    while (*at != k)
        at = &(*at)->bucket_next;
    *at = k->bucket_next;
    *(k->prev != NULL ? &k->prev->next : &x->first) = k->next;
    *(k->next != NULL ? &k->next->prev : &x->last) = k->prev;
    if (k->ended)
        unlist_ended(k);
    else
        x->n_running--;
    x->bytes -= k->log.bytes;
    run_free(k->run);
    log_done(&k->log);
    free(k->id);
    free(k->session_id);
    free(k->who);
    free(k);
}

void execs_free(struct execs *x)
{
    if (x == NULL)
        return;
    loop_timer_stop(&x->timer);
    loop_defer_stop(&x->sweep);
    while (x->first != NULL)
        kept_free(x->first);
    free(x);
}

/* Ended ones ---------------------------------------------------------------------------------- */

/* Nobody has to come back for it. */
static bool is_done_with(const struct kept *k)
{
    return k->readers == NULL && !k->keep;
}

static bool is_too_much(const struct execs *x, const struct kept *k, uint64_t now)
{
    return now - k->ended_now >= x->options.ended_ns || x->n_ended > x->options.max_ended ||
           x->bytes > x->options.max_bytes;
}

static void on_timer(struct loop_timer *t);

static void sweep(struct execs *x)
{
    uint64_t now = loop_now(x->loop);

    for (struct kept *k = x->ended_first, *newer; k != NULL; k = newer) {
        newer = k->newer;
        if (k->readers == NULL && (is_done_with(k) || is_too_much(x, k, now)))
            kept_free(k);
    }
    if (x->ended_first == NULL)
        loop_timer_stop(&x->timer);
    else if (x->timer.loop == NULL)
        loop_timer_start(x->loop, &x->timer, x->options.ended_ns / 8 + 1, on_timer);
}

static void on_timer(struct loop_timer *t)
{
    sweep(container_of(t, struct execs, timer));
}

static void on_sweep(struct loop_defer *d)
{
    sweep(container_of(d, struct execs, sweep));
}

/* From the loop: whoever calls may still look at what goes. */
static void sweep_later(struct execs *x)
{
    loop_defer_start(x->loop, &x->sweep, on_sweep);
}

/* Output -------------------------------------------------------------------------------------- */

/* What lies before this position is needed by nobody who is here. */
static uint64_t unread(const struct kept *k)
{
    uint64_t least = k->log.end;

    for (const struct kept_reader *r = k->readers; r != NULL; r = r->next)
        least = r->at < least ? r->at : least;
    return least;
}

static void trim(struct kept *k)
{
    struct execs *x = k->x;
    uint64_t upto = unread(k);
    size_t before = k->log.bytes;

    while (k->log.first != NULL && k->log.first->at + k->log.first->len <= upto &&
           (k->log.end - k->log.first->at > k->log_max || x->bytes > x->options.max_bytes)) {
        for (struct kept_reader *r = k->readers; r != NULL; r = r->next)
            r->segment = NULL;
        log_drop(&k->log);
        x->bytes -= before - k->log.bytes;
        before = k->log.bytes;
    }
}

static uint64_t worst_lag(const struct kept *k)
{
    return k->log.end - unread(k);
}

static void set_pace(struct kept *k)
{
    uint64_t lag = worst_lag(k);
    bool pause = k->paused ? lag > LAG_LOW : lag > LAG_HIGH;

    if (pause == k->paused)
        return;
    k->paused = pause;
    if (k->run != NULL)
        run_pause(k->run, pause);
}

static void tell_readers(struct kept *k)
{
    for (struct kept_reader *r = k->readers, *next; r != NULL; r = next) {
        next = r->next;
        r->events->ready(r->arg);
    }
}

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct kept *k = arg;
    size_t before = k->log.bytes;

    log_append(&k->log, stream, data, len);
    k->x->bytes += k->log.bytes - before;
    tell_readers(k);
    trim(k);
    set_pace(k);
    if (k->x->bytes > k->x->options.max_bytes && k->x->ended_first != NULL)
        sweep_later(k->x);
}

static void on_stdin_drained(void *arg)
{
    struct kept *k = arg;

    for (struct kept_reader *r = k->readers, *next; r != NULL; r = next) {
        next = r->next;
        if (r->events->stdin_drained != NULL)
            r->events->stdin_drained(r->arg);
    }
}

static void on_finished(void *arg, const struct run_result *result)
{
    struct kept *k = arg;
    struct execs *x = k->x;

    k->result.outcome = result->outcome;
    for (int i = 0; i < 2; i++)
        k->result.produced[i] = result->produced[i];
    k->ended = true;
    k->ended_now = loop_now(x->loop);
    run_free(TAKE_PTR(k->run));
    x->n_running--;
    x->n_ended++;
    k->older = x->ended_last;
    *(x->ended_last != NULL ? &x->ended_last->newer : &x->ended_first) = k;
    x->ended_last = k;
    if (x->options.ended != NULL)
        x->options.ended(x->options.arg, k);
    tell_readers(k);
    sweep_later(x);
}

/* Starting ------------------------------------------------------------------------------------ */

static int check(const struct execs *x, const char *session, const struct kept_options *o,
                 struct err *err)
{
    if (o->id != NULL && !id_valid(o->id))
        return err_set(
            err, ERR_INVALID,
            "exec_id must be 1 to 64 letters, digits, '_' or '-', beginning with a letter "
            "or digit");
    if (o->id != NULL && execs_find(x, session, o->id) != NULL)
        return err_set(err, ERR_CONFLICT, "session %.80s already has an exec %.64s", session,
                       o->id);
    if (x->n_running >= x->options.max_running)
        return err_set(err, ERR_LIMIT, "%zu execs are running; wait for one to end", x->n_running);
    return 0;
}

int execs_start(struct execs *x, struct session *s, const struct run_options *run,
                const struct kept_options *options, struct kept **ret, struct err *err)
{
    static const struct run_events events = {
        .output = on_output, .stdin_drained = on_stdin_drained, .finished = on_finished};
    struct run_options with_id = *run;
    char random[17];

    int r = check(x, session_id(s), options, err);
    if (r < 0)
        return r;
    id_random(random);
    with_id.id = options->id != NULL ? options->id : random;
    struct kept *k = xnew(struct kept);
    r = run_start(s, &with_id, &events, k, &k->run, err);
    if (r < 0) {
        free(k);
        return r;
    }
    k->x = x;
    k->id = xstrdup(with_id.id);
    k->session_id = xstrdup(session_id(s));
    k->who = xstrdup(options->who);
    k->keep = options->keep;
    k->log_max = options->keep ? options->log_max : 0;
    k->started_real = clock_real(loop_clock(x->loop));
    list(x, k);
    *ret = k;
    return 0;
}

struct kept *execs_find(const struct execs *x, const char *session_id, const char *id)
{
    struct kept *k = x->buckets[str_hash(id) % BUCKETS];

    while (k != NULL && !(str_eq(k->id, id) && str_eq(k->session_id, session_id)))
        k = k->bucket_next;
    return k;
}

struct kept *execs_next(const struct execs *x, const char *session_id, const struct kept *after)
{
    struct kept *k = after != NULL ? after->next : x->first;

    while (k != NULL && !str_eq(k->session_id, session_id))
        k = k->next;
    return k;
}

const char *kept_id(const struct kept *k)
{
    return k->id;
}

const char *kept_session_id(const struct kept *k)
{
    return k->session_id;
}

const char *kept_who(const struct kept *k)
{
    return k->who;
}

uint64_t kept_started(const struct kept *k)
{
    return k->started_real;
}

const struct run_result *kept_result(const struct kept *k)
{
    return k->ended ? &k->result : NULL;
}

bool kept_keeps(const struct kept *k)
{
    return k->keep;
}

void kept_range(const struct kept *k, uint64_t *ret_begin, uint64_t *ret_end)
{
    *ret_begin = log_begin(&k->log);
    *ret_end = k->log.end;
}

uint64_t kept_stdin_bytes(const struct kept *k)
{
    return k->stdin_bytes;
}

int kept_write(struct kept *k, const char *data, size_t len)
{
    int r = k->run != NULL ? run_write(k->run, data, len) : -EPIPE;

    if (r >= 0)
        k->stdin_bytes += len;
    return r;
}

void kept_close_stdin(struct kept *k)
{
    if (k->run != NULL)
        run_close_stdin(k->run);
}

void kept_signal(struct kept *k, int signo)
{
    if (k->run != NULL)
        run_signal(k->run, signo);
}

void kept_kill(struct kept *k)
{
    if (k->run != NULL)
        run_kill(k->run);
}

void kept_resize(struct kept *k, uint16_t rows, uint16_t cols)
{
    if (k->run != NULL)
        run_resize(k->run, rows, cols);
}

void kept_dismiss(struct kept *k)
{
    k->keep = false;
    kept_kill(k);
    if (k->ended)
        sweep_later(k->x);
}

/* Readers ------------------------------------------------------------------------------------- */

void kept_attach(struct kept *k, struct kept_reader *r, uint64_t from,
                 const struct kept_events *events, void *arg)
{
    *r = (struct kept_reader){.kept = k, .at = from, .events = events, .arg = arg};
    r->next = k->readers;
    if (r->next != NULL)
        r->next->prev = r;
    k->readers = r;
    uint64_t begin = log_begin(&k->log);
    if (r->at > k->log.end)
        r->at = k->log.end;
    if (r->at < begin) {
        r->dropped = begin - r->at;
        r->at = begin;
    }
}

void kept_detach(struct kept_reader *r)
{
    struct kept *k = r->kept;

    if (k == NULL)
        return;
    *(r->prev != NULL ? &r->prev->next : &k->readers) = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
    r->kept = NULL;
    set_pace(k);
    /* Nobody listens any more, and nobody asked for it to go on. */
    if (k->readers == NULL && !k->keep)
        kept_dismiss(k);
    trim(k);
}

/* The segment with the reader's next byte; NULL: there is none yet. */
static struct log_segment *next_segment(struct kept_reader *r)
{
    struct log_segment *s = r->segment != NULL ? r->segment : log_find(&r->kept->log, r->at);

    while (s != NULL && s->at + s->len <= r->at)
        s = s->next;
    if (s != NULL)
        r->segment = s;
    return s;
}

size_t kept_read(struct kept_reader *r, enum exec_stream *ret_stream, char *ret, size_t size)
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

bool kept_may_grow(const struct kept_reader *r, size_t len)
{
    const struct log_segment *s = r->segment;
    enum exec_stream stream = s->stream;

    while (s != NULL && s->at + s->len <= r->at + len)
        s = s->next;
    return s != NULL ? s->stream == stream : !r->kept->ended;
}

void kept_advance(struct kept_reader *r, size_t len)
{
    r->at += len;
    if (r->kept->paused)
        set_pace(r->kept);
}

uint64_t kept_take_dropped(struct kept_reader *r)
{
    uint64_t dropped = r->dropped;

    r->dropped = 0;
    return dropped;
}

bool kept_at_end(const struct kept_reader *r)
{
    return r->kept->ended && r->at == r->kept->log.end;
}
