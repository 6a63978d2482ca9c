/* SPDX-License-Identifier: Apache-2.0 */

/* Attaches a connection to a managed process by byte offsets, for a peer that may outlive boxd. A
 * peer that outlives us. It names the offsets where it goes on and says how far it has got; only
 * then is output released. Input is acknowledged once it is in the program's pipe, so that what we
 * take with us when we die is sent again. */

#include <errno.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "loop/loop.h"
#include "session/manager.h"
#include "session/process.h"

#define READ_SIZE 65536U
#define TURN_BYTES (512U << 10) /* of output in one turn of the loop */
#define STDERR_SIZE (16U << 10)
#define TEXT_MAX (64U << 10)
/* Nothing tells of stderr or of a pipe that was full: we look, soon and then less often. A flood
 * of stderr costs us no more than one look each time. */
#define LOOK_FIRST_NS (16 * NSEC_PER_MSEC)
#define LOOK_LAST_NS (512 * NSEC_PER_MSEC)
/* An acknowledgement wakes the peer, which is on its way to wait for the answer: it goes with the
 * answer, unless that takes longer than this. */
#define ACK_FIRST_NS (1 * NSEC_PER_MSEC)
#define ACK_BYTES (256U << 10)
#define ACK_SIZE 8U /* of the number in front of output */
#define ACK_LAST_NS (64 * NSEC_PER_MSEC)
#define REST_NS (500 * NSEC_PER_MSEC) /* for output that is on its way when a process has ended */

enum { CHANNEL_STDOUT = 1, CHANNEL_STDERR = 2, CHANNEL_STDOUT_ACK = 3 };

struct v1_attach {
    struct ws_conn *ws; /* borrowed */
    char *process_id;   /* owned */
    struct loop *loop;
    struct process_watch watch;
    struct attachment *attachment; /* owned; NULL: it had ended before */
    uint64_t at, err_at;
    uint64_t given, acked; /* bytes of stdin */
    struct loop_timer look, ack, rest;
    uint64_t look_ns, ack_ns;
    struct loop_defer again;
    bool joined_acks;
    bool rested; /* no more output is waited for */
    bool ended;  /* everything has been said */
};

static void say(struct v1_attach *a, struct buf *out, struct jw *w)
{
    jw_object_end(w);
    if (jw_end(w) >= 0)
        (void)ws_send(a->ws, WS_TEXT, out->data, out->len);
}

static void say_number(struct v1_attach *a, const char *type, const char *key, uint64_t n)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "type", type);
    jw_ku64(&w, key, n);
    say(a, &out, &w);
}

static void end(struct v1_attach *a)
{
    a->ended = true;
    process_watch_stop(&a->watch);
    loop_timer_stop(&a->look);
    loop_timer_stop(&a->ack);
    loop_timer_stop(&a->rest);
    loop_defer_stop(&a->again);
}

/* p NULL: it was stopped or replaced, and nothing is known of it any more. */
static void say_exit(struct v1_attach *a, struct process *p)
{
    AUTO_DONE(buf) struct buf out;
    AUTO_DONE(buf) struct buf preview;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    buf_init(&preview, PROCESS_STDERR_CHARS * 4U + 1U);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "type", "exit");
    jw_kstr(&w, "process_id", a->process_id);
    jw_kbool(&w, "known", p != NULL);
    if (p != NULL) {
        process_stderr_preview(p, &preview);
        jw_kint(&w, "exit_code", process_exit_code(p));
        jw_kstr(&w, "stderr_preview", buf_str(&preview));
    }
    say(a, &out, &w);
    end(a);
}

/* stderr. */

/* Whether there was any. */
static bool pump_err(struct v1_attach *a, struct process *p)
{
    static char frame[1 + STDERR_SIZE];
    uint64_t before = a->err_at;
    if (ws_full(a->ws))
        return false;
    size_t n = process_stderr_from(p, &a->err_at, frame + 1, STDERR_SIZE);
    if (n == 0)
        return false;
    uint64_t lost = a->err_at - before - n;
    if (lost > 0)
        say_number(a, "stderr_lost", "bytes", lost);
    frame[0] = CHANNEL_STDERR;
    (void)ws_send(a->ws, WS_BINARY, frame, n + 1);
    return true;
}

