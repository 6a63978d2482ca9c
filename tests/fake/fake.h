/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Sandboxes that exist in memory only: no process, no file, no feature of the kernel. It is what
 * core and the fronts are tested against, and what a client can be tried on anywhere. Nothing is
 * confined because nothing runs: a command is made of these steps, with ';' between them.
 *
 *     echo TEXT    a line to stdout              sleep MS   by the loop's clock
 *     err TEXT     a line to stderr              exit N     the command ends here
 *     flood BYTES  that much to stdout           kill N     the same, by a signal
 *     cat          stdin to stdout, to its end   die        the whole sandbox ends by itself
 *     env, pwd     what it was given, to stdout  ignore     SIGTERM and the like, from here on
 *
 * With argv there is one step: its words. A managed process that begins with none of these words is
 * a cat, so that any server's command line can be tried; `sh -c` takes steps. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;
struct err;
struct loop;
struct sandbox;

struct fake_options {
    uint64_t create_ns, destroy_ns; /* how long these take; 0: until the loop's next turn */
};

int fake_new(struct loop *loop, const struct fake_options *options, struct backend **ret,
             struct err *err);

/* For tests. The next call of that kind fails with a copy of the error; FAKE_CREATE_LATER and
 * FAKE_DESTROY through their completion. A sandbox is gone after FAKE_DESTROY all the same. */
enum fake_call {
    FAKE_CREATE,
    FAKE_CREATE_LATER,
    FAKE_DESTROY,
    FAKE_EXEC,
    FAKE_PROC_START,
    FAKE_SWEEP,   /* through its completion */
    FAKE_LIST,    /* through its completion */
    FAKE_DISCARD, /* through its completion; what is kept stays */
    FAKE_PAUSE,   /* through its completion */
    FAKE_STORED,  /* through its completion */
    FAKE_UPDATE,  /* through its completion */
    FAKE_CALL_MAX,
};
void fake_fail(struct backend *b, enum fake_call call, const struct err *err);

size_t fake_sandboxes(const struct backend *b); /* that exist, or are being made or ended */
/* What a durable sandbox has on disk is there, under its name. */
bool fake_keeps(const struct backend *b, const char *name);
#define FAKE_STORED_BYTES (3U << 20)             /* that it takes, each */
int64_t fake_memory_mb(const struct backend *b); /* that a sandbox was given last by an update */
size_t fake_creations(const struct backend *b);  /* sandboxes that were asked for, ever */

/* For tests: the daemon has been killed. Sandboxes and their managed processes run on, nobody is
 * told anything, and what nobody adopts is there until a sweep. Execs must have been freed. */
void fake_restart(struct backend *b);
/* After that: one process, or the whole sandbox (number 0), ends before anybody looks. */
void fake_vanish(struct backend *b, const char *sandbox, uint32_t number);
void fake_die(struct sandbox *sb);                                    /* it ends by itself */
uint64_t fake_deadline(const struct backend *b, const char *sandbox); /* as told last */
