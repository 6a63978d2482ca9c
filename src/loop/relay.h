/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Bytes between two connected stream sockets, both ways, until both have ended. A side that does
 * not read holds the other back: at most RELAY_CHUNK bytes wait in each direction. The end of input
 * of one side is passed on as the end of output of the other, which may go on sending. Neither side
 * is trusted. */

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "loop/loop.h"

struct relay;

#define RELAY_CHUNK (64U * 1024U)
/* A connection that is closed on one side, or whose reader takes nothing, ends when no byte has
 * moved for so long. One that is open on both sides and has nothing to say may stay. */
#define RELAY_STALL_NS (300ULL * 1000000000ULL)

/* Takes both descriptors, which become non-blocking, also on failure. `ended` comes once, from the
 * loop, unless the relay is freed before; relay_free() is still owed. A negative errno on failure.
 */
int relay_new(struct loop *loop, int a, int b, void (*ended)(void *arg), void *arg,
              struct relay **ret);
void relay_free(struct relay *r); /* closes both; NULL is fine */
DEFINE_CLEANUP(relay)

/* Accepts the clients of a listening socket while there is room for them; the others wait to be
 * accepted, which costs us nothing. Lives inside its owner. */
struct relay_door {
    struct loop *loop; /* borrowed */
    int fd;            /* owned; -1: it is closed */
    struct loop_io io;
    struct loop_timer pause;
    bool (*room)(void *arg);
    void (*take)(void *arg, int fd); /* a client; the callee's from then on */
    void *arg;
};

/* Takes `fd`, non-blocking, also on failure. The rest of *d is set. A negative errno on failure. */
int relay_door_open(struct relay_door *d, int fd);
void relay_door_close(struct relay_door *d); /* clients that were accepted stay */