static void on_look(struct loop_timer *t)
{
    struct v1_attach *a = container_of(t, struct v1_attach, look);
    a->look_ns = pump_err(a, a->watch.p) ? LOOK_FIRST_NS : a->look_ns * 2;
    if (a->look_ns > LOOK_LAST_NS)
        a->look_ns = LOOK_LAST_NS;
    loop_timer_start(a->loop, t, a->look_ns, on_look);
}

/* stdout. */

static uint64_t written(struct v1_attach *a);
static void pump(struct v1_attach *a, struct process *p);

static void on_again(struct loop_defer *d)
{
    struct v1_attach *a = container_of(d, struct v1_attach, again);
    if (a->watch.p != NULL)
        pump(a, a->watch.p);
}

/* Output in one message with an acknowledgement that is due: a second one would wake the peer twice
 * for each line. */
static int send_out(struct v1_attach *a, char *room, size_t len)
{
    char *head = room - 1;
    head[0] = CHANNEL_STDOUT;
    if (a->joined_acks && a->given > a->acked && written(a) > a->acked) {
        head = room - ACK_SIZE - 1;
        head[0] = CHANNEL_STDOUT_ACK;
        a->acked = written(a);
        for (unsigned i = 0; i < ACK_SIZE; i++)
            head[1 + i] = (char)(a->acked >> (8 * (ACK_SIZE - 1 - i)));
    }
    return ws_send(a->ws, WS_BINARY, head, (size_t)(room - head) + len);
}

/* Everything that is there, or that the connection takes. */
static bool pump_out(struct v1_attach *a, struct process *p)
{
    static char frame[1 + ACK_SIZE + READ_SIZE];
    char *room = frame + 1 + ACK_SIZE;
    size_t budget = TURN_BYTES;
    while (!ws_full(a->ws)) {
        ssize_t n = process_read(p, a->at, room, READ_SIZE);
        if (n <= 0)
            return true;
        if (budget < (size_t)n) {
            loop_defer_start(a->loop, &a->again, on_again);
            return false;
        }
        budget -= (size_t)n;
        if (send_out(a, room, (size_t)n) < 0)
            return false;
        a->at += (uint64_t)n;
    }
    return false;
}

static void on_rest(struct loop_timer *t)
{
    struct v1_attach *a = container_of(t, struct v1_attach, rest);
    a->rested = true;
    pump(a, a->watch.p);
}

static void pump(struct v1_attach *a, struct process *p)
{
    bool all = pump_out(a, p);
    if (!all || process_running(p))
        return;
    struct proc_range range = process_range(p);
    if (!(range.eof && a->at == range.end) && !a->rested) {
        /* A child in the background may hold stdout for as long as it likes. */
        if (a->rest.loop == NULL)
            loop_timer_start(a->loop, &a->rest, REST_NS, on_rest);
        return;
    }
    while (pump_err(a, p))
        continue;
    say_exit(a, p);
}

static void on_change(struct process_watch *w, struct process *p)
{
    struct v1_attach *a = container_of(w, struct v1_attach, watch);
    if (p == NULL)
        say_exit(a, NULL);
    else
        pump(a, p);
}

void v1_attach_writable(struct v1_attach *a)
{
    if (!a->ended && a->watch.p != NULL)
        pump(a, a->watch.p);
}

void v1_attach_received(struct v1_attach *a, uint64_t upto)
{
    struct err ignored = {0};
    if (a->ended || a->watch.p == NULL || upto > a->at)
        return;
    if (a->attachment != NULL && attachment_is_active(a->attachment))
        attachment_release(a->attachment, upto);
    else if (a->attachment == NULL && upto >= process_range(a->watch.p).begin)
        (void)process_release(a->watch.p, upto, &ignored);
}

/* stdin. */

static void on_ack(struct loop_timer *t);

/* Of what we were given, in the program's pipe. */
static uint64_t written(struct v1_attach *a)
{
    size_t waits = attachment_unwritten(a->attachment);
    return waits < a->given ? a->given - waits : 0;
}

