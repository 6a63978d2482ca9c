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

/* The text comes in pieces and need not fit memory. */
struct truncator;
struct truncator *truncator_new(int64_t limit); /* 0 or below leaves nothing */
void truncator_free(struct truncator *t);
DEFINE_CLEANUP(truncator)
void truncator_feed(struct truncator *t, const char *data, size_t len);
/* Once, at the end: appends the text, or what stands for it, never more than the limit. *ret_cut
 * tells whether anything is missing. 0 or -ENOBUFS (out is then as before). */
int truncator_finish(struct truncator *t, struct buf *out, bool *ret_cut);
