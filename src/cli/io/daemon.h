/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The boxd that we start when none listens where one would be. */

#include <stdbool.h>
#include <sys/types.h>

#include "base/cleanup.h"

struct err;

struct daemon {
    pid_t pid;       /* 0: none, or one that is not ours to stop */
    int pidfd;       /* owned, while there is a pid */
    char *state_dir; /* owned; a temporary one, removed when the daemon is stopped */
};

enum daemon_kind {
    DAEMON_PRIVATE, /* with a state directory of its own, for as long as we live */
    DAEMON_KEPT,    /* in the usual places, and it outlives us */
};

/* Where boxd listens unless told otherwise: /run/box/boxd.sock for root, in $XDG_RUNTIME_DIR/box or
 * ~/.local/state/box for everybody else. */
int daemon_default_socket(char **ret, struct err *err);

/* 1 when somebody listens there, 0 when nobody does, or why that cannot be told. */
int daemon_probe(const char *socket_path, struct err *err);

/* Starts boxd and waits until it serves; *ret_socket is where. Gives up, with ERR_STATE, when
 * `wake_fd` becomes readable. A kept one is told about on standard error. */
int daemon_start(struct daemon *d, enum daemon_kind kind, int wake_fd, char **ret_socket,
                 struct err *err);
/* Stops a private one and waits for its end; fine on a zeroed one. */
void daemon_stop(struct daemon *d);
