/* SPDX-License-Identifier: Apache-2.0 */

/* The connection of `box mcp run` on which boxd holds the session, and single HTTP calls beside
 * it. */

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/mcp.h"
#include "cli/mcp/payload.h"
#include "http/client/client.h"
#include "http/codec/http1.h"
#include "spec/spec.h"

#define TARGET "/v1/hold"
#define REQUEST_MAX (24u << 20)
#define ANSWER_MAX (16u << 20)
#define NEVER_NS (UINT64_C(10) * 365 * 24 * 3600 * NSEC_PER_SEC)

enum { CHANNEL_STDIN, CHANNEL_STDOUT, CHANNEL_STDERR, CHANNEL_STDOUT_ACK };
#define ACK_SIZE 8U

/* What we say. */

static void say(struct mcp_run *m, struct buf *text, struct jw *w)
{
    jw_object_end(w);
    if (jw_end(w) >= 0 && m->ws != NULL)
        (void)ws_send(m->ws, WS_TEXT, buf_str(text), text->len);
}

static void begin(struct jw *w, struct buf *text, const char *type)
{
    buf_init(text, REQUEST_MAX);
    jw_init(w, text);
    jw_object(w);
    jw_kstr(w, "type", type);
}

void mcp_link_hold(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;
    const struct mcp_session_payload payload = {
        .session_id = m->session_id,
        .box = &m->server.box,
        .roots = &m->roots,
        .chain = &m->chain,
        .mounts = m->args->spec->extra_mounts,
        .n_mounts = (unsigned)m->args->spec->n_extra_mounts,
        .profile = m->args->profile,
        .quota_mb = m->args->spec->workspace_quota_mb,
    };

    begin(&w, &text, "hold");
    jw_kint(&w, "grace_sec", m->grace_sec);
    jw_kbool(&w, "create", !m->has_session);
    jw_key(&w, "session");
    if (m->has_session) {
        jw_object(&w);
        jw_kstr(&w, "session_id", m->session_id);
        jw_object_end(&w);
    } else {
        mcp_write_session(&w, &payload);
    }
    say(m, &text, &w);
}

void mcp_link_attach(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;

    begin(&w, &text, "attach");
    jw_kstr(&w, "process_id", m->process_id);
    jw_ku64(&w, "from", m->at);
    jw_ku64(&w, "stderr_from", m->err_at);
    jw_kbool(&w, "joined_acks", true);
    say(m, &text, &w);
}

static void say_plain(struct mcp_run *m, const char *type)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;

    begin(&w, &text, type);
    say(m, &text, &w);
}

void mcp_link_release(struct mcp_run *m)
{
    say_plain(m, "release");
}

void mcp_link_stdin_eof(struct mcp_run *m)
{
    say_plain(m, "stdin_eof");
}

void mcp_link_received(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;

    begin(&w, &text, "received");
    jw_ku64(&w, "upto", m->at);
    m->received = m->at;
    say(m, &text, &w);
}

void mcp_link_info(struct mcp_run *m)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;
    const char *slash = strrchr(m->server.command, '/');
    const struct mcp_info info = {
        .name = m->name,
        .command = slash != NULL ? slash + 1 : m->server.command,
        .session_id = m->session_id,
        .status = m->status,
        .phase = m->phase,
        .error = m->error[0] != '\0' ? m->error : NULL,
        .retries = m->retry.failed,
        .restarts = m->restarts,
        .tools = &m->tools,
        .pid = getpid(),
    };

    begin(&w, &text, "info");
    jw_key(&w, "info");
    mcp_write_info(&w, &info);
    say(m, &text, &w);
}

int mcp_link_stdin(struct mcp_run *m, const char *data, size_t len)
{
    char small[4096];
    AUTO_FREE char *large = len + 1 > sizeof(small) ? xmalloc(len + 1) : NULL;
    char *message = large != NULL ? large : small;

    if (m->ws == NULL)
        return -EPIPE;
    message[0] = CHANNEL_STDIN;
    memcpy(message + 1, data, len);
    return ws_send(m->ws, WS_BINARY, message, len + 1);
}

/* What boxd says. */

static void got_exit(struct mcp_run *m, const struct json *v)
{
    const char *preview = json_str(json_get(v, "stderr_preview"));

    if (!str_eq(json_str(json_get(v, "process_id")), m->process_id) || m->process_number == 0)
        return; /* one that we are done with */
    mcp_server_exited(m, json_bool(json_get(v, "known")), json_int(json_get(v, "exit_code")),
                      preview != NULL ? preview : "");
}

static void got_error(struct mcp_run *m, const struct json *v)
{
    const char *about = json_str(json_get(v, "about")), *code = json_str(json_get(v, "code"));
    const char *detail = json_str(json_get(v, "detail"));
    const char *remedy = json_str(json_get(v, "remediation"));
    bool has_remedy = remedy != NULL && remedy[0] != '\0';
    AUTO_FREE char *why =
        xasprintf("%s%s%s", detail != NULL ? detail : "boxd refused without a reason",
                  has_remedy ? "; " : "", has_remedy ? remedy : "");

    mcp_refused(m, about != NULL ? about : "", code != NULL ? code : "", why);
}

static void got_held(struct mcp_run *m, const struct json *v)
{
    mcp_held(m);
}

static void got_attached(struct mcp_run *m, const struct json *v)
{
    mcp_attached(m);
}

static void got_released(struct mcp_run *m, const struct json *v)
{
    mcp_released(m);
}

static void got_ack(struct mcp_run *m, const struct json *v)
{
    mcp_pipe_acked(m, (uint64_t)json_int(json_get(v, "bytes")));
}

