/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* How boxd starts a job of box-fetch. Two ways: as a child of its own, with its own rights, or by
 * box-priv, as the owner of the directory. Neither opens anything outside the allow-list. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/cleanup.h"

struct err;
struct loop;

/* A running job. The descriptors are owned by the owner of the struct. */
struct fetch_process {
    int pidfd;
    int in_fd, out_fd; /* our ends of its standard input and output; not blocking */
};

#define FETCH_PROCESS_NONE ((struct fetch_process){-1, -1, -1})
void fetch_process_done(struct fetch_process *p); /* closes; does not kill */
/* Kills, as far as we may, and reaps a child of our own. */
void fetch_process_kill(const struct fetch_process *p);

struct fetch_start {
    const char *dir;  /* absolute and clean: the directory that the job may see */
    bool create;      /* make it where it is missing, with the owner of the one above */
    unsigned seconds; /* then it is killed */
    bool bound;       /* the directory has to belong to `uid` */
    uid_t uid;
    /* A directory that it may read, and a file that it may; as `dir`. NULL: neither. */
    const char *source, *manifest;
};

/* Called once, from the loop. The process is the callee's to take; NULL: err says why not. */
typedef void fetch_started_fn(void *arg, struct fetch_process *p, const struct err *err);

struct fetch_launcher {
    /* ERR_DENIED outside of the allow-list, ERR_NOT_FOUND when it is not there and may not be made;
     * either here or in `fn`. */
    int (*start)(struct fetch_launcher *l, const struct fetch_start *s, fetch_started_fn *fn,
                 void *arg, struct err *err);
    void (*free)(struct fetch_launcher *l);
};

void fetch_launcher_free(struct fetch_launcher *l); /* NULL is fine */
DEFINE_CLEANUP(fetch_launcher)

struct fetch_roots {
    char *const *paths; /* allow-list, real paths, NULL-terminated; borrowed */
    bool outer;         /* only what lies below them, not they themselves */
};

/* Jobs as our own children. `program` is box-fetch, borrowed for the launcher's life. */
struct fetch_launcher *fetch_launcher_direct(struct loop *loop, const char *program,
                                             const struct fetch_roots *roots);

/* One more directory, for good. */
void fetch_launcher_direct_add(struct fetch_launcher *l, const char *path);

/* Which entry of the allow-list covers a path, the longest, and what is left of the path below
 * it. ERR_DENIED: none does. */
int fetch_find_root(const struct fetch_roots *roots, const char *path, size_t *ret,
                    const char **ret_rest, struct err *err);
