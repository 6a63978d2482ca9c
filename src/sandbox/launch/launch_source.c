/* SPDX-License-Identifier: Apache-2.0 */

/* Opens the source of each mount of a plan as a detached, id-mapped mount. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/path.h"
#include "base/str.h"
#include "sandbox/launch/as_user.h"
#include "sandbox/launch/launch.h"
#include "sandbox/setup/gvisor.h"
#include "sandbox/setup/hostetc.h"
#include "sandbox/setup/mount.h"
#include "sandbox/setup/userns.h"

#define DEPTH_MAX 1024 /* directories above one; deeper is refused */

/* The host image: what a program needs to run, no user's files. A requester can name only these. */
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

static bool below_image(const char *place)
{
    for (size_t i = 0; i < ARRAY_SIZE(host_dirs); i++) {
        if (str_starts(place, host_dirs[i]) && place[strlen(host_dirs[i])] == '/')
            return true;
    }
    return false;
}

bool launch_image_is_plain(void)
{
    FILE *f = fopen("/proc/self/mountinfo", "re");
    AUTO_FREE char *line = NULL;
    size_t size = 0;
    bool plain = f != NULL;
    while (plain && getline(&line, &size, f) >= 0) {
        /* id, parent, device, root, and the place */
        char *save = NULL, *place = strtok_r(line, " ", &save);
        for (int i = 0; i < 4 && place != NULL; i++)
            place = strtok_r(NULL, " ", &save);
        plain = place == NULL || !below_image(place);
    }
    /* clang 19 knows what getline() allocates, and not what AUTO_FREE does.
     * NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
    if (f != NULL)
        (void)fclose(f);
    return plain;
}

/* What is mounted, and for which group. */
struct mount_source {
    int fd;    /* borrowed */
    gid_t gid; /* the caller's own */
};

static int source_error(int error, const char *source, struct err *err)
{
    if (error == -ELOOP)
        return err_set(err, ERR_DENIED,
                       "mount source '%s' has a symbolic link in its path; name the real path",
                       source);
    if (error == -EXDEV)
        return err_set(
            err, ERR_DENIED,
            "mount source '%s' leaves the allowed directory or crosses a mount point that is no "
            "file system of its own; add its own path to allowed_mount_roots",
            source);
    if (error == -ENOENT || error == -ENOTDIR)
        return err_missing(err, ERR_THING_MOUNT, "mount source '%s' does not exist", source);
    if (error == -ENAMETOOLONG)
        return err_set(err, ERR_INVALID, "mount source '%s' has a name that is too long", source);
    return err_sys(err, -error, "open mount source '%s'", source);
}

int launch_is_at_or_below(int fd, const struct stat *want)
{
    char up[DEPTH_MAX * 3 + 1] = "";
    struct stat st, above;
    if (fstat(fd, &st) < 0)
        return -errno;
    for (size_t depth = 0; depth < DEPTH_MAX; depth++) {
        if (st.st_dev == want->st_dev && st.st_ino == want->st_ino)
            return 1;
        memcpy(up + depth * 3, "../", sizeof("../"));
        if (fstatat(fd, up, &above, 0) < 0)
            return -errno;
        if (above.st_dev == st.st_dev && above.st_ino == st.st_ino)
            return 0;
        st = above;
    }
    return -ELOOP;
}

/* State, sockets and the storage of other sessions must not be reachable: not through a directory
 * above them, and not as something inside. `dir_fd` holds the source, or is it. */
static int refuse_own_state(const struct launch_host *h, int dir_fd, int fd, const char *path,
                            struct err *err)
{
    struct stat source, state;
    if (fstat(fd, &source) < 0 || fstat(h->state_fd, &state) < 0)
        return err_sys(err, errno, "stat mount source");
    if (!S_ISDIR(source.st_mode) && !S_ISREG(source.st_mode))
        return err_set(err, ERR_DENIED, "mount source '%s' is neither a directory nor a file",
                       path);
    int above = S_ISDIR(source.st_mode) ? launch_is_at_or_below(h->state_fd, &source) : 0;
    if (above > 0)
        return err_set(err, ERR_DENIED, "mount source '%s' contains the state directory of boxd",
                       path);
    int inside = launch_is_at_or_below(S_ISDIR(source.st_mode) ? fd : dir_fd, &state);
    if (inside > 0)
        return err_set(err, ERR_DENIED, "mount source '%s' lies in the state directory of boxd",
                       path);
    if (above < 0 || inside < 0)
        return err_sys(err, above < 0 ? -above : -inside,
                       "compare the mount source with the state directory");
    return 0;
}

static int require_dir(int fd, const char *name, struct err *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "stat mount source");
    if (S_ISDIR(st.st_mode))
        return 0;
    return err_set(err, ERR_INVALID,
                   "host_path must be a directory, and '%.200s' is a file; name the directory that "
                   "holds it, or mount it by extra_mounts",
                   name);
}

