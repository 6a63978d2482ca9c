/* SPDX-License-Identifier: Apache-2.0 */

/* `box ps`, `box rm`, `box doctor`, `box info`, `box mcp ls` and `box mcp logs`: what boxd has, as
 * tables. */

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/format.h"
#include "cli/io/text.h"
#include "config/config.h"
#include "http/codec/http1.h"
#include "spec/coerce.h"

/* What box says when the host lacks something that it needs. */
#define STATUS_MISSING 1

#define USEC_PER_SEC 1000000
#define WAIT_MS 30000

/* ps. */

static void cell_text(struct text_table *t, const struct json *v)
{
    text_table_cell(t, json_str(v));
}

static void cell_memory(struct text_table *t, const struct json *v)
{
    char text[32];

    (void)str_fmt(text, sizeof(text), "%lld MiB", (long long)json_int(v));
    text_table_cell(t, json_type(v) == JSON_INT ? text : NULL);
}

/* In the words of people who come from containers. */
static void cell_state(struct text_table *t, const struct json *v)
{
    text_table_cell(t, str_eq(json_str(v), "ready") ? "running" : json_str(v));
}

static void cell_disk(struct text_table *t, const struct json *v)
{
    char text[32];

    (void)str_fmt(text, sizeof(text), "%.1f MiB", (double)json_int(v) / (1 << 20));
    text_table_cell(t, json_type(v) == JSON_INT ? text : "-");
}

static void cell_real(struct text_table *t, const struct json *v)
{
    char text[32];

    (void)str_fmt(text, sizeof(text), "%g", json_real(v));
    text_table_cell(t, v != NULL ? text : NULL);
}

/* The largest unit of which there are at least two: "90 s", "5 min", "47 h". */
static void cell_age(struct text_table *t, const struct json *v)
{
    static const struct {
        int64_t seconds;
        const char *name;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    int64_t created;
    bool zoned;
    char text[32];
    size_t i = 0;

    if (coerce_time(v, &created, &zoned) != ISSUE_NONE) {
        text_table_cell(t, NULL);
        return;
    }
    int64_t age = (int64_t)(clock_real(&clock_system) / (NSEC_PER_SEC / USEC_PER_SEC)) - created;
    age = age > 0 ? age / USEC_PER_SEC : 0; /* clocks may be set back */
    while (i + 1 < ARRAY_SIZE(units) && age < 2 * units[i].seconds)
        i++;
    (void)str_fmt(text, sizeof(text), "%lld %s", (long long)(age / units[i].seconds),
                  units[i].name);
    text_table_cell(t, text);
}

static const char *const session_titles[] = {"SESSION", "STATE", "IMAGE", "NETWORK", "MEMORY",
                                             "CPUS",    "AGE",   "EXECS", "DISK"};
static const struct {
    const char *key;
    void (*cell)(struct text_table *t, const struct json *v);
} columns[ARRAY_SIZE(session_titles)] = {
    {"session_id", cell_text}, {"state", cell_state},        {"image", cell_text},
    {"network", cell_text},    {"memory_mb", cell_memory},   {"cpus", cell_real},
    {"created_at", cell_age},  {"execs", text_table_number}, {"disk_bytes", cell_disk},
};

/* The disk is told of stopped ones only: the last column is theirs. */
#define COLUMNS_RUNNING (ARRAY_SIZE(columns) - 1)

static int fill_sessions(const struct buf *body, bool all, struct text_table *t, struct err *err)
{
    AUTO(json) struct json *session = NULL;
    struct items it;
    int r = items_init(&it, buf_str(body), body->len, "sessions", err);

    while (r >= 0 && (r = items_next(&it, &session, err)) > 0)
        for (size_t j = 0; j < (all ? ARRAY_SIZE(columns) : COLUMNS_RUNNING); j++)
            columns[j].cell(t, json_get(session, columns[j].key));
    return r;
}

/* --format and --quiet: a line for each session. */
static int print_formatted(const struct buf *body, struct format *f, struct err *err)
{
    AUTO(json) struct json *session = NULL;
    struct items it;
    int r = items_init(&it, buf_str(body), body->len, "sessions", err);

    while (r >= 0 && (r = items_next(&it, &session, err)) > 0)
        r = format_add(f, session, err);
    return r < 0 ? r : format_print(f, err);
}

int verb_ps(struct app *app, const struct args *args, struct err *err)
{
    AUTO(text_table)
    struct text_table *t =
        text_table_new(session_titles, args->all ? ARRAY_SIZE(columns) : COLUMNS_RUNNING);
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);
    AUTO(format) struct format *f = NULL;
    const char *format = args->quiet ? "{{.session_id}}" : args->format;
    int r = format_is_own_table(format) ? 0 : format_new(format, false, &f, err);

    if (r >= 0)
        r = app_connect(app, DAEMON_ANY, err);
    if (r >= 0)
        r = app_call(app, "GET", args->all ? "/v1/sessions" : "/v1/sessions?running=1", &body, err);
    if (r >= 0 && f != NULL)
        return print_formatted(&body, f, err);
    if (r >= 0)
        r = fill_sessions(&body, args->all, t, err);
    if (r < 0)
        return r;
    return args->json ? text_print_json(&body, err) : text_table_print(t, err);
}

