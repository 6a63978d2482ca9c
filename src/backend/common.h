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

/* Whether something may be mounted there; `reserved`: the backend needs the place itself. */
int backend_check_target(const char *target, bool reserved, struct err *err);
/* A source without its trailing slashes, in place. ERR_INVALID for one that is not clean. */
int backend_clean_source(char *source, struct err *err);

/* ERR_DENIED for a backend that cannot find out what the caller's user could open. */
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

/* Calls `done` from the loop, with the socket, or where `fd` is -1 with the error, which is copied.
 */
struct loop;
void backend_tell_connected(struct loop *loop, int fd, const struct err *err,
                            backend_connected_fn *done, void *arg);

/* What /proc/PID/status says of a confined process, as an object of a receipt. */
void backend_write_status(struct jw *w, const char *key, const char *status);

/* A limit in a receipt: its value, or why it is not enforced. The object is not closed yet. */
void backend_begin_limit(struct jw *w, const char *key, bool enforced, uint64_t value,
                         const char *why);
void backend_write_limit(struct jw *w, const char *key, bool enforced, uint64_t value,
                         const char *why);

/* How a program ended, as its supervisor tells it. */
struct inside_exited;
void backend_outcome(struct outcome *o, const struct inside_exited *m);

/* What a receipt says of the walls that a session does not have although a native one has them. */
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

/* One row of the doctor's report. The remedy is left out where the status is "ok". */
void doctor_check(struct jw *w, const char *id, const char *status, const char *detail,
                  const char *remedy);
