/* SPDX-License-Identifier: Apache-2.0 */

/* Containers that their engine freezes and lets go on, and those that it gives other limits. */

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "spec/spec.h"

#define UPDATE_MAX 1024U

struct pause_job {
    struct engine_job job;
    char id[ENGINE_ID_MAX]; /* of the container, whose sandbox may go meanwhile */
    bool paused;
};

static void on_pause(void *arg, const struct json *body, const struct err *err)
{
    struct pause_job *p = arg;
    struct engine_sandbox *sb;
    p->job.call = NULL;
    LIST_FOREACH (sb, &p->job.engine->sandboxes, entry)
        if (err == NULL && str_eq(sb->id, p->id))
            sb->tasks.frozen = p->paused;
    engine_job_end(&p->job, err);
}

int engine_pause(struct sandbox *base, bool paused, backend_done_fn *done, void *arg,
                 struct err *err)
{
    struct engine_sandbox *sb = container_of(base, struct engine_sandbox, tasks.sandbox);
    struct pause_job *p = xnew(struct pause_job);
    AUTO_FREE char *target = xasprintf("/containers/%s/%s", sb->id, paused ? "pause" : "unpause");
    (void)str_copy(p->id, sizeof(p->id), sb->id);
    p->paused = paused;
    engine_job_start(sb->engine, &p->job, done, arg);
    engine_job_ask(&p->job, &(struct engine_request){.method = "POST", .target = target}, on_pause);
    return 0;
}

static void on_thawed(void *arg, const struct json *body, const struct err *err)
{
    struct engine_sandbox *sb = arg;
    sb->call = NULL; /* if it does not go on, its supervisor does not answer, and that is noticed */
}

void engine_thaw(struct engine_sandbox *sb)
{
    AUTO_FREE char *target = xasprintf("/containers/%s/unpause", sb->id);
    sb->tasks.sandbox.paused = true;
    engine_ask(sb, &(struct engine_request){.method = "POST", .target = target}, on_thawed);
}

struct update_job {
    struct engine_job job;
    char id[ENGINE_ID_MAX]; /* as above */
    int64_t pids_limit;
};

static void on_update(void *arg, const struct json *body, const struct err *err)
{
    struct update_job *u = arg;
    struct engine_sandbox *sb;
    u->job.call = NULL;
    LIST_FOREACH (sb, &u->job.engine->sandboxes, entry)
        if (err == NULL && str_eq(sb->id, u->id))
            sb->spec->pids_limit = u->pids_limit; /* the receipt subtracts what is ours */
    engine_job_end(&u->job, err);
}

int engine_update(struct sandbox *base, const struct spec *spec, backend_done_fn *done, void *arg,
                  struct err *err)
{
    struct engine_sandbox *sb = container_of(base, struct engine_sandbox, tasks.sandbox);
    AUTO_DONE(buf) struct buf body = BUF_INIT(UPDATE_MAX);
    struct jw w = JW_INIT(&body);
    if (sb->engine->kind->is_podman || sb->gvisor)
        return err_set(
            err, ERR_UNSUPPORTED,
            "%s fixes the limits of a session when it is made; make another session with "
            "the limits that it needs",
            sb->gvisor ? "gVisor" : "the podman backend");
    jw_object(&w);
    engine_put_limits(&w, spec, engine_pids_max(spec, sb->own_id, false));
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_LIMIT, "the limits are too long");
    struct update_job *u = xnew(struct update_job);
    AUTO_FREE char *target = xasprintf("/containers/%s/update", sb->id);
    (void)str_copy(u->id, sizeof(u->id), sb->id);
    u->pids_limit = spec->pids_limit;
    engine_job_start(sb->engine, &u->job, done, arg);
    engine_job_ask(&u->job,
                   &(struct engine_request){
                       .method = "POST", .target = target, .body = body.data, .body_len = body.len},
                   on_update);
    return 0;
}
