/* SPDX-License-Identifier: Apache-2.0 */

/* `box top` and `box stats`: what runs in a session, and what sessions use, as it changes. */

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/format.h"
#include "cli/io/text.h"

#define LIVE_MS 1000
#define ONCE_MS 500 /* between the two looks that one snapshot of the processors takes */
#define CLEAR "\033[2J\033[H"
#define USEC_PER_SEC 1000000.0
#define UNKNOWN "-"

static void cell_bytes(struct text_table *t, const struct json *v)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double n = (double)json_int(v);
    char text[32];
    size_t i = 0;

    for (; n >= 1024 && i + 1 < ARRAY_SIZE(units); i++)
        n /= 1024;
    (void)str_fmt(text, sizeof(text), "%.*f %s", i == 0 ? 0 : 1, n, units[i]);
    text_table_cell(t, json_type(v) == JSON_INT ? text : UNKNOWN);
}

/* Waits, unless a signal comes. */
static int wait_ms(struct app *app, int ms)
{
    struct pollfd signals = {.fd = app->signals.fd, .events = POLLIN};

    (void)poll(&signals, 1, ms);
    (void)loop_turn(app->loop, 0);
    return app->signo != 0 ? -EINTR : 0;
}

/* top. */

/* The command or managed process that started it. */
static void cell_owner(struct text_table *t, const struct json *p)
{
    const char *exec = json_str(json_get(p, "exec_id")),
               *process = json_str(json_get(p, "process_id"));
    AUTO_FREE char *text =
        exec != NULL
            ? xasprintf("exec %s%s", exec, json_bool(json_get(p, "background")) ? " (ended)" : "")
        : process != NULL ? xasprintf("process %s", process)
                          : NULL;
    text_table_cell(t, text);
}

/* Of the processor: 1:02.50. */
static void cell_time(struct text_table *t, const struct json *p)
{
    long long ms = json_int(json_get(p, "user_ms")) + json_int(json_get(p, "system_ms"));
    char text[32];

    (void)str_fmt(text, sizeof(text), "%lld:%02lld.%02lld", ms / 60000, ms / 1000 % 60,
                  ms / 10 % 100);
    text_table_cell(t, text);
}

static void put_process(struct text_table *t, const struct json *p)
{
    text_table_number(t, json_get(p, "pid"));
    text_table_number(t, json_get(p, "parent_pid"));
    text_table_cell(t, json_str(json_get(p, "state")));
    cell_time(t, p);
    cell_bytes(t, json_get(p, "memory_bytes"));
    cell_owner(t, p);
    text_table_cell(t, json_str(json_get(p, "command")));
}

/* Each process of the answer as a line of the format, or as a row of the table. */
static int put_processes(const struct json *answer, struct format *f, struct text_table *t,
                         struct err *err)
{
    const struct json *list = json_get(answer, "processes");
    int r = 0;

    for (size_t i = 0; i < json_len(list) && r >= 0; i++) {
        if (f != NULL)
            r = format_add(f, json_at(list, i), err);
        else
            put_process(t, json_at(list, i));
    }
    if (r < 0)
        return r;
    r = f != NULL ? format_print(f, err) : text_table_print(t, err);
    if (r >= 0 && json_bool(json_get(answer, "truncated")))
        text_say("more than these %zu processes run in the session", json_len(list));
    return r;
}

int verb_top(struct app *app, const struct args *args, struct err *err)
{
    static const char *const titles[] = {"PID", "PPID", "STATE", "TIME", "MEMORY", "OF", "COMMAND"};
    AUTO(text_table) struct text_table *t = text_table_new(titles, ARRAY_SIZE(titles));
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/top", args->names[0]);
    AUTO(format) struct format *f = NULL;
    AUTO(json) struct json *answer = NULL;
    int r = format_is_own_table(args->format) ? 0 : format_new(args->format, false, &f, err);

    if (r >= 0)
        r = app_connect(app, DAEMON_RUNNING, err);
    if (r >= 0)
        r = app_call(app, "GET", target, &body, err);
    if (r >= 0 && (r = json_parse(buf_str(&body), body.len, &answer, err)) < 0)
        r = err_wrap(err, "answer of boxd");
    return r < 0 ? r : put_processes(answer, f, t, err);
}

