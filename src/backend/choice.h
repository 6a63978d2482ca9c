/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One backend out of several: the first, in the order given, that has proven itself by doing. To
 * prove itself a backend makes a sandbox, runs a process in it and removes it.
 *
 * New sandboxes come from the one that serves. A sandbox belongs to the backend that made it for
 * its whole life: sandboxes are handed out as they are, their operations are those of their own
 * backend, and after a restart the record's backend adopts them, whichever serves by then.
 *
 * Where nothing has proven itself, every creation fails with ERR_UNAVAILABLE, and all are tried
 * again: in the background, less and less often, and when a sandbox is asked for. Calls that come
 * while they are being tried wait for the result. With one backend only there is nothing to
 * choose: it is asked at once, whatever is known of it. */

#include <stddef.h>

struct backend;
struct err;
struct loop;

#define CHOICE_MAX 4

struct choice_candidate {
    const char *name; /* that of the backend */
    /* Makes the backend; called again, later, where it failed. */
    int (*make)(void *arg, struct loop *loop, const char *name, struct backend **ret,
                struct err *err);
    const char *image; /* what a sandbox that is to prove it is made from */
    /* What is run there, without arguments. NULL: no program, but a process that reports how it is
     * confined; for an image that has none. */
    const char *program;
    const char *remedy; /* what an operator can do when it does not serve */
};

/* All borrowed for the life of the object. */
struct choice_options {
    const struct choice_candidate *candidates;
    size_t n;
    void *arg; /* for make and changed */
    /* What serves now (NULL: nothing, err says why). Optional. */
    void (*changed)(void *arg, const char *name, const struct err *err);
};

struct backend *choice_new(struct loop *loop, const struct choice_options *options);

/* Makes that backend now, while boxd still has the rights to. */
int choice_make(struct backend *b, const char *name, struct err *err);
/* Tries that one alone. Turns the loop until it is known: only before boxd serves. 0:
 * it serves from now on. */
int choice_try_now(struct backend *b, const char *name, struct err *err);
