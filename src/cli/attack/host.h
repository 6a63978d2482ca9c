/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The host's side of `box doctor --attack`: the program that is brought in, what it is told of the
 * host, and what it must not be able to reach there. */

#include <stddef.h>

#include "base/buf.h"

struct app;
struct err;

#define ATTACK_ADDRESSES 7

struct attack_host {
    struct buf program;  /* box-attack */
    char *ns_option;     /* owned, as are all: "--host-ns=…", the host's namespaces */
    char *secret_option; /* the name that is known outside only, reversed */
    char *address_options[ATTACK_ADDRESSES + 1]; /* the host's, and the port there */
    size_t n_addresses;
    int tcp_fd, unix_fd; /* owned; listen on the host, and never answer */
};

int attack_host_init(struct attack_host *h, const struct app *app, struct err *err);
void attack_host_done(struct attack_host *h);
