/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A connection to box-priv, from nothing to the first answer and back: join.c. All of it blocks. */

#include "priv/client.h"

struct priv_conn {
    int sock;  /* owned */
    int pidfd; /* owned */
    pid_t pid;
    bool child; /* we started it, and have to reap it */
    struct priv_host host;
    char **roots;            /* owned */
    struct priv_item *items; /* owned; what was there already */
    size_t n_items;
};

int priv_connect(const struct priv_client_options *o, struct priv_conn *ret, struct err *err);
/* Tells it to end everything, and waits for its end: at most so long, -1 for ever. False: it is
 * still there. */
bool priv_dismiss(struct priv_conn *c, int timeout_ms);
void priv_conn_done(struct priv_conn *c); /* closes and frees; tells nobody */