/* rm. */

/* The ids are checked, here or by boxd: they need no escaping in a path. */
static int remove_one(struct app *app, const char *id, struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(1 << 20);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s", id);

    return app_call(app, "DELETE", target, &body, err);
}

static int remove_listed(struct app *app, const struct json *session, struct err *err)
{
    const char *id = json_str(json_get(session, "session_id"));

    if (id == NULL || !id_valid(id))
        return err_set(err, ERR_BACKEND, "boxd lists a session whose name no path can hold");
    int r = remove_one(app, id, err);
    /* It went by itself meanwhile, which is as well. */
    return r < 0 && r != -EINTR && err->code == ERR_NOT_FOUND ? 0 : r;
}

static int remove_all(struct app *app, struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);
    AUTO(json) struct json *session = NULL;
    struct items it;

    int r = app_call(app, "GET", "/v1/sessions", &body, err);
    if (r >= 0)
        r = items_init(&it, buf_str(&body), body.len, "sessions", err);
    while (r >= 0 && (r = items_next(&it, &session, err)) > 0)
        r = remove_listed(app, session, err);
    return r;
}

int verb_rm(struct app *app, const struct args *args, struct err *err)
{
    int status = 0;
    int r = app_connect(app, DAEMON_RUNNING, err);

    if (r < 0)
        return r;
    if (args->all)
        return remove_all(app, err);
    for (size_t i = 0; args->names[i] != NULL; i++) {
        r = remove_one(app, args->names[i], err);
        if (r == -EINTR)
            return r;
        if (r < 0) {
            text_say_err(err); /* the others are removed all the same */
            status = STATUS_FAILED;
        }
    }
    return status;
}

/* doctor. */

/* Whether something that is needed is missing. */
static bool fill_checks(const struct json *checks, struct text_table *t)
{
    bool missing = false;

    for (size_t i = 0; i < json_len(checks); i++) {
        const struct json *check = json_at(checks, i);
        const char *status = json_str(json_get(check, "status"));
        const char *remedy = json_str(json_get(check, "remedy"));
        text_table_cell(t, json_str(json_get(check, "id")));
        text_table_cell(t, status);
        text_table_cell(t, json_str(json_get(check, "detail")));
        if (remedy != NULL && remedy[0] != '\0' && !str_eq(status, "ok"))
            text_table_note(t, remedy);
        missing = missing || str_eq(status, "missing");
    }
    return missing;
}

static const char *why_this(const struct app *app)
{
    return app->told ? "BOX_HOST names it" : app->daemon.why;
}

int verb_doctor(struct app *app, const struct args *args, struct err *err)
{
    static const char *const titles[] = {"CHECK", "STATUS", "DETAIL"};
    AUTO(text_table) struct text_table *t = text_table_new(titles, ARRAY_SIZE(titles));
    AUTO(json) struct json *answer = NULL;
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);

    if (args->attack)
        return verb_attack(app, args, err);
    int r = app_connect(app, DAEMON_ANY, err);
    if (r >= 0)
        r = app_call(app, "GET", "/v1/doctor", &body, err);
    if (r >= 0 && (r = json_parse(buf_str(&body), body.len, &answer, err)) < 0)
        r = err_wrap(err, "answer of boxd");
    if (r < 0)
        return r;
    AUTO_FREE char *daemon = xasprintf("%s: %s", app->endpoint, why_this(app));
    text_table_cell(t, "boxd");
    text_table_cell(t, "used");
    text_table_cell(t, daemon);
    bool missing = fill_checks(json_get(answer, "checks"), t);
    r = args->json ? text_print_json(&body, err) : text_table_print(t, err);
    return r < 0 ? r : missing ? STATUS_MISSING : 0;
}

/* info. */

