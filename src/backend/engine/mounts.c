/* SPDX-License-Identifier: Apache-2.0 */

/* Host directories of a session: opened beneath the allowed roots, given to the session's user by
 * id-mapped mounts of box-priv, and compared with what the container has. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "backend/common.h"
#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/fd.h"
#include "base/host_path.h"
#include "base/path.h"
#include "base/str.h"
#include "priv/client.h"

/* No string that is checked here and resolved again later: the descriptor says which file it is,
 * and box-guest which one it became. */
static int engine_mount_take(struct engine_mount *m, int fd)
{
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0) {
        fd_close_many(&fd, 1);
        return -EBADF;
    }
    m->dev = st.st_dev;
    m->ino = st.st_ino;
    m->uid = st.st_uid;
    m->gid = st.st_gid;
    m->type = st.st_mode & S_IFMT;
    m->known = true;
    fd_close_many(&m->fd, 1);
    m->fd = fd;
    return 0;
}

static int mount_identify(const int *root_fds, struct engine_mount *m, struct err *err)
{
    int fd = path_open_storage(root_fds[m->root], m->rest, 0);
    if (fd == -EACCES)
        return err_set(
            err, ERR_DENIED,
            "host_path %.200s: boxd's own user may not pass a directory on the way, and "
            "there is no box-priv to look for it: start boxd as root, with CAP_SYS_ADMIN",
            m->source);
    int r = fd < 0 ? fd : engine_mount_take(m, fd);
    if (r < 0)
        return err_sys(err, -r, "host_path %.200s", m->source);
    if (!S_ISDIR(m->type) && !S_ISREG(m->type))
        return err_set(err, ERR_DENIED, "host_path %.200s is neither a directory nor a file",
                       m->source);
    return 0;
}

static int check_target(const struct engine_mounts *all, const char *target, struct err *err)
{
    int r = backend_check_target(target,
                                 path_at_or_below(target, "/.box") || str_eq(target, "/tmp"), err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < all->n; i++)
        if (str_eq(all->list[i].target, target))
            return err_set(err, ERR_INVALID, "mount_path %.200s is given twice", target);
    return 0;
}

/* What an engine would take apart on its way is refused. */
static int check_text(const struct engine *e, const char *path, struct err *err)
{
    bool plain = true;
    for (const char *s = path; *s != '\0'; s++)
        plain = plain && (unsigned char)*s >= ' ' && *s != 127 &&
                !(e->kind->mounts_as_text && (*s == ',' || *s == '"'));
    if (!plain)
        return err_set(err, ERR_INVALID,
                       "%s cannot mount '%.200s': it has characters in its name "
                       "that are not passed on as they are",
                       e->kind->name, path);
    return 0;
}

/* The engine's socket and our own state are never inside what a session can reach. A path
 * that resolves to them is refused, whatever the allow-list says. */
static int check_own(const struct engine *e, const char *path, struct err *err)
{
    static const char scheme[] = "unix://";
    const char *endpoint = e->api->endpoint;
    AUTO_FREE char *socket =
        str_starts(endpoint, scheme) ? realpath(endpoint + strlen(scheme), NULL) : NULL;
    AUTO_FREE char *state = realpath(e->options.state_dir, NULL);
    AUTO_FREE char *engine = state != NULL ? xasprintf("%s/engine", state) : NULL;
    if ((socket != NULL && path_at_or_below(socket, path)) ||
        (engine != NULL && (path_at_or_below(engine, path) || path_at_or_below(path, engine))))
        return err_set(err, ERR_DENIED,
                       "host_path %.200s holds a socket that controls this host; mount a directory "
                       "beside it",
                       path);
    return 0;
}

/* The workspace, unlike further mounts, is a directory in any case. */
static int check_workspace(const struct engine_mount *m, struct err *err)
{
    if (S_ISDIR(m->type))
        return 0;
    return err_set(err, ERR_INVALID,
                   "host_path must be a directory, and %.200s is a file; name the directory that "
                   "holds it, or mount it by extra_mounts",
                   m->source);
}

static int find_root(const struct engine *e, const struct engine_mounts *all, const char *path,
                     size_t *ret, const char **ret_rest, struct err *err)
{
    const struct backend_roots roots = {e->roots, e->options.roots_are_outer, all->place};
    return backend_find_root(&roots, path, ret, ret_rest, err);
}

