/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* SKILL.md: text for a model behind an optional block of YAML between two lines of "---". */

#include <stddef.h>

#include "base/cleanup.h"

struct buf;
struct err;

#define FRONTMATTER_EVENTS_MAX 20000U
#define FRONTMATTER_DEPTH_MAX 64U
#define FRONTMATTER_ANCHORS_MAX 64U

struct frontmatter {
    /* Owned; NULL when absent or false in Python's sense (null, false, 0, empty). */
    char *name, *display_name, *description;
    size_t body; /* where the instructions start in the text */
};

void frontmatter_done(struct frontmatter *fm);
DEFINE_CLEANUP_DONE(frontmatter)

/* Reads what clients of the store expect: three keys of the top mapping, each a scalar, which
 * becomes text as Python's str() would make it. Everything else in the block is only checked. A
 * block that is not a mapping counts as empty. ERR_INVALID for broken YAML, ERR_LIMIT for one with
 * too many or too deep parts; aliases are never expanded. *ret is owned also after a failure. */
int frontmatter_read(const char *text, size_t len, struct frontmatter *ret, struct err *err);

/* The three keys as a block; NULL and blank ones are left out, and without any there is no block.
 * Then the instructions. 0 or -ENOBUFS. */
int frontmatter_write(const struct frontmatter *fm, const char *instructions, size_t len,
                      struct buf *out);
