/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The /etc of the host image: copies of what programs need to run, none of what says who lives on
 * this host. */

#include <stdbool.h>

struct err;

/* Makes directory `name` afresh in state_fd and opens it. `resolver` is the name server's address,
 * NULL without a network. */
int hostetc_build(int state_fd, const char *name, const char *resolver, struct err *err);