static int mount_add(const struct engine *e, const struct mount_spec *want,
                     struct engine_mounts *ret, struct err *err)
{
    if (ret->n == ENGINE_MOUNTS_MAX)
        return err_set(err, ERR_LIMIT, "more than %u mounts", SPEC_MOUNTS_MAX);
    int r = check_target(ret, want->mount_path, err);
    if (r < 0)
        return r;
    struct engine_mount *m = &ret->list[ret->n++];
    *m = (struct engine_mount){.source = xstrdup(want->host_path),
                               .target = xstrdup(want->mount_path),
                               .read_only = want->mode == MOUNT_RO,
                               .fd = -1};
    r = backend_clean_source(m->source, err);
    if (r == 0)
        r = check_text(e, m->target, err);
    if (r == 0)
        r = check_own(e, m->source, err);
    if (r == 0)
        r = find_root(e, ret, m->source, &m->root, &m->rest, err);
    return r;
}

static int engine_mount_inside(const struct engine *e, const struct engine_mounts *all, size_t at,
                               struct engine_mount *ret, struct err *err)
{
    const struct engine_mount *m = &all->list[at], *holder = NULL;
    for (size_t i = 0; i < all->n; i++)
        if (i != at && path_at_or_below(m->target, all->list[i].target) &&
            (holder == NULL || strlen(all->list[i].target) > strlen(holder->target)))
            holder = &all->list[i];
    if (holder == NULL)
        return 0;
    ret->source = xasprintf("%s%s", holder->source, m->target + strlen(holder->target));
    int r = find_root(e, all, ret->source, &ret->root, &ret->rest, err);
    return r < 0 ? r : 1;
}

/* A target inside another mount has to be there: an engine would make it, on the host. */
static int check_holder(const struct engine *e, const struct engine_mounts *all, size_t at,
                        struct err *err)
{
    struct err ignored;
    struct engine_mount inner = {.fd = -1};
    int r = engine_mount_inside(e, all, at, &inner, &ignored);
    if (r > 0)
        r = mount_identify(e->root_fds, &inner, &ignored);
    free(inner.source);
    fd_close_many(&inner.fd, 1);
    if (r >= 0)
        return 0;
    return err_missing(err, ERR_THING_MOUNT,
                       "mount target '%.200s' does not exist inside the mount that holds it; "
                       "create it there first",
                       all->list[at].target);
}

static int engine_mounts_identify(const struct engine *e, struct engine_mounts *m, struct err *err)
{
    int r = 0;
    for (size_t i = 0; i < m->n && r == 0; i++) {
        r = check_text(e, m->list[i].source, err);
        if (r == 0)
            r = mount_identify(e->root_fds, &m->list[i], err);
        if (r == 0 && m->list[i].workspace)
            r = check_workspace(&m->list[i], err);
    }
    for (size_t i = 0; i < m->n && r == 0; i++)
        r = check_holder(e, m, i, err);
    return r;
}

static int refuse_bound(const struct spec *spec, struct err *err)
{
    for (size_t i = 0; i <= spec->n_extra_mounts; i++) {
        const char *path = i == 0 ? spec->host_path : spec->extra_mounts[i - 1].host_path;
        enum mount_mode mode = i == 0 ? spec->host_path_mode : spec->extra_mounts[i - 1].mode;
        if (path != NULL && mode != MOUNT_NONE)
            return backend_refuse_bound(spec, path, err);
    }
    return 0;
}

