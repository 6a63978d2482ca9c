/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What another user could open: found out by a short-lived child that has become that user, without
 * capabilities unless that is root. Only root can ask. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct as_user {
    uid_t uid;
    gid_t gid;
    const gid_t *groups; /* borrowed; NULL: gid and groups are as the host's lists have them */
    size_t n_groups;
};

struct as_user_found {
    dev_t dev;
    ino_t ino;
    bool member; /* the user is in the group that it belongs to, */
    gid_t gid;   /* which is this one; else the user's own */
};

/* Walks to an absolute path without any link in it and looks whether the user may read it and, for
 * a directory, enter it; and write there, if that is wanted. 0, or what the kernel told the user;
 * -ETIMEDOUT when that took longer than a few seconds. */
int as_user_reach(const struct as_user *who, const char *path, bool write,
                  struct as_user_found *ret);

/* Makes what is missing of a clean relative path below the directory `dir`, under the rules of
 * path_open_beneath(), and looks at the last directory as above, for writing. */
int as_user_make(const struct as_user *who, int dir, const char *path, struct as_user_found *ret);
