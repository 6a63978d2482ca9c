/* SPDX-License-Identifier: Apache-2.0 */

/* The past, for callers that may see all or some of it: GET /v1/events, the events of sessions as a
 * stream, and GET /v1/audit, pages of audit records. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/common/sse.h"
#include "front/v1/v1_internal.h"
#include "http/codec/crypto.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "session/events.h"

#define ROUNDS 4
#define NAME_MAX_LEN 64
#define CURSOR_SIZE 33 /* with the NUL */

#define DATA_MAX 4096U
#define FILTER_MAX 512U

#define ANSWER_MAX (8U << 20)
#define RECORDS_DEFAULT 100U
#define RECORDS_MAX 1000U
#define LOOK_MAX 10000U /* records looked at for one page of those that a scope sees */
#define CURSOR_TEXT 64U

/* Cursors ------------------------------------------------------------------------------------- *
 *
 * Numbers of events and records count those of all callers. A caller with a scope gets an opaque
 * cursor instead. The number goes, beside a random one, through a Feistel network of four rounds
 * whose function is SHA-256 under a key of this process and the caller's name. So two cursors of
 * the same number differ, cursors of different numbers cannot be told apart, and a caller cannot
 * use those of another. A text that was not made here decodes to a number that was never used:
 * whether it was handed out is for the reader to check. */

struct halves {
    uint64_t left, right;
};

/* Sixteen digits, or a text that is no number of ours. */
static bool read_half(const char *text, uint64_t *ret)
{
    *ret = 0;
    for (size_t i = 0; i < 16; i++) {
        const char *digits = "0123456789abcdef",
                   *at = text[i] != '\0' ? strchr(digits, text[i]) : NULL;
        if (at == NULL)
            return false;
        *ret = *ret << 4 | (uint64_t)(at - digits);
    }
    return true;
}

static uint64_t cursor_mix(const struct v1 *v, const char *who, unsigned round, uint64_t half)
{
    char text[V1_CURSOR_KEY + NAME_MAX_LEN + 32], digest[65] = "";
    size_t len = V1_CURSOR_KEY;
    uint64_t out = 0;

    memcpy(text, v->cursor_key, V1_CURSOR_KEY);
    int n = snprintf(text + len, sizeof(text) - len, "%u %016" PRIx64 " %.*s", round, half,
                     NAME_MAX_LEN, who);
    len += n > 0 ? (size_t)n : 0;
    (void)http_sha256_hex(text, len, digest);
    (void)read_half(digest, &out);
    return out;
}

static void cursor_write(const struct v1 *v, const char *who, uint64_t number,
                         char ret[static CURSOR_SIZE])
{
    struct halves h = {.right = number};

    http_random(&h.left, sizeof(h.left));
    for (unsigned i = 0; i < ROUNDS; i++)
        h = (struct halves){h.right, h.left ^ cursor_mix(v, who, i, h.right)};
    (void)str_fmt(ret, CURSOR_SIZE, "%016" PRIx64 "%016" PRIx64, h.left, h.right);
}

static bool cursor_read(const struct v1 *v, const char *who, const char *text, uint64_t *ret)
{
    struct halves h;

    if (strlen(text) != CURSOR_SIZE - 1 || !read_half(text, &h.left) ||
        !read_half(text + 16, &h.right))
        return false;
    for (unsigned i = ROUNDS; i-- > 0;)
        h = (struct halves){h.right ^ cursor_mix(v, who, i, h.left), h.left};
    *ret = h.right;
    return true;
}

/* Events -------------------------------------------------------------------------------------- *
 *
 * Ids are "EPOCH-NUMBER": numbers start anew with boxd, and an id of an earlier boxd must not be
 * taken for one of this. The counts that a caller with a scope sees are of its own events. */

struct watcher {
    struct sse sse;
    struct events_reader reader;
    const struct v1 *v1;
    const struct authz_scope *scope; /* held, or NULL */
    uint64_t sent;                   /* events of this stream */
    char session[FILTER_MAX];        /* only of this one; "": of all */
    char types[FILTER_MAX];          /* ",session.created,"; "": all */
};

static void watcher_end(struct watcher *w)
{
    events_detach(&w->reader);
    sse_end(&w->sse);
    authz_release(w->scope);
    free(w);
}