int engine_mounts_collect(const struct spec *spec, const struct engine *e,
                          struct engine_mounts *ret, struct err *err)
{
    struct mount_spec workspace = {spec->host_path, spec->mount_path, spec->host_path_mode};
    *ret = (struct engine_mounts){0};
    int r = spec->own.bound ? refuse_bound(spec, err) : 0;
    if (r < 0)
        return r;
    ret->place = spec->own.place != NULL ? xstrdup(spec->own.place) : NULL;
    if (spec->host_path != NULL && spec->host_path_mode != MOUNT_NONE)
        r = mount_add(e, &workspace, ret, err);
    else
        r = check_target(ret, spec->mount_path, err);
    if (r == 0 && ret->n > 0)
        ret->list[0].workspace = true;
    for (size_t i = 0; i < spec->n_extra_mounts && r == 0; i++)
        if (spec->extra_mounts[i].mode != MOUNT_NONE)
            r = mount_add(e, &spec->extra_mounts[i], ret, err);
    struct mount_spec artifacts = {spec->own.artifacts, (char[]){SPEC_ARTIFACTS}, MOUNT_RO};
    if (r == 0 && artifacts.host_path != NULL)
        r = mount_add(e, &artifacts, ret, err);
    bool ours = spec->host_path == NULL || spec->host_path_mode == MOUNT_NONE;
    for (size_t i = 0; i < ret->n && r == 0 && ours; i++)
        if (str_eq(ret->list[i].target, spec->mount_path))
            r = err_set(err, ERR_INVALID, "mount_path %.200s is given twice", spec->mount_path);
    if (r < 0)
        engine_mounts_done(ret);
    return r;
}

static int64_t nanoseconds(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

/* gVisor invents devices and inodes. It passes on what else the host says, of which the time of the
 * last change cannot be set: another directory has the same one only if it was changed in the same
 * tick of the clock. */
static bool looks_alike(const struct engine_mount *m, const struct guest_check *c)
{
    struct stat st;
    return m->fd >= 0 && fstat(m->fd, &st) == 0 && c->mode == st.st_mode && c->uid == st.st_uid &&
           c->gid == st.st_gid && c->size == (uint64_t)st.st_size &&
           c->mtime_ns == nanoseconds(&st.st_mtim) && c->ctime_ns == nanoseconds(&st.st_ctim);
}

/* A directory that was exchanged meanwhile is noticed before any program has run. */
int engine_mounts_check(const struct engine_mounts *m, const struct guest_check *checks,
                        bool gvisor, bool *ret_again, struct err *err)
{
    *ret_again = false;
    for (size_t i = 0; i < m->n; i++) {
        const struct engine_mount *one = &m->list[i];
        const struct guest_check *c = &checks[i];
        if (!one->known)
            continue; /* of an earlier daemon, which has compared it */
        bool same = gvisor ? looks_alike(one, c) : c->dev == one->dev && c->ino == one->ino;
        *ret_again = gvisor && !same && c->mode != 0; /* it may have changed between two looks */
        if (c->mode == 0 || !same)
            return err_set(err, ERR_DENIED,
                           "host_path %.200s was exchanged while it was being mounted",
                           one->source);
        if (one->read_only && !(c->mount_flags & ST_RDONLY))
            return err_set(err, ERR_DENIED, "host_path %.200s was not mounted read-only",
                           one->source);
    }
    return 0;
}

void engine_mounts_checked(struct engine_mounts *m)
{
    for (size_t i = 0; i < m->n; i++)
        fd_close_many(&m->list[i].fd, 1);
}

void engine_mounts_done(struct engine_mounts *m)
{
    engine_mounts_checked(m);
    for (size_t i = 0; i < m->n; i++) {
        free(m->list[i].source);
        free(m->list[i].bind);
        free(m->list[i].target);
    }
    m->n = 0;
    free(TAKE_PTR(m->place));
}

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

/* False: the binding was given up meanwhile. */
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

static void binding_end(struct engine_binding *b)
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
    binding_end(b);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): others take the descriptors out of it. */
static void on_holder_looked(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct engine_binding *b = arg;
    if (!note_answer(b, reply))
        return;
    if (reply != NULL && reply->result < 0 && b->err.code == ERR_NONE)
        (void)err_missing(&b->err, ERR_THING_MOUNT,
                          "a mount target does not exist inside the mount that holds it; create it "
                          "there first: %.200s",
                          reply->err.msg);
    binding_end(b);
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

static int bind_ask(struct engine_binding *b, const struct engine_mount *m, size_t index,
                    uint32_t flags, struct err *err)
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
                             flags & PRIV_BIND_LOOK ? on_holder_looked : on_bound, b, err);
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
        r = bind_ask(b, &inner, at, PRIV_BIND_LOOK, err);
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
        r = bind_ask(b, m, i,
                     (m->read_only ? PRIV_BIND_RDONLY : 0U) | (m->workspace ? PRIV_BIND_DIR : 0U) |
                         (sb->engine->facts.gvisor ? PRIV_BIND_GVISOR : 0U),
                     err);
    }
    return r;
}
