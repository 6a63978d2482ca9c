/* SPDX-License-Identifier: Apache-2.0 */

/* Carries out each operation of a plan: directories, links, binds, /proc, /dev. */

#include "sandbox/setup/setup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "sandbox/plan/plan.h"
#include "sandbox/setup/masks.h"
#include "sandbox/setup/mount.h"

#ifndef MOUNT_ATTR_NOSYMFOLLOW
#define MOUNT_ATTR_NOSYMFOLLOW 0x00200000
#endif

#define ATTR_SAFE (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
#define ATTR_MASK (MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC)
#define EMPTY_DIR ".empty" /* covers directories of /proc, and lies below views */

static const char *const masked_files[] = {SANDBOX_MASKED_FILES};
static const char *const masked_dirs[] = {SANDBOX_MASKED_DIRS};

static const struct device {
    const char *name;
    unsigned major, minor;
} devices[] = {
    {"null", 1, 3},   {"zero", 1, 5},    {"full", 1, 7},
    {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
};

static const struct {
    const char *name, *to;
} dev_links[] = {
    {"fd", "/proc/self/fd"},       {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"},
    {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"},
};

static int open_in_root(int root_fd, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC | O_NOFOLLOW),
                           .resolve =
                               RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    while (*path == '/')
        path++;
    long fd = syscall(SYS_openat2, root_fd, *path != '\0' ? path : ".", &how, sizeof(how));
    return fd < 0 ? -errno : (int)fd;
}

/* True when the directory that would hold `target` is ours to add to: the root itself or private
 * storage, never a directory of the host. */
static bool may_create(const struct plan *p, const struct plan_op *op)
{
    const char *target = plan_str(p, op->target);
    const struct plan_op *holder = NULL;
    size_t best = 0;
    for (const struct plan_op *o = p->ops; o < op; o++) {
        const char *t = plan_str(p, o->target);
        size_t len = strlen(t);
        if (o->kind == PLAN_OP_DIR || o->kind == PLAN_OP_SYMLINK || len < best || len <= 1)
            continue;
        if (strncmp(target, t, len) == 0 && target[len] == '/') {
            holder = o;
            best = len;
        }
    }
    return holder == NULL || holder->kind == PLAN_OP_SCRATCH ||
           holder->source_class == PLAN_SRC_PRIVATE;
}

static int target_error(int error, const char *target, struct err *err)
{
    if (error == -ELOOP)
        return err_set(err, ERR_DENIED, "mount target '%s' leads through a symbolic link", target);
    if (error == -ENOTDIR)
        return err_set(err, ERR_INVALID, "mount target '%s' lies below a file", target);
    if (error == -ENAMETOOLONG)
        return err_set(err, ERR_INVALID, "mount target '%s' has a name that is too long", target);
    return err_sys(err, -error, "mount target '%s'", target);
}

/* Opens (O_PATH) the last component, making what is missing on the way. Directories that appear
 * inside the payload's own storage belong to the payload. */
static int make_path(const struct setup *s, int root_fd, const struct plan_op *op, bool as_dir,
                     struct err *err)
{
    const struct plan *p = s->plan;
    const char *target = plan_str(p, op->target);
    char part[4096];

    int fd = open_in_root(root_fd, target, O_PATH);
    if (fd >= 0)
        return fd;
    if (fd != -ENOENT)
        return target_error(fd, target, err);
    if (!may_create(p, op))
        return err_missing(
            err, ERR_THING_MOUNT,
            "mount target '%s' does not exist inside the mount that holds it; create "
            "it there first",
            target);
    for (size_t i = 1;; i++) {
        if (target[i] != '/' && target[i] != '\0')
            continue;
        bool last = target[i] == '\0';
        memcpy(part, target + 1, i - 1);
        part[i - 1] = '\0';
        int r = last && !as_dir ? mknodat(root_fd, part, S_IFREG | 0644, 0)
                                : mkdirat(root_fd, part, 0755);
        if (r < 0 && errno != EEXIST)
            return target_error(-errno, target, err);
        if (last)
            break;
    }
    fd = open_in_root(root_fd, target, O_PATH);
    return fd >= 0 ? fd : target_error(fd, target, err);
}

static int attach(int mount_fd, int target_fd, const char *what, struct err *err)
{
    int r = mount_attach(mount_fd, target_fd);
    return r < 0 ? err_sys(err, -r, "mount %s", what) : 0;
}

int setup_tree_self_mount(int dir, uint64_t attrs, const char *what, struct err *err)
{
    AUTO_CLOSE int copy = mount_clone(dir, 0);
    int r = copy < 0 ? copy : mount_set(copy, attrs, -1, 0);
    if (r < 0)
        return err_sys(err, -r, "mount %s", what);
    r = attach(copy, dir, what, err);
    return r < 0 ? r : TAKE_FD(copy);
}

/* Most directories are new ones right below the root, with the mode that mkdir gives: there is no
 * link on the way to them, and nothing more to do. */
static bool plain_dir(const struct setup *s, int root_fd, const struct plan_op *op)
{
    const char *target = plan_str(s->plan, op->target);
    bool owned = (op->flags & PLAN_OP_OWNED) && s->switch_ids;
    return !owned && op->mode == 0755 && strchr(target + 1, '/') == NULL &&
           mkdirat(root_fd, target + 1, 0755) == 0;
}

static int op_dir(const struct setup *s, int root_fd, const struct plan_op *op, struct err *err)
{
    if (plain_dir(s, root_fd, op))
        return 0;
    AUTO_CLOSE int fd = make_path(s, root_fd, op, true, err);
    if (fd < 0)
        return fd;
    AUTO_CLOSE int dir =
        open_in_root(root_fd, plan_str(s->plan, op->target), O_RDONLY | O_DIRECTORY);
    if (dir < 0)
        return err_sys(err, -dir, "open '%s'", plan_str(s->plan, op->target));
    if ((op->flags & PLAN_OP_OWNED) && s->switch_ids &&
        fchown(dir, s->plan->payload_uid, s->plan->payload_gid) < 0)
        return err_sys(err, errno, "chown '%s'", plan_str(s->plan, op->target));
    if (op->mode != 0 && fchmod(dir, op->mode) < 0)
        return err_sys(err, errno, "chmod '%s'", plan_str(s->plan, op->target));
    return 0;
}

/* The directory is opened like every other place inside, never through a link: symlinkat() alone
 * would follow one out of the new root. */
static int op_symlink(const struct setup *s, int root_fd, const struct plan_op *op, struct err *err)
{
    const char *target = plan_str(s->plan, op->target);
    const char *name = strrchr(target, '/') + 1;
    char dir_name[4096];
    if (str_fmt(dir_name, sizeof(dir_name), "%.*s", (int)(name - target), target) < 0)
        return err_sys(err, ENAMETOOLONG, "symlink '%s'", target);
    AUTO_CLOSE int dir = open_in_root(root_fd, dir_name, O_PATH | O_DIRECTORY);
    if (dir < 0)
        return err_sys(err, -dir, "directory of symlink '%s'", target);
    if (symlinkat(plan_str(s->plan, op->source), dir, name) < 0)
        return err_sys(err, errno, "symlink '%s'", target);
    return 0;
}

/* An overlay has inodes of its own, and with them watches, locks and leases: a session does not
 * learn from these what others do with the same files. An overlay would hide what is mounted below
 * the directory, and the kernel refuses an overlay of overlays. Both cases are read back for the
 * receipt. */
static int own_view(int root_fd, const char *path, struct err *err)
{
    char lower[80];
    if (mkdirat(root_fd, EMPTY_DIR, 0555) < 0 && errno != EEXIST)
        return err_sys(err, errno, "make /" EMPTY_DIR);
    AUTO_CLOSE int empty = open_in_root(root_fd, EMPTY_DIR, O_PATH | O_DIRECTORY);
    AUTO_CLOSE int image = open_in_root(root_fd, path, O_PATH | O_DIRECTORY);
    if (empty < 0 || image < 0)
        return err_sys(err, empty < 0 ? -empty : -image, "view of '%s'", path);
    (void)snprintf(lower, sizeof(lower), "self/fd/%d:self/fd/%d", image, empty);
    const struct mount_option options[] = {{"lowerdir", lower}, {"userxattr", NULL}, {0}};
    AUTO_CLOSE int fs = mount_new("overlay", options, ATTR_SAFE | MOUNT_ATTR_RDONLY);
    return fs < 0 ? 0 : attach(fs, image, path, err);
}

static int op_bind(const struct setup *s, int root_fd, const struct plan_op *op, struct err *err)
{
    struct stat st;
    int source = s->source_fds[op - s->plan->ops];
    if (source < 0)
        return 0; /* optional and missing: box-priv has decided that */
    if (fstat(source, &st) < 0)
        return err_sys(err, errno, "stat source of '%s'", plan_str(s->plan, op->target));
    AUTO_CLOSE int target = make_path(s, root_fd, op, S_ISDIR(st.st_mode), err);
    if (target < 0)
        return target;
    int r = attach(source, target, plan_str(s->plan, op->target), err);
    if (r < 0 || !(op->flags & PLAN_OP_OWN_VIEW) || !s->own_view || !S_ISDIR(st.st_mode))
        return r;
    return own_view(root_fd, plan_str(s->plan, op->target), err);
}

static int op_scratch(const struct setup *s, int root_fd, const struct plan_op *op, struct err *err)
{
    int r = op_dir(s, root_fd, op, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int dir = open_in_root(root_fd, plan_str(s->plan, op->target), O_PATH | O_DIRECTORY);
    if (dir < 0)
        return err_sys(err, -dir, "open '%s'", plan_str(s->plan, op->target));
    uint64_t attrs = ATTR_SAFE | (op->flags & PLAN_OP_NOEXEC ? MOUNT_ATTR_NOEXEC : 0);
    AUTO_CLOSE int fs = setup_tree_self_mount(dir, attrs, plan_str(s->plan, op->target), err);
    return fs < 0 ? fs : 0;
}

/* The mask is the host's own /dev/null, seen through the mount namespace we were born with and
 * checked to be it. */
static int open_host_device(const char *name, unsigned major_nr, unsigned minor_nr, struct err *err)
{
    char path[32];
    struct stat st;
    (void)snprintf(path, sizeof(path), "/dev/%s", name);
    AUTO_CLOSE int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, errno, "open host '%s'", path);
    if (!S_ISCHR(st.st_mode) || st.st_rdev != makedev(major_nr, minor_nr))
        return err_set(err, ERR_DENIED, "host '%s' is not the device it should be", path);
    return TAKE_FD(fd);
}

/* The first name that is there gets a copy of `cover_fd` with the attributes of a mask; the others
 * get copies of that mount, by one system call each: there are some fifty, in every sandbox. Names
 * are looked up in the working directory, the root of a /proc that no other process can reach. */
static int mask_names(int proc_fd, const char *const *names, size_t n, int cover_fd,
                      struct err *err)
{
    const char *first = NULL;
    for (size_t i = 0; i < n; i++) {
        if (first != NULL) {
            if (mount(first, names[i], NULL, MS_BIND, NULL) < 0 && errno != ENOENT)
                return err_sys(err, errno, "mask /proc/%s", names[i]);
            continue;
        }
        AUTO_CLOSE int target = openat(proc_fd, names[i], O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (target < 0)
            continue; /* this kernel does not have it */
        AUTO_CLOSE int cover = mount_clone(cover_fd, 0);
        int r = cover < 0 ? cover : mount_set(cover, ATTR_MASK, -1, 0);
        r = r < 0 ? err_sys(err, -r, "mask /proc/%s", names[i])
                  : attach(cover, target, names[i], err);
        if (r < 0)
            return r;
        first = names[i];
    }
    return 0;
}

/* Files are covered by the host's null device, directories by an empty one of ours. Afterwards the
 * working directory is /proc; it changes once more before anything is executed. */
static int mask_proc(int root_fd, int proc_fd, struct err *err)
{
    AUTO_CLOSE int null_fd = open_host_device("null", 1, 3, err);
    if (null_fd < 0)
        return null_fd;
    if (mkdirat(root_fd, EMPTY_DIR, 0555) < 0 && errno != EEXIST)
        return err_sys(err, errno, "make /" EMPTY_DIR);
    AUTO_CLOSE int empty_fd = open_in_root(root_fd, EMPTY_DIR, O_PATH | O_DIRECTORY);
    if (empty_fd < 0)
        return err_sys(err, -empty_fd, "open /" EMPTY_DIR);
    if (fchdir(proc_fd) < 0)
        return err_sys(err, errno, "enter /proc");
    int r = mask_names(proc_fd, masked_files, ARRAY_SIZE(masked_files), null_fd, err);
    return r < 0 ? r : mask_names(proc_fd, masked_dirs, ARRAY_SIZE(masked_dirs), empty_fd, err);
}

/* The limit is a second wall behind the filter. It is written through this /proc, not the host's:
 * there the kernel would look through one entry of that name for each session. */
int setup_tree_proc_child(const struct setup *s, const struct mount_option *options, uint64_t most,
                          struct err *err)
{
    static const char limit[] = "sys/user/max_user_namespaces";
    uint64_t got = 0;
    AUTO_CLOSE int fs = s->bare ? fcntl(s->proc_fd, F_DUPFD_CLOEXEC, 0)
                                : mount_new("proc", options, ATTR_SAFE | MOUNT_ATTR_NOEXEC);
    if (fs < 0)
        return err_sys(err, -fs,
                       "proc (is the host's own /proc partly covered, as in a container?)");
    int r = fd_set_u64_at(fs, limit, most, &got);
    if (r < 0)
        return err_sys(err, -r, "limit nested user namespaces");
    if (got != most)
        return err_set(err, ERR_UNSUPPORTED,
                       "limit of nested user namespaces: asked for %llu, the kernel made it %llu",
                       (unsigned long long)most, (unsigned long long)got);
    return TAKE_FD(fs);
}

/* A program sees the processes of its own user. PID 1, whose group no program has, sees all:
 * without a control group it can only kill what it finds here. */
static int op_proc(const struct setup *s, int root_fd, const struct plan_op *op, struct err *err)
{
    char gid[16];
    (void)snprintf(gid, sizeof(gid), "%u", s->plan->init_gid);
    const struct mount_option options[] = {
        {"hidepid", "invisible"}, {s->switch_ids ? "gid" : NULL, gid}, {0}};
    AUTO_CLOSE int target = make_path(s, root_fd, op, true, err);
    if (target < 0)
        return target;
    AUTO_CLOSE int fs = setup_tree_proc_child(s, options, 0, err);
    if (fs < 0)
        return fs;
    int r = mount_set(fs, MOUNT_ATTR_RDONLY, -1, 0);
    if (r < 0)
        return err_sys(err, -r, "/proc read-only");
    r = attach(fs, target, "/proc", err);
    return r < 0 ? r : mask_proc(root_fd, fs, err);
}

static int dev_node(int dev_fd, const struct device *d, struct err *err)
{
    AUTO_CLOSE int host = open_host_device(d->name, d->major, d->minor, err);
    if (host < 0)
        return host;
    if (mknodat(dev_fd, d->name, S_IFREG | 0666, 0) < 0)
        return err_sys(err, errno, "/dev/%s", d->name);
    AUTO_CLOSE int target = openat(dev_fd, d->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    AUTO_CLOSE int copy = mount_clone(host, 0);
    if (target < 0 || copy < 0)
        return err_sys(err, copy < 0 ? -copy : errno, "/dev/%s", d->name);
    int r = mount_set(copy, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, -1, 0);
    if (r < 0)
        return err_sys(err, -r, "/dev/%s", d->name);
    return attach(copy, target, d->name, err);
}

static int dev_pts(int dev_fd, uint32_t payload_gid, struct err *err)
{
    char gid[16];
    (void)snprintf(gid, sizeof(gid), "%u", payload_gid);
    const struct mount_option options[] = {
        {"ptmxmode", "0666"}, {"mode", "0620"}, {"gid", gid}, {"max", "64"}, {0}};
    AUTO_CLOSE int fs = mount_new("devpts", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    if (fs < 0 || mkdirat(dev_fd, "pts", 0755) < 0)
        return err_sys(err, fs < 0 ? -fs : errno, "/dev/pts");
    AUTO_CLOSE int target = openat(dev_fd, "pts", O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return target < 0 ? err_sys(err, errno, "/dev/pts") : attach(fs, target, "/dev/pts", err);
}

static int dev_shm(int dev_fd, struct err *err)
{
    if (mkdirat(dev_fd, "shm", 0755) < 0 || fchmodat(dev_fd, "shm", 01777, 0) < 0)
        return err_sys(err, errno, "/dev/shm");
    AUTO_CLOSE int dir = openat(dev_fd, "shm", O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return err_sys(err, errno, "/dev/shm");
    AUTO_CLOSE int fs = setup_tree_self_mount(dir, ATTR_SAFE | MOUNT_ATTR_NOEXEC, "/dev/shm", err);
    return fs < 0 ? fs : 0;
}

int setup_tree_devices(int dev_fd, struct err *err)
{
    int r = 0;
    for (size_t i = 0; i < ARRAY_SIZE(devices) && r == 0; i++)
        r = dev_node(dev_fd, &devices[i], err);
    return r;
}

static int op_dev(const struct setup *s, int root_fd, const struct plan_op *op, struct err *err)
{
    AUTO_CLOSE int dir = make_path(s, root_fd, op, true, err);
    if (dir < 0)
        return dir;
    AUTO_CLOSE int dev =
        setup_tree_self_mount(dir, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, "/dev", err);
    int r = dev < 0 ? dev : setup_tree_devices(dev, err);
    for (size_t i = 0; i < ARRAY_SIZE(dev_links) && r == 0; i++)
        if (symlinkat(dev_links[i].to, dev, dev_links[i].name) < 0)
            r = err_sys(err, errno, "/dev/%s", dev_links[i].name);
    if (r == 0)
        r = dev_pts(dev, s->plan->payload_gid, err);
    if (r == 0)
        r = dev_shm(dev, err);
    if (r < 0)
        return r;
    r = mount_set(dev, MOUNT_ATTR_RDONLY, -1, 0);
    return r < 0 ? err_sys(err, -r, "/dev read-only") : 0;
}

/* By descriptor: paths do not start at the new root yet. The working directory is a /proc. */
static int leave_scratch(int root_fd, int layer, const char *scratch, struct err *err)
{
    char path[32];
    (void)snprintf(path, sizeof(path), "self/fd/%d", layer);
    if (umount2(path, MNT_DETACH) < 0 || unlinkat(root_fd, scratch, AT_REMOVEDIR) < 0)
        return err_sys(err, errno, "detach the layer");
    return 0;
}

/* What an earlier sandbox has left of a layer that is kept stays as it is. Programs see the overlay
 * and never the layer itself, so nothing else can stand in these places. */
static int make_layer(const struct setup *s, int layer)
{
    bool kept = (s->plan->flags & PLAN_DURABLE) != 0;
    bool fresh = mkdirat(layer, "upper", 0755) == 0;
    if ((!fresh && !(kept && errno == EEXIST)) ||
        (mkdirat(layer, "work", 0755) < 0 && !(kept && errno == EEXIST)))
        return -errno;
    if (fresh && s->switch_ids &&
        fchownat(layer, "upper", s->plan->payload_uid, s->plan->payload_gid, AT_SYMLINK_NOFOLLOW) <
            0)
        return -errno;
    return 0;
}

/* A writable layer over a directory of the image. The layer's own mount is needed only to name it
 * to overlayfs, which knows paths alone: it is attached at a scratch place inside our root and
 * taken away again, because what lies below an overlay must not change behind its back. */
static int op_overlay(const struct setup *s, int root_fd, const struct plan_op *op, struct err *err)
{
    static const char scratch[] = ".layer";
    char lower[64], upper[64], work[64];
    const char *target_path = plan_str(s->plan, op->target);
    AUTO_CLOSE int target = open_in_root(root_fd, target_path, O_PATH | O_DIRECTORY);
    if (target < 0)
        return err_sys(err, -target, "overlay '%s'", target_path);
    if (mkdirat(root_fd, scratch, 0700) < 0)
        return err_sys(err, errno, "overlay scratch");
    AUTO_CLOSE int place = open_in_root(root_fd, scratch, O_PATH | O_DIRECTORY);
    int layer = s->source_fds[op - s->plan->ops];
    if (place < 0)
        return err_sys(err, -place, "overlay scratch");
    int r = attach(layer, place, "layer", err);
    if (r < 0)
        return r;
    r = make_layer(s, layer);
    if (r < 0)
        return err_sys(err, -r, "overlay layer");
    (void)snprintf(lower, sizeof(lower), "self/fd/%d", target);
    (void)snprintf(upper, sizeof(upper), "self/fd/%d/upper", layer);
    (void)snprintf(work, sizeof(work), "self/fd/%d/work", layer);
    const struct mount_option options[] = {
        {"lowerdir", lower}, {"upperdir", upper}, {"workdir", work}, {"userxattr", NULL}, {0}};
    AUTO_CLOSE int fs = mount_new("overlay", options, ATTR_SAFE);
    if (fs < 0)
        return err_sys(err, -fs, "overlay on '%s'%s", target_path,
                       s->switch_ids ? "" : " (only root can, where something is mounted below)");
    r = attach(fs, target, target_path, err);
    return r < 0 ? r : leave_scratch(root_fd, layer, scratch, err);
}

static int (*const run_op[PLAN_OP_MAX])(const struct setup *, int, const struct plan_op *,
                                        struct err *) = {
    [PLAN_OP_DIR] = op_dir,         [PLAN_OP_SYMLINK] = op_symlink, [PLAN_OP_BIND] = op_bind,
    [PLAN_OP_SCRATCH] = op_scratch, [PLAN_OP_PROC] = op_proc,       [PLAN_OP_DEV] = op_dev,
    [PLAN_OP_OVERLAY] = op_overlay,
};

int setup_tree_child(const struct setup *s, int root_fd, struct err *err)
{
    for (uint32_t i = 0; i < s->plan->n_ops; i++) {
        const struct plan_op *op = &s->plan->ops[i];
        int r = run_op[op->kind](s, root_fd, op, err);
        if (r < 0)
            return r;
    }
    return 0;
}