static bool is_visible(void *arg, const struct event *event)
{
    const struct watcher *w = arg;
    char name[64], who[32] = "local"; /* only a caller without a scope has this name */

    if (w->session[0] != '\0' && !str_eq(w->session, event->session))
        return false;
    (void)str_fmt(name, sizeof(name), ",%s,", event_kind_name(event->kind));
    if (w->types[0] != '\0' && strstr(w->types, name) == NULL)
        return false;
    if (event->bound)
        (void)str_fmt(who, sizeof(who), AUTHZ_USER_NAME, event->uid);
    return authz_sees(w->scope, who, event->session);
}

static void send_as(struct watcher *w, const char *event, uint64_t number, struct front_answer *out)
{
    char id[64], text[CURSOR_SIZE];

    if (w->scope != NULL)
        cursor_write(w->v1, authz_name(w->scope), number, text);
    else
        (void)str_fmt(text, sizeof(text), "%llu", (unsigned long long)number);
    (void)str_fmt(id, sizeof(id), "%s-%s", events_epoch(w->v1->events), text);
    (void)front_end(out); /* of bounded size */
    sse_send(&w->sse, event, id, &out->out);
}

static void send_count(struct watcher *w, const char *event, const char *key, uint64_t count,
                       uint64_t number)
{
    AUTO_DONE(front_answer) struct front_answer out;

    jw_ku64(front_begin(&out, DATA_MAX), key, count);
    send_as(w, event, number, &out);
}

static void send_event(struct watcher *w, const struct event *event)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *jw = front_begin(&out, DATA_MAX);

    jw_ku64(jw, "seq", w->scope != NULL ? ++w->sent : event->seq);
    front_write_time(jw, "time", event->real_ns);
    jw_kstr(jw, "type", event_kind_name(event->kind));
    jw_kstr(jw, "session_id", event->session);
    if (event->kind == EVENT_PROCESS_STARTED || event->kind == EVENT_PROCESS_EXITED)
        jw_kstr(jw, "process_id", event->name);
    if (event->kind == EVENT_PROCESS_EXITED)
        jw_kint(jw, "exit_code", event->exit_code);
    if (event->kind == EVENT_EXEC_ENDED) {
        jw_kstr(jw, "exec_id", event->name);
        jw_kstr(jw, "outcome", outcome_name(event->outcome));
        if (event->outcome == OUTCOME_EXITED)
            jw_kint(jw, "exit_code", event->exit_code);
        else
            jw_knull(jw, "exit_code");
        jw_ku64(jw, "duration_ms", event->duration_ns / NSEC_PER_MSEC);
    }
    send_as(w, event_kind_name(event->kind), event->seq, &out);
}

/* A reader whose queue is full gets no events until it has read; what it misses is counted. */
static void watcher_pump(void *arg)
{
    struct watcher *w = arg;
    const struct event *event;
    uint64_t missed = 0;

    while (!sse_full(&w->sse) && (event = events_next(&w->reader, &missed)) != NULL) {
        if (missed > 0)
            send_count(w, "missed", "events", missed, event->seq - 1);
        send_event(w, event);
    }
}

static void on_writable(struct http_request *req, void *arg)
{
    watcher_pump(arg);
}

static void on_cancel(struct http_request *req, void *arg)
{
    watcher_end(arg);
}

static bool knows_types(const char *list)
{
    while (*list != '\0') {
        size_t len = strcspn(list, ",");
        bool known = false;
        for (int kind = 0; kind < EVENT_KIND_MAX; kind++)
            known = known || (strlen(event_kind_name(kind)) == len &&
                              strncmp(event_kind_name(kind), list, len) == 0);
        if (!known)
            return false;
        list += len + (list[len] == ',' ? 1 : 0);
    }
    return true;
}

static int read_filter(const struct http_request *req, struct watcher *w, struct err *err)
{
    char types[FILTER_MAX - 2] = "";
    ssize_t n = http_request_query_get(req, "session_id", w->session, sizeof(w->session));

    if (n < 0 && n != -ENOENT)
        return err_set(err, ERR_INVALID, "session_id must be the name of a session");
    n = http_request_query_get(req, "type", types, sizeof(types));
    if ((n < 0 && n != -ENOENT) || !knows_types(types))
        return err_set(
            err, ERR_INVALID,
            "type must be a list of session.created, session.deleted, session.expired, "
            "session.lost, session.stopped, session.started, session.paused, "
            "session.unpaused, session.renamed, session.updated, process.started, process.exited, "
            "exec.ended");
    if (n > 0)
        (void)str_fmt(w->types, sizeof(w->types), ",%s,", types);
    return 0;
}