/* stats. */

/* What was known of a session when it was looked at last. */
struct sample {
    char *id; /* owned */
    int64_t time_usec, cpu_usec;
    bool known;
};

struct samples {
    struct sample *list; /* owned */
    size_t n;
};

static void samples_done(struct samples *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->list[i].id);
    free(s->list);
    *s = (struct samples){0};
}

/* boxd lists sessions in one order: the search goes on where the last one has ended. */
static const struct sample *samples_find(const struct samples *s, const char *id, size_t *at)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct sample *found = &s->list[(*at + i) % s->n];
        if (!str_eq(found->id, id))
            continue;
        *at = (*at + i + 1) % s->n;
        return found;
    }
    return NULL;
}

static void samples_add(struct samples *s, const struct json *session)
{
    const struct json *cpu = json_get(session, "cpu_usec");

    if ((s->n & (s->n - 1)) == 0) /* full at each power of two */
        s->list = xreallocarray(s->list, s->n == 0 ? 1 : 2 * s->n, sizeof(*s->list));
    s->list[s->n++] = (struct sample){.id = xstrdup(json_str(json_get(session, "session_id"))),
                                      .time_usec = json_int(json_get(session, "time_usec")),
                                      .cpu_usec = json_int(cpu),
                                      .known = json_type(cpu) == JSON_INT};
}

/* Of one processor; negative: it is not known. */
static double cpu_percent(const struct sample *before, const struct sample *now)
{
    if (before == NULL || !before->known || !now->known || now->time_usec <= before->time_usec ||
        now->cpu_usec < before->cpu_usec)
        return -1;
    return 100.0 * (double)(now->cpu_usec - before->cpu_usec) /
           (double)(now->time_usec - before->time_usec);
}

/* The object of boxd, with what two of them tell. */
static int with_percent(const struct json *session, double percent, struct json **ret,
                        struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(1U << 20);
    struct jw w = JW_INIT(&text);

    jw_object(&w);
    for (void *it = json_iter(session); it != NULL; it = json_iter_next(session, it))
        jw_kvalue(&w, json_iter_key(it), json_iter_value(it));
    if (percent < 0)
        jw_knull(&w, "cpu_percent");
    else
        jw_kreal(&w, "cpu_percent", (double)(int64_t)(percent * 100 + 0.5) / 100);
    jw_object_end(&w);
    int r = jw_end(&w);
    return r < 0 ? err_sys(err, -r, "write the answer")
                 : json_parse(buf_str(&text), text.len, ret, err);
}

static void cell_percent(struct text_table *t, double percent)
{
    char text[32];

    (void)str_fmt(text, sizeof(text), "%.1f%%", percent);
    text_table_cell(t, percent < 0 ? UNKNOWN : text);
}

static void cell_of(struct text_table *t, const struct json *session, const char *key,
                    const char *limit)
{
    cell_bytes(t, json_get(session, key));
    cell_bytes(t, json_get(session, limit));
}

static void put_stats(struct text_table *t, const struct json *session, double percent)
{
    text_table_cell(t, json_str(json_get(session, "session_id")));
    cell_percent(t, percent);
    cell_of(t, session, "memory_bytes", "memory_limit_bytes");
    text_table_number(t, json_get(session, "pids"));
    text_table_number(t, json_get(session, "pids_limit"));
    cell_of(t, session, "disk_bytes", "disk_limit_bytes");
    cell_of(t, session, "network_received_bytes", "network_sent_bytes");
}

/* How stats are asked for and shown. */
struct stats {
    struct app *app;
    const char *format;       /* NULL: the own table */
    const struct buf *target; /* borrowed */
    char *const *names;       /* NULL: all */
    bool live;
    struct samples last;
};

