/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Output for a reader with little room: head and tail stay, a notice in between says how much is
 * missing. Lengths are code points, as Python's len() counts them; each broken part of the text
 * counts as the one U+FFFD that it will be shown as. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct buf;

#define TRUNCATE_LIMIT_DEFAULT 4000 /* code points of each stream */

/* Appends text[0..len), or what stands for it, to `out`: never more than `limit` code points. A
 * limit of 0 or below leaves nothing. *ret_cut tells whether anything is missing. 0 or -ENOBUFS
 * (out is then as before). */
int truncate_text(const char *text, size_t len, int64_t limit, struct buf *out, bool *ret_cut);

/* The same for text that comes in pieces and need not fit memory. */
struct truncator;
struct truncator *truncator_new(int64_t limit);
void truncator_free(struct truncator *t);
DEFINE_CLEANUP(truncator)
void truncator_feed(struct truncator *t, const char *data, size_t len);
/* Once, at the end. */
int truncator_finish(struct truncator *t, struct buf *out, bool *ret_cut);

size_t truncate_count(const char *text, size_t len); /* code points */
