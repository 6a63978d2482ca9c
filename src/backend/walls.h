/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a receipt says of the walls that a session does not have although a native one has them. */

#include <stdbool.h>

struct jw;

struct walls {
    const char *posture;    /* what the witness inside has told */
    bool gvisor;            /* its kernel is gVisor's */
    bool root;              /* programs have the id 0 */
    bool writable_dev;      /* the engine cannot be asked for a read-only /dev */
    const char *ids_shared; /* why its ids are not the session's alone; NULL: they are */
};

/* The members "namespaces", but on gVisor, and "weaker_than_native": a list of walls with reasons.
 */
void walls_write(struct jw *w, const struct walls *facts);
