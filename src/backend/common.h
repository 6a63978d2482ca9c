/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the native backend and the engines decide and tell alike. */

#include <stdbool.h>
#include <stddef.h>

#include "backend/backend.h"

struct err;
struct jw;

/* Allow-lists; borrowed. */
struct backend_roots {
    char *const *paths; /* NULL, or ending with NULL */
    bool outer;         /* the roots themselves are not to be mounted */
    const char *place;  /* directory of the caller's own that may lie in root's home; NULL: none */
};

/* Which of the roots covers a path of the host; the longest wins, so that an entry for one
 * directory decides about it. ERR_DENIED says what to do; some places are refused whatever the
 * roots are. */
int backend_find_root(const struct backend_roots *all, const char *path, size_t *ret,
                      const char **ret_rest, struct err *err);

/* Where nobody can find out what the caller's user could open. ERR_DENIED. */
struct spec;
int backend_refuse_bound(const struct spec *spec, const char *path, struct err *err);

/* Makes what is missing of a place with our own rights; its descriptor, O_PATH. */
struct backend_place;
int backend_make_place(const struct backend_place *want, struct err *err);

/* The same by box-priv. It learns of a root that has a number of box-priv's from then on, before fn
 * is told the path. */
struct priv_client;
struct backend_placer {
    void (*learn)(void *who, uint32_t number, const char *path);
    void *who;
    backend_place_fn *fn;
    void *arg;
};
int backend_place_by_priv(struct priv_client *priv, const struct backend_place *want,
                          const struct backend_placer *who, struct err *err);

/* The value of a line "Name:\tvalue" of a status file; "" without one. */
void backend_status_field(const char *status, const char *name, char *ret, size_t size);

/* What /proc/PID/status says of a confined process, as members of a receipt. */
void backend_write_status(struct jw *w, const char *status);

/* One row of the doctor's report. The remedy is left out where the status is "ok". */
void doctor_check(struct jw *w, const char *id, const char *status, const char *detail,
                  const char *remedy);
