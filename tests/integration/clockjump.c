/* SPDX-License-Identifier: Apache-2.0 */

/* Preloaded into boxd and box-priv by a test: the wall clock and the clock since boot are off by
 * what a file says, from one call to the next, while CLOCK_MONOTONIC goes its way. The file holds
 * two numbers of 64 bits, in nanoseconds. */

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offsets;

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("CLOCKJUMP_FILE");
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED)
        offsets = p;
    if (fd >= 0)
        (void)close(fd);
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *tp)
{
    int64_t off = 0;
    if (syscall(SYS_clock_gettime, id, tp) < 0)
        return -1;
    if (offsets != NULL && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        off = offsets[0];
    else if (offsets != NULL && id == CLOCK_BOOTTIME)
        off = offsets[1];
    int64_t ns = (int64_t)tp->tv_sec * 1000000000 + tp->tv_nsec + off;
    tp->tv_sec = ns / 1000000000;
    tp->tv_nsec = ns % 1000000000;
    return 0;
}

__attribute__((visibility("default"))) time_t time(time_t *timer)
{
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_REALTIME, &t);
    if (timer != NULL)
        *timer = t.tv_sec;
    return t.tv_sec;
}

__attribute__((visibility("default"))) int gettimeofday(struct timeval *restrict tv,
                                                        void *restrict tz)
{
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_REALTIME, &t);
    *tv = (struct timeval){.tv_sec = t.tv_sec, .tv_usec = t.tv_nsec / 1000};
    return 0;
}
