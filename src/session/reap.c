/* SPDX-License-Identifier: Apache-2.0 */

/* Ends idle and expired sessions and forgets exited processes, by a timer. */

#include "base/clock.h"
#include "base/log.h"
#include "session/session_internal.h"
#include "spec/spec.h"

#define INTERVAL_MAX_NS (5ULL * NSEC_PER_SEC)
#define INTERVAL_MIN_NS (100ULL * NSEC_PER_MSEC)

/* Somebody uses it, or is about to. What a managed process does is use. */
static bool is_busy(const struct session *s)
{
    return s->execs > 0 || s->claims > 0 || s->guests > 0 || s->n_running > 0 || s->holders > 0;
}

static bool ends_by_itself(const struct session *s)
{
    return !s->spec->persistent && s->m->options.ttl_ns > 0 && s->spec->own.expires_ns == 0;
}

static uint64_t age(uint64_t now, uint64_t then)
{
    return now > then ? now - then : 0;
}

/* A time of the wall clock by the one that nobody sets; never 0, which would be no time at all. */
static uint64_t boot_time(const struct clock *clock, uint64_t real_ns)
{
    uint64_t now = clock_real(clock), boot = clock_boot(clock);
    return real_ns > now ? boot + (real_ns - now) : boot;
}

/* When the sandbox is to end if we are not there to say otherwise. It is told rarely, so it lies a
 * little behind the time at which we would end it ourselves, never before. */
void session_update_deadline(struct session *s)
{
    uint64_t ttl = s->m->options.ttl_ns, slack = ttl / 10, want = 0;
    if (s->sandbox == NULL || s->sandbox->backend->ops->set_deadline == NULL)
        return;
    if (ends_by_itself(s) && s->n_running == 0)
        want = (s->execs + s->guests > 0 ? clock_boot(loop_clock(s->m->loop)) : s->used_boot) +
               ttl + slack;
    if (s->spec->own.expires_ns > 0) {
        want = boot_time(loop_clock(s->m->loop), s->spec->own.expires_ns);
        slack = NSEC_PER_SEC; /* two clocks are read, one after the other */
    }
    bool same = want == 0 || s->deadline == 0
                    ? want == s->deadline
                    : age(want, s->deadline) <= slack && age(s->deadline, want) <= slack;
    if (same)
        return;
    s->deadline = want;
    s->sandbox->backend->ops->set_deadline(s->sandbox, want);
}

static void reap_session(struct session *s, uint64_t now)
{
    if (s->state != SESSION_READY)
        return;
    if (!ends_by_itself(s) || is_busy(s) || age(now, s->used_boot) < s->m->options.ttl_ns) {
        session_update_deadline(s);
        return;
    }
    log_info(session_id(s), "idle for %llu s; removing the session",
             (unsigned long long)(age(now, s->used_boot) / NSEC_PER_SEC));
    s->end = METRICS_EXPIRED;
    session_stop(s);
}

/* Those whose rest is still being read are left alone. */
void reap_exited(struct manager *m)
{
    const struct manager_options *o = &m->options;
    uint64_t now = clock_boot(loop_clock(m->loop));
    for (struct process *p = m->exited_first, *next; p != NULL; p = next) {
        next = p->newer;
        bool old = age(now, p->exited_boot) >= o->exited_ns;
        if ((old || m->n_exited > o->max_exited) && p->readers == NULL)
            process_forget(p);
    }
}

void manager_reap(struct manager *m)
{
    uint64_t now = clock_boot(loop_clock(m->loop));
    for (struct session *s = m->first, *next; s != NULL; s = next) {
        next = s->next;
        reap_session(s, now);
    }
    reap_exited(m);
}

static void on_reap(struct loop_timer *t)
{
    struct manager *m = container_of(t, struct manager, reaper);
    manager_reap(m);
    reap_start(m);
}

static uint64_t shorter(uint64_t interval, uint64_t limit)
{
    return limit > 0 && limit < interval ? limit : interval;
}

void reap_start(struct manager *m)
{
    const struct manager_options *o = &m->options;
    uint64_t interval = shorter(shorter(INTERVAL_MAX_NS, o->ttl_ns), o->exited_ns);
    if (interval < INTERVAL_MIN_NS)
        interval = INTERVAL_MIN_NS;
    if (o->ttl_ns > 0 || o->exited_ns > 0)
        loop_timer_start(m->loop, &m->reaper, interval, on_reap);
    else
        loop_timer_stop(&m->reaper);
}
