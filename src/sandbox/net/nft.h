/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Packet filter rules by nft(8). The library behind it has a licence that we cannot link. */

struct buf;
struct err;

/* One transaction: all of the script takes effect or nothing does. */
int nft_load(const struct buf *script, struct err *err);

/* Runs `nft` with these arguments (NULL-terminated, without the program itself) and appends what it
 * prints to *out, up to its maximum. 1 when nft says no (no such table or chain), 0 when it went
 * well. */
int nft_query(const char *const args[], struct buf *out, struct err *err);
