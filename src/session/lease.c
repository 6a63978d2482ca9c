/* SPDX-License-Identifier: Apache-2.0 */

/* Leases: a session ends when its holder has been gone for a grace period. */

#include <assert.h>

#include "base/clock.h"
#include "base/log.h"
#include "session/session_internal.h"

static void on_expired(struct loop_timer *t)
{
    struct session *s = container_of(t, struct session, lease_timer);
    if (s->state == SESSION_STOPPING)
        return;
    log_info(session_id(s), "nobody has held it for %u s; removing the session", s->lease_sec);
    session_stop(s);
}

static void wait_for_holder(struct session *s)
{
    loop_timer_start(s->m->loop, &s->lease_timer, s->lease_sec * NSEC_PER_SEC, on_expired);
}

int session_lease_take(struct session *s, uint32_t grace_sec, struct err *err)
{
    uint32_t before = s->lease_sec;
    assert(grace_sec > 0 && grace_sec <= LEASE_SEC_MAX);
    s->lease_sec = grace_sec;
    /* Before anybody relies on it: a daemon that is killed now still knows. */
    if (grace_sec != before && s->stored && durable_put_session(s, err) < 0) {
        s->lease_sec = before;
        return err_code_errno(err->code);
    }
    loop_timer_stop(&s->lease_timer);
    s->holders++;
    session_touch(s);
    return 0;
}

void session_lease_drop(struct session *s)
{
    assert(s->holders > 0);
    if (--s->holders > 0 || s->state == SESSION_STOPPING)
        return;
    session_touch(s);
    wait_for_holder(s);
}

void lease_adopted(struct session *s)
{
    if (s->lease_sec > 0 && s->holders == 0)
        wait_for_holder(s);
}

uint32_t session_lease_sec(const struct session *s)
{
    return s->lease_sec;
}

bool session_lease_held(const struct session *s)
{
    return s->holders > 0;
}

void manager_holder_add(struct manager *m, struct lease_holder *h)
{
    h->since = clock_real(loop_clock(m->loop));
    h->prev = m->last_holder;
    h->next = NULL;
    *(h->prev != NULL ? &h->prev->next : &m->holders) = h;
    m->last_holder = h;
}

void manager_holder_remove(struct manager *m, struct lease_holder *h)
{
    *(h->prev != NULL ? &h->prev->next : &m->holders) = h->next;
    *(h->next != NULL ? &h->next->prev : &m->last_holder) = h->prev;
    h->prev = h->next = NULL;
}

struct lease_holder *manager_holder_next(struct manager *m, struct lease_holder *after)
{
    return after == NULL ? m->holders : after->next;
}
