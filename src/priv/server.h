/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The privileged helper: serves one boxd at a time, and keeps the sandboxes from one to the next.
 *
 *   NEW ──hello──► SERVING ──connection ends──► WAITING ──connect──► NEW
 *    └───────────────┴─────────────┴──bye, SIGTERM, nothing left──► ENDING       */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct launch_host;
struct loop;

struct priv_serve_options {
    int sock; /* connected to the boxd that started us; taken */
    /* How long sandboxes without a deadline of their own are kept for the next boxd; 0: nothing is
     * kept, everything ends with the connection. */
    uint64_t linger_sec;
    const char *const *roots; /* the allow-list as it was given; borrowed */
    size_t n_roots;
    const char *state;  /* path of the state directory; borrowed */
    const char *engine; /* path of an engine's socket; borrowed; NULL: none */
    bool places;        /* directories of callers may join it, see place.c */
};

/* Returns when it is over and everything is cleaned up. The host is borrowed. */
int priv_serve(struct loop *loop, struct launch_host *host,
               const struct priv_serve_options *options, struct err *err);
