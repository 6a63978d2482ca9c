/* SPDX-License-Identifier: Apache-2.0 */

/* The content-addressed mounts of a request. They leave its spec before a session is looked for or
 * made: what is compared and mounted is the rest. Each is copied and verified into the directory
 * that the session has for them, before it is made or while it lives. */

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "session/artifacts.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/spec.h"

static void add_next(struct langbot_call *c);

/* They are moved, not copied. */
static void take_from_spec(struct langbot_call *c)
{
    struct spec *spec = c->spec;
    size_t kept = 0;
    for (size_t i = 0; i < spec->n_extra_mounts; i++) {
        struct mount_spec *m = &spec->extra_mounts[i];
        if (!mount_content_addressed(m)) {
            spec->extra_mounts[kept++] = *m;
            continue;
        }
        c->artifacts.list = xreallocarray(c->artifacts.list, c->artifacts.n + 1, sizeof(*m));
        c->artifacts.list[c->artifacts.n++] = *m;
    }
    spec->n_extra_mounts = kept;
}

void langbot_artifacts_free(struct langbot_call *c)
{
    for (size_t i = 0; i < c->artifacts.n; i++)
        model_done(&mount_spec_model, &c->artifacts.list[i]);
    free(c->artifacts.list);
    free(c->artifacts.tree);
    artifacts_place_free(c->artifacts.place);
}

static void fail(struct langbot_call *c, const char *why)
{
    langbot_fail(c, LANGBOT_ERROR, "Immutable artifact preparation failed: %s", why);
}

static void fail_named(struct langbot_call *c, const char *message)
{
    const char *rest = NULL;
    (void)langbot_class_split(message, &rest);
    fail(c, rest);
}

/* The session has no place for them, or could have none. */
static void fail_place(struct langbot_call *c, const char *why, const char *then)
{
    langbot_fail(c, LANGBOT_ERROR, "Immutable artifact cache is unavailable%s%s%s",
                 why[0] != '\0' ? ": " : "", why, then);
}

static void on_added(void *arg, const char *json, size_t len, const char *message)
{
    struct langbot_call *c = arg;
    if (c->cancelled)
        langbot_call_end(c);
    else if (json == NULL)
        fail_named(c, message);
    else {
        c->artifacts.at++;
        add_next(c);
    }
}

/* The rest of them, one after the other. */
static void add_next(struct langbot_call *c)
{
    struct err err = {0};
    const struct session *s =
        c->session != NULL ? c->session : manager_find(c->rpc->o.manager, c->id);
    bool same = s != NULL && str_eq(session_spec(s)->own.artifacts, c->artifacts.tree);
    while (same && c->artifacts.at < c->artifacts.n &&
           session_has_artifact(s, &c->artifacts.list[c->artifacts.at]))
        c->artifacts.at++;
    if (c->artifacts.at == c->artifacts.n)
        c->artifacts.then(c);
    else if (artifacts_add(c->rpc->o.artifacts, c->artifacts.tree,
                           &c->artifacts.list[c->artifacts.at], on_added, c, &err) < 0)
        err.code == ERR_DENIED ? langbot_fail_err(c, &err) : fail(c, err.msg);
}

/* A session without a place does for whoever has no artifacts. */
static void on_place_made(void *arg, const char *json, size_t len, const char *message)
{
    struct langbot_call *c = arg;
    if (c->cancelled) {
        langbot_call_end(c);
        return;
    }
    if (json == NULL) {
        log_debug(c->id, "%s; ignoring", message);
        free(c->spec->own.artifacts);
        c->spec->own.artifacts = NULL;
    }
    add_next(c);
}

static void prepare_new(struct langbot_call *c)
{
    struct err err = {0};
    bool ready = false;
    c->artifacts.place =
        artifacts_place(c->rpc->o.artifacts, c->spec, c->artifacts.n > 0, &ready, &err);
    if (c->artifacts.place == NULL && c->artifacts.n > 0) {
        err.code == ERR_DENIED ? langbot_fail_err(c, &err) : fail_place(c, err.msg, "");
        return;
    }
    if (c->artifacts.place == NULL) {
        c->artifacts.then(c);
        return;
    }
    c->artifacts.tree = xstrdup(c->spec->own.artifacts);
    /* Whoever adds something makes the place on the way. */
    if (ready || c->artifacts.n > 0)
        add_next(c);
    else if (artifacts_make(c->rpc->o.artifacts, c->artifacts.tree, on_place_made, c, &err) < 0)
        on_place_made(c, NULL, 0, err.msg);
}

static void prepare_for(struct langbot_call *c, const struct session *s)
{
    const char *tree = session_spec(s)->own.artifacts;
    c->artifacts.at = 0;
    if (c->artifacts.n > 0 && tree == NULL) {
        fail_place(c, artifacts_problem(c->rpc->o.artifacts), "; acquire a new Box");
        return;
    }
    free(c->artifacts.tree);
    c->artifacts.tree = tree != NULL ? xstrdup(tree) : NULL;
    add_next(c);
}

void langbot_artifacts_prepare(struct langbot_call *c, void (*then)(struct langbot_call *c))
{
    const struct session *s = manager_find(c->rpc->o.manager, c->id);
    if (c->rpc->o.artifacts == NULL) {
        then(c);
        return;
    }
    take_from_spec(c);
    if (c->artifacts.n == 0 && !c->rules->adds_artifacts) {
        then(c);
        return;
    }
    c->artifacts.then = then;
    c->artifacts.found = s != NULL;
    if (s != NULL)
        prepare_for(c, s);
    else
        prepare_new(c);
}

bool langbot_artifacts_again(struct langbot_call *c, void (*then)(struct langbot_call *c))
{
    if (!c->artifacts.found || manager_find(c->rpc->o.manager, c->id) != NULL)
        return false;
    c->artifacts.found = false;
    c->artifacts.then = then;
    c->artifacts.at = 0;
    free(c->artifacts.tree);
    c->artifacts.tree = NULL;
    prepare_new(c);
    return true;
}

/* All of them are there, in the directory that the session has. */
static void settle(struct langbot_call *c)
{
    for (size_t i = 0; i < c->artifacts.n; i++)
        session_add_artifact(c->session, &c->artifacts.list[i]);
    c->then(c);
}

void langbot_artifacts_ready(struct langbot_call *c)
{
    bool same = str_eq(session_spec(c->session)->own.artifacts, c->artifacts.tree);
    artifacts_place_free(TAKE_PTR(c->artifacts.place));
    c->artifacts.then = settle;
    if (c->artifacts.n == 0 || same)
        settle(c);
    else
        prepare_for(c, c->session);
}
