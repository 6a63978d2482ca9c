/* SPDX-License-Identifier: Apache-2.0 */

/* Starts, finds, signals and forgets execs with an id, within caps on all and on each token. */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "command/execs_internal.h"
#include "command/policy_gate.h"
#include "command/policy_service.h"
#include "policy/authz.h"
#include "policy/share.h"
#include "session/manager.h"

const struct execs_options execs_defaults = {
    .max_running = 4096, .max_ended = 256, .ended_ns = 300 * NSEC_PER_SEC, .max_bytes = 64U << 20};

static const struct {
    const char *name;
    unsigned next; /* set of states this one may move to */
} states[NAMED_EXEC_STATE_MAX] = {
    [NAMED_EXEC_ASKING] = {"starting", 1U << NAMED_EXEC_RUNNING | 1U << NAMED_EXEC_ENDED},
    [NAMED_EXEC_RUNNING] = {"running", 1U << NAMED_EXEC_ENDING},
    [NAMED_EXEC_ENDING] = {"running", 1U << NAMED_EXEC_ENDED},
    [NAMED_EXEC_ENDED] = {"ended", 0},
};

static void move(struct named_exec *k, enum named_exec_state to)
{
    assert((states[k->state].next & 1U << to) != 0);
    k->state = to;
}

struct execs *execs_new(struct loop *loop, const struct execs_options *options)
{
    struct execs *x = xnew(struct execs);

    x->loop = loop;
    x->options = *options;
    return x;
}

static struct named_exec **bucket_of(struct execs *x, const char *id)
{
    return &x->buckets[str_hash(id) % EXECS_BUCKETS];
}

static void list(struct execs *x, struct named_exec *k)
{
    struct named_exec **bucket = bucket_of(x, k->id);

    k->bucket_next = *bucket;
    *bucket = k;
    k->prev = x->last;
    *(x->last != NULL ? &x->last->next : &x->first) = k;
    x->last = k;
    x->n_running++;
}

static void unlist_ended(struct named_exec *k)
{
    struct execs *x = k->x;

    *(k->older != NULL ? &k->older->newer : &x->ended_first) = k->newer;
    *(k->newer != NULL ? &k->newer->older : &x->ended_last) = k->older;
    x->n_ended--;
}

/* What was only needed to start it. */
static void forget_asked(struct named_exec *k)
{
    if (k->asked.owned != NULL)
        k->asked.owned_free(k->asked.owned);
    k->asked = (struct named_exec_options){0};
    if (k->session != NULL)
        session_release(TAKE_PTR(k->session));
}

static void named_exec_free(struct named_exec *k)
{
    struct execs *x = k->x;
    struct named_exec **at = bucket_of(x, k->id);

    assert(k->readers == NULL);
    while (*at != k)
        at = &(*at)->bucket_next;
    *at = k->bucket_next;
    *(k->prev != NULL ? &k->prev->next : &x->first) = k->next;
    *(k->next != NULL ? &k->next->prev : &x->last) = k->prev;
    if (k->state == NAMED_EXEC_ENDED)
        unlist_ended(k);
    else
        x->n_running--;
    x->bytes -= k->log.bytes;
    loop_defer_stop(&k->start);
    run_free(k->run);
    policy_gate_free(k->gate);
    forget_asked(k);
    log_done(&k->log);
    share_put(k->share);
    free(k->id);
    free(k->session_id);
    free(k);
}

void execs_free(struct execs *x)
{
    if (x == NULL)
        return;
    loop_timer_stop(&x->timer);
    loop_defer_stop(&x->sweep);
    while (x->first != NULL)
        named_exec_free(x->first);
    free(x);
}

/* Ended ones ---------------------------------------------------------------------------------- */

/* How much of what is scarce all of one share have together. */
static size_t weight(const struct execs *x, const struct share *share, bool by_bytes)
{
    size_t sum = 0;

    for (const struct named_exec *k = x->ended_first; k != NULL; k = k->newer)
        if (k->share == share)
            sum += by_bytes ? k->log.bytes : 1;
    return sum;
}

/* The oldest that may go of whoever has the most. NULL: none may. */
static struct named_exec *find_victim(const struct execs *x)
{
    bool by_bytes = x->bytes > x->options.max_bytes;
    struct named_exec *found = NULL;
    size_t most = 0;

