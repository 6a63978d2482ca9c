/* SPDX-License-Identifier: Apache-2.0 */

/* Sandboxes that an earlier daemon left: taken over by name, or ended. */

#include <errno.h>
#include <string.h>

#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "spec/spec.h"

#define PATIENCE_NS (15ULL * NSEC_PER_SEC) /* a PID 1 that has nothing to say by then is stuck */

void native_find(struct native *n)
{
    const struct priv_item *items = NULL;
    n->n_found = priv_client_found(n->priv, &items);
    n->found = xnew_n(struct native_found, n->n_found + 1);
    for (size_t i = 0; i < n->n_found; i++) {
        (void)str_copy(n->found[i].name, sizeof(n->found[i].name), items[i].name);
        n->found[i].uid_index = items[i].uid_index;
        native_index(n, items[i].uid_index, true); /* whoever will have it */
    }
}

static struct native_found *find(struct native *n, const char *name)
{
    for (size_t i = 0; i < n->n_found; i++)
        if (!n->found[i].taken && str_eq(n->found[i].name, name))
            return &n->found[i];
    return NULL;
}

static void on_impatient(struct loop_timer *t)
{
    native_lose(container_of(t, struct native_sandbox, patience));
}

static void fail(struct native_sandbox *sb, const struct err *err)
{
    backend_created_fn *created = sb->created;
    void *arg = sb->arg;
    struct err why = *err;
    native_sandbox_free(sb);
    created(arg, NULL, &why);
}

static void on_adopted(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct native_sandbox *sb = arg;
    struct err err = {0};
    if (reply == NULL)
        (void)err_set(&err, ERR_BACKEND, "box-priv has gone away");
    else if (reply->result < 0)
        err = reply->err;
    if (reply == NULL || err.code == ERR_NOT_FOUND) {
        fail(sb, &err);
        return;
    }
    if (err.code != ERR_NONE) { /* it may be there, but it is of no use */
        native_abandon(sb, &err);
        return;
    }
    sb->uid_index = reply->created.uid_index;
    native_index(sb->native, sb->uid_index, true);
    native_take_fds(sb, reply, fds, n_fds);
    if (sb->conn < 0)
        (void)err_set(&err, ERR_LIMIT, "boxd has no file descriptor left for another session");
    if (sb->conn < 0 || native_greet(sb, &err) < 0) {
        native_abandon(sb, &err);
        return;
    }
    if (sb->native->facts.gvisor) /* what runs in there is not ours to know */
        native_on_listed(sb);
    else
        loop_timer_start(sb->native->loop, &sb->patience, PATIENCE_NS, on_impatient);
}

/* NOLINTNEXTLINE(readability-function-size): it is one of the backend's operations. */
int native_adopt(struct backend *b, const char *name, const struct spec *spec,
                 backend_created_fn *created, backend_lost_fn *lost, void *arg, struct err *err)
{
    struct native *n = container_of(b, struct native, base);
    struct native_found *found = find(n, name);
    if (strlen(name) != PLAN_NAME_LEN)
        return err_set(err, ERR_INVALID, "'%.40s' is not the name of a sandbox", name);
    /* Two who talk to one PID 1 would take each other's answers. */
    if (found == NULL)
        return err_set(err, ERR_NOT_FOUND, "no such sandbox");
    struct native_sandbox *sb = native_sandbox_new(n, spec, created, lost, arg);
    (void)str_copy(sb->name, sizeof(sb->name), name);
    sb->adopting = true;
    sb->uid_index = found->uid_index;
    int r = priv_client_adopt(n->priv, name, on_adopted, sb, err);
    if (r < 0) {
        sb->uid_index = UINT32_MAX; /* it may be there all the same */
        native_sandbox_free(sb);
        return r;
    }
    found->taken = true;
    return 0;
}

/* PID 1 has told of every process it has. */
void native_on_listed(struct native_sandbox *sb)
{
    if (!sb->adopting || sb->state != NATIVE_CREATING)
        return;
    sb->adopting = false;
    loop_timer_stop(&sb->patience);
    native_move(sb, NATIVE_READY);
    sb->created(sb->arg, &sb->base, NULL);
    native_proc_end_untaken(sb); /* none are left if that has ended the sandbox */
}

struct sweep {
    struct native *native;
    size_t waiting; /* answers that are still to come */
    backend_done_fn *done;
    void *arg;
    struct err err; /* the first that was told */
};

static void swept(struct sweep *s, const struct priv_reply *reply)
{
    if (reply == NULL)
        (void)err_set(&s->err, ERR_BACKEND, "box-priv has gone away");
    else if (reply->result < 0 && reply->err.code != ERR_NOT_FOUND && s->err.code == ERR_NONE)
        s->err = reply->err;
    if (--s->waiting > 0)
        return;
    s->done(s->arg, s->err.code != ERR_NONE ? &s->err : NULL);
    free(s);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): others take the descriptors out of it. */
static void on_swept(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    swept(arg, reply);
}

struct sweep_one {
    struct sweep *sweep;
    uint32_t uid_index;
};

/* NOLINTNEXTLINE(readability-non-const-parameter): others take the descriptors out of it. */
static void on_swept_one(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct sweep_one *one = arg;
    struct sweep *s = one->sweep;
    if (reply != NULL && (reply->result == 0 || reply->err.code == ERR_NOT_FOUND))
        native_index(s->native, one->uid_index, false);
    free(one);
    swept(s, reply);
}

int native_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err)
{
    struct native *n = container_of(b, struct native, base);
    struct sweep *s = xnew(struct sweep);
    *s = (struct sweep){.native = n, .done = done, .arg = arg};
    int r = priv_client_sweep(n->priv, on_swept, s, err);
    if (r < 0) {
        free(s);
        return r;
    }
    s->waiting = 1;
    for (size_t i = 0; i < n->n_found; i++) {
        struct native_found *f = &n->found[i];
        if (f->taken)
            continue;
        struct sweep_one *one = xnew(struct sweep_one);
        *one = (struct sweep_one){.sweep = s, .uid_index = f->uid_index};
        struct err why = {0};
        if (priv_client_destroy(n->priv, f->name, on_swept_one, one, &why) < 0) {
            s->err = why; /* told with the rest */
            free(one);
            continue;
        }
        f->taken = true;
        s->waiting++;
    }
    return 0;
}

void native_set_deadline(struct sandbox *base, uint64_t boot_ns)
{
    struct native_sandbox *sb = container_of(base, struct native_sandbox, base);
    if (sb->deadline_known && sb->deadline_ns == boot_ns)
        return;
    sb->deadline_known = true;
    sb->deadline_ns = boot_ns;
    priv_client_deadline(sb->native->priv, sb->name, boot_ns);
}
