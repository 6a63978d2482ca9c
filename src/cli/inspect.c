/* SPDX-License-Identifier: Apache-2.0 */

/* `box inspect`, `box diff` and `box events`: all that boxd tells of a session, what it has changed
 * of its image, and what happens to sessions as it happens. */

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/format.h"
#include "cli/io/text.h"

/* inspect. */

static int get_json(struct app *app, const char *id, const char *what, struct json **ret,
                    struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s%s", id, what);
    int r = app_call(app, "GET", target, &body, err);

    if (r >= 0 && (r = json_parse(buf_str(&body), body.len, ret, err)) < 0)
        r = err_wrap(err, "answer of boxd");
    return r;
}

/* The session as boxd shows it, with its processes and its last commands. */
static int put_session(struct app *app, const char *id, struct buf *out, struct err *err)
{
    AUTO(json) struct json *session = NULL;
    AUTO(json) struct json *processes = NULL;
    AUTO(json) struct json *execs = NULL;
    struct jw w = JW_INIT(out);

    int r = get_json(app, id, "", &session, err);
    if (r >= 0)
        r = get_json(app, id, "/processes", &processes, err);
    if (r >= 0)
        r = get_json(app, id, "/execs", &execs, err);
    if (r < 0)
        return r;
    jw_object(&w);
    for (void *it = json_iter(session); it != NULL; it = json_iter_next(session, it))
        jw_kvalue(&w, json_iter_key(it), json_iter_value(it));
    jw_kvalue(&w, "processes", json_get(processes, "processes"));
    jw_kvalue(&w, "recent_execs", json_get(execs, "execs"));
    jw_object_end(&w);
    r = jw_end(&w);
    return r < 0 ? err_sys(err, -r, "write the session") : 0;
}

static void new_line(struct buf *out, size_t depth)
{
    (void)buf_printf(out, "\n%*s", (int)(depth * 2), "");
}

/* JSON for people: a member on each line. Errors stick to the buffer. */
static void put_indented(struct buf *out, const char *json, size_t len, size_t depth)
{
    bool in_string = false;

    for (size_t i = 0; i < len; i++) {
        char c = json[i];
        bool opens = !in_string && (c == '{' || c == '[');
        bool closes = !in_string && (c == '}' || c == ']');
        bool empty = i > 0 && closes && (json[i - 1] == '{' || json[i - 1] == '[');
        if (closes && depth > 0)
            depth--;
        if (closes && !empty)
            new_line(out, depth);
        (void)buf_putc(out, c);
        if (in_string && c == '\\' && i + 1 < len)
            (void)buf_putc(out, json[++i]);
        else if (c == '"')
            in_string = !in_string;
        depth += opens;
        bool next_closes = i + 1 < len && (json[i + 1] == '}' || json[i + 1] == ']');
        if ((opens && !next_closes) || (!in_string && c == ','))
            new_line(out, depth);
        if (!in_string && c == ':')
            (void)buf_putc(out, ' ');
    }
}

/* One session, into the format, or into the list that is printed at the end. */
static int inspect_one(struct app *app, const char *id, struct format *f, struct buf *list,
                       struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(APP_BODY_MAX);
    AUTO(json) struct json *session = NULL;
    int r = put_session(app, id, &text, err);

    if (r < 0)
        return r;
    if (f != NULL) {
        r = json_parse(buf_str(&text), text.len, &session, err);
        return r < 0 ? r : format_add(f, session, err);
    }
    (void)buf_puts(list, list->len > 1 ? ",\n  " : "\n  ");
    put_indented(list, buf_str(&text), text.len, 1);
    return 0;
}

