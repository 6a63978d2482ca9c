/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/fake_clock.h"

static uint64_t mono(void *arg)
{
    return ((struct fake_clock *)arg)->mono_ns;
}

static uint64_t boot(void *arg)
{
    return ((struct fake_clock *)arg)->boot_ns;
}

static uint64_t real(void *arg)
{
    return ((struct fake_clock *)arg)->real_ns;
}

void fake_clock_init(struct fake_clock *f)
{
    *f = (struct fake_clock){
        .clock = {.monotonic_ns = mono, .boottime_ns = boot, .realtime_ns = real, .arg = f},
        .mono_ns = 1000 * NSEC_PER_SEC,
        .boot_ns = 1000 * NSEC_PER_SEC,
        .real_ns = 1767225600 * NSEC_PER_SEC, /* 2026-01-01T00:00:00Z */
    };
}

void fake_clock_advance(struct fake_clock *f, uint64_t ns)
{
    f->mono_ns += ns;
    f->boot_ns += ns;
    f->real_ns += ns;
}
