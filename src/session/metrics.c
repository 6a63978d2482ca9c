/* SPDX-License-Identifier: Apache-2.0 */

/* Counts events by pairs of names in a small hash table. */

#include "session/metrics.h"

#include <stdint.h>

/* The table is small and never full, so a free cell or the right one is found soon. Names are
 * compared by address: the same text from two tables would be two cells, and is one when read. */
void metrics_count(struct metrics_cells *t, const char *a, const char *b, unsigned n)
{
    uint64_t key = (uint64_t)(uintptr_t)a * 0x9e3779b97f4a7c15ULL;
    key = (key ^ (uint64_t)(uintptr_t)b) * 0x9e3779b97f4a7c15ULL + n * 0x85ebca6bULL;

    for (size_t i = (key >> 32) % METRICS_CELLS;; i = (i + 1) % METRICS_CELLS) {
        struct metrics_cell *c = &t->cells[i];
        if (c->a == a && c->b == b && c->n == n) {
            c->count++;
            return;
        }
        if (c->a != NULL)
            continue;
        if (t->used >= METRICS_CELLS * 3 / 4) {
            t->rest++;
            return;
        }
        *c = (struct metrics_cell){.a = a, .b = b, .n = n, .count = 1};
        t->used++;
        return;
    }
}
