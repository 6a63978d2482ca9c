/* SPDX-License-Identifier: Apache-2.0 */

/* `box mcp ls` and `box mcp logs`: the servers that `box mcp run` has put into boxes. */

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/items.h"
#include "cli/io/text.h"
#include "http/client/client.h"
#include "http/codec/http1.h"

#define WAIT_MS 30000

static bool is_server(const struct json *hold)
{
    const struct json *info = json_get(hold, "info");

    /* One that nobody holds just now says nothing of itself; its name tells. */
    if (info == NULL)
        return str_starts(json_str(json_get(hold, "session_id")) != NULL
                              ? json_str(json_get(hold, "session_id"))
                              : "",
                          "mcp-");
    return str_eq(json_str(json_get(info, "kind")), "mcp");
}

/* Nobody to ask is nobody who runs anything. */
static int list(struct app *app, struct buf *body, struct err *err)
{
    int r = app_connect(app, APP_RUNNING, err);

    if (r < 0 && err->code == ERR_NOT_FOUND && !app->told)
        return buf_puts(body, "{\"holds\":[]}");
    return r < 0 ? r : app_call(app, "GET", "/v1/holds", body, err);
}

/* ls. */

static void cell_number(struct text_table *t, const struct json *v)
{
    char text[32];

    (void)str_fmt(text, sizeof(text), "%lld", (long long)json_int(v));
    text_table_cell(t, json_type(v) == JSON_INT ? text : NULL);
}

static void put_row(struct text_table *t, const struct json *hold)
{
    const struct json *info = json_get(hold, "info");
    const char *status = json_str(json_get(info, "status"));
    const char *error = json_str(json_get(info, "error_message"));

    text_table_cell(t, json_str(json_get(info, "name")));
    text_table_cell(t, json_bool(json_get(hold, "held")) ? status : "lost");
    text_table_cell(t, json_str(json_get(info, "phase")));
    text_table_cell(t, json_str(json_get(hold, "session_id")));
    cell_number(t, json_get(info, "retry_count"));
    cell_number(t, json_get(info, "restart_count"));
    cell_number(t, json_get(info, "tool_count"));
    text_table_cell(t, json_str(json_get(info, "command")));
    if (error != NULL)
        text_table_note(t, error);
}

static int put_json(struct jw *w, const struct json *hold)
{
    const struct json *info = json_get(hold, "info");

    jw_object(w);
    jw_key(w, "held");
    jw_value(w, json_get(hold, "held"));
    jw_key(w, "since");
    jw_value(w, json_get(hold, "since"));
    jw_key(w, "session_id");
    jw_value(w, json_get(hold, "session_id"));
    for (void *it = json_iter(info); it != NULL; it = json_iter_next(info, it)) {
        jw_key(w, json_iter_key(it));
        jw_value(w, json_iter_value(it));
    }
    jw_object_end(w);
    return w->error;
}

static int write_all(const struct buf *body, bool as_json, struct buf *out, struct err *err)
{
    static const char *const titles[] = {"NAME",    "STATUS",   "PHASE", "SESSION",
                                         "RETRIES", "RESTARTS", "TOOLS", "COMMAND"};
    AUTO(text_table) struct text_table *t = text_table_new(ARRAY_SIZE(titles));
    AUTO_DONE(buf) struct buf text;
    struct items it;
    struct jw w;
    int r = items_init(&it, buf_str(body), body->len, "holds", err);

    buf_init(&text, APP_BODY_MAX);
    jw_init(&w, &text);
    jw_array(&w);
    for (size_t i = 0; i < ARRAY_SIZE(titles); i++)
        text_table_cell(t, titles[i]);
    while (r >= 0) {
        AUTO(json) struct json *hold = NULL;
        r = items_next(&it, &hold, err);
        if (r <= 0)
            break;
        if (!is_server(hold))
            continue;
        put_row(t, hold);
        (void)put_json(&w, hold);
    }
    if (r < 0)
        return r;
    jw_array_end(&w);
    r = jw_end(&w);
    if (r >= 0)
        r = as_json ? json_plain(out, buf_str(&text), text.len) : text_table_write(t, out);
    if (r >= 0 && as_json)
        r = buf_putc(out, '\n');
    return r < 0 ? err_sys(err, -r, "write the list") : 0;
}

int verb_mcp_ls(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf body;
    AUTO_DONE(buf) struct buf out;

    buf_init(&body, APP_BODY_MAX);
    buf_init(&out, 6 * (size_t)APP_BODY_MAX);
    int r = list(app, &body, err);
    if (r >= 0)
        r = write_all(&body, args->json, &out, err);
    return r < 0 ? r : text_print(&out, err);
}

/* logs. */

/* The session of the server that is called so, or has that session. */
static int find_session(const struct buf *body, const char *name, char **ret, struct err *err)
{
    struct items it;
    int found = 0;
    int r = items_init(&it, buf_str(body), body->len, "holds", err);

    while (r >= 0) {
        AUTO(json) struct json *hold = NULL;
        r = items_next(&it, &hold, err);
        if (r <= 0)
            break;
        const char *session = json_str(json_get(hold, "session_id"));
        if (session == NULL || !id_valid(session) || !is_server(hold) ||
            !(str_eq(session, name) ||
              str_eq(json_str(json_get(json_get(hold, "info"), "name")), name)))
            continue;
        found++;
        free(*ret);
        *ret = xstrdup(session);
    }
    if (r >= 0 && found == 0)
        r = err_set(err, ERR_NOT_FOUND, "no MCP server '%s' runs in a box, see 'box mcp ls'", name);
    if (r >= 0 && found > 1)
        r = err_set(err, ERR_CONFLICT,
                    "%d servers are called '%s': name the session, as 'box mcp ls' shows it", found,
                    name);
    return r;
}

