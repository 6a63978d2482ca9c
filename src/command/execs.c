/* SPDX-License-Identifier: Apache-2.0 */

/* Execs with an id: the log of their output, their life within caps on all and on each token, and
 * their readers, at whose pace the program may write. */

#include "command/execs.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "policy/authz.h"
#include "policy/share.h"
#include "session/manager.h"

/* Part of the output, of one stream. */
struct log_segment {
    TAILQ_ENTRY(log_segment) link;
    uint64_t at;    /* position of its first byte */
    uint64_t taken; /* memory of all segments before it, ever */
    uint32_t len, cap;
    enum exec_stream stream;
    char data[];
};

/* Output by position; segments go whole, oldest first. */
struct exec_log {
    TAILQ_HEAD(segment_list, log_segment) segments;
    uint64_t end;
    uint64_t taken; /* memory of all segments, also of those that went */
    size_t bytes;   /* of memory */
};

struct named_exec {
    struct execs *x;
    LIST_ENTRY(named_exec) bucket;
    TAILQ_ENTRY(named_exec) link;       /* in order of start */
    TAILQ_ENTRY(named_exec) ended_link; /* of those that ended, in that order */
    char *id, *session_id, *who;        /* owned */
    struct named_exec_options asked;    /* until it runs: run, stdin_text and owned */
    struct command *command;            /* owned; NULL once it has ended */
    struct share *share;                /* held; that is charged for it; NULL: none is */
    struct run_result result;           /* without text */
    struct err err;                     /* why it never ran, or may not have */
    bool keep, paused, ran;
    size_t log_max;
    struct exec_log log;
    uint64_t started_real, ended_now, stdin_bytes;
    LIST_HEAD(, named_exec_reader) readers;
};

struct execs {
    struct loop *loop; /* borrowed */
    struct execs_options options;
    TABLE(named_exec, 256) by_id;
    TAILQ_HEAD(, named_exec) all, ended;
    size_t n_running, n_ended, bytes;
    struct loop_timer timer;
    struct loop_defer sweep;
};

/* The log of output ---------------------------------------------------------------------------- */

#define SEGMENT_MIN 1024U
#define SEGMENT_MAX (32U * 1024U)

static struct log_segment *segment_new(struct exec_log *log, enum exec_stream stream, size_t len)
{
    size_t cap = len < SEGMENT_MIN ? SEGMENT_MIN : len < SEGMENT_MAX ? len : SEGMENT_MAX;
    struct log_segment *s = xmalloc(sizeof(*s) + cap);

    *s = (struct log_segment){.at = log->end, .taken = log->taken};
    s->cap = (uint32_t)cap;
    s->stream = stream;
    TAILQ_INSERT_TAIL(&log->segments, s, link);
    log->bytes += sizeof(*s) + cap;
    log->taken += sizeof(*s) + cap;
    return s;
}

