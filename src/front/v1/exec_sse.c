/* SPDX-License-Identifier: Apache-2.0 */

/* One exec as server-sent events. The id of an event is the position behind it, so that a client
 * that comes back with the last id goes on without gap or repeat; the id of the end is one more. */

#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "command/execs.h"
#include "front/common/sse.h"
#include "front/v1/v1_internal.h"
#include "http/codec/crypto.h"
#include "http/server/server.h"
#include "session/manager.h"

#define PIECE_MAX 16384U
#define DATA_MAX (PIECE_MAX * 8U) /* worst case of escaping, and the rest */

struct exec_sse {
    struct http_request *req;
    struct loop *loop; /* borrowed */
    struct sse sse;
    struct named_exec_reader reader;
    uint64_t at;  /* position behind what was sent */
    bool started; /* and said so */
};

static void end(struct exec_sse *x)
{
    named_exec_detach(&x->reader);
    if (x->started)
        sse_end(&x->sse);
    else
        http_abort(x->req);
    free(x);
}

static void send_at(struct exec_sse *x, const char *event, uint64_t id, const struct buf *json)
{
    char text[24];

    (void)str_fmt(text, sizeof(text), "%llu", (unsigned long long)id);
    sse_send(&x->sse, event, text, json);
}

static void send_started(struct exec_sse *x)
{
    const struct named_exec *k = x->reader.kept;
    AUTO_DONE(buf) struct buf out;
    struct jw w;

    buf_init(&out, DATA_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "session_id", named_exec_session_id(k));
    jw_kstr(&w, "exec_id", named_exec_id(k));
    jw_ku64(&w, "seq", x->at);
    jw_object_end(&w);
    send_at(x, "started", x->at, &out);
}

static void send_dropped(struct exec_sse *x, uint64_t bytes)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;

    buf_init(&out, DATA_MAX);
    x->at += bytes;
    jw_init(&w, &out);
    jw_object(&w);
    jw_ku64(&w, "bytes", bytes);
    jw_ku64(&w, "seq", x->at);
    jw_object_end(&w);
    send_at(x, "dropped", x->at, &out);
}

static void send_output(struct exec_sse *x, enum exec_stream stream, const char *data, size_t len)
{
    static char encoded[HTTP_BASE64_SIZE(PIECE_MAX)];
    AUTO_DONE(buf) struct buf out;
    struct jw w;

    buf_init(&out, DATA_MAX);
    x->at += len;
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "stream", stream == EXEC_STDERR ? "stderr" : "stdout");
    if (utf8_valid(data, len)) {
        jw_key(&w, "text");
        jw_strn(&w, data, len);
    } else {
        http_base64(data, len, encoded);
        jw_kstr(&w, "base64", encoded);
    }
    jw_object_end(&w);
    send_at(x, "output", x->at, &out);
}

/* How it ended, or why it may not have. A browser keeps the name "error" for itself. */
static void send_end(struct exec_sse *x)
{
    const struct err *err = named_exec_error(x->reader.kept);
    AUTO_DONE(buf) struct buf out;
    struct jw w;

    buf_init(&out, DATA_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    if (err != NULL)
        v1_write_problem(&w, "problem", err);
    else
        v1_write_outcome(&w, named_exec_result(x->reader.kept));
    jw_object_end(&w);
    send_at(x, err != NULL ? "failed" : "exit", x->at + 1, &out);
}

/* It never ran, and nothing was said yet: an answer like any other. */
static void refuse(struct exec_sse *x)
{
    struct http_request *req = x->req;
    struct err err = *named_exec_error(x->reader.kept);

    named_exec_detach(&x->reader);
    free(x);
    front_fail(req, &err);
}

/* One piece, between characters where that can be had. False: nothing to send for now. */
static bool send_piece(struct exec_sse *x)
{
    static char data[PIECE_MAX];
    enum exec_stream stream;
    size_t len = named_exec_read(&x->reader, &stream, data, sizeof(data));

    if (len == 0)
        return false;
    size_t whole = utf8_boundary(data, len);
    if (whole == 0 && named_exec_may_grow(&x->reader, len))
        return false; /* the rest of the character is on its way */
    len = whole > 0 ? whole : len;
    send_output(x, stream, data, len);
    named_exec_advance(&x->reader, len);
    return true;
}

/* False: not yet, or never. */
static bool begin(struct exec_sse *x)
{
    const struct named_exec *k = x->reader.kept;

    if (named_exec_state(k) == NAMED_EXEC_ASKING)
        return false;
    if (named_exec_state(k) == NAMED_EXEC_ENDED && named_exec_error(k) != NULL &&
        !named_exec_ran(k)) {
        refuse(x);
        return false;
    }
    x->started = true;
    sse_start(&x->sse, x->req, x->loop);
    send_started(x);
    return true;
}

static void pump(void *arg)
{
    struct exec_sse *x = arg;

    if (!x->started && !begin(x))
        return;
    uint64_t dropped = named_exec_take_dropped(&x->reader);
    if (dropped > 0)
        send_dropped(x, dropped);
    while (!sse_full(&x->sse) && send_piece(x))
        ;
    if (!named_exec_at_end(&x->reader))
        return;
    send_end(x);
    end(x);
}

static void on_writable(struct http_request *req, void *arg)
{
    pump(arg);
}

static void on_cancel(struct http_request *req, void *arg)
{
    end(arg);
}

void v1_exec_sse(struct http_request *req, const struct v1 *v, struct named_exec *k, uint64_t from)
{
    static const struct named_exec_events events = {.ready = pump};
    struct exec_sse *x = xnew(struct exec_sse);

    x->req = req;
    x->loop = manager_loop(v->front.manager);
    x->at = from;
    http_on_cancel(req, on_cancel, x);
    http_on_writable(req, on_writable, x);
    named_exec_attach(k, &x->reader, from, &events, x);
    pump(x);
}
