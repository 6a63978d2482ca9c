/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Bounds the kernel memory of sessions that no cgroup charges: record locks, and answers that wait
 * in netlink sockets. While something runs in a session, boxd reads twenty times a second how much
 * unreclaimable memory the kernel's allocator holds on this host. When that has grown, and every
 * few seconds anyway, box-priv counts both kinds for all sessions, in one process of its own. boxd
 * kills the programs of a session that has more than BACKEND_GREEDY_BYTES of one kind, with the
 * reason. */

#include "base/cleanup.h"

struct kernel_guard;
struct policy_service;

/* `service` is borrowed. */
struct kernel_guard *kernel_guard_new(const struct policy_service *service);
void kernel_guard_free(struct kernel_guard *g); /* before the backend goes */
DEFINE_CLEANUP(kernel_guard)