    for (struct named_exec *k = x->ended_first; k != NULL; k = k->newer) {
        /* clang-tidy does not know that one that was freed is in no list any more.
         * NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        if (k->readers != NULL || (found != NULL && found->share == k->share))
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
    struct named_exec *victim;

    for (struct named_exec *k = x->ended_first, *newer; k != NULL; k = newer) {
        newer = k->newer;
        if (k->readers == NULL && (!k->keep || now - k->ended_now >= x->options.ended_ns))
            named_exec_free(k);
    }
    while (is_too_much(x) && (victim = find_victim(x)) != NULL)
        named_exec_free(victim);
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

static void named_exec_sweep_later(struct named_exec *k)
{
    loop_defer_start(k->x->loop, &k->x->sweep, on_sweep);
}

/* The life of one ----------------------------------------------------------------------------- */

static void become_ended(struct named_exec *k)
{
    struct execs *x = k->x;

    move(k, NAMED_EXEC_ENDED);
    loop_defer_stop(&k->start); /* it was let in, but given up before it could begin */
    k->ended_now = loop_now(x->loop);
    policy_gate_free(TAKE_PTR(k->gate));
    forget_asked(k);
    x->n_running--;
    x->n_ended++;
    k->older = x->ended_last;
    *(x->ended_last != NULL ? &x->ended_last->newer : &x->ended_first) = k;
    x->ended_last = k;
    named_exec_tell_readers(k);
    named_exec_sweep_later(k);
}

/* One that never ran is remembered by nobody but those who wait for it. */
static void refuse(struct named_exec *k, const struct err *err)
{
    k->err = *err;
    k->keep = false;
    become_ended(k);
}

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct named_exec *k = arg;
    size_t before = k->log.bytes;

    log_append(&k->log, stream, data, len);
    k->x->bytes += k->log.bytes - before;
    named_exec_tell_readers(k);
    named_exec_settle(k);
    if (k->x->bytes > k->x->options.max_bytes && k->x->ended_first != NULL)
        named_exec_sweep_later(k);
}

static void on_stdin_drained(void *arg)
{
    struct named_exec *k = arg;

    for (struct named_exec_reader *r = k->readers, *next; r != NULL; r = next) {
        next = r->next;
        if (r->events->stdin_drained != NULL)
            r->events->stdin_drained(r->arg);
    }
}

static void on_judged(void *arg, const struct err *err)
{
    struct named_exec *k = arg;

    if (err != NULL)
        k->err = *err;
    become_ended(k);
}

static void on_finished(void *arg, const struct run_result *result)
{
    struct named_exec *k = arg;

    k->result.outcome = result->outcome;
    for (int i = 0; i < 2; i++)
        k->result.produced[i] = result->produced[i];
    run_free(TAKE_PTR(k->run));
    move(k, NAMED_EXEC_ENDING);
    if (policy_gate_end(k->gate, &k->result.outcome, k->result.produced, on_judged) == 0)
        on_judged(k, NULL);
}

static void on_let_in(void *arg, const struct err *err)
{
    static const struct run_events events = {
        .output = on_output, .stdin_drained = on_stdin_drained, .finished = on_finished};
    struct named_exec *k = arg;
    struct err why = {0};

    if (err != NULL) {
        refuse(k, err);
        return;
    }
    if (run_start(k->session, &k->asked.run, &events, k, &k->run, &why) < 0) {
        policy_gate_failed(k->gate, &why);
        refuse(k, &why);
        return;
    }
    move(k, NAMED_EXEC_RUNNING);
    k->ran = true;
    if (k->asked.stdin_text != NULL) {
        (void)named_exec_write(k, k->asked.stdin_text, strlen(k->asked.stdin_text));
        named_exec_close_stdin(k);
    }
    forget_asked(k);
    named_exec_tell_readers(k);
}

/* Let in at once: still from the loop, so that the first reader is there when it runs. */
static void on_start(struct loop_defer *d)
{
    struct named_exec *k = container_of(d, struct named_exec, start);
    LOG_REQUEST(k->request.id);
    on_let_in(k, NULL);
}

static void on_over(void *arg)
{
    named_exec_kill(arg);
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

/* A command may take as long as its caller's profile says, whatever was asked for. */
static bool clamp(const struct execs *x, struct named_exec_options *o)
{
    int64_t most = policy_longest_sec(x->options.service->policy, o->scope);
    uint64_t *timeout = &o->run.exec.timeout_ns;

    if (most <= 0 || (*timeout != 0 && *timeout <= (uint64_t)most * NSEC_PER_SEC))
        return false;
    *timeout = (uint64_t)most * NSEC_PER_SEC;
    return true;
}

static int ask(struct named_exec *k, const struct named_exec_options *o, struct err *err)
{
    AUTO_FREE char *command = policy_command_text(o->run.exec.argv, o->run.exec.cmd);
    struct policy_gate_options gate = {.session = o->session,
                                       .scope = o->scope,
                                       .who = o->who,
                                       .via = o->via,
                                       .command = command,
                                       .clamped = clamp(k->x, &k->asked),
                                       .has_env = o->run.exec.env != NULL,
                                       .cleanup = o->cleanup,
                                       .over = on_over};

    int r = policy_gate_begin(k->x->options.service, &gate, on_let_in, k, &k->gate, err);
    if (r == 0)
        loop_defer_start(k->x->loop, &k->start, on_start);
    return r < 0 ? r : 0;
}

int execs_start(struct execs *x, const struct named_exec_options *options, struct named_exec **ret,
                struct err *err)
{
    struct named_exec *k = xnew(struct named_exec);
    char random[17];

    k->x = x;
    k->request = log_scope_now();
    k->asked = *options;
    k->keep = options->keep;
    k->log_max = options->keep ? options->log_max : 0;
    int r = check(x, options, err);
    if (r == 0)
        r = ask(k, options, err);
    if (r < 0) {
        forget_asked(k);
        free(k);
        return r;
    }
    id_random(random);
    k->id = xstrdup(options->id != NULL ? options->id : random);
    k->asked.run.id = k->id;
    k->session_id = xstrdup(session_id(options->session));
    k->session = options->session;
    session_hold(k->session);
    k->share = shares_get(x->options.service->shares, authz_share(options->scope));
    k->started_real = clock_real(loop_clock(x->loop));
    list(x, k);
    *ret = k;
    return 0;
}

struct named_exec *execs_find(const struct execs *x, const char *session_id, const char *id)
{
    struct named_exec *k = x->buckets[str_hash(id) % EXECS_BUCKETS];

    while (k != NULL && !(str_eq(k->id, id) && str_eq(k->session_id, session_id)))
        k = k->bucket_next;
    return k;
}

struct named_exec *execs_next(const struct execs *x, const char *session_id,
                              const struct named_exec *after)
{
    struct named_exec *k = after != NULL ? after->next : x->first;

    while (k != NULL && !str_eq(k->session_id, session_id))
        k = k->next;
    return k;
}

const char *named_exec_state_name(const struct named_exec *k)
{
    return states[k->state].name;
}

/* Using one ----------------------------------------------------------------------------------- */

int named_exec_write(struct named_exec *k, const char *data, size_t len)
{
    int r = k->run != NULL ? run_write(k->run, data, len) : -EPIPE;

    if (r >= 0)
        k->stdin_bytes += len;
    return r;
}

void named_exec_close_stdin(struct named_exec *k)
{
    if (k->run != NULL)
        run_close_stdin(k->run);
}

void named_exec_signal(struct named_exec *k, int signo)
{
    if (k->run != NULL)
        run_signal(k->run, signo);
}

void named_exec_kill(struct named_exec *k)
{
    struct err err = {0};

    if (k->run != NULL) {
        run_kill(k->run);
    } else if (k->state == NAMED_EXEC_ASKING) {
        (void)err_set(&err, ERR_STATE, "the command was given up before it ran");
        refuse(k, &err);
    }
}

void named_exec_resize(struct named_exec *k, uint16_t rows, uint16_t cols)
{
    if (k->run != NULL)
        run_resize(k->run, rows, cols);
}

void named_exec_dismiss(struct named_exec *k)
{
    k->keep = false;
    named_exec_kill(k);
    if (k->state == NAMED_EXEC_ENDED)
        named_exec_sweep_later(k);
}
