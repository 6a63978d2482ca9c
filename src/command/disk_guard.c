/* SPDX-License-Identifier: Apache-2.0 */

/* Watches the free space of the host's disk, and kills or removes sessions that hold too much. */

#include "command/disk_guard.h"

#include <stdlib.h>
#include <sys/statvfs.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "command/policy_service.h"
#include "command/quota_guard.h"
#include "loop/loop.h"
#include "policy/policy.h"
#include "session/manager.h"
#include "session/run.h"
#include "spec/spec.h"

#define MIB (1ULL << 20)
#define LOOK_NS NSEC_PER_SEC        /* between two looks at the file system */
#define ROUND_NS (5 * NSEC_PER_SEC) /* at most between rounds: removals hide growth */
#define COST 20U                    /* counting takes at most 1/COST of the time */
#define STEP_BYTES (16 * MIB)       /* written since, before sessions are looked at */
#define BYTES_PER_FILE (16384ULL)   /* of the limit, for the limit of files */
#define STRIKES 4U                  /* that it may grow again after all was killed */

/* A session that has much on disk, or was killed for it. */
struct heavy {
    LIST_ENTRY(heavy) link;
    struct disk_guard *guard; /* borrowed */
    struct session *session;  /* held */
    uint64_t bytes, files;    /* as counted last */
    uint64_t killed_bytes, killed_files;
    unsigned strikes;
    bool seen;       /* it was counted before */
    struct run *run; /* owned; that kills */
    struct err why;
};

/* A count that was asked for; it cannot be taken back. */
struct asked {
    struct disk_guard *guard; /* NULL: it was freed */
};

struct disk_guard {
    struct disk_guard_options o;
    struct loop_timer timer;
    struct loop_defer defer;
    LIST_HEAD(, heavy) heavy;
    uint64_t used; /* of the file system, when the last round began */
    uint64_t left; /* of it, for sessions, as of the last look; 0: it has less than its reserve */
    uint64_t begun, rest_until;
    struct session **round; /* owned and held; those still to be looked at, the next one last */
    size_t n_round;
    struct asked *asked; /* owned by the callback that answers */
};

static struct loop *loop_of(const struct disk_guard *g)
{
    return manager_loop(g->o.service->manager);
}

static uint64_t limit_of(const struct disk_guard *g)
{
    return (uint64_t)policy_settings(g->o.service->policy)->session_disk_mb * MIB;
}

/* Sessions. */

static void heavy_free(struct heavy *h)
{
    LIST_REMOVE(h, link);
    run_free(h->run);
    session_release(h->session);
    free(h);
}

static void forget_gone(struct disk_guard *g)
{
    struct heavy *h, *next;

    LIST_FOREACH_SAFE (h, &g->heavy, link, next)
        if (session_state(h->session) != SESSION_READY)
            heavy_free(h);
}

/* The entry of the session, made if it is missing. */
static struct heavy *heavy_of(struct disk_guard *g, struct session *s)
{
    struct heavy *h;

    LIST_FOREACH (h, &g->heavy, link)
        if (h->session == s)
            return h;
    h = xnew(struct heavy);
    h->guard = g;
    h->session = s;
    session_hold(s);
    LIST_INSERT_HEAD(&g->heavy, h, link);
    return h;
}

static void on_removed(void *arg, const struct err *err)
{
    (void)err; /* the manager has logged it */
}

static void remove_session(struct heavy *h)
{
    struct disk_guard *g = h->guard;
    struct err ignored;

    log_warn(session_id(h->session), "%s; it does not stop, removing it", h->why.msg);
    (void)manager_expel(g->o.service->manager, h->session, on_removed, NULL, &ignored);
    heavy_free(h);
}

static void on_killed(void *arg, const struct run_result *result)
{
    struct heavy *h = arg;
    bool done = quota_killed(result);

    run_free(TAKE_PTR(h->run));
    if (!done)
        remove_session(h);
}

static void punish(struct heavy *h, const struct err *why)
{
    static const struct run_events events = {.finished = on_killed};

    if (h->run != NULL)
        return;
    h->killed_bytes = h->bytes;
    h->killed_files = h->files;
    h->why = *why;
    if (h->strikes++ < STRIKES)
        (void)quota_kill(h->guard->o.service, h->session, why, &events, h, &h->run);
    else
        remove_session(h);
}

static bool too_much(const struct disk_guard *g, const struct heavy *h, bool incomplete,
                     struct err *why)
{
    uint64_t limit = limit_of(g), files = limit / BYTES_PER_FILE;

    if (!incomplete && h->bytes <= limit && h->files <= files)
        return false;
    (void)err_set(why, ERR_LIMIT,
                  "disk limit exceeded: used=%llu bytes, %llu files%s; limit=%llu bytes, %llu "
                  "files (box.limits.session_disk_mb)",
                  (unsigned long long)h->bytes, (unsigned long long)h->files,
                  incomplete ? " or more" : "", (unsigned long long)limit,
                  (unsigned long long)files);
    return true;
}