/* The last process of a session; "" when there is none. */
static int last_process(struct app *app, const char *session, char **ret, struct err *err)
{
    AUTO_DONE(buf) struct buf body;
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/processes", session);
    struct items it;

    buf_init(&body, APP_BODY_MAX);
    *ret = xstrdup("");
    int r = app_call(app, "GET", target, &body, err);
    if (r >= 0)
        r = items_init(&it, buf_str(&body), body.len, "processes", err);
    while (r >= 0) {
        AUTO(json) struct json *process = NULL;
        r = items_next(&it, &process, err);
        if (r <= 0)
            break;
        const char *id = json_str(json_get(process, "process_id"));
        if (id != NULL && id_valid(id)) {
            free(*ret);
            *ret = xstrdup(id);
        }
    }
    return r;
}

struct tail {
    struct app *app;
    uint64_t at;
    bool over, failed, gone;
    unsigned status;
};

static void on_head(struct http_call *c, const struct http1_head *head, void *arg)
{
    struct tail *t = arg;
    const struct http1_header *next = http1_find(head, "Box-Next-Offset");
    const struct http1_header *end = http1_find(head, "Box-End");

    t->status = head->status;
    if (next != NULL) {
        AUTO_FREE char *text = xstrndup(next->value.p, next->value.len);
        (void)str_to_u64(text, &t->at);
    }
    t->over = end != NULL && end->value.len == 4 && memcmp(end->value.p, "true", 4) == 0;
}

/* Another's words for a terminal: whoever pipes them gets them as they are. */
static void on_body(struct http_call *c, const char *data, size_t len, void *arg)
{
    struct tail *t = arg;
    AUTO_DONE(buf) struct buf text;

    buf_init(&text, 1 << 20);
    if (t->status != 200)
        return;
    for (size_t i = 0, n; i < len && isatty(STDOUT_FILENO); i += n) {
        n = data[i] == '\n' || data[i] == '\t' ? 1 : 0;
        if (n == 1) {
            (void)buf_putc(&text, data[i]);
            continue;
        }
        while (i + n < len && data[i + n] != '\n' && data[i + n] != '\t')
            n++;
        (void)text_escape(&text, data + i, n);
    }
    if (!isatty(STDOUT_FILENO))
        (void)buf_append(&text, data, len);
    if (fd_write_all(STDOUT_FILENO, text.data, text.len) < 0)
        t->gone = true;
}

static void on_done(struct http_call *c, const struct err *err, void *arg)
{
    struct tail *t = arg;

    t->failed = err != NULL;
    loop_quit(t->app->loop);
}

static int read_more(struct tail *t, const char *session, const char *process, unsigned wait_ms,
                     struct err *err)
{
    static const struct http_call_handlers handlers = {
        .head = on_head, .body = on_body, .done = on_done};
    struct app_headers headers = app_headers(t->app);
    AUTO_FREE char *target =
        xasprintf("/v1/sessions/%s/processes/%s/stderr?from=%" PRIu64 "&wait_ms=%u", session,
                  process, t->at, wait_ms);
    const struct http_call_opts opts = {.target = target, .headers = headers.list};
    struct err cause;

    if (http_client_call(t->app->client, &opts, &handlers, t, NULL, &cause) < 0)
        return app_unreachable(t->app, &cause, err);
    return app_wait(t->app, err);
}

/* From process to process, as the server is started again, until its session is gone. */
static int follow(struct app *app, const char *session, char **process, struct err *err)
{
    struct tail t = {.app = app};
    int r = 0;

    while (r >= 0 && !t.gone) {
        if ((*process)[0] != '\0')
            r = read_more(&t, session, *process, WAIT_MS, err);
        if (r < 0 || t.failed)
            return r < 0 ? r : err_set(err, ERR_BACKEND, "the connection to boxd was lost");
        if ((*process)[0] != '\0' && t.status == 200 && !t.over)
            continue;
        AUTO_FREE char *next = NULL;
        if (last_process(app, session, &next, err) < 0)
            return err->code == ERR_NOT_FOUND ? 0 : err_code_errno(err->code);
        if (str_eq(next, *process)) {
            struct pollfd none = {.fd = app->signals.fd, .events = POLLIN};
            (void)poll(&none, 1, 200);
            (void)loop_turn(app->loop, 0);
            if (app->signo != 0)
                return -EINTR;
            continue;
        }
        t.at = 0;
        free(*process);
        *process = TAKE_PTR(next);
    }
    return r;
}

int verb_mcp_logs(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf body;
    AUTO_FREE char *session = NULL;
    AUTO_FREE char *process = NULL;
    struct tail t = {.app = app};

    buf_init(&body, APP_BODY_MAX);
    int r = list(app, &body, err);
    if (r >= 0)
        r = find_session(&body, args->names[0], &session, err);
    if (r >= 0)
        r = last_process(app, session, &process, err);
    if (r < 0)
        return r;
    if (args->follow)
        return follow(app, session, &process, err);
    return process[0] == '\0' ? 0 : read_more(&t, session, process, 0, err);
}
