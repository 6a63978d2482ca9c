/* SPDX-License-Identifier: Apache-2.0 */

/* Callers that wait for a session to be ready or to be gone. */

#include <string.h>

#include "base/alloc.h"
#include "session/session_internal.h"
#include "spec/spec.h"

struct waiter *waiter_new(struct manager *m, void *arg)
{
    struct waiter *w = xnew(struct waiter);
    w->m = m;
    w->arg = arg;
    w->request = log_scope_now();
    w->all_next = m->waiters;
    if (w->all_next != NULL)
        w->all_next->all_prev = w;
    m->waiters = w;
    m->n_waiters++;
    return w;
}

static void leave(struct waiter *w)
{
    struct session *s = w->session;
    w->session = NULL;
    if (s == NULL)
        return;
    s->claims -= w->ready != NULL;
    session_release(s);
}

void waiter_free(struct waiter *w)
{
    struct manager *m = w->m;
    if (w->all_prev != NULL)
        w->all_prev->all_next = w->all_next;
    else
        m->waiters = w->all_next;
    if (w->all_next != NULL)
        w->all_next->all_prev = w->all_prev;
    m->n_waiters--;
    loop_defer_stop(&w->defer);
    leave(w);
    spec_free(w->spec);
    free(w);
}

/* Waiters are answered from the loop, never from inside a call of ours or of the backend. */
static void on_answer(struct loop_defer *d)
{
    struct waiter *w = container_of(d, struct waiter, defer);
    LOG_REQUEST(w->request.id);
    if (w->spec != NULL && w->err.code == ERR_NONE) {
        /* Its turn has come: begin anew. */
        struct err err = {0};
        if (manager_acquire_for(w->m, w, true, &err) == 0)
            return;
        w->err = err;
    }
    if (w->ready != NULL && w->err.code == ERR_NONE && w->session->state != SESSION_READY)
        (void)err_set(&w->err, ERR_STATE, "session '%s' was ended meanwhile",
                      w->session->spec->session_id);
    const struct err *err = w->err.code != ERR_NONE ? &w->err : NULL;
    if (w->ready != NULL && err == NULL) {
        struct session *s = w->session;
        session_hold(s); /* theirs now */
        w->ready(w->arg, s, NULL);
    } else if (w->ready != NULL) {
        w->ready(w->arg, NULL, err);
    } else {
        if (w->session == NULL) /* all are gone: others may come again */
            w->m->closing = w->m->all_gone.first != NULL;
        if (w->gone != NULL)
            w->gone(w->arg, err);
    }
    waiter_free(w);
}

static void queue_add(struct waiter_queue *q, struct waiter *w)
{
    w->next = NULL;
    if (q->first == NULL)
        q->end = &q->first;
    *q->end = w;
    q->end = &w->next;
}

void waiter_add(struct session *s, struct waiter *w)
{
    if (w->session != s) {
        leave(w);
        w->session = s;
        s->claims += w->ready != NULL;
        session_hold(s);
    }
    queue_add(&s->waiters, w);
}

void waiters_wake(struct session *s, const struct err *ready_err, const struct err *gone_err)
{
    struct waiter *w = s->waiters.first;
    s->waiters.first = NULL;
    while (w != NULL) {
        struct waiter *next = w->next;
        const struct err *err = w->ready != NULL ? ready_err : gone_err;
        if (err != NULL && w->spec == NULL && w->err.code == ERR_NONE)
            w->err = *err;
        loop_defer_start(s->m->loop, &w->defer, on_answer);
        w = next;
    }
}

void waiters_wake_all_gone(struct manager *m)
{
    struct waiter *w = m->all_gone.first;
    m->all_gone.first = NULL;
    for (struct waiter *next; w != NULL; w = next) {
        next = w->next;
        loop_defer_start(m->loop, &w->defer, on_answer);
    }
}

static void end_sessions(struct manager *m, bool leave, session_gone_fn *gone, void *arg)
{
    struct waiter *w = waiter_new(m, arg);
    w->gone = gone;
    queue_add(&m->all_gone, w);
    m->closing = true;
    m->n_left = 0;
    for (struct session *s = m->first, *next; s != NULL; s = next) {
        next = s->next;
        s->left = leave && s->spec->own.expires_ns > 0 && s->state == SESSION_READY;
        m->n_left += s->left;
        if (!s->left)
            session_stop(s);
    }
    if (m->n_sessions == m->n_left)
        waiters_wake_all_gone(m);
}

void manager_delete_all(struct manager *m, session_gone_fn *gone, void *arg)
{
    end_sessions(m, false, gone, arg);
}

void manager_close(struct manager *m, session_gone_fn *gone, void *arg)
{
    end_sessions(m, true, gone, arg);
}
