/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sandbox/launch.h"
#include "sandbox/mount.h"
#include "sandbox/userns.h"
#include "util/cleanup.h"
#include "util/err.h"
#include "util/fd.h"
#include "util/path.h"
#include "util/str.h"

/* The host image: what a program needs to run, and nothing that belongs to anybody. A requester can
 * name only these. */
static const char *const host_dirs[] = {"/usr",   "/bin",   "/sbin",  "/lib",
                                        "/lib32", "/lib64", "/libx32"};

static int open_host(const char *path, struct err *err)
{
    for (size_t i = 0; i < ARRAY_SIZE(host_dirs); i++) {
        if (!str_eq(path, host_dirs[i]))
            continue;
        int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
    }
    return err_set(err, ERR_DENIED, "'%s' is not part of the host image", path);
}

/* A requester cannot use this to reach anything outside the allow-list: the root was opened before
 * the first request came, and the kernel refuses every way out of it (links, "..", other mounts)
 * while it walks. */
static int open_allowed(const struct launch_host *h, const struct plan_op *op, const char *source,
                        struct err *err)
{
    if (op->root >= h->n_roots)
        return err_set(err, ERR_DENIED, "mount root %u is not in the allow-list", op->root);
    int fd = path_open_beneath(h->root_fds[op->root], source, O_PATH, 0);
    if (fd == -ELOOP)
        return err_set(err, ERR_DENIED,
                       "mount source '%s' has a symbolic link in its path; name the real path",
                       source);
    if (fd == -EXDEV)
        return err_set(
            err, ERR_DENIED,
            "mount source '%s' leaves the allowed directory or crosses a mount point; add "
            "its own path to allowed_mount_roots",
            source);
    if (fd == -ENOENT || fd == -ENOTDIR)
        return err_set(err, ERR_NOT_FOUND, "mount source '%s' does not exist", source);
    return fd < 0 ? err_sys(err, -fd, "open mount source '%s'", source) : fd;
}

/* State, sockets and the storage of other sessions must not be reachable through a directory above
 * them. */
