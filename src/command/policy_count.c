/* SPDX-License-Identifier: Apache-2.0 */

/* Counts the usage of a workspace, once or repeatedly while a command runs. */

#include "command/policy_count.h"

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
#include "jobs/hostdir.h"
#include "policy/policy.h"
#include "session/manager.h"
#include "spec/spec.h"

#define WATCH_NS NSEC_PER_SEC /* between two looks at a workspace */

/* A count by somebody who may look further than we: the owner of the directory, see jobs/hostdir.h.
 * It cannot be taken back. */
struct asked {
    struct quota_count *count; /* NULL: nobody wants to know any more */
};

struct quota_count {
    const struct policy_service *service; /* borrowed */
    struct session *session;              /* held; NULL: there is none yet */
    struct usage usage;                   /* what directories show */
    char *path;                           /* owned */
    quota_count_fn *done;
    void *arg;
    int dir_fd;               /* owned; -1: we may not look into it */
    struct usage_walk *walk;  /* owned */
    struct asked *asked;      /* owned by whoever will answer */
    struct log_scope request; /* who asked, for the log */
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
    struct asked *a = arg;
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

/* To what directories show comes what the session's processes hold and no directory has. */
static void finish(struct quota_count *c, const struct usage *shown)
{
    struct sandbox *sb = c->session != NULL ? session_sandbox(c->session) : NULL;
    struct err ignored;

    c->usage = *shown;
    if (sb != NULL && sb->backend->ops->held != NULL) {
        c->asked = xnew(struct asked);
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
static int read_answer(const char *text, size_t len, struct usage *ret)
{
    AUTO(json) struct json *answer = NULL;
    struct err ignored;

    if (json_parse(text, len, &answer, &ignored) < 0)
        return -EBADMSG;
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

static void on_answer(void *arg, const char *json, size_t len, const char *message)
{
    struct asked *a = arg;
    struct quota_count *c = a->count;
    struct usage usage = {.unreadable = 1};

    free(a);
    if (c == NULL)
        return;
    c->asked = NULL;
    if (json == NULL)
        log_debug(NULL, "count the files in '%s': %s; ignoring", c->path, message);
    else if (read_answer(json, len, &usage) == 0)
        usage.too_many = usage.entries > max_entries(c);
    finish(c, &usage);
}

/* False: there is nobody to ask. */
static bool ask_owner(struct quota_count *c)
{
    struct err ignored;

    if (c->service->helper == NULL)
        return false;
    struct asked *a = xnew(struct asked);
    a->count = c;
    if (hostdir_measure(c->service->helper, c->path, NULL, on_answer, a, &ignored) < 0) {
        free(a);
        return false;
    }
    c->asked = a;
    return true;
}

/* A step at a time, so that others have their turn. */
static void step(struct loop_defer *d)
{
    struct quota_count *c = container_of(d, struct quota_count, defer);
    const struct usage unseen = {.unreadable = 1};
    struct err err = {0};
    LOG_REQUEST(c->request.id);
    int r = c->walk != NULL ? usage_walk_step(c->walk, USAGE_STEP) : 0;

    if (r > 0) {
        loop_defer_start(manager_loop(c->service->manager), &c->defer, step);
        return;
    }
    if (r < 0) {
        (void)err_sys(&err, -r, "count the files in '%s'", c->path);
        c->done(c->arg, NULL, &err);
        return;
    }
    const struct usage *found = c->walk != NULL ? usage_walk_result(c->walk) : &unseen;
    if (found->unreadable == 0 || found->too_many || !ask_owner(c))
        finish(c, found);
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
    loop_defer_start(manager_loop(service->manager), &c->defer, step);
    *ret = c;
    return 0;
}

/* Watching. */

static void look(struct loop_timer *t);

static void again(struct quota_watch *w)
{
    loop_timer_start(manager_loop(w->service->manager), &w->timer, WATCH_NS, look);
}

static void on_looked(void *arg, const struct usage *usage, const struct err *err)
{
    struct quota_watch *w = arg;
    struct quota_check check = *w->check;
    struct err why;

    check.phase = QUOTA_AFTER;
    check.kernel_limit = true; /* what cannot be counted is told at the end */
    bool over = err == NULL && quota_judge(&check, usage, &why) < 0;
    if (over)
        w->found = *usage;
    quota_count_free(TAKE_PTR(w->count));
    if (over)
        w->over(w->arg);
    else
        again(w);
}

static void look(struct loop_timer *t)
{
    struct quota_watch *w = container_of(t, struct quota_watch, timer);
    struct err ignored;

    const struct quota_place place = {w->check->spec->host_path, w->session};

    if (quota_count_start(w->service, &place, on_looked, w, &w->count, &ignored) < 0)
        again(w);
}

void quota_watch_start(struct quota_watch *w)
{
    again(w);
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
