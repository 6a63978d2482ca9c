/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The only place where a process is made by copying this one. Callers are single-threaded. */

#include <stdint.h>
#include <sys/types.h>

/* clone3 with fork semantics. `flags` are CLONE_* bits; `cgroup_fd` >= 0 adds CLONE_INTO_CGROUP;
 * `ret_pidfd`, when not NULL, receives a pidfd. Returns 0 in the child, the pid in the parent, or a
 * negative errno. No allocation. */
pid_t clone_process(uint64_t flags, int cgroup_fd, int *ret_pidfd);

/* A child without memory and descriptors of its own: it runs `fn` on a stack of its own in ours
 * (which grows down from `stack_end`), and costs little to make and to end. It shares our errno and
 * our heap as well, so `fn` allocates nothing and does nothing that is expected to fail.
 * `ret_pidfd` may be NULL. Returns the pid or a negative errno. */
pid_t clone_shared(uint64_t flags, int (*fn)(void *arg), void *arg, char *stack_end,
                   int *ret_pidfd);

/* Leaves a child without running the parent's exit handlers. */
_Noreturn void child_exit(int status);