static int refuse_own_state(const struct launch_host *h, int fd, struct err *err)
{
    struct stat want, st;
    if (fstat(fd, &want) < 0)
        return err_sys(err, errno, "stat mount source");
    if (!S_ISDIR(want.st_mode) && !S_ISREG(want.st_mode))
        return err_set(err, ERR_DENIED, "mount source is neither a directory nor a regular file");
    AUTO_CLOSE int at = openat(h->state_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (int depth = 0; at >= 0 && depth < 256; depth++) {
        if (fstat(at, &st) < 0)
            break;
        if (st.st_dev == want.st_dev && st.st_ino == want.st_ino)
            return err_set(err, ERR_DENIED, "mount source contains the state directory of boxd");
        int up = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
        struct stat above;
        if (up < 0 || fstat(up, &above) < 0 ||
            (above.st_dev == st.st_dev && above.st_ino == st.st_ino)) {
            fd_close_many(&up, 1);
            return 0;
        }
        (void)close(at);
        at = up;
    }
    return err_set(err, ERR_SYSTEM, "cannot tell whether the mount source contains our state");
}

static int open_private(const struct launch_host *h, int storage_fd, const char *name,
                        struct err *err)
{
    AUTO_CLOSE int fd = path_make_dir_at(storage_fd, name, 0755);
    if (fd < 0)
        return err_sys(err, -fd, "private storage '%s'", name);
    struct stat st;
    bool owned = !h->rootful || (fstat(fd, &st) == 0 && st.st_uid == h->daemon_uid);
    if (!owned && fchown(fd, h->daemon_uid, h->daemon_gid) < 0)
        return err_sys(err, errno, "own private storage '%s'", name);
    return TAKE_FD(fd);
}

static int open_source(struct launch_host *h, const struct plan *p, const struct plan_op *op,
                       int storage_fd, struct err *err)
{
    const char *source = plan_str(p, op->source);
    int fd;
    switch ((enum plan_source)op->source_class) {
    case PLAN_SRC_HOST:
        return open_host(source, err);
    case PLAN_SRC_ETC:
        fd = fcntl(h->etc_fd[str_eq(source, "on")], F_DUPFD_CLOEXEC, 3);
        return fd < 0 ? err_sys(err, errno, "prepared /etc") : fd;
    case PLAN_SRC_PRIVATE:
        return open_private(h, storage_fd, source, err);
    case PLAN_SRC_ALLOWED:
        fd = open_allowed(h, op, source, err);
        if (fd >= 0) {
            int r = refuse_own_state(h, fd, err);
            if (r < 0) {
                (void)close(fd);
                return r;
            }
        }
        return fd;
    case PLAN_SRC_NONE:
    case PLAN_SRC_MAX:
        break;
    }
    return err_set(err, ERR_INVALID, "plan: source without a class");
}

/* How ids on disk look inside. The host image and /etc belong to root there; private storage to the
 * daemon on disk and to the payload inside; a caller's directory to its owner on disk and to the
 * payload inside. */
static int idmap_for(const struct launch_host *h, struct idmaps *maps, const struct plan *p,
                     const struct plan_op *op, int fd, struct err *err)
{
    struct stat st;
    struct idmap_key key = {
        .index = p->uid_index, .uid = h->daemon_uid, .gid = h->daemon_gid, .root_too = true};
    bool payload_is_root = p->payload_uid == 0;

    if (op->source_class == PLAN_SRC_ALLOWED) {
        if (fstat(fd, &st) < 0)
            return err_sys(err, errno, "stat mount source");
        key.uid = st.st_uid;
        key.gid = st.st_gid;
        key.root_too = false;
    } else if (op->source_class == PLAN_SRC_HOST || op->source_class == PLAN_SRC_ETC) {
        if (payload_is_root)
            key = (struct idmap_key){.index = p->uid_index, .uid = 0, .gid = 0};
    }
    return idmaps_get(maps, &key, err);
}

static uint64_t op_attrs(const struct plan_op *op)
{
    return MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
           (op->flags & PLAN_OP_RDONLY ? MOUNT_ATTR_RDONLY : 0) |
           (op->flags & PLAN_OP_NOEXEC ? MOUNT_ATTR_NOEXEC : 0);
}

static int make_mount(const struct launch_host *h, struct idmaps *maps, const struct plan *p,
                      const struct plan_op *op, int fd, struct err *err)
{
    const char *target = plan_str(p, op->target);
    /* In a user namespace the kernel refuses to leave submounts behind, because they may hide
     * something. */
    int recursive = (op->flags & PLAN_OP_RECURSIVE) || !h->rootful;
    AUTO_CLOSE int copy = mount_clone(fd, recursive);
    if (copy < 0)
        return err_sys(err, -copy, "copy the mount for '%s'", target);
    int r = -EINVAL;
    if (h->rootful) {
        int map = idmap_for(h, maps, p, op, fd, err);
        if (map < 0)
            return map;
        r = mount_set(copy, op_attrs(op), map, recursive);
        bool cosmetic = op->source_class == PLAN_SRC_HOST || op->source_class == PLAN_SRC_ETC;
        if (r < 0 && !cosmetic)
            return err_set(
                err, ERR_UNSUPPORTED,
                "the file system behind '%s' has no idmapped mounts (%s); use another directory",
                target, err_errno_text(-r));
    }
    if (r < 0)
        r = mount_set(copy, op_attrs(op), -1, recursive);
    if (r < 0)
        return err_sys(err, -r, "mount attributes of '%s'", target);
    return TAKE_FD(copy);
}

int launch_sources(struct launch_host *h, const struct plan *plan, int storage_fd, int *fds,
                   struct err *err)
{
    AUTO_DONE(idmaps) struct idmaps maps = {0};
    for (uint32_t i = 0; i < PLAN_OPS_MAX; i++)
        fds[i] = -1;
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const struct plan_op *op = &plan->ops[i];
        if (op->kind != PLAN_OP_BIND && op->kind != PLAN_OP_OVERLAY)
            continue;
        AUTO_CLOSE int fd = open_source(h, plan, op, storage_fd, err);
        if (fd == -ENOENT && (op->flags & PLAN_OP_OPTIONAL))
            continue;
        if (fd < 0)
            return err->code != ERR_NONE
                       ? fd
                       : err_sys(err, -fd, "open '%s'", plan_str(plan, op->source));
        fds[i] = make_mount(h, &maps, plan, op, fd, err);
        if (fds[i] < 0)
            return fds[i];
    }
    return 0;
}
