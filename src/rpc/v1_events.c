/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/authz.h"
#include "core/events.h"
#include "core/manager.h"
#include "http/server.h"
#include "rpc/v1_internal.h"
#include "rpc/v1_sse.h"
#include "util/alloc.h"
#include "util/buf.h"
#include "util/err.h"
#include "util/json.h"
#include "util/str.h"

/* What happens, as server-sent events. Ids are "EPOCH-NUMBER": numbers start anew with boxd, and an
 * id of an earlier one must not be taken for one of ours. */

#define DATA_MAX 4096U
#define FILTER_MAX 512U

struct watcher {
    struct sse sse;
    struct events_reader reader;
    const struct authz_scope *scope; /* held, or NULL */
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
    return authz_check_session(w->scope, event->session, NULL) == 0;
}

static void send_as(struct watcher *w, const char *event, uint64_t number, const struct buf *json)
{
    char id[48];

    (void)str_fmt(id, sizeof(id), "%s-%llu", events_epoch(w->reader.hub),
                  (unsigned long long)number);
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

static void send_event(struct watcher *w, const struct event *event)
{
    AUTO_DONE(buf) struct buf out;
    struct jw jw;

    buf_init(&out, DATA_MAX);
    jw_init(&jw, &out);
    event_write(event, &jw);
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
    (void)req;
    pump(arg);
}

static void on_cancel(struct http_request *req, void *arg)
{
    (void)req;
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

/* Behind which event to go on. *ret_lost: it was one of an earlier boxd. */
static int read_last_id(const struct http_request *req, const struct events *e, uint64_t *ret,
                        bool *ret_lost, struct err *err)
{
    const char *last = sse_last_id(req);
    size_t epoch = strlen(events_epoch(e));

    *ret = events_last(e);
    *ret_lost = false;
    if (last == NULL)
        return 0;
    if (strlen(last) < epoch + 2 || last[epoch] != '-' || str_to_u64(last + epoch + 1, ret) < 0)
        return err_set(err, ERR_INVALID, "Last-Event-ID must be an id that was sent here");
    if (strncmp(last, events_epoch(e), epoch) != 0) {
        *ret = 0;
        *ret_lost = true;
    }
    return 0;
}

static void get_events(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct err err = {0};
    uint64_t after;
    bool lost;

    if (!v1_may(req, v, "events"))
        return;
    struct watcher *w = xnew(struct watcher);
    if (read_filter(req, w, &err) < 0 || read_last_id(req, v->events, &after, &lost, &err) < 0) {
        free(w);
        v1_fail(req, &err);
        return;
    }
    if (str_eq(http_request_method(req), "HEAD")) {
        free(w);
        http_reply(req, 200, "text/event-stream", NULL, 0);
        return;
    }
    w->scope = authz_hold(v1_caller(req));
    w->reader.visible = is_visible;
    w->reader.ready = pump;
    w->reader.arg = w;
    http_on_cancel(req, on_cancel, w);
    http_on_writable(req, on_writable, w);
    sse_start(&w->sse, req, manager_loop(v->manager));
    events_attach(v->events, &w->reader, after);
    send_count(w, lost ? "restarted" : "ready", "seq", after, after);
}

static const struct http_route routes[] = {
    {"GET", "/v1/events", get_events, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int v1_events_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    return http_server_add_routes(server, routes, v, err);
}
