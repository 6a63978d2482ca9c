/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The last errors, for people who ask what went wrong: in memory, bounded, oldest first out. */

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/err.h"

struct error_ring;
struct jw;

#define ERROR_RING_MAX 50
#define ERROR_RING_QUERY_MAX 256 /* bytes; the rest is cut at a character */

struct error_ring *error_ring_new(void);
void error_ring_free(struct error_ring *r);
DEFINE_CLEANUP(error_ring)

/* `query_id` and `scope` may be NULL. */
void error_ring_add(struct error_ring *r, uint64_t real_ns, const struct err *err,
                    const char *query_id, const char *scope);
/* Entries of one scope (NULL: of all). */
size_t error_ring_count(const struct error_ring *r, const char *scope);
/* An array of {timestamp, type, message, query_id}, oldest first. */
void error_ring_write_json(const struct error_ring *r, const char *scope, struct jw *w);

/* The class that clients of the LangBot wire know for a code: "BoxValidationError". Never NULL. */
const char *error_class_name(enum err_code code);
