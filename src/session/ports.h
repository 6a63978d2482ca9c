/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Connections from outside to servers inside a session, and ports of the host that lead to them:
 * every connection counts as use of its session, and ends with it. And connections of programs
 * inside to services of the host: these do not keep a session from being idle. */

#include <stdbool.h>
#include <stdint.h>

#include "spec/spec.h"

struct err;
struct manager;
struct session;

/* Connections, of one session and of all. */
#define PORT_CONNS_MAX 256U
#define PORT_CONNS_ALL 2048U
#define PORT_MAPS_MAX 32U /* published ports of one session */
#define PORT_ADDRESS_MAX 46U
/* Connections to services of the host, of one session and of all. */
#define HOST_CONNS_MAX 128U
#define HOST_CONNS_ALL 1024U

/* From the loop. The dial lives until port_dial_free(), which may be called in any of these. */
struct port_dial_events {
    void (*connected)(void *arg, int fd); /* the callee's from then on */
    void (*failed)(void *arg, const struct err *err);
    void (*cut)(void *arg); /* after connected(): the session ends; close the connection */
};

struct port_dial;
/* Connects to that port of the session's loopback address: see backend_ops.connect. ERR_LIMIT at
 * the caps, ERR_UNSUPPORTED on a backend that cannot, ERR_STATE while the session is not ready. */
int port_dial_start(struct session *s, uint16_t port, const struct port_dial_events *events,
                    void *arg, struct port_dial **ret, struct err *err);
/* The connection is over, or not wanted any more. NULL is fine. */
void port_dial_free(struct port_dial *d);

/* A port of the host that leads to one of the session. */
struct port_map_info {
    char address[PORT_ADDRESS_MAX]; /* numeric */
    uint16_t host_port;             /* to publish: 0 for any that is free */
    uint16_t port;
    bool listening; /* false: the host's port could not be had after a restart, or may not be */
    unsigned connections;
};

/* Whether ports may be published there: on loopback, and where the operator says
 * (manager_options.publish_addresses). ERR_DENIED. */
int manager_may_publish(const struct manager *m, const char *address, struct err *err);

/* Listens on the host's address, if that is allowed, and records it with the session, so that the
 * next daemon listens again. A port that is published already stays as it is. Fills
 * want->host_port. */
int session_publish(struct session *s, struct port_map_info *want, struct err *err);
/* Closes it; connections that are there stay. host_port 0: all that lead to `port`. ERR_NOT_FOUND.
 */
int session_unpublish(struct session *s, uint16_t port, uint16_t host_port, struct err *err);
/* The one at that place, in the order they were published; false: there is none. */
bool session_port_at(const struct session *s, unsigned at, struct port_map_info *ret);

/* A service of the host that the session may reach (spec->own.allow_hosts). */
struct host_map_info {
    struct host_service at;
    bool listening; /* at.inside leads there now */
    unsigned connections;
};

/* Whether sessions may reach it: a loopback address that is not boxd's own, and what the operator
 * names (manager_options.allow_hosts). ERR_DENIED. */
int manager_may_allow(const struct manager *m, const struct host_service *at, struct err *err);
/* The one at that place, in the order given; false: there is none. */
bool session_host_at(const struct session *s, unsigned at, struct host_map_info *ret);
