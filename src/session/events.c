/* SPDX-License-Identifier: Apache-2.0 */

/* The ring of events, its readers, and the JSON of an event. */

#include "session/events.h"

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"

struct events {
    struct loop *loop; /* borrowed */
    struct event *ring;
    size_t max;
    uint64_t last; /* number of the newest; it lies at (last - 1) % max */
    char epoch[17];
    LIST_HEAD(, events_reader) readers;
    void (*sink)(void *arg, const struct event *event); /* NULL: none */
    void *sink_arg;
};

static const char *const names[EVENT_KIND_MAX] = {
    [EVENT_SESSION_CREATED] = "session.created", [EVENT_SESSION_DELETED] = "session.deleted",
    [EVENT_SESSION_EXPIRED] = "session.expired", [EVENT_SESSION_LOST] = "session.lost",
    [EVENT_SESSION_STOPPED] = "session.stopped", [EVENT_SESSION_STARTED] = "session.started",
    [EVENT_SESSION_PAUSED] = "session.paused",   [EVENT_SESSION_UNPAUSED] = "session.unpaused",
    [EVENT_SESSION_RENAMED] = "session.renamed", [EVENT_SESSION_UPDATED] = "session.updated",
    [EVENT_PROCESS_STARTED] = "process.started", [EVENT_PROCESS_EXITED] = "process.exited",
    [EVENT_EXEC_ENDED] = "exec.ended",
};

const char *event_kind_name(enum event_kind kind)
{
    return names[kind];
}

struct events *events_new(struct loop *loop, size_t max)
{
    struct events *e = xnew(struct events);

    e->loop = loop;
    e->max = max;
    e->ring = xcalloc(max, sizeof(*e->ring));
    id_random(e->epoch);
    return e;
}

static void event_forget(struct event *event)
{
    free((char *)event->session);
    free((char *)event->name);
    *event = (struct event){0};
}

void events_free(struct events *e)
{
    if (e == NULL)
        return;
    assert(LIST_EMPTY(&e->readers));
    for (size_t i = 0; i < e->max; i++)
        event_forget(&e->ring[i]);
    free(e->ring);
    free(e);
}

static struct event *slot(const struct events *e, uint64_t seq)
{
    return &e->ring[(seq - 1) % e->max];
}

static uint64_t oldest(const struct events *e)
{
    return e->last > e->max ? e->last - e->max + 1 : 1;
}

static bool wants(const struct events_reader *r, const struct event *event)
{
    return r->visible == NULL || r->visible(r->arg, event);
}

static void on_ready(struct loop_defer *d)
{
    struct events_reader *r = container_of(d, struct events_reader, defer);
    r->ready(r->arg);
}

/* Makes room: a reader that has not read the oldest event yet misses it. */
static void drop_oldest(struct events *e)
{
    struct event *event = slot(e, oldest(e));
    struct events_reader *r;

    LIST_FOREACH (r, &e->readers, link)
        if (r->at < event->seq) {
            r->missed += wants(r, event) ? 1 : 0;
            r->at = event->seq;
        }
    event_forget(event);
}

void events_emit(struct events *e, const struct event *event)
{
    if (e == NULL)
        return;
    if (e->last >= e->max)
        drop_oldest(e);
    struct event *to = slot(e, ++e->last);
    *to = *event;
    to->session = event->session != NULL ? xstrdup(event->session) : NULL;
    to->name = event->name != NULL ? xstrdup(event->name) : NULL;
    to->seq = e->last;
    to->real_ns = clock_real(loop_clock(e->loop));
    if (e->sink != NULL)
        e->sink(e->sink_arg, to);
    struct events_reader *r;
    LIST_FOREACH (r, &e->readers, link)
        loop_defer_start(e->loop, &r->defer, on_ready);
}

void events_set_sink(struct events *e, void (*fn)(void *arg, const struct event *event), void *arg)
{
    e->sink = fn;
    e->sink_arg = arg;
}

uint64_t events_last(const struct events *e)
{
    return e->last;
}

const char *events_epoch(const struct events *e)
{
    return e->epoch;
}

uint64_t events_lost(const struct events *e, uint64_t after)
{
    return after + 1 < oldest(e) ? oldest(e) - 1 - after : 0;
}

void events_attach(struct events *e, struct events_reader *r, uint64_t after)
{
    uint64_t first = oldest(e);

    r->hub = e;
    r->at = after < e->last ? after : e->last;
    r->missed = 0;
    if (r->at + 1 < first) { /* their content is no longer known */
        r->missed = first - 1 - r->at;
        r->at = first - 1;
    }
    LIST_INSERT_HEAD(&e->readers, r, link);
    loop_defer_start(e->loop, &r->defer, on_ready);
}

void events_detach(struct events_reader *r)
{
    if (r->hub == NULL)
        return;
    loop_defer_stop(&r->defer);
    LIST_REMOVE(r, link);
    r->hub = NULL;
}

const struct event *events_next(struct events_reader *r, uint64_t *ret_missed)
{
    while (r->at < r->hub->last) {
        const struct event *event = slot(r->hub, r->at + 1);
        r->at++;
        if (!wants(r, event))
            continue;
        *ret_missed = r->missed;
        r->missed = 0;
        return event;
    }
    return NULL;
}
