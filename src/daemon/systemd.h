/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a service manager and boxd say to each other, by the protocols of sd_listen_fds(3),
 * sd_notify(3) and sd_watchdog_enabled(3), and without its library: they are environment variables
 * and a datagram. Without a service manager all of this does nothing. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "loop/loop.h"

struct err;

#define SYSTEMD_FDS_MAX 3

struct systemd_socket {
    int fd; /* owned; listens */
    char name[64];
};

struct systemd {
    struct systemd_socket sockets[SYSTEMD_FDS_MAX];
    size_t n_sockets;
    bool has_unix, has_tcp;
    bool outside;  /* one can be reached from elsewhere than this host */
    int notify_fd; /* owned; -1: no manager listens */
    struct sockaddr_un address;
    socklen_t address_len;
    struct loop *loop;    /* borrowed */
    uint64_t watchdog_ns; /* 0: no signs of life are expected */
    struct loop_timer timer;
};

/* Reads the environment, and removes it: what we start is not to take it for its own. To be called
 * before anything is opened. ERR_INVALID for sockets that cannot be served. systemd_done() is due
 * either way. */
int systemd_take(struct systemd *s, struct err *err);
void systemd_done(struct systemd *s);
DEFINE_CLEANUP_DONE(systemd)

/* The connection to the manager dies with `state` unsent when it does not listen: never an error.
 * "READY=1", "STOPPING=1", lines of a text for people as "STATUS=…". */
void systemd_notify(struct systemd *s, const char *state);
/* Signs of life, twice as often as asked for, as long as the loop turns and descriptors can be had:
 * without these no client is served. */
void systemd_watch(struct systemd *s, struct loop *loop);
