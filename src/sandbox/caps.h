/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Capabilities of the calling thread, by raw system calls: usable in a static binary after clone,
 * without allocation or locks. All return 0 or a negative errno and are final: no way leads back.
 */

#include <stdint.h>

/* Gives up everything: ambient, inheritable, permitted, effective and bounding set, the special
 * treatment of uid 0 (securebits, locked), then sets no_new_privs. Call it after the last set*id(),
 * mount and hostname. Idempotent: a thread that is there already needs no capability to succeed.
 * Otherwise it needs CAP_SETPCAP; -EPERM without it, and the caller must not go on. */
int caps_drop_all(void);

/* Reduces the bounding, permitted and effective sets to their intersection with `mask` (1 << CAP_*)
 * and clears the inheritable and ambient ones. The bounding set can only shrink with CAP_SETPCAP;
 * without it, -EPERM unless it is small enough already. */
int caps_keep(uint64_t mask);
