/* SPDX-License-Identifier: Apache-2.0 */

/* Compares the usage of a workspace with its quota, and counts it: once, or again and again while a
 * command runs. */

#include "command/quota.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/path.h"
#include "command/policy_service.h"
#include "jobs/jobs.h"
#include "policy/policy.h"
#include "session/manager.h"
#include "spec/spec.h"

bool quota_applies(const struct spec *spec)
{
    return spec->host_path != NULL && spec->workspace_quota_mb > 0;
}

int quota_judge(const struct quota_check *check, const struct usage *usage, struct err *err)
{
    static const char *const phases[] = {"before execution", "after execution",
                                         "between executions"};
    const struct spec *spec = check->spec;
    uint64_t limit = (uint64_t)spec->workspace_quota_mb * QUOTA_MB;

    assert(quota_applies(spec));
    if (check->cleanup && check->phase == QUOTA_BEFORE)
        return 0;
    bool walled = usage->kernel_bytes > 0 && usage->kernel_bytes <= limit;
    /* A cleanup need not finish in one command, but it must not add to what is too much already. */
    bool excused = check->cleanup && usage->bytes <= check->before.bytes &&
                   usage->entries <= check->before.entries;
    if (usage->too_many && !excused)
        return err_set(err, ERR_INVALID,
                       "workspace entry limit exceeded %s: entries>%llu host_path=%s session_id=%s",
                       phases[check->phase], (unsigned long long)check->max_entries,
                       spec->host_path, spec->session_id);
    if (usage->bytes > limit && !excused && !walled)
        return err_set(err, ERR_INVALID,
                       "workspace quota exceeded %s: used=%llu bytes limit=%llu bytes host_path=%s "
                       "session_id=%s",
                       phases[check->phase], (unsigned long long)usage->bytes,
                       (unsigned long long)limit, spec->host_path, spec->session_id);
    if (usage->unreadable > 0 && !check->kernel_limit && !walled && !check->cleanup)
        return err_set(err, ERR_DENIED,
                       "workspace cannot be measured %s: %llu directories are not readable "
                       "host_path=%s session_id=%s",
                       phases[check->phase], (unsigned long long)usage->unreadable, spec->host_path,
                       spec->session_id);
    return 0;
}

/* Counting ------------------------------------------------------------------------------------- */

#define WATCH_NS NSEC_PER_SEC /* between two looks at a workspace */

/* A count that is asked of a process that may look further than boxd: the backend, or a job with
 * the rights of the directory's owner, see jobs/jobs.h. It cannot be taken back. */
struct count_asked {
    struct quota_count *count; /* NULL: it was freed */
};

struct quota_count {
    const struct policy_service *service; /* borrowed */
    struct session *session;              /* held; NULL: there is none yet */
    struct usage usage;                   /* what directories show */
    char *path;                           /* owned */
    quota_count_fn *done;
    void *arg;
    int dir_fd;                /* owned; -1: we may not look into it */
    struct usage_walk *walk;   /* owned */
    struct count_asked *asked; /* owned by the callback that answers */
    struct log_scope request;  /* that asked, for the log */
    struct loop_defer defer;
};

void quota_count_free(struct quota_count *c)
{
    if (c == NULL)
        return;
    if (c->asked != NULL)
        c->asked->count = NULL;
    loop_defer_stop(&c->defer);
    usage_walk_free(c->walk);
    if (c->session != NULL)
        session_release(c->session);
    fd_close_many(&c->dir_fd, 1);
    free(c->path);
    free(c);
}

static void on_held(void *arg, const struct backend_held *held)
{
    struct count_asked *a = arg;
    struct quota_count *c = a->count;

    free(a);
    if (c == NULL)
        return;
    c->asked = NULL;
    if (held != NULL) {
        c->usage.bytes += held->bytes;
        c->usage.entries += held->files;
        c->usage.too_many |= held->incomplete;
        c->usage.kernel_bytes = held->kernel_bytes;
    }
    c->done(c->arg, &c->usage, NULL);
}

/* Adds what the session's processes hold and no directory shows. */
static void count_finish(struct quota_count *c, const struct usage *shown)
{
    struct sandbox *sb = c->session != NULL ? session_sandbox(c->session) : NULL;
    struct err ignored;

    c->usage = *shown;
    if (sb != NULL && sb->backend->ops->held != NULL) {
        c->asked = xnew(struct count_asked);
        c->asked->count = c;
        if (sb->backend->ops->held(sb, on_held, c->asked, &ignored) == 0)
            return;
        free(TAKE_PTR(c->asked));
    }
    c->done(c->arg, &c->usage, NULL);
}

static uint64_t max_entries(const struct quota_count *c)
{
    return (uint64_t)policy_settings(c->service->policy)->max_workspace_entries;
}

/* What a job has counted: {"": {"disk_bytes", "file_count", "error_count", …}}. The job has met
 * files of strangers, so its answer is read like a stranger's. */