int verb_inspect(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf list = BUF_INIT(4 * APP_BODY_MAX);
    AUTO(format) struct format *f = NULL;
    int status = 0;
    int r = args->format != NULL ? format_new(args->format, false, &f, err) : 0;

    if (r >= 0)
        r = app_connect(app, DAEMON_RUNNING, err);
    if (r < 0)
        return r;
    (void)buf_putc(&list, '[');
    for (size_t i = 0; args->names[i] != NULL; i++) {
        r = inspect_one(app, args->names[i], f, &list, err);
        if (r < 0 && (r == -EINTR || err->code != ERR_NOT_FOUND))
            return r;
        if (r < 0) {
            text_say_err(err); /* the others are shown all the same */
            status = STATUS_FAILED;
        }
    }
    if (f != NULL) {
        r = format_print(f, err);
        return r < 0 ? r : status;
    }
    (void)buf_puts(&list, list.len > 1 ? "\n]" : "]");
    r = buf_error(&list);
    r = r < 0 ? err_sys(err, -r, "write the sessions") : text_print_json(&list, err);
    return r < 0 ? r : status;
}

/* diff. */

/* Behind the letter and the blank. */
static int by_path(const void *a, const void *b)
{
    return strcmp(*(char *const *)a + 2, *(char *const *)b + 2);
}

/* A quotation mark inside of a text has a backslash before it, so this is no name of a file. */
static bool body_says(const struct buf *body, const char *member)
{
    return memmem(buf_str(body), body->len, member, strlen(member)) != NULL;
}

static int put_changes(const struct buf *body, struct buf *out, struct err *err)
{
    AUTO(json) struct json *change = NULL;
    AUTO_STRV char **lines = NULL;
    struct items it;

    int r = items_init(&it, buf_str(body), body->len, "changes", err);
    while (r >= 0 && (r = items_next(&it, &change, err)) > 0) {
        const char *kind = json_str(json_get(change, "kind"));
        const char *path = json_str(json_get(change, "path"));
        AUTO_DONE(buf) struct buf name = BUF_INIT(APP_BODY_MAX);
        (void)text_escape(&name, path != NULL ? path : "", path != NULL ? strlen(path) : 0);
        char letter = str_eq(kind, "added") ? 'A' : str_eq(kind, "deleted") ? 'D' : 'C';
        strv_push(&lines, xasprintf("%c %s", letter, buf_str(&name)));
    }
    if (lines != NULL)
        qsort(lines, strv_len(lines), sizeof(*lines), by_path);
    for (char **line = lines; line != NULL && *line != NULL && r >= 0; line++)
        r = buf_printf(out, "%s\n", *line);
    return r;
}

int verb_diff(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);
    AUTO_DONE(buf) struct buf out = BUF_INIT(APP_BODY_MAX);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/changes", args->names[0]);
    int r = app_connect(app, DAEMON_RUNNING, err);

    if (r >= 0)
        r = app_call(app, "GET", target, &body, err);
    if (r >= 0 && args->json)
        return text_print_json(&body, err);
    if (r >= 0)
        r = put_changes(&body, &out, err);
    if (r < 0)
        return r;
    if (body_says(&body, "\"read_only_rootfs\":true"))
        text_say(
            "session '%s' has a read-only root, so no file of the image can change; its own files "
            "are in the workspace and its home: box exec %s find /workspace",
            args->names[0], args->names[0]);
    if (body_says(&body, "\"truncated\":true"))
        text_say("there are more changes than are listed");
    return text_print(&out, err);
}

/* events. */

#define EVENT_MAX (64U << 10) /* boxd sends less than a page for each */

struct event_reader {
    struct app *app;       /* borrowed */
    struct format *format; /* borrowed; NULL: lines for people */
    struct buf line;       /* of the stream so far */
    struct buf data;       /* of the event so far */
    struct err err;        /* why reading ended, if it was for us to end */
    bool gone;             /* our reader has gone */
};

/* text_print() does not fail for it: most verbs are done then anyway. */
static bool reader_is_gone(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO};

    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

