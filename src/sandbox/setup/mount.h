/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The kernel's mount API by descriptor: nothing here is resolved by name after a check. No
 * allocation; everything returns a descriptor or 0, or a negative errno, so that it works after
 * clone as well. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct err;

struct mount_option {
    const char *key;
    const char *value; /* NULL: a flag */
};

/* A new file system instance as a detached mount with MOUNT_ATTR_* `attrs`. Options end at a NULL
 * key. */
int mount_new(const char *fstype, const struct mount_option *options, uint64_t attrs);

/* A detached copy of the mount at fd (with its submounts when `recursive`). mount_set() makes it
 * private: without, what is mounted on either would show on the other. */
int mount_clone(int fd, int recursive);

/* Sets MOUNT_ATTR_* on a mount that may still be detached, and makes it private; userns_fd >= 0
 * maps its ids. */
int mount_set(int mount_fd, uint64_t attrs, int userns_fd, int recursive);

/* Enters another mount namespace: every name means something else there. The root and the working
 * directory become that namespace's. Returns a descriptor for the way back, or a negative errno. */
int mount_ns_enter(int ns_fd);
void mount_ns_return(int home_fd); /* or ends the process; closes the descriptor */

/* Attaches a detached mount at the place that target_fd (O_PATH) refers to. */
int mount_attach(int mount_fd, int target_fd);

/* The bare mount namespace: an empty, read-only root, with nothing of the host but the devices that
 * every sandbox has. A sandbox that begins as a copy of it has only to put its own root on top. One
 * that begins as a copy of the host's mounts has to leave them by pivot_root(), for which the
 * kernel visits every process there is, and to take the copies down. */

/* Makes it, as root. Returns a descriptor of the namespace, or a negative errno: this kernel or
 * this host cannot, and sandboxes have to do without. We are in our own namespace again. */
int bare_make(void);

/* In the bare namespace there is no /proc, so the kernel refuses a new one to a child that is not
 * root of the host: we make it, for the pid namespace of `pid`. `hidepid`: its processes see their
 * own user's only, but for those of the host's group `gid`. Returns a detached mount. */
int bare_proc(pid_t pid, bool hidepid, uint32_t gid, struct err *err);
