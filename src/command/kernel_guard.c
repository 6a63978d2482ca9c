/* SPDX-License-Identifier: Apache-2.0 */

/* Kills what runs in a session that makes the kernel hold too much memory that no cgroup charges.
 */

#include "command/kernel_guard.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "command/quota_guard.h"
#include "loop/loop.h"
#include "session/manager.h"
#include "session/run.h"

#define IDLE_NS NSEC_PER_SEC        /* between two looks at sessions in which nothing runs */
#define BUSY_NS (NSEC_PER_SEC / 20) /* between two looks at the allocator */
#define COUNT_NS (5 * NSEC_PER_SEC) /* at most between two counts: growth and shrinking add up */
#define COST 50U                    /* counts take at most 1/COST of the time */
#define STEP_BYTES (8ULL << 20)     /* the allocator's growth that is a reason to count */
#define MEMINFO_MAX 8192U

/* A count that was asked for; it cannot be taken back. */
struct kernel_count {
    struct kernel_guard *guard; /* borrowed; NULL: the guard has gone */
};

/* One thing at a time: the timer waits, or a count is under way, or a session is being killed. */
struct kernel_guard {
    const struct policy_service *service; /* borrowed */
    int meminfo_fd;                       /* owned; -1: it cannot be read */
    struct loop_timer timer;
    bool idle;                  /* the timer waits for long: nothing runs */
    uint64_t least;             /* of the allocator, since the last count */
    uint64_t begun, rest_until; /* the last count; when the next may begin without growth */
    struct kernel_count *count; /* owned by the answer */
    struct session *session;    /* held; the one that is being killed */
    struct run *run;            /* owned; that kills */
    struct err why;
};

static struct loop *loop_of(const struct kernel_guard *g)
{
    return manager_loop(g->service->manager);
}

/* Memory that the kernel's allocator cannot reclaim: it contains locks and packets, but not names
 * of files. 0: unknown. */
static uint64_t allocator_bytes(const struct kernel_guard *g)
{
    char text[MEMINFO_MAX];
    uint64_t kib = 0;
    ssize_t n = pread(g->meminfo_fd, text, sizeof(text) - 1, 0);

    if (n <= 0)
        return 0;
    text[n] = '\0';
    char *value = strstr(text, "SUnreclaim:");
    if (value == NULL)
        return 0;
    value += strcspn(value, " ");
    value += strspn(value, " ");
    value[strcspn(value, " ")] = '\0';
    return str_to_u64(value, &kib) == 0 ? kib << 10 : 0;
}

static void look(struct loop_timer *t);

static void wait_for(struct kernel_guard *g, uint64_t ns)
{
    loop_timer_start(loop_of(g), &g->timer, ns, look);
}

static void on_removed(void *arg, const struct err *err)
{
    (void)err; /* the manager has logged it */
}

static void on_killed(void *arg, const struct run_result *result)
{
    struct kernel_guard *g = arg;
    struct session *s = TAKE_PTR(g->session);
    struct err ignored;

    if (!quota_killed(result)) {
        log_warn(session_id(s), "%s; the programs do not end, removing the session", g->why.msg);
        (void)manager_expel(g->service->manager, s, on_removed, NULL, &ignored);
    }
    run_free(TAKE_PTR(g->run));
    session_release(s);
    wait_for(g, BUSY_NS);
}

static void kill_session(struct kernel_guard *g, struct session *s)
{
    static const struct run_events events = {.finished = on_killed};

    g->session = s;
    session_hold(s);
    g->least = 0; /* another session may have too much as well: count again */
    if (quota_kill(g->service, s, &g->why, &events, g, &g->run) == 0)
        return;
    session_release(TAKE_PTR(g->session));
    wait_for(g, BUSY_NS);
}

