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
 *     env, pwd     what it was given, to stdout
 *
 * With argv there is one step: its words. */

#include <stddef.h>
#include <stdint.h>

struct backend;
struct err;
struct loop;

struct fake_options {
    uint64_t create_ns, destroy_ns; /* how long these take; 0: until the loop's next turn */
};

int fake_new(struct loop *loop, const struct fake_options *options, struct backend **ret,
             struct err *err);

/* For tests. The next call of that kind fails with a copy of the error; FAKE_CREATE_LATER and
 * FAKE_DESTROY through their completion. A sandbox is gone after FAKE_DESTROY all the same. */
enum fake_call { FAKE_CREATE, FAKE_CREATE_LATER, FAKE_DESTROY, FAKE_EXEC, FAKE_CALL_MAX };
void fake_fail(struct backend *b, enum fake_call call, const struct err *err);

size_t fake_sandboxes(const struct backend *b); /* that exist, or are being made or ended */
