/* SPDX-License-Identifier: Apache-2.0 */

/* Declared states: a table says which state may follow which, and every move is checked against it.
 */

#pragma once

#include <assert.h>

/* Moves the state machine whose state is the lvalue `state`. `moves` is an array that has, for each
 * state, the set of states (bits, 1U << STATE) that may follow it. A move that the table does not
 * allow is a bug of ours: it ends the process, because what follows would run on wrong assumptions.
 */
#define STATE_MOVE(state, moves, to)                                                               \
    do {                                                                                           \
        assert((((moves)[(state)] >> (unsigned)(to)) & 1U) != 0);                                  \
        (state) = (to);                                                                            \
    } while (0)
