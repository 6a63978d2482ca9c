/* SPDX-License-Identifier: Apache-2.0 */

/* Makes, clones, changes and attaches mounts by descriptor. */

#include "sandbox/setup/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#ifndef OPEN_TREE_CLONE
#include <linux/mount.h>
#endif

#define RETURN_TRIES 1000

int mount_new(const char *fstype, const struct mount_option *options, uint64_t attrs)
{
    int r = 0;
    int fs = fsopen(fstype, FSOPEN_CLOEXEC);
    if (fs < 0)
        return -errno;
    for (; options != NULL && options->key != NULL && r == 0; options++) {
        unsigned cmd = options->value != NULL ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
        if (fsconfig(fs, cmd, options->key, options->value, 0) < 0)
            r = -errno;
    }
    if (r == 0 && fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        r = -errno;
    if (r == 0) {
        r = fsmount(fs, FSMOUNT_CLOEXEC, (unsigned)attrs);
        if (r < 0)
            r = -errno;
    }
    (void)close(fs);
    return r;
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
    int home = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (home < 0)
        return -errno;
    if (setns(ns_fd, CLONE_NEWNS) == 0)
        return home;
    int r = -errno;
    (void)close(home);
    return r;
}

void mount_ns_return(int home_fd)
{
    for (int i = 0; setns(home_fd, CLONE_NEWNS) < 0; i++)
        if (i == RETURN_TRIES)
            abort();
    (void)close(home_fd);
}
