/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Records by namespace of a workspace ("ws-" and 24 hex digits of a hash): a table that grows with
 * what is in it. Entries live inside their owner's record. */

#include <stddef.h>

#define NS_SIZE 28 /* "ws-", 24 hex digits, NUL */

struct nsmap_entry {
    struct nsmap_entry *next;
    char ns[NS_SIZE];
};

/* Zero-initialised it is empty. */
struct nsmap {
    struct nsmap_entry **buckets; /* owned */
    size_t n_buckets, n;
};

struct nsmap_entry *nsmap_find(const struct nsmap *m, const char *ns);  /* NULL: none */
void nsmap_add(struct nsmap *m, struct nsmap_entry *e, const char *ns); /* must not be there yet */
/* Takes any entry out; NULL when none is left. For whoever frees them all. */
struct nsmap_entry *nsmap_take(struct nsmap *m);
/* Walks in no order: NULL starts, NULL ends. Nothing may be added meanwhile. */
struct nsmap_entry *nsmap_next(const struct nsmap *m, const struct nsmap_entry *after);
void nsmap_done(struct nsmap *m); /* must be empty */
