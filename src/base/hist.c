/* SPDX-License-Identifier: Apache-2.0 */

/* The bounds of the ranges of durations, and counting into them. */

#include "base/hist.h"

#include "base/clock.h"

#define MS(x) ((x)*NSEC_PER_MSEC)

const uint64_t hist_bounds[HIST_BOUNDS] = {
    NSEC_PER_MSEC / 2, MS(1),   MS(2),    MS(5),    MS(10),   MS(25),    MS(50),    MS(100),
    MS(250),           MS(500), MS(1000), MS(2500), MS(5000), MS(10000), MS(60000), MS(300000),
};

void hist_add(struct hist *h, uint64_t ns)
{
    unsigned i = 0;
    while (i < HIST_BOUNDS && ns > hist_bounds[i])
        i++;
    h->buckets[i]++;
    h->sum_ns += ns;
}

uint64_t hist_count(const struct hist *h)
{
    uint64_t n = 0;
    for (unsigned i = 0; i <= HIST_BOUNDS; i++)
        n += h->buckets[i];
    return n;
}
