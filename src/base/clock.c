/* SPDX-License-Identifier: Apache-2.0 */

/* The system's clocks, and a time as text in UTC. */

#include "base/clock.h"

#include <assert.h>
#include <stdio.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec ts;
    int r = clock_gettime(id, &ts);

    assert(r == 0);
    return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static uint64_t system_monotonic(void *arg)
{
    return read_clock(CLOCK_MONOTONIC);
}

static uint64_t system_boottime(void *arg)
{
    return read_clock(CLOCK_BOOTTIME);
}

static uint64_t system_realtime(void *arg)
{
    return read_clock(CLOCK_REALTIME);
}

const struct clock clock_system = {
    .monotonic_ns = system_monotonic,
    .boottime_ns = system_boottime,
    .realtime_ns = system_realtime,
};

uint64_t clock_mono(const struct clock *c)
{
    return c->monotonic_ns(c->arg);
}

uint64_t clock_boot(const struct clock *c)
{
    return c->boottime_ns(c->arg);
}

uint64_t clock_real(const struct clock *c)
{
    return c->realtime_ns(c->arg);
}

void clock_format(uint64_t realtime_ns, char *ret, size_t size)
{
    time_t seconds = (time_t)(realtime_ns / NSEC_PER_SEC);
    unsigned micros = (unsigned)(realtime_ns % NSEC_PER_SEC / 1000);
    struct tm tm = {0};

    /* 64 bits of nanoseconds end in the year 2554: gmtime_r() cannot fail. */
    (void)gmtime_r(&seconds, &tm);
    (void)snprintf(ret, size, "%04d-%02d-%02dT%02d:%02d:%02d.%06u+00:00", tm.tm_year + 1900,
                   tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, micros);
}

bool clock_format_http(time_t t, char ret[static CLOCK_HTTP_SIZE])
{
    static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    struct tm tm;

    if (gmtime_r(&t, &tm) == NULL)
        return false;
    return snprintf(ret, CLOCK_HTTP_SIZE, "%s, %02d %s %04d %02d:%02d:%02d GMT", days[tm.tm_wday],
                    tm.tm_mday, months[tm.tm_mon], tm.tm_year + 1900, tm.tm_hour, tm.tm_min,
                    tm.tm_sec) < CLOCK_HTTP_SIZE;
}
