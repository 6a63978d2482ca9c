/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Capabilities of the calling thread, by raw system calls: usable in a static binary after clone,
 * without allocation or locks. All return 0 or a negative errno and are final: no way leads back.
 */

#include <stdint.h>

/* Locks the securebits: from now on neither being uid 0 nor leaving it changes any capability.
 * Needs CAP_SETPCAP unless it is done already. Call it before a set*id() away from uid 0 whenever
 * something that needs a capability comes after it: without this the kernel clears the permitted
 * set on that very call, and caps_drop_all() can no longer shrink the bounding set. An execve()
 * after this keeps no capability, whatever the uid. */
int caps_lock_securebits(void);

/* Gives up everything: ambient, inheritable, permitted, effective and bounding set, the special
 * treatment of uid 0 (securebits, locked), then sets no_new_privs. Call it after the last set*id(),
 * mount and hostname. Idempotent: a thread that is there already needs no capability to succeed.
 * Otherwise it needs CAP_SETPCAP; -EPERM without it, and the caller must not go on. */
int caps_drop_all(void);

/* 0 when the permitted, effective and inheritable sets are empty; else -EPERM. Changes nothing. */
int caps_are_none(void);

/* Reduces the bounding, permitted and effective sets to their intersection with `mask` (1 << CAP_*)
 * and clears the inheritable and ambient ones. The bounding set can only shrink with CAP_SETPCAP;
 * without it, -EPERM unless it is small enough already. */
int caps_keep(uint64_t mask);

/* caps_keep(), and the rest survives execve() also under another uid than 0: it becomes
 * inheritable and ambient as well. The program must call caps_drop_all() before it starts another.
 * Fails with -EPERM after caps_lock_securebits(). */
int caps_keep_over_exec(uint64_t mask);
