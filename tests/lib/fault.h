/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The nth call fails. Works, by the linker's --wrap, for calls made from what is linked statically:
 * our libraries and the test itself, with and without sanitizers.
 *
 *     for (long nth = 1; fault_next(FAULT_MALLOC, nth, ENOMEM); nth++)
 *         assert_true(build_something() < 0 || fault_missed());
 *
 * runs the body with the first call failing, then the second, until one run needs fewer calls. */

#include <stdbool.h>
#include <stddef.h>

enum fault_call {
    FAULT_MALLOC, /* malloc, calloc, realloc, reallocarray */
    FAULT_READ,
    FAULT_WRITE,
    FAULT_OPENAT,
    FAULT_FCNTL,
    FAULT_MEMFD,
    FAULT_SENDMSG,
    FAULT_RECVMSG,
    FAULT_EPOLL_WAIT,
    FAULT_CALL_MAX,
};

/* The nth call (from 1) from now on fails once, with errno `error`. Replaces what was set before.
 */
void fault_set(enum fault_call call, long nth, int error);

/* For sweeps: fault_set(), or, when the fault of the round before was not reached, fault_reset()
 * and false. */
bool fault_next(enum fault_call call, long nth, int error);

bool fault_missed(void); /* the fault that was set has not happened (yet) */
void fault_reset(void);  /* nothing fails, nothing is short */

/* read() and write() move at most this many bytes at a time; 0: as many as asked for. */
void fault_short(size_t bytes);

/* For a library that takes its allocator as functions. */
void *fault_malloc(size_t size);
