/* SPDX-License-Identifier: Apache-2.0 */

/* Host directories whose owner is, inside, the session's user: box-priv makes an id-mapped mount of
 * each, and the engine is given the name of that mount. */

#include <stdio.h>
#include <string.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "priv/bind.h"
#include "priv/client.h"

static const char unseen[] =
    "the engine does not see mounts of the process that listens at its socket";

/* Requests to box-priv cannot be taken back: what waits for the answers may outlive the session. */
struct engine_binding {
    struct engine_sandbox *sb; /* NULL: it is gone */
    size_t pending;
    size_t next; /* mount that the next answer is about; they come in order */
    struct err err;
};

static void binding_drop(struct engine_binding *b)
{
    if (b->sb == NULL && b->pending == 0)
        free(b);
}

void engine_unbind(struct engine_sandbox *sb)
{
    if (sb->binding != NULL) {
        sb->binding->sb = NULL;
        binding_drop(TAKE_PTR(sb->binding));
    }
    if (sb->bind_name[0] != '\0')
        priv_client_unbind(sb->engine->options.priv, sb->bind_name);
    sb->bind_name[0] = '\0';
}

bool engine_can_bind(const struct engine *e, const char **ret_why)
{
    *ret_why = NULL;
    if (e->facts.narrow)
        *ret_why = "the engine maps ids itself: it is rootless, or remapped";
    else if (e->options.priv == NULL)
        *ret_why = e->options.no_priv;
    else if (e->binds_unseen)
        *ret_why = unseen;
    return *ret_why == NULL;
}

int engine_bind_plain(struct engine_sandbox *sb, const char *why, struct err *err)
{
    engine_unbind(sb);
    (void)snprintf(sb->not_mapped, sizeof(sb->not_mapped), "%s", why);
    for (size_t i = 0; i < sb->mounts.n; i++)
        free(TAKE_PTR(sb->mounts.list[i].bind));
    return engine_mounts_identify(sb->engine, &sb->mounts, err);
}

int engine_bind_give_up(struct engine_sandbox *sb, struct err *err)
{
    sb->engine->binds_unseen = true;
    return engine_bind_plain(sb, unseen, err);
}

static void take_answer(struct engine_binding *b, struct engine_mount *m,
                        const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct err *err = &b->err;
    if (err->code != ERR_NONE)
        return;
    if (reply->result < 0) {
        *err = reply->err;
        (void)err_wrap(err, "host_path %.200s", m->source);
    } else if (n_fds != 1 || engine_mount_take(m, TAKE_FD(fds[0])) < 0) {
        (void)err_set(err, ERR_LIMIT, "boxd has no file descriptor left for another mount");
    }
}

/* False: nobody waits for it any more. */
static bool note_answer(struct engine_binding *b, const struct priv_reply *reply)
{
    b->pending--;
    if (b->sb == NULL || b->sb->state != ENGINE_BINDING) {
        binding_drop(b);
        return false;
    }
    if (reply == NULL && b->err.code == ERR_NONE)
        (void)err_set(&b->err, ERR_BACKEND, "box-priv has gone away; start boxd again");
    return true;
}

static void finish(struct engine_binding *b)
{
    struct engine_sandbox *sb = b->sb;
    struct err err = b->err;
    if (b->pending > 0)
        return;
    free(TAKE_PTR(sb->binding));
    if (err.code == ERR_UNSUPPORTED) {
        struct err why = err;
        err = (struct err){0};
        if (engine_bind_plain(sb, why.msg, &err) < 0)
            (void)err_wrap(&err, "owners cannot be mapped (%.200s), and without that", why.msg);
    }
    if (err.code != ERR_NONE)
        engine_fail(sb, &err);
    else
        engine_bound(sb);
}

static void on_bound(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct engine_binding *b = arg;
    if (!note_answer(b, reply))
        return;
    take_answer(b, &b->sb->mounts.list[b->next++], reply, fds, n_fds);
    finish(b);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): others take the descriptors out of it. */
static void on_looked(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct engine_binding *b = arg;
    if (!note_answer(b, reply))
        return;
    if (reply != NULL && reply->result < 0 && b->err.code == ERR_NONE)
        (void)err_missing(&b->err, ERR_THING_MOUNT,
                          "a mount target does not exist inside the mount that holds it; create it "
                          "there first: %.200s",
                          reply->err.msg);
    finish(b);
}

/* box-priv's number of a root: it has the list that it was started with. */
static int root_number(const struct engine *e, size_t root, uint32_t *ret, struct err *err)
{
    char *const *theirs = priv_client_roots(e->options.priv);
    for (uint32_t i = 0; theirs != NULL && theirs[i] != NULL; i++) {
        *ret = i;
        if (str_eq(theirs[i], e->roots[root]))
            return 0;
    }
    const char *rest = NULL;
    if (priv_client_place_of(e->options.priv, e->roots[root], ret, &rest) && rest[0] == '\0')
        return 0;
    return err_set(err, ERR_UNSUPPORTED, "box-priv has another list of allowed_mount_roots");
}

static int ask(struct engine_binding *b, const struct engine_mount *m, size_t index, uint32_t flags,
               struct err *err)
{
    const struct engine_sandbox *sb = b->sb;
    struct priv_bind_request request = {.name = sb->bind_name,
                                        .index = (uint32_t)index,
                                        .flags = flags,
                                        .uid = sb->bind_uid,
                                        .path = m->rest};
    int r = root_number(sb->engine, m->root, &request.root, err);
    if (r == 0)
        r = priv_client_bind(sb->engine->options.priv, &request,
                             flags & PRIV_BIND_LOOK ? on_looked : on_bound, b, err);
    if (r == 0)
        b->pending++;
    return r;
}

/* An engine would make a missing target, on the host, and only root may see whether it is there. */
static int ask_holder(struct engine_binding *b, size_t at, struct err *err)
{
    struct engine_mount inner = {.fd = -1};
    int r = engine_mount_inside(b->sb->engine, &b->sb->mounts, at, &inner, err);
    if (r > 0)
        r = ask(b, &inner, at, PRIV_BIND_LOOK, err);
    free(inner.source);
    return r;
}

int engine_bind(struct engine_sandbox *sb, uint32_t uid, struct err *err)
{
    struct engine_binding *b = xnew(struct engine_binding);
    const char *state = sb->engine->options.state_dir;
    int r = 0;
    b->sb = sb;
    sb->binding = b;
    sb->bind_uid = uid;
    id_random(sb->bind_name);
    for (size_t i = 0; i < sb->mounts.n && r == 0; i++)
        r = ask_holder(b, i, err);
    for (size_t i = 0; i < sb->mounts.n && r == 0; i++) {
        struct engine_mount *m = &sb->mounts.list[i];
        m->bind = xasprintf("%s/" PRIV_BINDS_INSIDE "/%s/%zu", state, sb->bind_name, i);
        r = ask(b, m, i,
                (m->read_only ? PRIV_BIND_RDONLY : 0U) | (m->workspace ? PRIV_BIND_DIR : 0U) |
                    (sb->engine->facts.gvisor ? PRIV_BIND_GVISOR : 0U),
                err);
    }
    return r;
}
