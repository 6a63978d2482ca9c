/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The runtime that LangBot's own client talks to: action RPC over a WebSocket or over stdin and
 * stdout, the relay to managed processes, and two endpoints for probes. Parse, call core, answer.
 * docs/reference/protocol.md describes it. */

#include <stdbool.h>

#include "base/cleanup.h"

struct artifacts;
struct err;
struct http_server;
struct manager;
struct policy_service;
struct langbot;
struct langbot_stdio;
struct jobs;
struct users;

/* All pointers are borrowed for the life of the object. */
struct langbot_options {
    struct manager *manager;
    const struct policy_service *service; /* what commands are asked, and records */
    struct jobs *skills;                  /* NULL: there is no skill store */
    struct artifacts *artifacts;          /* NULL: they are mounted like anything else */
    const char *token;                    /* of TCP clients; NULL: none is asked for */
    const char *instance;      /* the one that is trusted; NULL: the first that connects */
    const char *backend_name;  /* to report; NULL: the backend's own */
    const char *config;        /* JSON object as box_init carries it; NULL: none */
    const struct users *users; /* users that need no token; NULL: no user needs one */
    const char *base_dir;      /* where LangBot runs, if boxd cannot find out; NULL: not set */
    char *const *roots;        /* what may be mounted anyway; NULL: nothing */
    int diag_fd;               /* for peer_find_process(); -1: only unix sockets */
    int spool_fd;              /* directory for files on their way to us; -1: they are refused */
    bool quiet_probes;         /* probes over TCP, which need no token, count nothing */
    bool legacy;               /* serve clients of the first release too */
    bool unsafe_storage;       /* count soft storage limits as enforced */
};

/* Fails for what is wrong with the configuration, except text that is not JSON at all. */
int langbot_new(const struct langbot_options *options, struct langbot **ret, struct err *err);
/* After the server and before the manager; calls that wait are not answered. */
void langbot_free(struct langbot *r);
DEFINE_CLEANUP(langbot)

/* From now on TCP clients need that token, borrowed as above; NULL: none of them is let in. Clients
 * with the token before get the answers that they wait for, and then have to connect again. */
void langbot_set_token(struct langbot *r, const char *token);

/* Adds the routes. The object must outlive the server. */
int langbot_routes(struct langbot *r, struct http_server *server, struct err *err);

struct langbot_stdio_options {
    int in_fd, out_fd;        /* taken, also on failure */
    void (*ended)(void *arg); /* from the loop, once, when the peer has gone */
    void *arg;
};

/* Serves one trusted peer over two descriptors. The instance must have been given. */
int langbot_stdio_new(struct langbot *r, const struct langbot_stdio_options *options,
                      struct langbot_stdio **ret, struct err *err);
void langbot_stdio_free(struct langbot_stdio *s);
DEFINE_CLEANUP(langbot_stdio)
