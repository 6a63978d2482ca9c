/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* TLS for clients, beside everything else: a dialled connection is one end of a socket pair, and
 * what is written there arrives at the peer under TLS. Its users need to know nothing of
 * TLS; the end of either direction travels on. The peer's certificate and name are always verified,
 * TLS 1.2 is the least. Nothing blocks but the reading of the files at the start. */

#include <stdbool.h>

#include "base/cleanup.h"

struct err;
struct loop;
struct places;
struct tls_client;

struct tls_files {
    const char *ca;         /* PEM; NULL: the authorities that the system trusts */
    const char *cert, *key; /* PEM; our identity, both or neither */
};

/* `host` is the name or the address that the peer's certificate must be for. */
int tls_client_new(struct loop *loop, const struct tls_files *files, const char *host,
                   struct tls_client **ret, struct err *err);
void tls_client_free(struct tls_client *c); /* connections under way end */
DEFINE_CLEANUP(tls_client)

/* A connection to be: a non-blocking descriptor, the caller's. Where it does not come about, or
 * breaks, it is closed from the other side, and tls_client_failure() says why. `places` live as
 * long as the client. */
int tls_dial(struct tls_client *c, struct places *places, struct err *err);

/* Why the last connection failed, once; false: none has. */
bool tls_client_failure(struct tls_client *c, struct err *ret);