static void got_lost(struct mcp_run *m, const struct json *v)
{
    m->err_lost += (uint64_t)json_int(json_get(v, "bytes"));
    m->err_at += (uint64_t)json_int(json_get(v, "bytes"));
}

static const struct {
    const char *type;
    void (*act)(struct mcp_run *m, const struct json *v);
} messages[] = {{"stdin_ack", got_ack},    {"held", got_held},        {"attached", got_attached},
                {"exit", got_exit},        {"stderr_lost", got_lost}, {"error", got_error},
                {"released", got_released}};

static void on_text(struct mcp_run *m, const char *data, size_t len)
{
    AUTO(json) struct json *v = NULL;
    struct err ignored;

    if (json_parse(data, len, &v, &ignored) < 0)
        return;
    const char *type = json_str(json_get(v, "type"));
    for (size_t i = 0; i < ARRAY_SIZE(messages); i++)
        if (str_eq(type, messages[i].type)) {
            messages[i].act(m, v);
            return;
        }
}

/* Output behind the number of bytes that the program was given. */
static void on_output(struct mcp_run *m, const char *data, size_t len)
{
    uint64_t given = 0;

    if (len < ACK_SIZE)
        return;
    for (unsigned i = 0; i < ACK_SIZE; i++)
        given = given << 8 | (unsigned char)data[i];
    mcp_pipe_stdout(m, data + ACK_SIZE, len - ACK_SIZE);
    mcp_pipe_acked(m, given);
}

static void on_message(struct ws_conn *c, enum ws_opcode opcode, const char *data, size_t len,
                       void *arg)
{
    struct mcp_run *m = arg;

    if (opcode == WS_TEXT)
        on_text(m, data, len);
    else if (len > 1 && data[0] == CHANNEL_STDOUT)
        mcp_pipe_stdout(m, data + 1, len - 1);
    else if (len > 1 && data[0] == CHANNEL_STDOUT_ACK)
        on_output(m, data + 1, len - 1);
    else if (len > 1 && data[0] == CHANNEL_STDERR)
        mcp_pipe_stderr(m, data + 1, len - 1);
}

static void on_writable(struct ws_conn *c, void *arg)
{
    mcp_pipe_send(arg);
}

static void on_closed(struct ws_conn *c, unsigned code, const char *reason, void *arg)
{
    struct mcp_run *m = arg;
    AUTO_FREE char *why =
        xasprintf("the connection to boxd was lost (%u%s%s)", code,
                  reason != NULL && reason[0] != '\0' ? ": " : "", reason != NULL ? reason : "");
    m->ws = NULL;
    mcp_link_lost(m, why);
}

static void on_opened(struct ws_conn *c, const struct err *cause, void *arg)
{
    struct mcp_run *m = arg;

    m->opening = false;
    m->ws = c;
    if (c == NULL) {
        mcp_link_lost(m, cause->msg);
        return;
    }
    if (m->step == STEP_LEAVE) {
        loop_quit(m->app->loop);
        return;
    }
    m->link_failures = 0;
    mcp_linked(m);
}

void mcp_link_open(struct mcp_run *m)
{
    static const struct ws_handlers handlers = {
        .message = on_message, .writable = on_writable, .closed = on_closed};
    static const struct ws_opts opts = {.stall_ns = NEVER_NS};
    struct app_headers headers = app_headers(m->app);
    struct err cause;
    const struct http_ws_call call = {.target = TARGET,
                                      .headers = headers.list,
                                      .opts = &opts,
                                      .handlers = &handlers,
                                      .opened = on_opened,
                                      .arg = m};

    if (m->opening || m->ws != NULL)
        return;
    if (http_client_ws(m->app->client, &call, &cause) < 0)
        mcp_link_lost(m, cause.msg);
    else
        m->opening = true;
}

/* Calls. */

static void on_head(struct http_call *c, const struct http1_head *head, void *arg)
{
    struct mcp_run *m = arg;

    m->call_status = head->status;
}

static void on_body(struct http_call *c, const char *data, size_t len, void *arg)
{
    struct mcp_run *m = arg;

    (void)buf_append(&m->answer, data, len);
}

static void on_done(struct http_call *c, const struct err *err, void *arg)
{
    struct mcp_run *m = arg;
    void (*done)(struct mcp_run *, unsigned, const struct err *) = m->call_done;

    m->call = NULL;
    m->call_done = NULL;
    if (done != NULL)
        done(m, m->call_status, err);
}

void mcp_call_cancel(struct mcp_run *m)
{
    if (m->call != NULL)
        http_call_cancel(m->call);
    m->call = NULL;
    m->call_done = NULL;
}

void mcp_call(struct mcp_run *m, const char *method, const char *target, const struct buf *body,
              void (*done)(struct mcp_run *m, unsigned status, const struct err *err))
{
    static const struct http_call_handlers handlers = {
        .head = on_head, .body = on_body, .done = on_done};
    struct app_headers headers = app_headers(m->app);
    struct err err;
    const struct http_call_opts opts = {.method = method,
                                        .target = target,
                                        .headers = headers.list,
                                        .type = body != NULL ? "application/json" : NULL,
                                        .body = body != NULL ? buf_str(body) : NULL,
                                        .body_len = body != NULL ? body->len : 0};

    mcp_call_cancel(m);
    buf_done(&m->answer);
    buf_init(&m->answer, ANSWER_MAX);
    m->call_status = 0;
    m->call_done = done;
    if (http_client_call(m->app->client, &opts, &handlers, m, &m->call, &err) < 0) {
        m->call_done = NULL;
        done(m, 0, &err);
    }
}