static void acknowledge(struct v1_attach *a)
{
    uint64_t bytes = written(a);
    if (bytes > a->acked) {
        a->acked = bytes;
        a->ack_ns = ACK_FIRST_NS;
        say_number(a, "stdin_ack", "bytes", bytes);
    }
    if (a->acked == a->given || a->ended)
        return;
    loop_timer_start(a->loop, &a->ack, a->ack_ns, on_ack);
    a->ack_ns = a->ack_ns < ACK_LAST_NS ? a->ack_ns * 2 : ACK_LAST_NS;
}

static void on_ack(struct loop_timer *t)
{
    acknowledge(container_of(t, struct v1_attach, ack));
}

void v1_attach_stdin(struct v1_attach *a, const char *data, size_t len)
{
    if (a->ended || a->attachment == NULL || !attachment_is_active(a->attachment))
        return; /* it is told the end, or was told that there is nobody to read */
    int r = attachment_write(a->attachment, data, len);
    if (r == -ENOBUFS) {
        ws_close(a->ws, WS_CODE_TOO_BIG, "stdin arrives faster than the program reads");
        return;
    }
    a->given += len;
    if (r < 0)
        a->acked = a->given; /* nobody will read it; the end is about to be told */
    else if (a->given - a->acked > ACK_BYTES)
        acknowledge(a);
    else if (a->ack.loop == NULL)
        loop_timer_start(a->loop, &a->ack, ACK_FIRST_NS, on_ack);
}

void v1_attach_stdin_eof(struct v1_attach *a)
{
    if (!a->ended && a->attachment != NULL && attachment_is_active(a->attachment))
        attachment_close_stdin(a->attachment);
}

/* Coming and going. */

static void say_attached(struct v1_attach *a, bool running)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "type", "attached");
    jw_ku64(&w, "from", a->at);
    jw_kbool(&w, "running", running);
    say(a, &out, &w);
}

static void on_active(void *arg)
{
    struct v1_attach *a = arg;
    if (a->ended)
        return;
    say_attached(a, true);
    a->look_ns = LOOK_FIRST_NS;
    loop_timer_start(a->loop, &a->look, a->look_ns, on_look);
    pump(a, a->watch.p);
}

/* Output is watched apart from this: it ends later than the right to write. */
static void on_nothing(void *arg)
{
}

static const struct attachment_events events = {
    .active = on_active, .output = on_nothing, .drained = on_nothing, .ended = on_nothing};

int v1_attach_new(struct session *s, const struct v1_attach_terms *terms, struct ws_conn *ws,
                  struct v1_attach **ret, struct err *err)
{
    struct process *p = process_find(s, terms->process_id);
    if (p == NULL)
        return err_missing(err, ERR_THING_PROCESS, "session %.80s has no process %.80s",
                           session_id(s), terms->process_id);
    struct proc_range range = process_range(p);
    if (terms->from < range.begin || terms->from > range.end)
        return err_set(err, ERR_INVALID, "offset %llu is outside of what is kept, %llu to %llu",
                       (unsigned long long)terms->from, (unsigned long long)range.begin,
                       (unsigned long long)range.end);
    struct v1_attach *a = xnew(struct v1_attach);
    a->ws = ws;
    a->process_id = xstrdup(terms->process_id);
    a->loop = manager_loop(session_manager(s));
    a->at = terms->from;
    a->err_at = terms->stderr_from;
    a->joined_acks = terms->joined_acks;
    a->ack_ns = ACK_FIRST_NS;
    process_watch_start(p, &a->watch, on_change);
    *ret = a;
    if (process_running(p) && process_attach(p, &events, a, &a->attachment, err) == 0)
        return 0;
    say_attached(a, false);
    loop_defer_start(a->loop, &a->again, on_again);
    return 0;
}

void v1_attach_free(struct v1_attach *a)
{
    if (a == NULL)
        return;
    if (!a->ended)
        end(a);
    attachment_free(a->attachment);
    free(a->process_id);
    free(a);
}