/* "2026-01-02T03:04:05.678Z session.created work exit_code=0" */
static int print_event(const struct json *event, struct err *err)
{
    static const char *const shown[] = {"time", "type", "session_id", "seq"};
    AUTO_DONE(buf) struct buf out = BUF_INIT(4 * EVENT_MAX);

    for (size_t i = 0; i < 3; i++) {
        const char *text = json_str(json_get(event, shown[i]));
        (void)buf_puts(&out, i > 0 ? " " : "");
        (void)text_escape(&out, text != NULL ? text : "-", text != NULL ? strlen(text) : 1);
    }
    for (void *it = json_iter(event); it != NULL; it = json_iter_next(event, it)) {
        const struct json *v = json_iter_value(it);
        bool is_shown = json_type(v) == JSON_NULL;
        for (size_t i = 0; i < ARRAY_SIZE(shown); i++)
            is_shown = is_shown || str_eq(json_iter_key(it), shown[i]);
        if (is_shown)
            continue;
        (void)buf_putc(&out, ' ');
        (void)text_escape(&out, json_iter_key(it), strlen(json_iter_key(it)));
        (void)buf_putc(&out, '=');
        if (json_type(v) == JSON_STRING)
            (void)text_escape(&out, json_str(v), json_str_len(v));
        else
            (void)buf_printf(&out, "%lld", (long long)json_int(v));
    }
    (void)buf_putc(&out, '\n');
    return text_print(&out, err);
}

/* An event is complete. Those without a type are about the stream itself. */
static int take_event(struct event_reader *e, struct err *err)
{
    AUTO(json) struct json *event = NULL;

    if (e->data.len == 0)
        return 0;
    int r = json_parse(buf_str(&e->data), e->data.len, &event, err);
    buf_reset(&e->data);
    if (r < 0)
        return err_wrap(err, "event of boxd");
    if (json_type(json_get(event, "events")) == JSON_INT)
        text_say("%lld events were missed: they came faster than they were read",
                 (long long)json_int(json_get(event, "events")));
    if (json_str(json_get(event, "type")) == NULL)
        return 0;
    if (e->format == NULL)
        return print_event(event, err);
    r = format_add(e->format, event, err);
    return r < 0 ? r : format_print(e->format, err);
}

static int take_line(struct event_reader *e, struct err *err)
{
    static const char data[] = "data: ";
    int r = 0;

    if (e->line.len == 0)
        r = take_event(e, err);
    else if (str_starts(buf_str(&e->line), data) &&
             buf_puts(&e->data, buf_str(&e->line) + strlen(data)) < 0)
        r = err_set(err, ERR_LIMIT, "boxd sent an event that is too large");
    buf_reset(&e->line);
    return r;
}

static void on_events(void *arg, const char *bytes, size_t len)
{
    struct event_reader *e = arg;

    for (size_t i = 0; i < len && e->err.code == ERR_NONE && !e->gone; i++) {
        if (bytes[i] == '\n')
            (void)take_line(e, &e->err);
        else if (bytes[i] != '\r' && buf_putc(&e->line, bytes[i]) < 0)
            (void)err_set(&e->err, ERR_LIMIT, "boxd sent a line that is too long");
    }
    e->gone = e->gone || reader_is_gone();
    if (e->err.code != ERR_NONE || e->gone)
        loop_quit(e->app->loop);
}

static void put_target(struct buf *out, const struct args *args)
{
    (void)buf_puts(out, "/v1/events");
    if (args->names != NULL) /* checked: it needs no escaping */
        (void)buf_printf(out, "?session_id=%s", args->names[0]);
}

int verb_events(struct app *app, const struct args *args, struct err *err)
{
    AUTO(format) struct format *f = NULL;
    AUTO_DONE(buf) struct buf target = BUF_INIT(256);
    AUTO_DONE(buf) struct buf problem = BUF_INIT(EVENT_MAX);
    struct event_reader e = {.app = app};
    const char *format = args->json ? "json" : args->format;
    int r = format != NULL ? format_new(format, true, &f, err) : 0;

    if (r >= 0)
        r = app_connect(app, DAEMON_RUNNING, err);
    if (r < 0)
        return r;
    put_target(&target, args);
    buf_init(&e.line, EVENT_MAX);
    buf_init(&e.data, EVENT_MAX);
    e.format = f;
    const struct app_request req = {
        .method = "GET", .target = buf_str(&target), .bytes = on_events, .arg = &e};
    r = app_send(app, &req, &problem, err);
    buf_done(&e.line);
    buf_done(&e.data);
    if (e.err.code != ERR_NONE) {
        *err = e.err;
        return err_code_errno(e.err.code);
    }
    return r;
}
