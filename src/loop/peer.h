/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Who is at the other end of a connection: the user, as the kernel knows it, of a unix socket and
 * of a TCP connection whose two ends are both on a loopback address in our network namespace. Of
 * other connections nothing is known. Whether a known user is served is decided elsewhere. */

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"

struct err;

struct peer {
    bool known; /* else nothing of the rest counts */
    uid_t uid;
    pid_t pid;      /* of the process that connected to a unix socket; 0 on TCP */
    uint32_t inode; /* of the other end of a TCP connection; 0 on a unix socket */
};

/* What peer_identify() asks the kernel by. It belongs to the network namespace it was made in; make
 * it before a filter of system calls forbids to. A negative errno: TCP peers stay unknown. */
int peer_socket(void);

/* Asks once; does not block. A TCP peer that has closed its end is unknown: the kernel tells uid 0
 * for a socket without an owner. */
void peer_identify(int diag, int sock, struct peer *ret);

#define PEER_GROUPS_MAX 1024

/* The process at the other end, with the rights to look at it: ours must be those of its user, or
 * root's. */
struct peer_process {
    struct peer peer;
    gid_t gid;
    gid_t groups[PEER_GROUPS_MAX];
    size_t n_groups;
    int cwd;             /* owned; its working directory as we reach it, O_PATH */
    char path[PATH_MAX]; /* of that, in our view of the files, which is also its own */
};

/* `mnt_ns` is the inode of the mount namespace that counts as ours (peer_mnt_ns()). ERR_DENIED,
 * ERR_NOT_FOUND or ERR_CONFLICT: err says why the directory cannot be told, as half a sentence that
 * begins with "the process" or the like. */
int peer_find_process(int diag, int sock, ino_t mnt_ns, struct peer_process *ret, struct err *err);
void peer_process_done(struct peer_process *p);
DEFINE_CLEANUP_DONE(peer_process)

ino_t peer_mnt_ns(void); /* of this process; 0: cannot be told */
