/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One stored output, as the store and its search see it. */

#include "base/buf.h"
#include "policy/outputs.h"

struct output {
    struct outputs *store;        /* borrowed */
    struct output *older, *newer; /* by last use */
    char id[OUTPUT_ID_SIZE];
    char *owner;         /* owned */
    struct share *payer; /* held; NULL: nobody */
    struct buf memory;   /* while it is small */
    int fd;              /* owned while it is open and large; -1 */
    bool spooled;
    bool open;
    bool stopped;  /* something was left out: nothing that follows is kept */
    unsigned pins; /* searches under way */
    uint64_t produced, kept;
};

/* NULL: not found, with err filled. Moves it to the newest. */
struct output *outputs_find(struct outputs *o, const struct output_ref *ref, struct err *err);
ssize_t output_pread(struct output *out, uint64_t offset, void *data, size_t size);
void output_pin(struct output *out);
void output_unpin(struct output *out);
