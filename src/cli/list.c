/* SPDX-License-Identifier: Apache-2.0 */

/* `box ps`, `box rm` and `box doctor`. */

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/items.h"
#include "cli/io/outcome.h"
#include "cli/io/text.h"
#include "spec/coerce.h"

/* What box says when the host lacks something that it needs. */
#define STATUS_MISSING 1

#define USEC_PER_SEC 1000000

static int print_json(const struct buf *body, struct err *err)
{
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, 6 * (size_t)APP_BODY_MAX);
    int r = json_plain(&out, buf_str(body), body->len);
    if (r >= 0 && !str_ends(buf_str(body), "\n"))
        r = buf_putc(&out, '\n');
    return r < 0 ? err_sys(err, -r, "write JSON") : text_print(&out, err);
}

static int print_table(const struct text_table *t, struct err *err)
{
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, APP_BODY_MAX);
    int r = text_table_write(t, &out);
    return r < 0 ? err_sys(err, -r, "write a table") : text_print(&out, err);
}

/* ps. */

static void cell_text(struct text_table *t, const struct json *v)
{
    text_table_cell(t, json_str(v));
}

static void cell_count(struct text_table *t, const struct json *v)
{
    char text[32];

    (void)str_fmt(text, sizeof(text), "%lld", (long long)json_int(v));
    text_table_cell(t, json_type(v) == JSON_INT ? text : NULL);
}

static void cell_memory(struct text_table *t, const struct json *v)
{
    char text[32];

    (void)str_fmt(text, sizeof(text), "%lld MiB", (long long)json_int(v));
    text_table_cell(t, json_type(v) == JSON_INT ? text : NULL);
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

static const struct {
    const char *title;
    const char *key;
    void (*cell)(struct text_table *t, const struct json *v);
} columns[] = {
    {"SESSION", "session_id", cell_text}, {"STATE", "state", cell_text},
    {"IMAGE", "image", cell_text},        {"NETWORK", "network", cell_text},
    {"MEMORY", "memory_mb", cell_memory}, {"CPUS", "cpus", cell_real},
    {"AGE", "created_at", cell_age},      {"EXECS", "execs", cell_count},
};

static int fill_sessions(const struct buf *body, struct text_table *t, struct err *err)
{
    struct items it;
    int r = items_init(&it, buf_str(body), body->len, "sessions", err);

    for (size_t j = 0; j < ARRAY_SIZE(columns); j++)
        text_table_cell(t, columns[j].title);
    while (r >= 0) {
        AUTO(json) struct json *session = NULL;
        r = items_next(&it, &session, err);
        if (r <= 0)
            break;
        for (size_t j = 0; j < ARRAY_SIZE(columns); j++)
            columns[j].cell(t, json_get(session, columns[j].key));
    }
    return r;
}

int verb_ps(struct app *app, const struct args *args, struct err *err)
{
    AUTO(text_table) struct text_table *t = text_table_new(ARRAY_SIZE(columns));
    AUTO_DONE(buf) struct buf body;

    buf_init(&body, APP_BODY_MAX);
    int r = app_connect(app, APP_ANY, err);
    if (r >= 0)
        r = app_call(app, "GET", "/v1/sessions", &body, err);
    if (r >= 0)
        r = fill_sessions(&body, t, err);
    if (r < 0)
        return r;
    return args->json ? print_json(&body, err) : print_table(t, err);
}

/* rm. */

/* The ids are checked, here or by boxd: they need no escaping in a path. */
static int remove_one(struct app *app, const char *id, struct err *err)
{
    AUTO_DONE(buf) struct buf body;
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s", id);

    buf_init(&body, 1 << 20);
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
    AUTO_DONE(buf) struct buf body;
    struct items it;

    buf_init(&body, APP_BODY_MAX);
    int r = app_call(app, "GET", "/v1/sessions", &body, err);
    if (r >= 0)
        r = items_init(&it, buf_str(&body), body.len, "sessions", err);
    while (r >= 0) {
        AUTO(json) struct json *session = NULL;
        r = items_next(&it, &session, err);
        if (r <= 0)
            break;
        r = remove_listed(app, session, err);
    }
    return r;
}

int verb_rm(struct app *app, const struct args *args, struct err *err)
{
    int status = 0;
    int r = app_connect(app, APP_RUNNING, err);

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

    text_table_cell(t, "CHECK");
    text_table_cell(t, "STATUS");
    text_table_cell(t, "DETAIL");
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

int verb_doctor(struct app *app, const struct args *args, struct err *err)
{
    AUTO(text_table) struct text_table *t = text_table_new(3);
    AUTO(json) struct json *answer = NULL;
    AUTO_DONE(buf) struct buf body;

    if (args->attack)
        return verb_attack(app, args, err);
    buf_init(&body, APP_BODY_MAX);
    int r = app_connect(app, APP_ANY, err);
    if (r >= 0)
        r = app_call(app, "GET", "/v1/doctor", &body, err);
    if (r >= 0 && (r = json_parse(buf_str(&body), body.len, &answer, err)) < 0)
        r = err_wrap(err, "answer of boxd");
    if (r < 0)
        return r;
    bool missing = fill_checks(json_get(answer, "checks"), t);
    r = args->json ? print_json(&body, err) : print_table(t, err);
    return r < 0 ? r : missing ? STATUS_MISSING : 0;
}