/* A session that was named and is not there is an error: typing it wrong must not show nothing. */
static int check_names(const struct stats *s, struct err *err)
{
    size_t at = 0;

    for (size_t i = 0; i < strv_len(s->names); i++)
        if (samples_find(&s->last, s->names[i], &at) == NULL)
            return err_set(err, ERR_NOT_FOUND, "session %.80s not found, see 'box ps'",
                           s->names[i]);
    return 0;
}

/* One picture in the making. */
struct picture {
    struct samples before; /* owned */
    size_t at;             /* of them */
    struct format *f;      /* owned; NULL: the table */
    struct text_table *t;  /* owned */
};

static int put_one(struct picture *p, struct samples *now, const struct json *session,
                   struct err *err)
{
    AUTO(json) struct json *whole = NULL;

    if (json_str(json_get(session, "session_id")) == NULL)
        return err_set(err, ERR_BACKEND, "boxd tells of a session without a name");
    samples_add(now, session);
    const struct sample *added = &now->list[now->n - 1];
    double percent = cpu_percent(samples_find(&p->before, added->id, &p->at), added);
    if (p->f == NULL) {
        put_stats(p->t, session, percent);
        return 0;
    }
    int r = with_percent(session, percent, &whole, err);
    return r < 0 ? r : format_add(p->f, whole, err);
}

static void picture_done(struct picture *p)
{
    samples_done(&p->before);
    format_free(p->f);
    text_table_free(p->t);
}
DEFINE_CLEANUP_DONE(picture)

/* Asks once; `show`: and prints. */
static int look(struct stats *s, bool show, struct err *err)
{
    static const char *const titles[] = {"SESSION",  "CPU",  "MEMORY",   "MEMORY MAX", "PIDS",
                                         "PIDS MAX", "DISK", "DISK MAX", "NET IN",     "NET OUT"};
    AUTO_DONE(picture)
    struct picture p = {.before = s->last, .t = text_table_new(titles, ARRAY_SIZE(titles))};
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);
    AUTO(json) struct json *session = NULL;
    struct items it;
    int r = s->format == NULL ? 0 : format_new(s->format, false, &p.f, err);

    s->last = (struct samples){0};
    if (r >= 0)
        r = app_call(s->app, "GET", buf_str(s->target), &body, err);
    if (r >= 0)
        r = items_init(&it, buf_str(&body), body.len, "stats", err);
    while (r >= 0 && (r = items_next(&it, &session, err)) > 0)
        r = put_one(&p, &s->last, session, err);
    if (r >= 0)
        r = check_names(s, err);
    if (r < 0 || !show)
        return r;
    if (s->live)
        (void)fd_write_all(STDOUT_FILENO, CLEAR, strlen(CLEAR));
    return p.f != NULL ? format_print(p.f, err) : text_table_print(p.t, err);
}

int verb_stats(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf target = BUF_INIT(1U << 16);
    struct stats s = {.app = app,
                      .format = format_is_own_table(args->format) ? NULL : args->format,
                      .target = &target,
                      .names = args->names,
                      .live = !args->no_stream && isatty(STDOUT_FILENO)};

    (void)buf_puts(&target, "/v1/stats");
    for (size_t i = 0; i < strv_len(args->names); i++) /* checked: they need no escaping */
        (void)buf_printf(&target, "%s%s", i == 0 ? "?sessions=" : ",", args->names[i]);
    int r = app_connect(app, DAEMON_RUNNING, err);

    if (r >= 0)
        r = look(&s, s.live, err); /* live, the first picture comes at once */
    while (r >= 0) {
        r = wait_ms(app, s.live ? LIVE_MS : ONCE_MS);
        if (r >= 0)
            r = look(&s, true, err);
        if (!s.live)
            break;
    }
    samples_done(&s.last);
    return r;
}
