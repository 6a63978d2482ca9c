/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Time, injectable. Timeouts use CLOCK_MONOTONIC, ages of sessions CLOCK_BOOTTIME, and the wall
 * clock is only ever shown to people. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define NSEC_PER_SEC 1000000000ULL
#define NSEC_PER_MSEC 1000000ULL

struct clock {
    uint64_t (*monotonic_ns)(void *arg);
    uint64_t (*boottime_ns)(void *arg);
    uint64_t (*realtime_ns)(void *arg);
    void *arg;
};

extern const struct clock clock_system;

uint64_t clock_mono(const struct clock *c);
uint64_t clock_boot(const struct clock *c);
uint64_t clock_real(const struct clock *c);

/* RFC 3339 in UTC with microseconds: 2026-11-15T08:32:43.000123+00:00. */
void clock_format(uint64_t realtime_ns, char *ret, size_t size);
/* As HTTP headers have it (RFC 9110 5.6.7): Sun, 15 Nov 2026 08:32:43 GMT. False: `t` has no date.
 */
#define CLOCK_HTTP_SIZE 64
bool clock_format_http(time_t t, char ret[static CLOCK_HTTP_SIZE]);
