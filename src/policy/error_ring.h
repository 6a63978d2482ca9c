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

struct error_entry {
    uint64_t real_ns;
    const char *type; /* class name of the LangBot wire, static */
    char *message;    /* owned by the ring */
    char *query_id;   /* owned by the ring; "" when there was none */
    char *scope;      /* owned by the ring; whose error it is, "" for the instance itself */
};

struct error_ring *error_ring_new(void);
void error_ring_free(struct error_ring *r);
DEFINE_CLEANUP(error_ring)

/* `query_id` and `scope` may be NULL. */
void error_ring_add(struct error_ring *r, uint64_t real_ns, const struct err *err,
                    const char *query_id, const char *scope);
/* Entries of one scope (NULL: of all), and the i-th of them, oldest first. */
size_t error_ring_count(const struct error_ring *r, const char *scope);
const struct error_entry *error_ring_at(const struct error_ring *r, const char *scope, size_t i);
/* An array of {timestamp, type, message, query_id}, oldest first. */
void error_ring_write_json(const struct error_ring *r, const char *scope, struct jw *w);

/* The class that clients of the LangBot wire know for a code: "BoxValidationError". Never NULL. */
const char *error_class_name(enum err_code code);
