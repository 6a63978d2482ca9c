/* SPDX-License-Identifier: Apache-2.0 */

/* Containers that are frozen by their engine, and go on. */

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

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
