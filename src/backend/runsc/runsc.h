/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* gVisor without a container engine: sandboxes as the native backend makes them, whose PID 1 is
 * runsc and whose programs run on gVisor's kernel (sandbox/setup/gvisor.h). What goes on inside
 * goes through box-guest, as in a container of an engine (guest_wire.h). */

#include <stddef.h>

struct backend;
struct err;
struct loop;
struct native_options;

#define RUNSC_VERSION_MAX 64

/* Where runsc is and what it says it is, in buffers of the caller's. ERR_UNAVAILABLE, and what to
 * do, where there is none. */
int runsc_find(const char *path_list, char *ret_path, size_t path_size,
               char ret_version[RUNSC_VERSION_MAX], struct err *err);

/* Like native_new(); the options name runsc and box-guest. */
int runsc_new(struct loop *loop, const struct native_options *options, struct backend **ret,
              struct err *err);

/* The native backend that makes them, for native_launcher_new(). */
struct backend *runsc_outer(const struct backend *b);
