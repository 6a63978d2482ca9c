/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* SHA-256 (FIPS 180-4) of bytes that come in pieces. No allocation, no library: for programs that
 * have given up everything before they meet what they digest. */

#include <stddef.h>
#include <stdint.h>

#define SHA256_HEX 64U /* digits */

struct sha256 {
    uint32_t h[8];
    uint64_t len;
    unsigned char block[64];
};

void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t len);
void sha256_hex(struct sha256 *s, char ret[static SHA256_HEX + 1]); /* nothing can be added then */