static bool read_number(const struct http_request *req, const struct v1 *v, const char *text,
                        uint64_t *ret)
{
    const struct authz_scope *scope = front_caller(req);

    if (scope == NULL)
        return str_to_u64(text, ret) == 0;
    return cursor_read(v, authz_name(scope), text, ret);
}

/* Behind which event to go on. *ret_lost: it was one of an earlier boxd. */
static int read_last_id(const struct http_request *req, const struct v1 *v, uint64_t *ret,
                        bool *ret_lost, struct err *err)
{
    const struct events *e = v->events;
    const char *last = http_request_header(req, "Last-Event-ID");
    size_t epoch = strlen(events_epoch(e));

    *ret = events_last(e);
    *ret_lost = false;
    if (last == NULL)
        return 0;
    bool good = strlen(last) >= epoch + 2 && last[epoch] == '-' &&
                read_number(req, v, last + epoch + 1, ret);
    bool ours = good && strncmp(last, events_epoch(e), epoch) == 0;
    /* A cursor whose number was never used belongs to another caller, or is made up. */
    if (!good || (ours && front_caller(req) != NULL && *ret > events_last(e)))
        return err_set(err, ERR_INVALID, "Last-Event-ID must be an id that was sent here");
    if (!ours) {
        *ret = 0;
        *ret_lost = true;
    }
    return 0;
}

/* The count of events that a reader has missed includes those of all callers, because their
 * sessions are forgotten. So only a reader without a scope, which may see all of them, gets the
 * count. */
static void watcher_begin(struct watcher *w, uint64_t after, bool lost)
{
    uint64_t gone = events_lost(w->v1->events, after);

    if (w->scope != NULL)
        after += gone;
    events_attach(w->v1->events, &w->reader, after);
    send_count(w, lost ? "restarted" : "ready", "seq", w->scope != NULL ? 0 : after, after);
    if (w->scope != NULL && gone > 0) {
        AUTO_DONE(front_answer) struct front_answer out;
        jw_knull(front_begin(&out, DATA_MAX), "events");
        send_as(w, "missed", after, &out);
    }
}

static void get_events(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct err err = {0};
    uint64_t after;
    bool lost;

    if (!front_may(req, &v->front, "events"))
        return;
    struct watcher *w = xnew(struct watcher);
    if (read_filter(req, w, &err) < 0 || read_last_id(req, v, &after, &lost, &err) < 0) {
        free(w);
        front_fail(req, &err);
        return;
    }
    if (str_eq(http_request_method(req), "HEAD")) {
        free(w);
        http_reply(req, 200, "text/event-stream", NULL, 0);
        return;
    }
    w->v1 = v;
    w->scope = authz_hold(front_caller(req));
    w->reader.visible = is_visible;
    w->reader.ready = watcher_pump;
    w->reader.arg = w;
    http_on_cancel(req, on_cancel, w);
    http_on_writable(req, on_writable, w);
    sse_start(&w->sse, req, manager_loop(v->front.manager));
    watcher_begin(w, after, lost);
}

/* Records ------------------------------------------------------------------------------------- */

struct audit_page {
    struct front_answer out;
    struct jw *w;                    /* of out */
    const struct authz_scope *scope; /* of the client, or NULL */
    uint64_t after, limit;           /* as asked for */
    uint64_t last, looked, n;
    bool broken; /* a line that is no JSON */
};

/* A refusal concerns the client that was refused, and not the session that it asked for. `who` of a
 * record of LangBot's front names a workspace, never a token. */
static bool sees_record(const struct authz_scope *scope, const struct json *record)
{
    const char *event = json_str(json_get(record, "event"));
    const char *via = json_str(json_get(record, "via"));
    const bool refusal = event != NULL && str_eq(event, "denied");
    const bool workspace = via != NULL && str_eq(via, "rpc");

    return authz_sees(scope, workspace ? "" : json_str(json_get(record, "who")),
                      refusal ? NULL : json_str(json_get(record, "session")));
}

