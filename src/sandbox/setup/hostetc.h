/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The /etc of the host image: a copy of what every user of the host can read in its /etc, without
 * the secrets of hostetc_rules.h, and with accounts and names of our own. It follows the host's:
 * inotify tells what has changed, and only that is copied again. */

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"

struct err;
struct hostetc;

struct hostetc_options {
    int state_fd;         /* borrowed; holds the directory */
    const char *name;     /* of the directory, made afresh. It is a tmpfs attached there in the
                             caller's mount namespace, or, where the kernel cannot map the ids of a
                             tmpfs, a directory on disk */
    const char *resolver; /* address of the name server in sessions with a network */
    bool rootful;         /* mounts of it are to be idmapped, and the host's files are opened with
                             the rights of `nobody` */
};

int hostetc_new(const struct hostetc_options *options, struct hostetc **ret, struct err *err);
void hostetc_free(struct hostetc *h);
DEFINE_CLEANUP(hostetc)

/* The directory for sessions without a network, and for those with one. Borrowed. */
int hostetc_dir(const struct hostetc *h, bool network);

/* Readable when the host's /etc has changed. -1: it cannot be watched, and hostetc_refresh() looks
 * at all of it from time to time. */
int hostetc_watch_fd(const struct hostetc *h);

/* Copies what has changed since the last call. Costs one system call when nothing has. When too
 * much has changed, everything is looked at, at most every two seconds. */
void hostetc_refresh(struct hostetc *h);

/* Whether that is still to be done: call hostetc_refresh() again after two seconds. */
bool hostetc_is_stale(const struct hostetc *h);

/* How many files had no room, of all that would be shown, or could not be copied: for want of
 * memory, which sessions that keep replaced files open can use up, or of descriptors. */
size_t hostetc_left_out(const struct hostetc *h);
