/* SPDX-License-Identifier: Apache-2.0 */

/* Destroys the matching sessions and calls back once when the last one has ended. */

#include "front/langbot/tenant/sweep.h"

#include <assert.h>

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/tenant/tenancy.h"
#include "session/manager.h"
#include "spec/spec.h"

static bool matches(const struct sweep_match *match, const struct session *s)
{
    const char *id = session_id(s);
    if (match->prefix != NULL && !str_starts(id, match->prefix))
        return false;
    if (match->except != NULL && str_starts(id, match->except))
        return false;
    if (match->physical && !tenant_name_is_physical(id))
        return false;
    if (session_spec(s)->own.expires_ns > 0)
        return false; /* the daemon's own, with an end of its own */
    return !(match->keep_persistent && session_spec(s)->persistent);
}

static void tell(struct loop_defer *d)
{
    struct sweep *s = container_of(d, struct sweep, defer);
    sweep_done_fn *done = s->done;
    s->done = NULL;
    done(s->arg);
}

static void on_gone(void *arg, const struct err *err)
{
    struct sweep *s = arg;
    if (err != NULL)
        log_warn(NULL, "end a session: %s; ignoring", err->msg);
    assert(s->pending > 0);
    if (--s->pending == 0)
        tell(&s->defer);
}

void sweep_start(struct sweep *s, struct manager *m, const struct sweep_match *match,
                 sweep_done_fn *done, void *arg)
{
    assert(!sweep_active(s));
    s->done = done;
    s->arg = arg;
    s->pending = 0;
    for (struct session *it = manager_next(m, NULL), *next; it != NULL; it = next) {
        struct err err = {0};
        next = manager_next(m, it);
        if (!matches(match, it))
            continue;
        if (manager_delete(m, session_id(it), on_gone, s, &err) == 0)
            s->pending++;
    }
    if (s->pending == 0)
        loop_defer_start(manager_loop(m), &s->defer, tell);
}

bool sweep_active(const struct sweep *s)
{
    return s->done != NULL;
}

void sweep_stop(struct sweep *s)
{
    loop_defer_stop(&s->defer);
    s->done = NULL;
}
