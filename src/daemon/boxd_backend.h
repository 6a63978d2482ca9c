/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The backends of boxd: which there are, in which order, and which privileges they need kept. */

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct backend;
struct choice_candidate;
struct config;
struct err;
struct fetch_launcher;
struct loop;

/* To use the socket of an engine that was asked for by name, boxd may have to be its owner. */
void boxd_backend_ids(const struct config *c, uid_t *uid, gid_t *gid);

/* All borrowed for the life of the object. */
struct boxd_backend_options {
    struct loop *loop;
    const struct config *config;
    const char *tag;
    uid_t uid; /* that boxd will run as */
    gid_t gid;
    bool rootful;
    void (*gone)(void *arg); /* box-priv died, and with it what serves */
    void *gone_arg;
};

/* A backend that a test program, which links boxd's own files, adds under a name of its own. boxd
 * defines none. */
extern const struct choice_candidate boxd_extra_backend __attribute__((weak));

#define BOXD_GROUPS_MAX 4

/* Owned by the object. */
struct boxd_backend {
    struct backend *backend;         /* the choice among them */
    struct fetch_launcher *launcher; /* NULL: jobs are our own children */
    gid_t groups[BOXD_GROUPS_MAX];   /* of the engines' sockets: to keep when privileges go */
    size_t n_groups;
    char fetch_program[PATH_MAX]; /* box-fetch */
};

/* While privileges are still there. With several backends to choose from, native is tried right
 * here, before any client is served: where it works, no right to use an engine is kept, unless an
 * earlier daemon left sessions there. */
int boxd_backend_new(const struct boxd_backend_options *options, struct boxd_backend **ret,
                     struct err *err);
void boxd_backend_free(struct boxd_backend *seen, bool detach); /* NULL is fine */
