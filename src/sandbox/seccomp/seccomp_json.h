/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Writes the system call policy as a profile that container engines read. */

#include "sandbox/seccomp/seccomp.h"

struct buf;

/* The policy as container engines read it: a seccomp profile in the JSON of Docker, Podman and
 * their runtimes, for the architecture of this machine. Never wider than the table: what its
 * conditions cannot say exactly is cut into parts that they can. Only rows marked `inside` are:
 * "any number but 1" has 32 such parts, too many for a dozen calls, and box-guest puts the table
 * itself in front of every program. A call that is not allowed answers EPERM or ENOSYS, whichever
 * the runtime gives; the exact answers are those of seccomp_compile().
 */
int seccomp_json(enum seccomp_profile profile, struct buf *ret, struct err *err);
