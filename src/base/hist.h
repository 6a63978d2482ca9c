/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* How long things took: a count per range of durations. Fixed size, no allocation, a handful of
 * comparisons per entry. */

#include <stdint.h>

#define HIST_BOUNDS 16

struct hist {
    uint64_t buckets[HIST_BOUNDS + 1]; /* the last: longer than every bound */
    uint64_t sum_ns;
};

/* The longest duration of each bucket, in nanoseconds, ascending: 0.5 ms to 5 minutes. */
extern const uint64_t hist_bounds[HIST_BOUNDS];

void hist_add(struct hist *h, uint64_t ns);
uint64_t hist_count(const struct hist *h);
