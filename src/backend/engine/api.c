/* SPDX-License-Identifier: Apache-2.0 */

/* Makes calls to the engine, agrees on an API version, and turns its answers into JSON or
 * errors. */

#include "backend/engine/api.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/list.h"
#include "base/str.h"
#include "http/client/client.h"
#include "http/codec/http1.h"
#include "loop/loop.h"

/* 1.40 is Docker 19.03; later ones change nothing that we use, and new engines refuse the oldest.
 */
#define VERSION_MIN 40U
#define VERSION_MAX 47U
#define MESSAGE_MAX 300U
#define PING_TIMEOUT_NS (10ULL * NSEC_PER_SEC)

struct engine_call {
    struct engine_api *api; /* borrowed */
    LIST_ENTRY(engine_call) entry;
    struct http_call *http; /* NULL between two */
    engine_answer_fn *answer;
    int (*line)(void *arg, const struct json *object, struct err *err);
    void *arg;
    char *method, *target, *body; /* owned */
    const char *type;             /* of the body; static */
    size_t body_len;
    uint64_t timeout_ns;
    bool pinging;         /* the versions are compared first */
    bool unversioned;     /* no need to */
    bool busy, cancelled; /* a line is being told; it was cancelled meanwhile */
    unsigned status, peer_minor;
    bool peer_libpod;
    struct buf in;
    struct err err;
    struct loop_timer timer;
    struct loop_defer defer;
};