/* Number, hash and losses of a record would reveal records that the caller may not see. */
static void write_cut(struct jw *w, const struct json *record)
{
    jw_object(w);
    for (void *it = json_iter(record); it != NULL; it = json_iter_next(record, it)) {
        const char *key = json_iter_key(it);
        if (!str_eq(key, "seq") && !str_eq(key, "prev") && !str_eq(key, "lost"))
            jw_kvalue(w, key, json_iter_value(it));
    }
    jw_object_end(w);
}

static void on_line(void *arg, uint64_t number, const char *line, size_t len)
{
    struct audit_page *p = arg;
    AUTO(json) struct json *record = NULL;

    if (p->n == p->limit)
        return;
    p->last = number;
    p->looked++;
    if (json_parse(line, len, &record, NULL) < 0) {
        p->broken = true;
    } else if (authz_sees(p->scope, NULL, NULL)) {
        jw_value(p->w, record);
        p->n++;
    } else if (sees_record(p->scope, record)) {
        write_cut(p->w, record);
        p->n++;
    }
}

static void write_next(const struct v1 *v, struct audit_page *p)
{
    char text[CURSOR_SIZE];

    if (authz_sees(p->scope, NULL, NULL)) {
        jw_ku64(p->w, "next_after", p->last);
        return;
    }
    cursor_write(v, authz_name(p->scope), p->last, text);
    jw_kstr(p->w, "next", text);
    jw_kbool(p->w, "more", p->n > 0 || p->looked >= LOOK_MAX);
}

static int write_page(const struct v1 *v, struct audit_page *p, struct err *err)
{
    const struct audit *a = v->front.service->audit;
    const bool whole = authz_sees(p->scope, NULL, NULL);
    uint64_t before;
    int r;

    jw_karray(p->w, "records");
    p->last = p->after;
    do {
        before = p->looked;
        r = audit_read(a, p->last, whole ? (size_t)p->limit : RECORDS_MAX, on_line, p, err);
    } while (r == 0 && p->n == 0 && p->looked > before && p->looked < LOOK_MAX);
    jw_array_end(p->w);
    if (r == 0 && p->broken)
        r = err_set(err, ERR_STATE, "the audit log holds a line that is no record");
    write_next(v, p);
    jw_key(p->w, "log");
    audit_write_status(a, whole, p->w);
    return r;
}

/* Where to begin: after a number, or, for a caller that sees only some of the records, after the
 * cursor of the page before. False: answered. */
static bool read_start(struct http_request *req, const struct v1 *v, struct audit_page *p)
{
    char text[CURSOR_TEXT] = "";

    if (authz_sees(p->scope, NULL, NULL))
        return v1_query_number(req, "after", UINT64_MAX - 1, 0, &p->after);
    ssize_t r = http_request_query_get(req, "cursor", text, sizeof(text));
    if (r == -ENOENT)
        return true;
    if (r >= 0 && cursor_read(v, authz_name(p->scope), text, &p->after) &&
        p->after <= audit_count(v->front.service->audit))
        return true;
    http_reply_error(req, 400, "invalid", "cursor is none of this boxd and token",
                     "leave it out, or send `next` of the page before");
    return false;
}

/* after: the number of the last record that the caller has; limit: of records. */
static void get_audit(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct audit_page page = {.scope = front_caller(req)};
    struct err err = {0};

    if (!front_may(req, &v->front, "audit") ||
        !v1_query_number(req, "limit", RECORDS_MAX, RECORDS_DEFAULT, &page.limit))
        return;
    if (v->front.service->audit == NULL) {
        http_reply_error(req, 404, "not_found", "boxd records nothing: the audit log is off",
                         "set box.audit.enabled in boxd's configuration");
        return;
    }
    if (!read_start(req, v, &page))
        return;
    page.w = front_begin(&page.out, ANSWER_MAX);
    if (write_page(v, &page, &err) < 0)
        http_reply_error(req, front_status(&err), err_code_name(err.code), err.msg,
                         "`box audit verify` tells which line it is");
    else
        front_reply(&page.out, req, 200);
    front_answer_done(&page.out);
}

const struct http_route v1_history_routes[] = {
    {"GET", "/v1/events", get_events, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/audit", get_audit, HTTP_ROUTE_SCOPED, 0},
    {0},
};
