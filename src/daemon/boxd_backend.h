/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The backends of boxd: which there are, in which order, and which privileges they need kept. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct backend;
struct boxd_backend;
struct config;
struct err;
struct fetch_launcher;
struct loop;

/* A helper program of ours, into ret[PATH_MAX]. */
int boxd_find_program(const char *name, char *ret, struct err *err);

/* Whoever is to use the socket of an engine that was asked for by name may have to be its owner. */
void boxd_backend_ids(const struct config *c, uid_t *uid, gid_t *gid);

/* All borrowed for the life of the object. */
struct boxd_backend_options {
    struct loop *loop;
    const struct config *config;
    const char *fetch_program, *tag;
    uid_t uid; /* that boxd will run as */
    gid_t gid;
    bool rootful;
    void (*gone)(void *arg); /* box-priv died, and with it what serves */
    void *gone_arg;
};

/* While privileges are still there. With several backends to choose from, native is tried right
 * here, before anybody is served: where it works, no right to use an engine is kept, unless an
 * earlier daemon left sessions there. */
int boxd_backend_new(const struct boxd_backend_options *options, struct boxd_backend **ret,
                     struct err *err);
void boxd_backend_free(struct boxd_backend *b, bool detach); /* NULL is fine */
struct backend *boxd_backend_get(const struct boxd_backend *b);
struct fetch_launcher *boxd_backend_launcher(const struct boxd_backend *b); /* or NULL */
/* What to keep when privileges go: groups of the engines' sockets. */
size_t boxd_backend_groups(const struct boxd_backend *b, const gid_t **ret);