int engine_api_new(struct loop *loop, const char *name, const char *endpoint,
                   const struct tls_files *tls, struct engine_api **ret, struct err *err)
{
    AUTO(engine_api) struct engine_api *api = xnew(struct engine_api);
    api->loop = loop;
    api->name = name;
    api->endpoint = xstrdup(endpoint);
    int r = tls != NULL ? http_client_new_tls(loop, endpoint, tls, &api->client, err)
                        : http_client_new(loop, endpoint, &api->client, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(api);
    return 0;
}

static void call_free(struct engine_call *c)
{
    LIST_REMOVE(c, entry);
    if (c->http != NULL)
        http_call_cancel(c->http);
    loop_timer_stop(&c->timer);
    loop_defer_stop(&c->defer);
    buf_done(&c->in);
    free(c->method);
    free(c->target);
    free(c->body);
    free(c);
}

void engine_api_free(struct engine_api *api)
{
    if (api == NULL)
        return;
    struct engine_call *c, *next;
    LIST_FOREACH_SAFE (c, &api->calls, entry, next)
        call_free(c);
    http_client_free(api->client);
    free(api->endpoint);
    free(api);
}

char *engine_quote(const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";
    AUTO_DONE(buf) struct buf out;
    buf_init(&out, 3 * strlen(text) + 1);
    for (; *text != '\0'; text++) {
        if (strchr(plain, *text) != NULL)
            (void)buf_putc(&out, *text);
        else
            (void)buf_printf(&out, "%%%02X", (unsigned char)*text);
    }
    return buf_take(&out);
}

/* The end. */

static void finish(struct engine_call *c, const struct json *body)
{
    engine_answer_fn *answer = c->answer;
    void *arg = c->arg;
    struct err err = c->err;
    call_free(c);
    answer(arg, err.code == ERR_NONE ? body : NULL, err.code == ERR_NONE ? NULL : &err);
}

static void on_defer(struct loop_defer *d)
{
    finish(container_of(d, struct engine_call, defer), NULL);
}

/* c->err is filled. Told from the loop. */
static void fail(struct engine_call *c)
{
    if (c->http != NULL)
        http_call_cancel(TAKE_PTR(c->http));
    loop_timer_stop(&c->timer);
    loop_defer_start(c->api->loop, &c->defer, on_defer);
}

static void on_timer(struct loop_timer *t)
{
    struct engine_call *c = container_of(t, struct engine_call, timer);
    c->api->minor = 0; /* another engine may answer next */
    (void)err_set(&c->err, ERR_UNAVAILABLE, "%s did not answer within %llu seconds (%.80s)",
                  c->api->name, (unsigned long long)(c->timeout_ns / NSEC_PER_SEC), c->target);
    c->err.sys = ETIMEDOUT;
    fail(c);
}

static void arm(struct engine_call *c, uint64_t ns)
{
    loop_timer_start(c->api->loop, &c->timer, ns, on_timer);
}

/* Answers. */

static const struct {
    unsigned status;
    enum err_code code;
} codes[] = {
    {400, ERR_INVALID},   {401, ERR_DENIED},   {403, ERR_DENIED},
    {404, ERR_NOT_FOUND}, {409, ERR_CONFLICT},
};

/* An engine's own words: blanks collapsed, at most MESSAGE_MAX bytes. */
static void set_error(struct engine_call *c, enum err_code code, const char *text, size_t len)
{
    char line[MESSAGE_MAX + 1] = "";
    size_t n = 0;
    bool blank = false, cut = false;
    for (size_t i = 0; i < len && !cut; i++) {
        bool space = (unsigned char)text[i] <= ' ';
        cut = !space && n + 2 > MESSAGE_MAX - 3;
        if (!space && !cut && blank && n > 0)
            line[n++] = ' ';
        if (!space && !cut)
            line[n++] = text[i];
        blank = space;
    }
    n = utf8_boundary(line, n);
    line[n] = '\0';
    (void)err_set(&c->err, code, "%s backend error: %s%s", c->api->name,
                  n > 0 ? line : "unknown backend error", cut ? "..." : "");
    c->err.sys = 0;
}

static void explain(struct engine_call *c, const struct json *body)
{
    enum err_code code = ERR_BACKEND;
    const struct json *message = json_get(body, "message");
    for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
        if (codes[i].status == c->status)
            code = codes[i].code;
    if (json_str(message) != NULL)
        set_error(c, code, json_str(message), json_str_len(message));
    else
        set_error(c, code, c->in.data, c->in.len);
}

static bool is_json(const struct engine_call *c)
{
    const char *text = buf_str(&c->in);
    text += strspn(text, " \r\n\t");
    return *text == '{' || *text == '[' || str_starts(text, "null");
}

static void start_http(struct engine_call *c);

/* On what both speak. */
static void agree(struct engine_call *c)
{
    struct engine_api *api = c->api;
    if (c->status != 200) {
        explain(c, NULL);
        fail(c);
        return;
    }
    if (c->peer_minor < VERSION_MIN) {
        (void)err_set(&c->err, ERR_BACKEND,
                      "%s speaks version 1.%u of its API; 1.%u is the oldest we can use", api->name,
                      c->peer_minor, VERSION_MIN);
        fail(c);
        return;
    }
    api->minor = c->peer_minor < VERSION_MAX ? c->peer_minor : VERSION_MAX;
    (void)snprintf(api->version, sizeof(api->version), "1.%u", api->minor);
    api->libpod = c->peer_libpod;
    c->pinging = false;
    buf_reset(&c->in);
    start_http(c);
}

static void complete(struct engine_call *c)
{
    static const char garbage[] = "the answer is not valid JSON";
    AUTO(json) struct json *body = NULL;
    struct err bad;
    bool ok = (c->status >= 200 && c->status < 300) || c->status == 304;
    if (is_json(c) && json_parse(c->in.data, c->in.len, &body, &bad) < 0 && ok)
        set_error(c, ERR_BACKEND, garbage, strlen(garbage));
    if (!ok)
        explain(c, body);
    finish(c, body);
}

static void take_line(struct engine_call *c, const char *text, size_t len)
{
    static const char garbage[] = "the stream is not valid JSON";
    AUTO(json) struct json *object = NULL;
    struct err bad;
    if (len == 0 || (len == 1 && text[0] == '\r'))
        return;
    if (json_parse(text, len, &object, &bad) < 0 || json_type(object) != JSON_OBJECT) {
        set_error(c, ERR_BACKEND, garbage, strlen(garbage));
        return;
    }
    c->busy = true;
    int r = c->line(c->arg, object, &c->err);
    c->busy = false;
    if (r < 0 && c->err.code == ERR_NONE)
        (void)err_sys(&c->err, -r, "%s", c->api->name);
}

/* Whole lines leave; what is left is the beginning of the next. */
static void take_lines(struct engine_call *c)
{
    size_t pos = 0;
    while (!c->cancelled && c->err.code == ERR_NONE && pos < c->in.len) {
        const char *start = c->in.data + pos;
        const char *end = memchr(start, '\n', c->in.len - pos);
        if (end == NULL)
            break;
        take_line(c, start, (size_t)(end - start));
        pos += (size_t)(end - start) + 1;
    }
    if (c->cancelled)
        call_free(c);
    else if (c->err.code != ERR_NONE)
        fail(c);
    else
        buf_consume(&c->in, pos);
}

static void on_head(struct http_call *http, const struct http1_head *head, void *arg)
{
    struct engine_call *c = arg;
    const struct http1_header *version = http1_find(head, "Api-Version");
    char minor[8] = "";
    uint64_t n = 0;
    c->status = head->status;
    c->peer_libpod = http1_find(head, "Libpod-API-Version") != NULL;
    if (version == NULL || version->value.len < 3 || version->value.len > 5 ||
        strncmp(version->value.p, "1.", 2) != 0)
        return;
    memcpy(minor, version->value.p + 2, version->value.len - 2);
    if (str_to_u64(minor, &n) == 0)
        c->peer_minor = (unsigned)n;
}

static void on_body(struct http_call *http, const char *data, size_t len, void *arg)
{
    static const char large[] = "the answer is too large";
    struct engine_call *c = arg;
    if (buf_append(&c->in, data, len) < 0) {
        set_error(c, ERR_BACKEND, large, strlen(large));
        fail(c);
        return;
    }
    if (c->line != NULL && !c->pinging && c->status < 300) {
        arm(c, c->timeout_ns);
        take_lines(c);
    }
}

/* Where it is is told once: what is behind that is what people need. */
static void set_unreachable(struct engine_call *c, const struct err *err)
{
    const struct engine_api *api = c->api;
    AUTO_FREE char *twice = xasprintf("connect to %s: ", api->endpoint);
    const char *why = str_starts(err->msg, twice) ? err->msg + strlen(twice) : err->msg;
    (void)err_set(&c->err, ERR_UNAVAILABLE, "%s cannot be reached at %s: %s", api->name,
                  api->endpoint, why);
}

static void on_done(struct http_call *http, const struct err *err, void *arg)
{
    struct engine_call *c = arg;
    c->http = NULL;
    if (err != NULL) {
        c->api->minor = 0;
        set_unreachable(c, err);
        c->err.sys = err->sys != 0 ? err->sys : ECONNRESET;
        finish(c, NULL);
    } else if (c->pinging) {
        agree(c);
    } else {
        complete(c);
    }
}

static const struct http_call_handlers handlers = {
    .head = on_head, .body = on_body, .done = on_done};

/* Failure is told through the callback. */
static void start_http(struct engine_call *c)
{
    AUTO_FREE char *target = c->pinging       ? xstrdup("/_ping")
                             : c->unversioned ? xstrdup(c->target)
                                              : xasprintf("/v%s%s", c->api->version, c->target);
    struct http_call_opts opts = {.target = target, .connect_ns = PING_TIMEOUT_NS};
    uint64_t patience = c->timeout_ns;
    if (!c->pinging) {
        opts.method = c->method;
        opts.type = c->body == NULL ? NULL : c->type != NULL ? c->type : "application/json";
        opts.body = c->body;
        opts.body_len = c->body_len;
    } else if (patience > PING_TIMEOUT_NS) {
        patience = PING_TIMEOUT_NS;
    }
    c->status = 0;
    arm(c, patience);
    if (http_client_call(c->api->client, &opts, &handlers, c, &c->http, &c->err) < 0) {
        c->http = NULL;
        fail(c);
    }
}

struct engine_call *engine_call_start(struct engine_api *api, const struct engine_request *req,
                                      engine_answer_fn *answer, void *arg)
{
    struct engine_call *c = xnew(struct engine_call);
    c->api = api;
    c->answer = answer;
    c->line = req->line;
    c->arg = arg;
    c->method = xstrdup(req->method != NULL ? req->method : "GET");
    c->target = xstrdup(req->target);
    if (req->body != NULL) {
        c->body = xnew_n(char, req->body_len + 1);
        memcpy(c->body, req->body, req->body_len);
    }
    c->type = req->type;
    c->body_len = req->body_len;
    c->timeout_ns = req->timeout_ns > 0 ? req->timeout_ns : ENGINE_TIMEOUT_NS;
    c->unversioned = req->unversioned;
    c->pinging = api->minor == 0 && !req->unversioned;
    buf_init(&c->in, req->line != NULL ? ENGINE_LINE_MAX : ENGINE_BODY_MAX);
    LIST_INSERT_HEAD(&api->calls, c, entry);
    start_http(c);
    return c;
}

void engine_call_cancel(struct engine_call *call)
{
    if (call == NULL)
        return;
    if (call->busy)
        call->cancelled = true; /* freed when its line is told */
    else
        call_free(call);
}
