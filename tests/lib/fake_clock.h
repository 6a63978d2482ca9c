/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A clock that stands still until it is told. Hand &fake.clock to whatever takes a struct clock. */

#include "base/clock.h"

struct fake_clock {
    struct clock clock;
    uint64_t mono_ns, boot_ns, real_ns;
};

void fake_clock_init(struct fake_clock *f); /* 1000 s after boot, in the year 2026 */
void fake_clock_advance(struct fake_clock *f, uint64_t ns);