int launch_open_outer(const struct launch_host *h, const char *path)
{
    int home = h->outer_fd >= 0 ? mount_ns_enter(h->outer_fd) : -1;
    if (h->outer_fd >= 0 && home < 0)
        return home;
    int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd;
    if (home >= 0)
        mount_ns_return(home);
    return r;
}

/* The operator allowed the directory that stood at this path at the start; a caller that names the
 * path means the directory that stands there now. If the two differ, neither is used. */
int launch_allowed_root(const struct launch_host *h, uint32_t root, struct err *err)
{
    struct stat was, now;
    if (root >= h->n_roots || h->root_fds[root] < 0)
        return err_set(err, ERR_DENIED, "mount root %u is not in the allow-list", root);
    if (h->root_paths == NULL || root >= h->n_named) /* a place of a caller has no other name */
        return h->root_fds[root];
    AUTO_CLOSE int fd = launch_open_outer(h, h->root_paths[root]);
    if (fd < 0 || fstat(fd, &now) < 0 || fstat(h->root_fds[root], &was) < 0 ||
        now.st_dev != was.st_dev || now.st_ino != was.st_ino)
        return err_set(err, ERR_STATE,
                       "'%.200s' of allowed_mount_roots is another directory than when boxd "
                       "started (mounted over, or made anew); start boxd again",
                       h->root_paths[root]);
    return h->root_fds[root];
}

/* The whole path of what lies below a descriptor, for messages; "" leaves that one's own. */
static void whole_path(int fd, const char *rest, char *ret, size_t size)
{
    char link[32], root[PATH_MAX];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, root, sizeof(root) - 1);
    root[n > 0 ? n : 0] = '\0';
    if (str_fmt(ret, size, "%s%s%s", root, rest[0] != '\0' ? "/" : "", rest) < 0)
        (void)str_copy(ret, size, "(a path that is too long)");
}

/* The caller's user must be able to reach this very file or directory by its path, to read it, and
 * to write it where that is wanted. What it then sees inside has this user's rights (idmap_for()),
 * so nothing below needs a look of its own. */
static int check_caller(const struct plan *p, const struct plan_op *op, int fd, const char *path,
                        gid_t *ret_gid, struct err *err)
{
    const struct as_user who = {.uid = p->as_uid};
    struct as_user_found found = {0};
    struct stat st;
    bool write = !(op->flags & PLAN_OP_RDONLY);
    int r = as_user_reach(&who, path, write, &found);
    *ret_gid = found.gid;
    if (r == 0 && (fstat(fd, &st) < 0 || st.st_dev != found.dev || st.st_ino != found.ino))
        r = -ESTALE;
    /* The kernel refuses every write where the group has no id inside. */
    if (r == 0 && write && !found.member)
        return err_set(err, ERR_DENIED,
                       "uid %u may not mount '%.200s' for writing: it belongs to gid %u, and that "
                       "user is no member of it by this machine's lists",
                       p->as_uid, path, st.st_gid);
    if (r == 0)
        return 0;
    return err_set(err, ERR_DENIED,
                   "uid %u may not mount '%.200s' for %s: that user could not open it (%s)",
                   p->as_uid, path, write ? "writing" : "reading", err_errno_text(-r));
}

/* A requester cannot use this to reach anything outside the allow-list: the root was opened before
 * the first request came, or is a place of the connected client (priv/place.c), and the kernel
 * refuses every way out of it (links, "..") while it walks; of mounts below it, it may enter those
 * that path_open_storage() takes for storage. The directory is opened first and the last name from
 * there, so that what is checked is what is mounted, even if a name changes meanwhile. */
int launch_open_allowed(const struct launch_host *h, uint32_t root, const char *source,
                        bool dir_only, struct err *err)
{
    char dir_name[4096] = "", path[PATH_MAX];
    const char *slash = strrchr(source, '/');
    const char *name = slash != NULL ? slash + 1 : source;
    int root_fd = launch_allowed_root(h, root, err);
    if (root_fd < 0)
        return root_fd;
    if (slash != NULL &&
        str_fmt(dir_name, sizeof(dir_name), "%.*s", (int)(slash - source), source) < 0)
        return err_set(err, ERR_INVALID, "mount source is too long");
    whole_path(root_fd, source, path, sizeof(path));
    AUTO_CLOSE int dir = path_open_storage(root_fd, dir_name, O_DIRECTORY);
    if (dir < 0)
        return source_error(dir, path, err);
    AUTO_CLOSE int fd = path_open_storage(dir, name, 0);
    if (fd < 0)
        return source_error(fd, path, err);
    int r = refuse_own_state(h, dir, fd, path, err);
    if (r == 0 && dir_only)
        r = require_dir(fd, path, err);
    return r < 0 ? r : TAKE_FD(fd);
}

