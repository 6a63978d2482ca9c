/* SPDX-License-Identifier: Apache-2.0 */

/* Makes, clones, changes and attaches mounts by descriptor. Makes the bare mount namespace, and
 * /proc for children that begin in it. */

#include "sandbox/setup/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "sandbox/setup/setup.h"

#ifndef OPEN_TREE_CLONE
#include <linux/mount.h>
#endif

#define RETURN_TRIES 1000

int mount_new(const char *fstype, const struct mount_option *options, uint64_t attrs)
{
    AUTO_CLOSE int fs = fsopen(fstype, FSOPEN_CLOEXEC);
    if (fs < 0)
        return -errno;
    for (; options != NULL && options->key != NULL; options++) {
        unsigned cmd = options->value != NULL ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
        if (fsconfig(fs, cmd, options->key, options->value, 0) < 0)
            return -errno;
    }
    if (fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -errno;
    int mnt = fsmount(fs, FSMOUNT_CLOEXEC, (unsigned)attrs);
    return mnt < 0 ? -errno : mnt;
}

int mount_clone(int fd, int recursive)
{
    unsigned flags =
        OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0U);
    int copy = open_tree(fd, "", flags);
    return copy < 0 ? -errno : copy;
}

int mount_set(int mount_fd, uint64_t attrs, int userns_fd, int recursive)
{
    struct mount_attr attr = {.attr_set = attrs, .propagation = MS_PRIVATE};
    if (userns_fd >= 0) {
        attr.attr_set |= MOUNT_ATTR_IDMAP;
        attr.userns_fd = (uint64_t)userns_fd;
    }
    unsigned flags = AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0U);
    return mount_setattr(mount_fd, "", flags, &attr, sizeof(attr)) < 0 ? -errno : 0;
}

int mount_attach(int mount_fd, int target_fd)
{
    unsigned flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    return move_mount(mount_fd, "", target_fd, "", flags) < 0 ? -errno : 0;
}

int mount_ns_enter(int ns_fd)
{
    AUTO_CLOSE int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    return home < 0 || setns(ns_fd, CLONE_NEWNS) < 0 ? -errno : TAKE_FD(home);
}

void mount_ns_return(int home_fd)
{
    for (int i = 0; setns(home_fd, CLONE_NEWNS) < 0; i++)
        if (i == RETURN_TRIES)
            abort();
    (void)close(home_fd);
}

#define PROC_ATTRS (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)

static int make_devices(int root_fd)
{
    struct err ignored = {0};
    if (mkdirat(root_fd, "dev", 0755) < 0 || fchmodat(root_fd, "dev", 0755, 0) < 0)
        return -errno;
    AUTO_CLOSE int dev = openat(root_fd, "dev", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return dev < 0 ? -errno : setup_tree_devices(dev, &ignored);
}

/* Afterwards the root of this namespace is that tmpfs, and nothing else is mounted in it. */
static int replace_root(void)
{
    static const struct mount_option options[] = {
        {"size", "65536"}, {"nr_inodes", "16"}, {"mode", "0755"}, {0}};
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return -errno;
    AUTO_CLOSE int root = mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    AUTO_CLOSE int place = open(SETUP_ROOT_PLACE, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = root < 0 ? root : place < 0 ? -errno : mount_attach(root, place);
    if (r == 0)
        r = make_devices(root);
    if (r == 0)
        r = mount_set(root, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, -1, 0);
    if (r < 0)
        return r;
    return fchdir(root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0
               ? -errno
               : 0;
}

int bare_make(void)
{
    /* Since Linux 6.18 a process that mounts /proc can name the pid namespace. */
    static const struct mount_option own[] = {{"pidns", "/proc/self/ns/pid"}, {0}};
    AUTO_CLOSE int probe = mount_new("proc", own, PROC_ATTRS);
    if (probe < 0)
        return probe;
    AUTO_CLOSE int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    /* Without CAP_SYS_CHROOT there would be no way back: first where we are already. */
    if (home < 0 || setns(home, CLONE_NEWNS) < 0 || unshare(CLONE_NEWNS) < 0)
        return -errno;
    AUTO_CLOSE int bare = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    int r = bare < 0 ? -errno : replace_root();
    mount_ns_return(TAKE_FD(home));
    return r < 0 ? r : TAKE_FD(bare);
}

/* `pid` is our own child and not reaped yet: a requester cannot have another process shown. */
int bare_proc(pid_t pid, bool hidepid, uint32_t gid, struct err *err)
{
    char path[64], group[16];
    (void)snprintf(path, sizeof(path), "/proc/%d/ns/pid", pid);
    (void)snprintf(group, sizeof(group), "%u", gid);
    const struct mount_option options[] = {
        {"pidns", path}, {hidepid ? "hidepid" : NULL, "invisible"}, {"gid", group}, {0}};
    int fd = mount_new("proc", options, PROC_ATTRS);
    return fd < 0 ? err_sys(err, -fd, "make the session's /proc") : fd;
}
