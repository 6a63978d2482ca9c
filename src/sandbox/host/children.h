/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Children of box-priv that no code waits for: removers of storage, cleaners of networks, jobs.
 * Each is reaped by its own id: the kernel finds one child by its id at once, but walks over the
 * children of all sessions to find any that has ended. */

#include <sys/types.h>

/* `pid` is a child of ours that has not been waited for; pid <= 0 (the clone failed) is ignored. */
void children_add(pid_t pid);

/* Reaps those of them that have ended. Does not block. */
void children_reap(void);
