/* SPDX-License-Identifier: Apache-2.0 */

/* Proves a candidate: creates a sandbox, runs a process in it, and removes it. */

#include <stdlib.h>

#include "backend/choice_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "spec/spec.h"

#define PROBE_TIMEOUT_NS (15ULL * NSEC_PER_SEC)
#define PROBE_NAME "box-probe"

bool probe_busy(const struct backend_probe *p)
{
    return p->backend != NULL;
}

/* Nothing of it is left. */
static void probe_settled(struct backend_probe *p)
{
    bool late = p->late;
    struct err err = p->err;
    loop_timer_stop(&p->timer);
    spec_free(TAKE_PTR(p->spec));
    p->backend = NULL;
    if (!late)
        p->done(p, err.code != ERR_NONE ? &err : NULL);
}

static void on_removed(void *arg, const struct err *err)
{
    struct backend_probe *p = arg;
    if (err != NULL && p->err.code == ERR_NONE)
        p->err = *err;
    probe_settled(p);
}

static void probe_remove(struct backend_probe *p)
{
    struct sandbox *sb = TAKE_PTR(p->sandbox);
    sb->backend->ops->destroy(sb, on_removed, p);
}

static void on_finished(void *arg, const struct outcome *outcome)
{
    struct backend_probe *p = arg;
    struct exec *exec = TAKE_PTR(p->exec);
    exec->backend->ops->exec_free(exec);
    if (outcome->kind != OUTCOME_EXITED || outcome->exit_code != 0)
        (void)err_set(&p->err, ERR_BACKEND, "a command did not run in its sandbox: %s %d %.200s",
                      outcome_name(outcome->kind), outcome->exit_code, outcome->error);
    if (p->sandbox != NULL)
        probe_remove(p);
}

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
}

static void on_created(void *arg, struct sandbox *sb, const struct err *err)
{
    static const struct exec_events events = {.output = on_output, .finished = on_finished};
    struct backend_probe *p = arg;
    const char *program = p->program != NULL ? p->program : "posture";
    char *const argv[] = {(char *)(uintptr_t)program, NULL};
    struct exec_request req = {
        .argv = argv, .posture = p->program == NULL, .cwd = "/", .timeout_ns = PROBE_TIMEOUT_NS};
    if (sb == NULL) {
        p->err = *err;
        probe_settled(p);
        return;
    }
    p->sandbox = sb;
    p->made = true;
    if (p->late || sb->backend->ops->exec(sb, &req, &events, p, &p->exec, &p->err) < 0)
        probe_remove(p);
}

/* Its processes end with it, and so does what we wait for. */
static void on_lost(void *arg)
{
    struct backend_probe *p = arg;
    if (p->err.code == ERR_NONE)
        (void)err_set(&p->err, ERR_BACKEND, "its sandbox died by itself");
    if (p->sandbox != NULL && p->exec == NULL)
        probe_remove(p);
}

static void on_timer(struct loop_timer *t)
{
    struct backend_probe *p = container_of(t, struct backend_probe, timer);
    struct err err = {0};
    p->late = true;
    (void)err_set(&err, ERR_UNAVAILABLE, "it did not make a sandbox within %llu seconds",
                  PROBE_TIMEOUT_NS / NSEC_PER_SEC);
    p->done(p, &err);
}

void probe_start(struct backend_probe *p, struct backend *b)
{
    char random[17];
    struct err err = {0};
    id_random(random);
    p->backend = b;
    p->late = p->made = false;
    p->err = (struct err){0};
    p->spec = spec_new();
    p->spec->session_id = xasprintf(PROBE_NAME "-%s", random);
    if (p->image != NULL) {
        free(p->spec->image);
        p->spec->image = xstrdup(p->image);
    }
    loop_timer_start(p->loop, &p->timer, PROBE_TIMEOUT_NS, on_timer);
    if (b->ops->create(b, p->spec, on_created, on_lost, p, &err) < 0) {
        p->err = err;
        probe_settled(p);
    }
}

void probe_drop(struct backend_probe *p)
{
    struct exec *exec = TAKE_PTR(p->exec);
    p->late = true;
    p->sandbox = NULL;
    loop_timer_stop(&p->timer);
    if (exec != NULL)
        exec->backend->ops->exec_free(exec);
    spec_free(TAKE_PTR(p->spec));
}
