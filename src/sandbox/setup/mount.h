/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The kernel's mount API by descriptor: nothing here is resolved by name after a check. No
 * allocation; everything returns a descriptor or 0, or a negative errno, so that it works after
 * clone as well. */

#include <stdint.h>

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