static void put_fact(struct text_table *t, const char *name, const char *value)
{
    text_table_cell(t, name);
    text_table_cell(t, value);
}

static int print_info(const struct app *app, const struct json *status, struct err *err)
{
    static const char *const titles[] = {"WHAT", "IS"};
    AUTO(text_table) struct text_table *t = text_table_new(titles, ARRAY_SIZE(titles));

    put_fact(t, "boxd", app->endpoint);
    put_fact(t, "because", why_this(app));
    put_fact(t, "backend", json_str(json_get(json_get(status, "backend"), "name")));
    put_fact(t, "problem", json_str(json_get(status, "connector_error")));
    text_table_cell(t, "sessions you see");
    text_table_number(t, json_get(status, "active_sessions"));
    put_fact(t, "box", config_version);
    return text_table_print(t, err);
}

int verb_info(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX), out = BUF_INIT(APP_BODY_MAX);
    AUTO(json) struct json *status = NULL;
    struct jw w = JW_INIT(&out);
    int r = app_connect(app, DAEMON_ANY, err);

    if (r >= 0)
        r = app_call(app, "GET", "/v1/status", &body, err);
    if (r >= 0 && (r = json_parse(buf_str(&body), body.len, &status, err)) < 0)
        r = err_wrap(err, "answer of boxd");
    if (r < 0 || !args->json)
        return r < 0 ? r : print_info(app, status, err);
    jw_object(&w);
    jw_kstr(&w, "endpoint", app->endpoint);
    jw_kstr(&w, "because", why_this(app));
    jw_kstr(&w, "version", config_version);
    jw_kvalue(&w, "status", status);
    jw_object_end(&w);
    r = jw_end(&w);
    return r < 0 ? err_sys(err, -r, "write the answer") : text_print_json(&out, err);
}

/* The servers that `box mcp run` has put into boxes. */

static bool is_server(const struct json *hold)
{
    const struct json *info = json_get(hold, "info");
    const char *id = json_str(json_get(hold, "session_id"));

    /* A session whose client is away has no description; its name tells. */
    if (info == NULL)
        return id != NULL && str_starts(id, "mcp-");
    return str_eq(json_str(json_get(info, "kind")), "mcp");
}

/* Where no boxd listens, no server can be running. */
static int list_holds(struct app *app, struct buf *body, struct err *err)
{
    int r = app_connect(app, DAEMON_RUNNING, err);

    if (r < 0 && err->code == ERR_NOT_FOUND && !app->told)
        return buf_puts(body, "{\"holds\":[]}");
    return r < 0 ? r : app_call(app, "GET", "/v1/holds", body, err);
}

/* mcp ls. */

static void put_row(struct text_table *t, const struct json *hold)
{
    const struct json *info = json_get(hold, "info");
    const char *status = json_str(json_get(info, "status"));
    const char *error = json_str(json_get(info, "error_message"));

    text_table_cell(t, json_str(json_get(info, "name")));
    text_table_cell(t, json_bool(json_get(hold, "held")) ? status : "lost");
    text_table_cell(t, json_str(json_get(info, "phase")));
    text_table_cell(t, json_str(json_get(hold, "session_id")));
    text_table_number(t, json_get(info, "retry_count"));
    text_table_number(t, json_get(info, "restart_count"));
    text_table_number(t, json_get(info, "tool_count"));
    text_table_cell(t, json_str(json_get(info, "command")));
    if (error != NULL)
        text_table_note(t, error);
}

static void put_json(struct jw *w, const struct json *hold)
{
    static const char *const own[] = {"held", "since", "session_id"};
    const struct json *info = json_get(hold, "info");

    jw_object(w);
    for (size_t i = 0; i < ARRAY_SIZE(own); i++)
        jw_kvalue(w, own[i], json_get(hold, own[i]));
    for (void *it = json_iter(info); it != NULL; it = json_iter_next(info, it))
        jw_kvalue(w, json_iter_key(it), json_iter_value(it));
    jw_object_end(w);
}

