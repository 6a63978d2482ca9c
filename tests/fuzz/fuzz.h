/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* What libFuzzer calls, and replay.c in an ordinary build. Always returns 0; a finding is a crash.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
