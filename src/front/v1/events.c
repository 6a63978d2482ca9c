/* SPDX-License-Identifier: Apache-2.0 */

/* GET /v1/events: what happens to sessions, as server-sent events. Ids are "EPOCH-NUMBER": numbers
 * start anew with boxd, and an id of an earlier boxd must not be taken for one of this. Numbers
 * count the events of all callers, so a caller with a scope gets an encrypted cursor for an id, and
 * the counts that it sees are of its own events. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "front/common/sse.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "policy/authz.h"
#include "session/events.h"
#include "session/manager.h"

#define DATA_MAX 4096U
#define FILTER_MAX 512U

struct watcher {
    struct sse sse;
    struct events_reader reader;
    const struct v1 *v1;
    const struct authz_scope *scope; /* held, or NULL */
    uint64_t sent;                   /* events of this stream */
    char session[FILTER_MAX];        /* only of this one; "": of all */
    char types[FILTER_MAX];          /* ",session.created,"; "": all */
};

static void end(struct watcher *w)
{
    events_detach(&w->reader);
    sse_end(&w->sse);
    authz_release(w->scope);
    free(w);
}

static bool is_visible(void *arg, const struct event *event)
{
    const struct watcher *w = arg;
    char name[64];

    if (w->session[0] != '\0' && !str_eq(w->session, event->session))
        return false;
    (void)str_fmt(name, sizeof(name), ",%s,", event_kind_name(event->kind));
    if (w->types[0] != '\0' && strstr(w->types, name) == NULL)
        return false;
    return authz_sees(w->scope, NULL, event->session);
}

static void send_as(struct watcher *w, const char *event, uint64_t number, const struct buf *json)
{
    char id[64], text[V1_CURSOR_SIZE];

    if (w->scope != NULL)
        v1_cursor_write(w->v1, authz_name(w->scope), number, text);
    else
        (void)str_fmt(text, sizeof(text), "%llu", (unsigned long long)number);
    (void)str_fmt(id, sizeof(id), "%s-%s", events_epoch(w->v1->events), text);
    sse_send(&w->sse, event, id, json);
}

static void send_count(struct watcher *w, const char *event, const char *key, uint64_t count,
                       uint64_t number)
{
    AUTO_DONE(buf) struct buf out;
    struct jw jw;

    buf_init(&out, DATA_MAX);
    jw_init(&jw, &out);
    jw_object(&jw);
    jw_ku64(&jw, key, count);
    jw_object_end(&jw);
    send_as(w, event, number, &out);
}

static void send_unknown(struct watcher *w, uint64_t number)
{
    AUTO_DONE(buf) struct buf out;
    struct jw jw;

    buf_init(&out, DATA_MAX);
    jw_init(&jw, &out);
    jw_object(&jw);
    jw_knull(&jw, "events");
    jw_object_end(&jw);
    send_as(w, "missed", number, &out);
}

static void send_event(struct watcher *w, const struct event *event)
{
    AUTO_DONE(buf) struct buf out;
    struct jw jw;

    buf_init(&out, DATA_MAX);
    jw_init(&jw, &out);
    event_write(event, w->scope != NULL ? ++w->sent : event->seq, &jw);
    send_as(w, event_kind_name(event->kind), event->seq, &out);
}

/* A reader that is full is left alone until it has read; what it misses meanwhile is counted. */
static void pump(void *arg)
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
    pump(arg);
}

static void on_cancel(struct http_request *req, void *arg)
{
    end(arg);
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
        return err_set(err, ERR_INVALID,
                       "type must be a list of session.created, session.deleted, session.expired, "
                       "session.lost, process.started, process.exited, exec.ended");
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
    return v1_cursor_read(v, authz_name(scope), text, ret);
}

/* Behind which event to go on. *ret_lost: it was one of an earlier boxd. */
static int read_last_id(const struct http_request *req, const struct v1 *v, uint64_t *ret,
                        bool *ret_lost, struct err *err)
{
    const struct events *e = v->events;
    const char *last = sse_last_id(req);
    size_t epoch = strlen(events_epoch(e));

    *ret = events_last(e);
    *ret_lost = false;
    if (last == NULL)
        return 0;
    bool good = strlen(last) >= epoch + 2 && last[epoch] == '-' &&
                read_number(req, v, last + epoch + 1, ret);
    bool ours = good && strncmp(last, events_epoch(e), epoch) == 0;
    /* A cursor that comes out as nothing that ever was is somebody else's, or made up. */
    if (!good || (ours && front_caller(req) != NULL && *ret > events_last(e)))
        return err_set(err, ERR_INVALID, "Last-Event-ID must be an id that was sent here");
    if (!ours) {
        *ret = 0;
        *ret_lost = true;
    }
    return 0;
}

/* How many events somebody has missed who was away for too long is told only to those who may know
 * how many there were: whose they were is forgotten. */
static void begin(struct watcher *w, uint64_t after, bool lost)
{
    uint64_t gone = events_lost(w->v1->events, after);

    if (w->scope != NULL)
        after += gone;
    events_attach(w->v1->events, &w->reader, after);
    send_count(w, lost ? "restarted" : "ready", "seq", w->scope != NULL ? 0 : after, after);
    if (w->scope != NULL && gone > 0)
        send_unknown(w, after);
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
    w->reader.ready = pump;
    w->reader.arg = w;
    http_on_cancel(req, on_cancel, w);
    http_on_writable(req, on_writable, w);
    sse_start(&w->sse, req, manager_loop(v->front.manager));
    begin(w, after, lost);
}

static const struct http_route routes[] = {
    {"GET", "/v1/events", get_events, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int v1_events_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    return http_server_add_routes(server, routes, v, err);
}