static void judge(struct disk_guard *g, struct session *s, const struct backend_held *held)
{
    struct heavy *h = heavy_of(g, s);
    uint64_t bytes = held->bytes + held->stored_bytes;
    bool grew = h->seen && bytes > h->bytes + MIB;
    struct err why = {0};

    h->seen = true;
    h->bytes = bytes;
    h->files = held->files + held->stored_files;
    if (too_much(g, h, held->incomplete, &why)) {
        if (h->strikes == 0 || h->bytes > h->killed_bytes || h->files > h->killed_files)
            punish(h, &why);
    } else if (g->left == 0 && grew) {
        (void)err_set(&why, ERR_LIMIT,
                      "the host's disk is nearly full: it keeps %lld MiB for itself "
                      "(box.limits.disk_reserve_mb), and this session was writing",
                      (long long)policy_settings(g->o.service->policy)->disk_reserve_mb);
        punish(h, &why);
    } else if (h->run == NULL && bytes < STEP_BYTES && g->left > 0) {
        heavy_free(h);
    } else {
        h->strikes = 0;
    }
}

/* A round over the sessions, one after the other. */

static void look(struct loop_timer *t);

static void look_at_next(struct loop_defer *d);

static void on_held(void *arg, const struct backend_held *held)
{
    struct asked *a = arg;
    struct disk_guard *g = a->guard;

    free(a);
    if (g == NULL)
        return;
    g->asked = NULL;
    struct session *s = g->round[--g->n_round];
    bool known = held != NULL && !held->unknown;
    if (known && held->idle)
        session_set_quiet(s);
    else if (known && session_state(s) == SESSION_READY)
        judge(g, s, held);
    session_release(s);
    loop_defer_start(loop_of(g), &g->defer, look_at_next);
}

static bool ask(struct disk_guard *g, struct session *s)
{
    struct sandbox *sb = session_sandbox(s);
    struct err ignored;

    if (sb == NULL || sb->backend->ops->held == NULL)
        return false;
    g->asked = xnew(struct asked);
    g->asked->guard = g;
    if (sb->backend->ops->held(sb, on_held, g->asked, &ignored) == 0)
        return true;
    free(TAKE_PTR(g->asked));
    return false;
}

static void look_at_next(struct loop_defer *d)
{
    struct disk_guard *g = container_of(d, struct disk_guard, defer);

    while (g->n_round > 0) {
        if (ask(g, g->round[g->n_round - 1]))
            return;
        session_release(g->round[--g->n_round]);
    }
    uint64_t now = loop_now(loop_of(g));
    g->rest_until = now + (now - g->begun) * COST;
    loop_timer_start(loop_of(g), &g->timer, LOOK_NS, look);
}

static void begin_round(struct disk_guard *g)
{
    struct manager *m = g->o.service->manager;

    forget_gone(g);
    g->begun = loop_now(loop_of(g));
    g->round = xreallocarray(g->round, manager_count(m) + 1, sizeof(struct session *));
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (session_state(s) != SESSION_READY || session_spec(s)->workspace_quota_mb > 0 ||
            session_quiet(s))
            continue;
        session_hold(s);
        g->round[g->n_round++] = s;
    }
    look_at_next(&g->defer);
}

static void look(struct loop_timer *t)
{
    struct disk_guard *g = container_of(t, struct disk_guard, timer);
    uint64_t reserve = (uint64_t)policy_settings(g->o.service->policy)->disk_reserve_mb * MIB;
    struct statvfs fs;

    if (manager_count(g->o.service->manager) > 0 && limit_of(g) > 0 &&
        loop_now(loop_of(g)) >= g->rest_until && fstatvfs(g->o.dir_fd, &fs) == 0) {
        uint64_t used = (uint64_t)(fs.f_blocks - fs.f_bfree) * fs.f_frsize;
        uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        /* A small disk keeps a twentieth. */
        uint64_t part = (uint64_t)fs.f_blocks * fs.f_frsize / 20;
        reserve = reserve < part ? reserve : part;
        g->left = free_bytes > reserve ? free_bytes - reserve : 0;
        if (used > g->used + STEP_BYTES || g->left == 0 ||
            loop_now(loop_of(g)) >= g->begun + ROUND_NS) {
            g->used = used;
            begin_round(g);
            return;
        }
        g->used = used < g->used ? used : g->used;
    }
    loop_timer_start(loop_of(g), &g->timer, LOOK_NS, look);
}

struct disk_guard *disk_guard_new(const struct disk_guard_options *options)
{
    struct disk_guard *g = xnew(struct disk_guard);

    g->o = *options;
    loop_timer_start(loop_of(g), &g->timer, LOOK_NS, look);
    return g;
}

void disk_guard_free(struct disk_guard *g)
{
    if (g == NULL)
        return;
    if (g->asked != NULL)
        g->asked->guard = NULL;
    loop_timer_stop(&g->timer);
    loop_defer_stop(&g->defer);
    while (g->n_round > 0)
        session_release(g->round[--g->n_round]);
    while (!LIST_EMPTY(&g->heavy))
        heavy_free(LIST_FIRST(&g->heavy));
    free(g->round);
    free(g);
}