static int read_answer(const struct json *answer, struct usage *ret)
{
    const struct json *all = json_get(answer, "");
    int64_t bytes = json_int(json_get(all, "disk_bytes")),
            entries = json_int(json_get(all, "file_count")),
            errors = json_int(json_get(all, "error_count"));
    if (json_type(all) != JSON_OBJECT || bytes < 0 || entries < 0 || errors < 0)
        return -EBADMSG;
    *ret = (struct usage){
        .bytes = (uint64_t)bytes, .entries = (uint64_t)entries, .unreadable = (uint64_t)errors};
    return 0;
}

static void on_answer(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct count_asked *a = arg;
    struct quota_count *c = a->count;
    struct usage usage = {.unreadable = 1};

    free(a);
    if (c == NULL)
        return;
    c->asked = NULL;
    if (data == NULL)
        log_debug(NULL, "count the files in '%s': %s; ignoring", c->path, failure->text);
    else if (read_answer(data, &usage) == 0)
        usage.too_many = usage.entries > max_entries(c);
    count_finish(c, &usage);
}

/* False: there is no helper, or it refused. */
static bool ask_owner(struct quota_count *c)
{
    struct err ignored;

    if (c->service->helper == NULL)
        return false;
    struct count_asked *a = xnew(struct count_asked);
    a->count = c;
    if (hostdir_measure(c->service->helper, c->path, NULL, on_answer, a, &ignored) < 0) {
        free(a);
        return false;
    }
    c->asked = a;
    return true;
}

/* A step at a time, so that others have their turn. */
static void count_step(struct loop_defer *d)
{
    struct quota_count *c = container_of(d, struct quota_count, defer);
    const struct usage unseen = {.unreadable = 1};
    struct err err = {0};
    LOG_REQUEST(c->request.id);
    int r = c->walk != NULL ? usage_walk_step(c->walk, USAGE_STEP) : 0;

    if (r > 0) {
        loop_defer_start(manager_loop(c->service->manager), &c->defer, count_step);
        return;
    }
    if (r < 0) {
        (void)err_sys(&err, -r, "count the files in '%s'", c->path);
        c->done(c->arg, NULL, &err);
        return;
    }
    const struct usage *found = c->walk != NULL ? usage_walk_result(c->walk) : &unseen;
    if (found->unreadable == 0 || found->too_many || !ask_owner(c))
        count_finish(c, found);
}

int quota_count_start(const struct policy_service *service, const struct quota_place *place,
                      quota_count_fn *done, void *arg, struct quota_count **ret, struct err *err)
{
    int fd = path_open_unlinked(place->path, O_RDONLY | O_DIRECTORY);

    if (fd < 0 && fd != -EACCES)
        return err_set(err, ERR_INVALID,
                       "host_path must point to an existing directory on the host");
    struct quota_count *c = xnew(struct quota_count);
    c->service = service;
    c->path = xstrdup(place->path);
    c->session = place->session;
    if (c->session != NULL)
        session_hold(c->session);
    c->request = log_scope_now();
    c->done = done;
    c->arg = arg;
    c->dir_fd = fd < 0 ? -1 : fd;
    if (fd >= 0)
        c->walk = usage_walk_new(fd, max_entries(c));
    loop_defer_start(manager_loop(service->manager), &c->defer, count_step);
    *ret = c;
    return 0;
}

/* Watching. */

static void watch_look(struct loop_timer *t);

void quota_watch_start(struct quota_watch *w)
{
    loop_timer_start(manager_loop(w->service->manager), &w->timer, WATCH_NS, watch_look);
}

static void on_looked(void *arg, const struct usage *usage, const struct err *err)
{
    struct quota_watch *w = arg;
    struct quota_check check = *w->check;
    struct err why;

    check.phase = QUOTA_AFTER;
    check.kernel_limit = true; /* directories that cannot be counted are reported at the end */
    bool over = err == NULL && quota_judge(&check, usage, &why) < 0;
    if (over)
        w->found = *usage;
    quota_count_free(TAKE_PTR(w->count));
    if (over)
        w->over(w->arg);
    else
        quota_watch_start(w);
}

static void watch_look(struct loop_timer *t)
{
    struct quota_watch *w = container_of(t, struct quota_watch, timer);
    struct err ignored;

    const struct quota_place place = {w->check->spec->host_path, w->session};

    if (quota_count_start(w->service, &place, on_looked, w, &w->count, &ignored) < 0)
        quota_watch_start(w);
}

void quota_watch_stop(struct quota_watch *w)
{
    loop_timer_stop(&w->timer);
    quota_count_free(TAKE_PTR(w->count));
}

const struct usage *quota_watch_most(const struct quota_watch *w, const struct usage *now)
{
    return w->found.bytes > now->bytes || w->found.too_many ? &w->found : now;
}
