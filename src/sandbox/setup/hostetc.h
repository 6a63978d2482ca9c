/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The /etc of the host image: copies of what programs need to run, none of what says who lives on
 * this host. */

#include <stdbool.h>

struct err;

/* Makes directory `name` afresh in state_fd and opens it. It is a tmpfs attached there in the
 * caller's mount namespace, or, where mounts of it are to be `idmapped` and the kernel cannot do
 * that with tmpfs, a directory on disk. `resolver` is the name server's address, NULL without a
 * network. */
int hostetc_build(int state_fd, const char *name, const char *resolver, bool idmapped,
                  struct err *err);
