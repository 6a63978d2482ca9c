/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Letters and digits of every script, as ascending ranges of code points. */

#include <stddef.h>
#include <stdint.h>

struct alnum_range {
    uint32_t first, last;
};

extern const struct alnum_range alnum_ranges[];
extern const size_t alnum_n_ranges;
