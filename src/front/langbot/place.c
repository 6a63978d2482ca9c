/* SPDX-License-Identifier: Apache-2.0 */

/* LangBot says "./data/box" and means the directory that it runs in. Where that is, is found out
 * from its process, or else told by a setting; another directory of that name is not used. */

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "jobs/jobs.h"
#include "loop/peer.h"
#include "session/manager.h"

static int socket_of(const struct langbot_call *c)
{
    const struct langbot_conn *conn = c->conn;
    return conn != NULL && conn->transport->socket != NULL ? conn->transport->socket(conn->arg)
                                                           : -1;
}

static void settle(struct langbot_call *c)
{
    struct langbot_setup *s = &c->setup;
    s->from_peer = s->base != NULL;
    if (s->base == NULL && c->rpc->o.base_dir != NULL)
        s->base = xstrdup(c->rpc->o.base_dir);
    c->then(c);
}

static void on_told(void *arg, const char *path, const struct err *err)
{
    struct langbot_call *c = arg;
    if (path != NULL)
        c->setup.base = xstrdup(path);
    else
        c->setup.why = *err;
    if (c->cancelled)
        langbot_call_end(c);
    else
        settle(c);
}

void langbot_find_base(struct langbot_call *c, void (*then)(struct langbot_call *c))
{
    AUTO_DONE(peer_process) struct peer_process peer = {.cwd = -1};
    struct backend *b = manager_backend(c->rpc->o.manager);
    const struct backend_place where = {.sock = socket_of(c), .rest = ""};
    struct err ignored = {0};
    char cwd[PATH_MAX];
    c->then = then;
    if (c->conn->local) { /* whoever started us: its directory is ours */
        if (getcwd(cwd, sizeof(cwd)) != NULL)
            c->setup.base = xstrdup(cwd);
        then(c);
        return;
    }
    if (peer_find_process(c->rpc->o.diag_fd, where.sock, peer_mnt_ns(), &peer, &c->setup.why) == 0)
        c->setup.base = xstrdup(peer.path);
    else if (where.sock >= 0 && b->ops->place != NULL &&
             b->ops->place(b, &where, on_told, c, &ignored) == 0)
        return;
    settle(c);
}

bool langbot_is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && path[n] == '/';
}

static bool is_allowed(const struct langbot *r, const char *path)
{
    for (char *const *root = r->o.roots; root != NULL && *root != NULL; root++)
        if (langbot_is_below(path, *root))
            return true;
    return false;
}

static void on_placed(void *arg, const char *path, const struct err *err)
{
    struct langbot_call *c = arg;
    if (path == NULL) {
        langbot_fail(
            c, LANGBOT_VALIDATION,
            "box.local.host_root '%.200s' is %.300s for LangBot, and boxd cannot use that: "
            "%.300s",
            c->setup.written, c->setup.paths.host_root, err->msg);
        return;
    }
    if (c->rpc->o.skills != NULL)
        jobs_add_place(c->rpc->o.skills, path);
    if (c->cancelled)
        langbot_call_end(c);
    else
        c->then(c);
}

void langbot_open_place(struct langbot_call *c, void (*then)(struct langbot_call *c))
{
    struct backend *b = manager_backend(c->rpc->o.manager);
    const struct langbot_setup *s = &c->setup;
    struct err err = {0};
    c->then = then;
    if (!s->relative || !s->from_peer || is_allowed(c->rpc, s->paths.host_root)) {
        then(c);
        return;
    }
    struct backend_place want = {.sock = socket_of(c), .base = s->base};
    int r = -1;
    if (!s->paths.placed)
        (void)err_set(&err, ERR_DENIED, "add it to allowed_mount_roots of boxd");
    else if (b->ops->place == NULL)
        (void)err_set(&err, ERR_UNSUPPORTED, "add it to allowed_mount_roots of boxd");
    else {
        want.rest = s->paths.host_root + strlen(s->base) + 1;
        r = b->ops->place(b, &want, on_placed, c, &err);
    }
    if (r != 0) /* else it comes later */
        on_placed(c, r > 0 ? s->paths.host_root : NULL, &err);
}