static int open_allowed(const struct launch_host *h, const struct plan *p, const struct plan_op *op,
                        const char *source, gid_t *ret_gid, struct err *err)
{
    char path[PATH_MAX];
    AUTO_CLOSE int fd = launch_open_allowed(h, op->root, source, op->mode == PLAN_BIND_DIR, err);
    if (fd < 0)
        return fd;
    int r = 0;
    if (p->flags & PLAN_AS_CALLER) {
        whole_path(fd, "", path, sizeof(path)); /* where it is now, not where it was looked for */
        r = check_caller(p, op, fd, path, ret_gid, err);
    }
    return r < 0 ? r : TAKE_FD(fd);
}

/* The kernel copies mounts of the namespace that we are in, and no others. */
int launch_clone_allowed(const struct launch_host *h, int fd, int recursive)
{
    if (h->outer_fd < 0)
        return mount_clone(fd, recursive);
    int home = mount_ns_enter(h->outer_fd);
    if (home < 0)
        return home;
    int copy = mount_clone(fd, recursive);
    mount_ns_return(home);
    return copy;
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

/* The program was opened before the first request, and the name of the directory is the session's
 * own: there is nothing to choose. No link is followed on the way, since boxd could make one. */
static int open_guest(const struct launch_host *h, const struct plan *p, const char *source,
                      struct err *err)
{
    char path[sizeof(GVISOR_MEETING_DIR) + PLAN_NAME_LEN + 1];
    int fd;
    if (str_eq(source, "program")) {
        fd = fcntl(h->guest_fd, F_DUPFD_CLOEXEC, 3);
        return fd < 0 ? err_sys(err, errno, "box-guest") : fd;
    }
    (void)snprintf(path, sizeof(path), GVISOR_MEETING_DIR "/%s", p->name);
    fd = path_open_beneath(h->state_fd, path, O_PATH | O_DIRECTORY, 0);
    return fd < 0 ? err_sys(err, -fd, "open '%s'", path) : fd;
}

/* `ret_gid` is the caller's group, of what it could open itself. */
static int open_source(struct launch_host *h, const struct plan *p, const struct plan_op *op,
                       int storage_fd, gid_t *ret_gid, struct err *err)
{
    const char *source = plan_str(p, op->source);
    int fd;
    switch ((enum plan_source)op->source_class) {
    case PLAN_SRC_HOST:
        return open_host(source, err);
    case PLAN_SRC_ETC:
        fd = fcntl(hostetc_dir(h->etc, str_eq(source, "on")), F_DUPFD_CLOEXEC, 3);
        return fd < 0 ? err_sys(err, errno, "prepared /etc") : fd;
    case PLAN_SRC_PRIVATE:
        return open_private(h, storage_fd, source, err);
    case PLAN_SRC_GUEST:
        return open_guest(h, p, source, err);
    case PLAN_SRC_ALLOWED:
        return open_allowed(h, p, op, source, ret_gid, err);
    case PLAN_SRC_NONE:
    case PLAN_SRC_MAX:
        break;
    }
    return err_set(err, ERR_INVALID, "plan: source without a class");
}

/* A map of its own takes a process. What is public does without where ids are nothing but names:
 * not for a caller that is held to its own user's files, and not where gVisor looks at them. */
static bool has_image_ids(const struct plan *p, const struct plan_op *op)
{
    return op->mode == PLAN_BIND_PUBLIC && (op->flags & PLAN_OP_RDONLY) &&
           !(p->flags & (PLAN_AS_CALLER | PLAN_GVISOR));
}

/* How ids on disk look inside. The host image and /etc belong to root there; private storage to the
 * daemon on disk and to the payload inside; a caller's directory to its owner on disk and to the
 * payload inside, but for a caller that may only do what its own user can: then that user's files
 * are the payload's, and the files of all other users have no mapped owner. */
static int idmap_for(const struct launch_host *h, struct idmaps *maps, const struct plan *p,
                     const struct plan_op *op, const struct mount_source *from, struct err *err)
{
    struct stat st;
    struct idmap_key key = {
        .index = p->uid_index, .uid = h->daemon_uid, .gid = h->daemon_gid, .root_too = true};
    bool payload_is_root = p->payload_uid == 0;

    if (op->source_class == PLAN_SRC_ALLOWED && !has_image_ids(p, op)) {
        bool bound = (p->flags & PLAN_AS_CALLER) != 0;
        if (fstat(from->fd, &st) < 0)
            return err_sys(err, errno, "stat mount source");
        key.uid = bound ? p->as_uid : st.st_uid;
        key.gid = bound ? from->gid : st.st_gid;
        key.root_too = false;
        /* runsc-gofer makes gVisor's files under its own id, and gives them away at once. */
        key.init_too = (p->flags & PLAN_GVISOR) && p->init_uid != p->payload_uid;
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

/* File systems without idmapped mounts (tmpfs before Linux 6.3, network file systems): for the
 * image it only changes whose name `ls` shows, our own storage can belong to the session on disk as
 * well, and a caller's directory is refused rather than opened under a wrong owner. Returns what
 * mount_set() said when going on without is fine. */
static int without_idmap(const struct plan *p, const struct plan_op *op, int fd, int r,
                         struct err *err)
{
    uid_t id = userns_payload_id(p->uid_index);
    char path[PATH_MAX];
    whole_path(fd, "", path, sizeof(path));
    if (op->source_class == PLAN_SRC_ALLOWED)
        return err_set(err, ERR_UNSUPPORTED,
                       "the file system of '%.200s' has no idmapped mounts (%s); use another "
                       "directory",
                       path, err_errno_text(-r));
    /* What is kept is shown to later sandboxes, which have other ids. */
    if (op->source_class == PLAN_SRC_PRIVATE && (p->flags & PLAN_DURABLE))
        return err_set(err, ERR_UNSUPPORTED,
                       "the file system of boxd's state directory has no idmapped mounts (%s), so "
                       "no session can be kept there; put state_dir on another file system",
                       err_errno_text(-r));
    if (op->source_class == PLAN_SRC_PRIVATE && fchown(fd, id, id) < 0)
        return err_sys(err, errno, "own private storage");
    return r;
}

static int make_mount(const struct launch_host *h, struct idmaps *maps, const struct plan *p,
                      const struct plan_op *op, const struct mount_source *from, struct err *err)
{
    const char *target = plan_str(p, op->target);
    /* In a user namespace the kernel refuses to leave submounts behind, because they may hide
     * something. */
    int recursive = (op->flags & PLAN_OP_RECURSIVE) || !h->rootful;
    AUTO_CLOSE int copy = op->source_class == PLAN_SRC_ALLOWED
                              ? launch_clone_allowed(h, from->fd, recursive)
                              : mount_clone(from->fd, recursive);
    if (copy < 0)
        return err_sys(err, -copy, "copy the mount for '%s'", target);
    int r = -EINVAL;
    if (h->rootful && op->source_class != PLAN_SRC_GUEST) { /* needs no owner inside */
        int map = idmap_for(h, maps, p, op, from, err);
        if (map < 0)
            return map;
        r = mount_set(copy, op_attrs(op), map, recursive);
        if (r < 0)
            r = without_idmap(p, op, from->fd, r, err);
        if (r < 0 && err->code != ERR_NONE)
            return r;
    }
    if (r < 0)
        r = mount_set(copy, op_attrs(op), -1, recursive);
    if (r < 0)
        return err_sys(err, -r, "mount attributes of '%s'", target);
    return TAKE_FD(copy);
}

static bool has_quota(const struct launch_host *h, const struct plan *p, const struct plan_op *op)
{
    return h->rootful && p->quota_bytes > 0 && op->source_class == PLAN_SRC_ALLOWED &&
           op->mode == PLAN_BIND_DIR && !(op->flags & PLAN_OP_RDONLY);
}

int launch_sources(struct launch_host *h, const struct plan *plan, int storage_fd, int *fds,
                   int *ret_workspace, struct err *err)
{
    AUTO_DONE(idmaps) struct idmaps maps = {0};
    AUTO_CLOSE int workspace = -1;
    prewarm_take_maps(&h->ahead, plan->uid_index, &maps);
    for (uint32_t i = 0; i < PLAN_OPS_MAX; i++)
        fds[i] = -1;
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const struct plan_op *op = &plan->ops[i];
        if (op->kind != PLAN_OP_BIND && op->kind != PLAN_OP_OVERLAY)
            continue;
        struct mount_source from = {0};
        AUTO_CLOSE int fd = open_source(h, plan, op, storage_fd, &from.gid, err);
        if (fd == -ENOENT && (op->flags & PLAN_OP_OPTIONAL))
            continue;
        if (fd < 0)
            return err->code != ERR_NONE
                       ? fd
                       : err_sys(err, -fd, "open '%s'", plan_str(plan, op->source));
        from.fd = fd;
        fds[i] = make_mount(h, &maps, plan, op, &from, err);
        if (fds[i] < 0)
            return fds[i];
        if (has_quota(h, plan, op) && workspace < 0)
            workspace = TAKE_FD(fd);
    }
    *ret_workspace = TAKE_FD(workspace);
    return 0;
}
