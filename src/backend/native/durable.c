/* SPDX-License-Identifier: Apache-2.0 */

/* Native sandboxes that are kept: their end with the storage left in place, a start on that
 * storage, its size and its removal; freezing of processes; other limits for them. */

#include <string.h>

#include "backend/native/native.h"
#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
#include "priv/client.h"
#include "sandbox/plan/plan.h"
#include "spec/spec.h"

static int check_name(const char *name, struct err *err)
{
    if (strlen(name) == PLAN_NAME_LEN && id_valid(name))
        return 0;
    return err_set(err, ERR_INVALID, "'%.40s' is not the name of a sandbox", name);
}

void native_stop(struct sandbox *base, backend_done_fn *done, void *arg)
{
    native_end(container_of(base, struct native_sandbox, tasks.sandbox), PRIV_STOP, done, arg);
}

/* NOLINTNEXTLINE(readability-function-size): it is one of the backend's operations. */
int native_start(struct backend *b, const char *name, const struct spec *spec,
                 backend_created_fn *created, backend_lost_fn *lost, void *arg, struct err *err)
{
    int r = check_name(name, err);
    return r < 0 ? r
                 : native_create_named(b, (struct native_name){.text = name, .stored = true}, spec,
                                       created, lost, arg, err);
}

/* A request to box-priv whose answer is told to one of these. */
struct native_ask {
    backend_done_fn *done;
    backend_held_fn *held;
    void *arg;
    struct native_sandbox
        *frozen; /* it is, once that is done; box-priv answers before it is gone */
    struct native_sandbox *thawed;  /* the same of one that goes on */
    struct native_sandbox *updated; /* the same of one that has new limits */
    uint32_t pids;                  /* of these */
};

/* NOLINTNEXTLINE(readability-non-const-parameter): others take the descriptors out of it. */
static void on_answer(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct native_ask a = *(struct native_ask *)arg;
    struct err err = {0};
    free(arg);
    if (reply == NULL)
        (void)err_set(&err, ERR_BACKEND, "box-priv has gone away");
    else if (reply->result < 0)
        err = reply->err;
    if (a.frozen != NULL && err.code == ERR_NONE)
        a.frozen->tasks.frozen = true;
    if (a.thawed != NULL && err.code == ERR_NONE)
        a.thawed->tasks.frozen = false;
    if (a.updated != NULL && err.code == ERR_NONE)
        a.updated->pids = a.pids;
    if (a.done != NULL) {
        a.done(a.arg, err.code != ERR_NONE ? &err : NULL);
        return;
    }
    if (reply == NULL || err.code != ERR_NONE) {
        a.held(a.arg, NULL);
        return;
    }
    const struct priv_held *h = &reply->held;
    a.held(a.arg, &(struct backend_held){.stored_bytes = h->stored_bytes,
                                         .stored_files = h->stored_files,
                                         .incomplete = h->incomplete != 0});
}

/* Nothing has stayed: that is as well. */
/* NOLINTNEXTLINE(readability-non-const-parameter): others take the descriptors out of it. */
static void on_discarded(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct priv_reply fine;
    if (reply != NULL && reply->result < 0 && reply->err.code == ERR_NOT_FOUND) {
        fine = *reply;
        fine.result = 0;
        reply = &fine;
    }
    on_answer(arg, reply, fds, n_fds);
}

static int ask(struct native *n, enum priv_type type, const char *name, struct native_ask what,
               struct err *err)
{
    struct native_ask *a = xnew(struct native_ask);
    *a = what;
    int r = priv_client_ask_about(n->priv, type, name,
                                  type == PRIV_DESTROY ? on_discarded : on_answer, a, err);
    if (r < 0)
        free(a);
    return r;
}

int native_discard(struct backend *b, const char *name, backend_done_fn *done, void *arg,
                   struct err *err)
{
    int r = check_name(name, err);
    return r < 0 ? r
                 : ask(container_of(b, struct native, base), PRIV_DESTROY, name,
                       (struct native_ask){.done = done, .arg = arg}, err);
}

int native_stored(struct backend *b, const char *name, backend_held_fn *done, void *arg,
                  struct err *err)
{
    int r = check_name(name, err);
    return r < 0 ? r
                 : ask(container_of(b, struct native, base), PRIV_KEPT, name,
                       (struct native_ask){.held = done, .arg = arg}, err);
}

int native_pause(struct sandbox *base, bool paused, backend_done_fn *done, void *arg,
                 struct err *err)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, tasks.sandbox);
    return ask(
        sb->native, paused ? PRIV_PAUSE : PRIV_UNPAUSE, sb->name,
        (struct native_ask){
            .done = done, .arg = arg, .frozen = paused ? sb : NULL, .thawed = paused ? NULL : sb},
        err);
}

int native_update(struct sandbox *base, const struct spec *spec, backend_done_fn *done, void *arg,
                  struct err *err)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, tasks.sandbox);
    const struct cgroup_limits limits = native_limits(spec);
    struct native_ask *a = xnew(struct native_ask);
    *a = (struct native_ask){.done = done, .arg = arg, .updated = sb, .pids = limits.pids};
    int r = priv_client_update(sb->native->priv, sb->name, &limits, on_answer, a, err);
    if (r < 0)
        free(a);
    return r;
}
