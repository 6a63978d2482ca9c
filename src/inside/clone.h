/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The only place where a process is made by copying this one. Callers are single-threaded. */

#include <stdint.h>
#include <sys/types.h>

/* clone3 with fork semantics. `flags` are CLONE_* bits; `cgroup_fd` >= 0 adds CLONE_INTO_CGROUP;
 * `ret_pidfd`, when not NULL, receives a pidfd. Returns 0 in the child, the pid in the parent, or a
 * negative errno. No allocation. */
pid_t clone_process(uint64_t flags, int cgroup_fd, int *ret_pidfd);

/* Like fork(2), by clone(2): a filter cannot read the flags of clone3(2), and the profile of a
 * container answers that there is no such call. Returns as clone_process() does. */
pid_t clone_plain(void);

/* Leaves a child without running the parent's exit handlers. */
_Noreturn void child_exit(int status);
