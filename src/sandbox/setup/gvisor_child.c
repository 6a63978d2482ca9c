/* SPDX-License-Identifier: Apache-2.0 */

/* The last steps of a gVisor sandbox's child: the bundle, its mounts, and execve of runsc. */

#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "sandbox/setup/gvisor.h"
#include "sandbox/setup/mount.h"
#include "sandbox/setup/setup.h"
#include "sandbox/setup/setup_tree.h"

/* Names below are looked up in a tmpfs that nobody else has seen. */
#define BUNDLE "bundle"
#define RUNSC "runsc"

static int open_dir(int root_fd, const char *name, struct err *err)
{
    int fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? err_sys(err, errno, "open /%s", name) : fd;
}

static int write_config(const struct setup *s, int root_fd, struct err *err)
{
    AUTO_DONE(buf) struct buf text;
    buf_init(&text, GVISOR_CONFIG_MAX);
    int r = gvisor_config(s->plan, &text);
    if (r < 0)
        return err_sys(err, -r, "describe the container to runsc");
    AUTO_CLOSE int fd = openat(root_fd, BUNDLE "/config.json",
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    r = fd < 0 ? -errno : fd_write_all(fd, text.data, text.len);
    return r < 0 ? err_sys(err, -r, "write config.json") : 0;
}

static int attach_runsc(const struct setup *s, int root_fd, struct err *err)
{
    if (mknodat(root_fd, RUNSC, S_IFREG | 0555, 0) < 0)
        return err_sys(err, errno, "place for runsc");
    AUTO_CLOSE int place = openat(root_fd, RUNSC, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    int r = place < 0 ? -errno : mount_attach(s->runsc_fd, place);
    return r < 0 ? err_sys(err, -r, "mount runsc") : 0;
}

/* Nothing of it is covered: the kernel lets gVisor's own kernel, in a namespace of its own below
 * this one, have a /proc only where whoever is above can see all of his. It is written to as well:
 * the ids of that namespace. */
static int mount_proc(int root_fd, struct err *err)
{
    static const struct mount_option options[] = {{0}};
    AUTO_CLOSE int place = open_dir(root_fd, "proc", err);
    if (place < 0)
        return place;
    AUTO_CLOSE int fs =
        mount_new("proc", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    int r = fs < 0 ? fs : mount_attach(fs, place);
    return r < 0 ? err_sys(err, -r,
                           "proc (is the host's own /proc partly covered, as in a "
                           "container?)")
                 : 0;
}

/* The one directory that runsc writes to, on a root that will be read-only. */
static int mount_state(int root_fd, struct err *err)
{
    AUTO_CLOSE int dir = open_dir(root_fd, "state", err);
    if (dir < 0)
        return dir;
    AUTO_CLOSE int copy = mount_clone(dir, 0);
    int r = copy < 0
                ? copy
                : mount_set(copy, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, -1, 0);
    if (r == 0)
        r = mount_attach(copy, dir);
    return r < 0 ? err_sys(err, -r, "mount /state") : 0;
}

/* The tree is a mount of its own: on a writable root it is written to, where ours is not. */
static int mount_rootfs(const struct setup *s, int root_fd, struct err *err)
{
    AUTO_CLOSE int dir = open_dir(root_fd, GVISOR_ROOTFS + 1, err);
    if (dir < 0)
        return dir;
    if ((s->plan->flags & PLAN_ROOT_WRITABLE) && s->switch_ids &&
        fchown(dir, s->plan->payload_uid, s->plan->payload_gid) < 0)
        return err_sys(err, errno, "chown the root");
    AUTO_CLOSE int copy = mount_clone(dir, 0);
    int r = copy < 0 ? copy : mount_set(copy, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, -1, 0);
    if (r == 0)
        r = mount_attach(copy, dir);
    return r < 0 ? err_sys(err, -r, "mount " GVISOR_ROOTFS) : setup_tree_child(s, copy, err);
}

int gvisor_tree_child(const struct setup *s, int root_fd, struct err *err)
{
    static const char *const dirs[] = {"proc", "dev", "tmp", "state", BUNDLE, GVISOR_ROOTFS + 1};
    for (size_t i = 0; i < ARRAY_SIZE(dirs); i++)
        if (mkdirat(root_fd, dirs[i], 0755) < 0)
            return err_sys(err, errno, "make /%s", dirs[i]);
    AUTO_CLOSE int dev = open_dir(root_fd, "dev", err);
    int r = dev < 0 ? dev : setup_tree_devices_child(dev, err);
    if (r == 0)
        r = mount_proc(root_fd, err);
    if (r == 0)
        r = mount_state(root_fd, err);
    if (r == 0)
        r = attach_runsc(s, root_fd, err);
    if (r == 0)
        r = write_config(s, root_fd, err);
    return r < 0 ? r : mount_rootfs(s, root_fd, err);
}

/* What is written to the root must reach the session's own storage, where it has a size, and not
 * gVisor's memory: no overlay. With a network it uses the host's stack, which is that of a
 * namespace of the session's own, with its rules: its own stack wants rights that nobody here has.
 */
int gvisor_exec_child(const struct plan *p, struct err *err)
{
    const char *argv[] = {"runsc",
                          "--root=/state",
                          "--rootless",
                          "--ignore-cgroups",
                          "--host-uds=open",
                          "--overlay2=none",
                          p->flags & PLAN_NET_ON ? "--network=host" : "--network=none",
                          "run",
                          "--bundle=/bundle",
                          "box",
                          NULL};
    static char *const envp[] = {(char *)(uintptr_t) "PATH=/", NULL};
    (void)execve("/" RUNSC, (char *const *)(uintptr_t)argv, envp);
    return err_sys(err, errno, "start runsc");
}