/* A program that writes byte by byte must not cost a segment each. */
static void log_append(struct exec_log *log, enum exec_stream stream, const char *data, size_t len)
{
    while (len > 0) {
        struct log_segment *s = TAILQ_LAST(&log->segments, segment_list);
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

/* Position of the first byte that is kept. */
static uint64_t log_begin(const struct exec_log *log)
{
    const struct log_segment *first = TAILQ_FIRST(&log->segments);

    return first != NULL ? first->at : log->end;
}

/* The segment that holds `at`, or the byte behind the last; NULL: none does. */
static struct log_segment *log_find(const struct exec_log *log, uint64_t at)
{
    struct log_segment *s = TAILQ_FIRST(&log->segments);

    while (s != NULL && s->at + s->len < at)
        s = TAILQ_NEXT(s, link);
    return s;
}

/* Drops the first segment. */
static void log_drop(struct exec_log *log)
{
    struct log_segment *s = TAILQ_FIRST(&log->segments);

    assert(s != NULL);
    TAILQ_REMOVE(&log->segments, s, link);
    log->bytes -= sizeof(*s) + s->cap;
    free(s);
}

static void log_done(struct exec_log *log)
{
    while (!TAILQ_EMPTY(&log->segments))
        log_drop(log);
}

/* The list ------------------------------------------------------------------------------------- */

const struct execs_options execs_defaults = {
    .max_running = 4096, .max_ended = 256, .ended_ns = 300 * NSEC_PER_SEC, .max_bytes = 64U << 20};

/* As clients know them. */
static const char *const state_names[] = {[COMMAND_ASKING] = "starting",
                                          [COMMAND_RUNNING] = "running",
                                          [COMMAND_JUDGING] = "running",
                                          [COMMAND_DROPPING] = "running",
                                          [COMMAND_DONE] = "ended"};

struct execs *execs_new(struct loop *loop, const struct execs_options *options)
{
    struct execs *x = xnew(struct execs);

    x->loop = loop;
    x->options = *options;
    TAILQ_INIT(&x->all);
    TAILQ_INIT(&x->ended);
    return x;
}

/* Frees what only the start needed. */
static void forget_asked(struct named_exec *k)
{
    if (k->asked.owned != NULL)
        k->asked.owned_free(k->asked.owned);
    k->asked = (struct named_exec_options){0};
}

static void named_exec_free(struct named_exec *k)
{
    struct execs *x = k->x;

    assert(LIST_EMPTY(&k->readers));
    LIST_REMOVE(k, bucket);
    TAILQ_REMOVE(&x->all, k, link);
    if (k->command == NULL) {
        TAILQ_REMOVE(&x->ended, k, ended_link);
        x->n_ended--;
    } else {
        x->n_running--;
    }
    assert(x->bytes >= k->log.bytes);
    x->bytes -= k->log.bytes;
    command_free(k->command);
    forget_asked(k);
    log_done(&k->log);
    share_put(k->share);
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
    while (!TAILQ_EMPTY(&x->all))
        named_exec_free(TAILQ_FIRST(&x->all));
    free(x);
}

/* Pace ----------------------------------------------------------------------------------------- */

/* Output that a reader has not taken: above the first the program is held back, until all are below
 * the second. */
#define LAG_HIGH (128U * 1024U)
#define LAG_LOW (32U * 1024U)
/* The same in memory: a program that changes streams with every byte has a segment for each. */
#define MEMORY_HIGH (2U * LAG_HIGH)
#define MEMORY_LOW (2U * LAG_LOW)

/* No attached reader needs what lies before this position. */
static uint64_t unread(const struct named_exec *k)
{
    const struct named_exec_reader *r;
    uint64_t least = k->log.end;

    LIST_FOREACH (r, &k->readers, link)
        least = r->at < least ? r->at : least;
    return least;
}

static void drop_first(struct named_exec *k)
{
    size_t before = k->log.bytes;
    struct named_exec_reader *r;

    LIST_FOREACH (r, &k->readers, link)
        if (r->segment == TAILQ_FIRST(&k->log.segments))
            r->segment = NULL;
    log_drop(&k->log);
    k->x->bytes -= before - k->log.bytes;
}

static void trim(struct named_exec *k)
{
    const struct execs *x = k->x;
    uint64_t upto = unread(k);

    for (const struct log_segment *s;
         (s = TAILQ_FIRST(&k->log.segments)) != NULL && s->at + s->len <= upto &&
         (k->log.end - s->at > k->log_max || x->bytes > x->options.max_bytes);)
        drop_first(k);
}

/* The segment with the reader's next byte; NULL: there is none yet. */
static struct log_segment *next_segment(struct named_exec_reader *r)
{
    struct log_segment *s = r->segment != NULL ? r->segment : log_find(&r->kept->log, r->at);

    while (s != NULL && s->at + s->len <= r->at)
        s = TAILQ_NEXT(s, link);
    if (s != NULL)
        r->segment = s;
    return s;
}

/* Memory that is held for the slowest reader. */
static uint64_t unread_memory(const struct named_exec *k)
{
    struct named_exec_reader *r;
    uint64_t most = 0;

    LIST_FOREACH (r, &k->readers, link) {
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
    if (command_run(k->command) != NULL)
        run_pause(command_run(k->command), pause);
}

/* Drops what is too much, and holds the program back or lets it go on. */
static void named_exec_settle(struct named_exec *k)
{
    trim(k);
    set_pace(k);
}

static void named_exec_tell_readers(struct named_exec *k)
{
    struct named_exec_reader *r, *next;

    LIST_FOREACH_SAFE (r, &k->readers, link, next)
        r->events->ready(r->arg);
}

/* How many ended execs one share has, or the bytes of their output. */
static size_t weight(const struct execs *x, const struct share *share, bool by_bytes)
{
    const struct named_exec *k;
    size_t sum = 0;

    TAILQ_FOREACH (k, &x->ended, ended_link)
        if (k->share == share)
            sum += by_bytes ? k->log.bytes : 1;
    return sum;
}

/* The oldest that may go, of the token that has the most. NULL: none may. */
static struct named_exec *find_victim(const struct execs *x)
{
    bool by_bytes = x->bytes > x->options.max_bytes;
    struct named_exec *k, *found = NULL;
    size_t most = 0;

    TAILQ_FOREACH (k, &x->ended, ended_link) {
        if (!LIST_EMPTY(&k->readers) || (found != NULL && found->share == k->share))
            continue;
        size_t mine = weight(x, k->share, by_bytes);
        if (found == NULL || mine > most) {
            found = k;
            most = mine;
        }
    }
    return found;
}

static bool is_too_much(const struct execs *x)
{
    return x->n_ended > x->options.max_ended || x->bytes > x->options.max_bytes;
}

static void on_timer(struct loop_timer *t);

static void sweep(struct execs *x)
{
    uint64_t now = loop_now(x->loop);
    struct named_exec *k, *newer, *victim;

    TAILQ_FOREACH_SAFE (k, &x->ended, ended_link, newer)
        if (LIST_EMPTY(&k->readers) && (!k->keep || now - k->ended_now >= x->options.ended_ns))
            named_exec_free(k);
    while (is_too_much(x) && (victim = find_victim(x)) != NULL)
        named_exec_free(victim);
    if (TAILQ_EMPTY(&x->ended))
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

static void named_exec_sweep_later(struct named_exec *k)
{
    loop_defer_start(k->x->loop, &k->x->sweep, on_sweep);
}

/* The life of one ----------------------------------------------------------------------------- */

/* An exec that never ran is kept only as long as clients wait for it. */
static void on_ended(void *arg, const struct command_result *result, const struct err *err)
{
    struct named_exec *k = arg;
    struct execs *x = k->x;

    if (result != NULL) {
        k->result.outcome = result->outcome;
        memcpy(k->result.produced, result->produced, sizeof(result->produced));
    } else {
        k->err = *err;
        k->keep = k->keep && k->ran;
    }
    command_free(TAKE_PTR(k->command));
    forget_asked(k);
    k->ended_now = loop_now(x->loop);
    x->n_running--;
    x->n_ended++;
    TAILQ_INSERT_TAIL(&x->ended, k, ended_link);
    named_exec_tell_readers(k);
    named_exec_sweep_later(k);
}

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct named_exec *k = arg;
    size_t before = k->log.bytes;

    log_append(&k->log, stream, data, len);
    k->x->bytes += k->log.bytes - before;
    named_exec_tell_readers(k);
    named_exec_settle(k);
    if (k->x->bytes > k->x->options.max_bytes && !TAILQ_EMPTY(&k->x->ended))
        named_exec_sweep_later(k);
}

static void on_stdin_drained(void *arg)
{
    struct named_exec *k = arg;
    struct named_exec_reader *r, *next;

    LIST_FOREACH_SAFE (r, &k->readers, link, next)
        if (r->events->stdin_drained != NULL)
            r->events->stdin_drained(r->arg);
}

static void on_started(void *arg)
{
    struct named_exec *k = arg;

    k->ran = true;
    k->stdin_bytes = k->asked.stdin_text != NULL ? strlen(k->asked.stdin_text) : 0;
    forget_asked(k);
    named_exec_tell_readers(k);
}

/* Starting ------------------------------------------------------------------------------------ */

static int check(const struct execs *x, const struct named_exec_options *o, struct err *err)
{
    const char *session = session_id(o->session);

    if (o->id != NULL && execs_find(x, session, o->id) != NULL)
        return err_set(err, ERR_CONFLICT, "session %.80s already has an exec %.64s", session,
                       o->id);
    if (x->n_running >= x->options.max_running)
        return err_set(err, ERR_LIMIT, "%zu execs are running; wait for one to end", x->n_running);
    return 0;
}

static int ask(struct named_exec *k, const struct named_exec_options *o, struct err *err)
{
    static const struct command_events events = {.started = on_started,
                                                 .output = on_output,
                                                 .stdin_drained = on_stdin_drained,
                                                 .ended = on_ended};
    struct command_options options = {.session = o->session,
                                      .run = o->run,
                                      .stdin_text = o->stdin_text,
                                      .request = {.scope = o->scope},
                                      .via = o->via,
                                      .who = o->who,
                                      .cleanup = o->cleanup};

    options.run.id = k->id;
    return command_start(k->x->options.service, &options, &events, k, &k->command, err);
}

int execs_start(struct execs *x, const struct named_exec_options *options, struct named_exec **ret,
                struct err *err)
{
    struct named_exec *k = xnew(struct named_exec);
    char random[17];

    id_random(random);
    k->x = x;
    k->asked = *options;
    TAILQ_INIT(&k->log.segments);
    k->keep = options->keep;
    k->log_max = options->keep ? options->log_max : 0;
    k->id = xstrdup(options->id != NULL ? options->id : random);
    int r = check(x, options, err);
    if (r == 0)
        r = ask(k, options, err);
    if (r < 0) {
        forget_asked(k);
        free(k->id);
        free(k);
        return r;
    }
    k->session_id = xstrdup(session_id(options->session));
    k->who = xstrdup(authz_name(options->scope));
    k->share = shares_get(x->options.service->shares, authz_share(options->scope));
    k->started_real = clock_real(loop_clock(x->loop));
    TABLE_INSERT(&x->by_id, str_hash(k->id), k, bucket);
    TAILQ_INSERT_TAIL(&x->all, k, link);
    x->n_running++;
    *ret = k;
    return 0;
}

struct named_exec *execs_find(const struct execs *x, const char *session_id, const char *id)
{
    struct named_exec *k;

    LIST_FOREACH (k, TABLE_BUCKET(&x->by_id, str_hash(id)), bucket)
        if (str_eq(k->id, id) && str_eq(k->session_id, session_id))
            return k;
    return NULL;
}

struct named_exec *execs_next(const struct execs *x, const char *session_id,
                              const struct named_exec *after)
{
    struct named_exec *k = after != NULL ? TAILQ_NEXT(after, link) : TAILQ_FIRST(&x->all);

    while (k != NULL && !str_eq(k->session_id, session_id))
        k = TAILQ_NEXT(k, link);
    return k;
}

enum command_state named_exec_state(const struct named_exec *k)
{
    return k->command != NULL ? command_state(k->command) : COMMAND_DONE;
}

const char *named_exec_state_name(const struct named_exec *k)
{
    return state_names[named_exec_state(k)];
}

/* Using one ----------------------------------------------------------------------------------- */

int named_exec_write(struct named_exec *k, const char *data, size_t len)
{
    struct run *run = command_run(k->command);
    int r = run != NULL ? run_write(run, data, len) : -EPIPE;

    if (r >= 0)
        k->stdin_bytes += len;
    return r;
}

void named_exec_close_stdin(struct named_exec *k)
{
    if (command_run(k->command) != NULL)
        run_close_stdin(command_run(k->command));
}

void named_exec_signal(struct named_exec *k, int signo)
{
    if (command_run(k->command) != NULL)
        run_signal(command_run(k->command), signo);
}

void named_exec_resize(struct named_exec *k, uint16_t rows, uint16_t cols)
{
    if (command_run(k->command) != NULL)
        run_resize(command_run(k->command), rows, cols);
}

void named_exec_kill(struct named_exec *k)
{
    if (k->command != NULL)
        command_kill(k->command);
}

void named_exec_dismiss(struct named_exec *k)
{
    k->keep = false;
    named_exec_kill(k);
    if (k->command == NULL)
        named_exec_sweep_later(k);
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

const char *named_exec_who(const struct named_exec *k)
{
    return k->who;
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

/* Readers -------------------------------------------------------------------------------------- */

void named_exec_attach(struct named_exec *k, struct named_exec_reader *r, uint64_t from,
                       const struct named_exec_events *events, void *arg)
{
    uint64_t begin = log_begin(&k->log);

    *r = (struct named_exec_reader){.kept = k, .at = from, .events = events, .arg = arg};
    LIST_INSERT_HEAD(&k->readers, r, link);
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
    LIST_REMOVE(r, link);
    r->kept = NULL;
    named_exec_settle(k);
    /* The last reader has left, and the client did not ask for the exec to go on. */
    if (LIST_EMPTY(&k->readers) && !k->keep)
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
    for (; s != NULL && s->stream == *ret_stream && done < size; s = TAILQ_NEXT(s, link)) {
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
        s = TAILQ_NEXT(s, link);
    return s != NULL ? s->stream == stream : command_run(r->kept->command) != NULL;
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
    return r->kept->command == NULL && r->at == r->kept->log.end;
}