static int print_servers(const struct buf *body, bool as_json, struct err *err)
{
    static const char *const titles[] = {"NAME",    "STATUS",   "PHASE", "SESSION",
                                         "RETRIES", "RESTARTS", "TOOLS", "COMMAND"};
    AUTO(text_table) struct text_table *t = text_table_new(titles, ARRAY_SIZE(titles));
    AUTO_DONE(buf) struct buf text = BUF_INIT(APP_BODY_MAX);
    AUTO(json) struct json *hold = NULL;
    struct items it;
    struct jw w = JW_INIT(&text);
    int r = items_init(&it, buf_str(body), body->len, "holds", err);

    jw_array(&w);
    while (r >= 0 && (r = items_next(&it, &hold, err)) > 0) {
        if (!is_server(hold))
            continue;
        put_row(t, hold);
        put_json(&w, hold);
    }
    if (r < 0)
        return r;
    jw_array_end(&w);
    r = jw_end(&w);
    if (r < 0)
        return err_sys(err, -r, "write the list");
    return as_json ? text_print_json(&text, err) : text_table_print(t, err);
}

int verb_mcp_ls(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);

    int r = list_holds(app, &body, err);
    return r < 0 ? r : print_servers(&body, args->json, err);
}

/* mcp logs. */

/* The session of the server that is called so, or has that session. */
static int find_session(const struct buf *body, const char *name, char **ret, struct err *err)
{
    AUTO(json) struct json *hold = NULL;
    struct items it;
    int found = 0;
    int r = items_init(&it, buf_str(body), body->len, "holds", err);

    while (r >= 0 && (r = items_next(&it, &hold, err)) > 0) {
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
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/processes", session);
    AUTO(json) struct json *process = NULL;
    struct items it;

    *ret = xstrdup("");
    int r = app_call(app, "GET", target, &body, err);
    if (r >= 0)
        r = items_init(&it, buf_str(&body), body.len, "processes", err);
    while (r >= 0 && (r = items_next(&it, &process, err)) > 0) {
        const char *id = json_str(json_get(process, "process_id"));
        if (id != NULL && id_valid(id)) {
            free(*ret);
            *ret = xstrdup(id);
        }
    }
    return r;
}

struct log_tail {
    uint64_t at;
    bool over, gone;
};

static void on_head(void *arg, const struct http1_head *head)
{
    struct log_tail *t = arg;
    const struct http1_header *next = http1_find(head, "Box-Next-Offset");
    const struct http1_header *end = http1_find(head, "Box-End");

    if (head->status != 200)
        return;
    if (next != NULL) {
        AUTO_FREE char *text = xstrndup(next->value.p, next->value.len);
        (void)str_to_u64(text, &t->at);
    }
    t->over = end != NULL && end->value.len == 4 && memcmp(end->value.p, "true", 4) == 0;
}

/* Words of a program for a terminal are escaped; a pipe or file gets them as they are. */
static void on_bytes(void *arg, const char *data, size_t len)
{
    struct log_tail *t = arg;
    AUTO_DONE(buf) struct buf text = BUF_INIT(1 << 20);

    if (!isatty(STDOUT_FILENO))
        (void)buf_append(&text, data, len);
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
    if (fd_write_all(STDOUT_FILENO, text.data, text.len) < 0)
        t->gone = true;
}

/* A process that boxd has forgotten has nothing more to say. */
static int read_more(struct app *app, struct log_tail *t, const char *session, const char *process,
                     unsigned wait_ms, struct err *err)
{
    AUTO_FREE char *target =
        xasprintf("/v1/sessions/%s/processes/%s/stderr?from=%" PRIu64 "&wait_ms=%u", session,
                  process, t->at, wait_ms);
    const struct app_request req = {
        .method = "GET", .target = target, .head = on_head, .bytes = on_bytes, .arg = t};
    AUTO_DONE(buf) struct buf problem = BUF_INIT(65536);

    t->over = true;
    int r = app_send(app, &req, &problem, err);
    return r < 0 && r != -EINTR && err->code == ERR_NOT_FOUND ? 0 : r;
}

/* From process to process, as the server is started again, until its session is gone. */
static int follow(struct app *app, const char *session, char **process, struct err *err)
{
    struct log_tail t = {.over = true};
    int r = 0;

    while (r >= 0 && !t.gone) {
        if ((*process)[0] != '\0')
            r = read_more(app, &t, session, *process, WAIT_MS, err);
        if (r < 0)
            return r;
        if (!t.over)
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
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);
    AUTO_FREE char *session = NULL;
    AUTO_FREE char *process = NULL;
    struct log_tail t = {0};

    int r = list_holds(app, &body, err);
    if (r >= 0)
        r = find_session(&body, args->names[0], &session, err);
    if (r >= 0)
        r = last_process(app, session, &process, err);
    if (r < 0)
        return r;
    if (args->follow)
        return follow(app, session, &process, err);
    return process[0] == '\0' ? 0 : read_more(app, &t, session, process, 0, err);
}
