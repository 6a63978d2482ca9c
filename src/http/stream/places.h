/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Where a peer may be reached. A host has an address or several ("localhost" is ::1 and 127.0.0.1),
 * and what we look for may listen at one of them only. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define PLACES_MAX 8

struct places {
    struct place {
        struct sockaddr_storage address;
        socklen_t len;
    } list[PLACES_MAX];
    size_t n;  /* at least one */
    size_t at; /* where a connection came about last: it is tried first */
};

/* One attempt to get there: every place once. */
struct places_walk {
    struct places *places; /* borrowed */
    size_t first, tried;
};

/* false: there is no room for it, or the address is of no size that exists. */
bool places_add(struct places *p, const struct sockaddr *address, socklen_t len);

struct places_walk places_begin(struct places *p);
/* A non-blocking socket for the place whose turn it is, the caller's, or a negative errno. */
int places_socket(const struct places_walk *w);
/* As connect(2), but 0 or a negative errno. */
int places_connect(const struct places_walk *w, int fd);
/* Of this much time, what the present place may take: an equal share of those not tried. */
uint64_t places_share(const struct places_walk *w, uint64_t ns);
bool places_next(struct places_walk *w); /* false: that was the last one */
void places_arrived(const struct places_walk *w);
