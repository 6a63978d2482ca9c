/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>

static struct {
    enum fault_call call;
    long countdown; /* 0: nothing is set, or it happened */
    int error;
    size_t short_bytes;
} state;

void fault_set(enum fault_call call, long nth, int error)
{
    state.call = call;
    state.countdown = nth;
    state.error = error;
}

bool fault_next(enum fault_call call, long nth, int error)
{
    if (nth > 1 && fault_missed()) {
        fault_reset();
        return false;
    }
    fault_set(call, nth, error);
    return true;
}

bool fault_missed(void)
{
    return state.countdown > 0;
}

void fault_reset(void)
{
    state.countdown = 0;
    state.short_bytes = 0;
}

void fault_short(size_t bytes)
{
    state.short_bytes = bytes;
}

static bool fails(enum fault_call call)
{
    if (state.countdown == 0 || state.call != call)
        return false;
    state.countdown--;
    if (state.countdown > 0)
        return false;
    errno = state.error;
    return true;
}

static size_t shorten(size_t len)
{
    return state.short_bytes > 0 && len > state.short_bytes ? state.short_bytes : len;
}

/* The linker turns name into __wrap_name and __real_name into name. */
#define WRAP(type, name, call, bad, params, args)                                                  \
    type __real_##name params;                                                                     \
    type __wrap_##name params;                                                                     \
    type __wrap_##name params                                                                      \
    {                                                                                              \
        return fails(call) ? (bad) : __real_##name args;                                           \
    }

WRAP(void *, malloc, FAULT_MALLOC, NULL, (size_t size), (size))
WRAP(void *, calloc, FAULT_MALLOC, NULL, (size_t n, size_t size), (n, size))
WRAP(void *, realloc, FAULT_MALLOC, NULL, (void *p, size_t size), (p, size))
WRAP(void *, reallocarray, FAULT_MALLOC, NULL, (void *p, size_t n, size_t size), (p, n, size))
WRAP(ssize_t, read, FAULT_READ, -1, (int fd, void *data, size_t len), (fd, data, shorten(len)))
WRAP(ssize_t, write, FAULT_WRITE, -1, (int fd, const void *data, size_t len),
     (fd, data, shorten(len)))
WRAP(int, memfd_create, FAULT_MEMFD, -1, (const char *name, unsigned flags), (name, flags))
WRAP(ssize_t, sendmsg, FAULT_SENDMSG, -1, (int fd, const struct msghdr *msg, int flags),
     (fd, msg, flags))
WRAP(ssize_t, recvmsg, FAULT_RECVMSG, -1, (int fd, struct msghdr *msg, int flags), (fd, msg, flags))
WRAP(int, epoll_pwait2, FAULT_EPOLL_WAIT, -1,
     (int fd, struct epoll_event *events, int n, const struct timespec *ts, const sigset_t *mask),
     (fd, events, n, ts, mask))

/* Variadic in C, two words in the ABI. */
int __real_openat64(int dirfd, const char *path, int flags, ...);
int __wrap_openat64(int dirfd, const char *path, int flags, ...);
int __wrap_openat64(int dirfd, const char *path, int flags, ...)
{
    va_list ap;

    va_start(ap, flags);
    mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return fails(FAULT_OPENAT) ? -1 : __real_openat64(dirfd, path, flags, mode);
}

int __real_fcntl64(int fd, int op, ...);
int __wrap_fcntl64(int fd, int op, ...);
int __wrap_fcntl64(int fd, int op, ...)
{
    va_list ap;

    va_start(ap, op);
    intptr_t arg = va_arg(ap, intptr_t); /* as libc does itself, whatever was passed */
    va_end(ap);
    return fails(FAULT_FCNTL) ? -1 : __real_fcntl64(fd, op, arg);
}

void *fault_malloc(size_t size)
{
    return __wrap_malloc(size);
}