static struct session *session_of(const struct kernel_guard *g, const char *name)
{
    struct manager *m = g->service->manager;

    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        const struct sandbox *sb = session_sandbox(s);
        if (sb != NULL && sb->backend->ops->greediest != NULL &&
            str_eq(sb->backend->ops->sandbox_name(sb), name))
            return s;
    }
    return NULL;
}

static void on_counted(void *arg, const struct backend_greedy *found)
{
    struct kernel_count *count = arg;
    struct kernel_guard *g = count->guard;

    free(count);
    if (g == NULL)
        return;
    g->count = NULL;
    uint64_t now = loop_now(loop_of(g));
    uint64_t rest = (now - g->begun) * COST;
    g->rest_until = now + (rest > COUNT_NS ? rest : COUNT_NS);
    struct session *s = found != NULL ? session_of(g, found->name) : NULL;
    if (s == NULL || (!found->incomplete && found->netlink_bytes <= BACKEND_GREEDY_BYTES &&
                      found->lock_bytes <= BACKEND_GREEDY_BYTES)) {
        wait_for(g, BUSY_NS);
        return;
    }
    (void)err_set(&g->why, ERR_LIMIT,
                  "kernel memory limit exceeded: netlink_bytes=%llu, lock_bytes=%llu%s; limit=%llu "
                  "each. Read the answers that wait in netlink sockets, or close them; release "
                  "record locks",
                  (unsigned long long)found->netlink_bytes, (unsigned long long)found->lock_bytes,
                  found->incomplete ? " or more" : "", BACKEND_GREEDY_BYTES);
    kill_session(g, s);
}

/* A backend that can count, of a session in which something may run; NULL: there is none. */
static struct backend *busy_backend(const struct kernel_guard *g)
{
    struct manager *m = g->service->manager;

    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        const struct sandbox *sb = session_sandbox(s);
        if (sb != NULL && sb->backend->ops->greediest != NULL && !session_quiet(s))
            return sb->backend;
    }
    return NULL;
}

static bool count_start(struct kernel_guard *g, struct backend *b)
{
    struct err ignored;

    g->begun = loop_now(loop_of(g));
    g->count = xnew(struct kernel_count);
    g->count->guard = g;
    if (b->ops->greediest(b, on_counted, g->count, &ignored) == 0)
        return true;
    free(TAKE_PTR(g->count));
    return false;
}

static void look(struct loop_timer *t)
{
    struct kernel_guard *g = container_of(t, struct kernel_guard, timer);
    struct backend *b = busy_backend(g);

    g->idle = b == NULL;
    if (g->idle) {
        wait_for(g, IDLE_NS);
        return;
    }
    uint64_t bytes = allocator_bytes(g);
    g->least = bytes < g->least ? bytes : g->least;
    if (bytes > g->least + STEP_BYTES || loop_now(loop_of(g)) >= g->rest_until) {
        g->least = bytes;
        if (count_start(g, b))
            return;
    }
    wait_for(g, BUSY_NS);
}

/* A command that begins now has not been looked at for up to IDLE_NS. */
static void on_busy(void *arg)
{
    struct kernel_guard *g = arg;

    if (!g->idle)
        return;
    g->idle = false;
    wait_for(g, BUSY_NS);
}

struct kernel_guard *kernel_guard_new(const struct policy_service *service)
{
    struct kernel_guard *g = xnew(struct kernel_guard);

    g->service = service;
    g->meminfo_fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    g->idle = true;
    wait_for(g, IDLE_NS);
    manager_on_busy(service->manager, on_busy, g);
    return g;
}

void kernel_guard_free(struct kernel_guard *g)
{
    if (g == NULL)
        return;
    if (g->count != NULL)
        g->count->guard = NULL;
    manager_on_busy(g->service->manager, NULL, NULL);
    loop_timer_stop(&g->timer);
    run_free(g->run);
    if (g->session != NULL)
        session_release(g->session);
    if (g->meminfo_fd >= 0)
        (void)close(g->meminfo_fd);
    free(g);
}
