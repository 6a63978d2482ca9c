/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Installs a system call filter in the calling thread. */

struct sock_filter;

/* Installs a compiled filter in the calling thread and all it will ever start, beside those it has:
 * what any of them forbids stays forbidden. no_new_privs must be set already, and the calls that
 * follow must be allowed by the filter. Allocates nothing, touches no lock, returns 0 or a negative
 * errno. */
int seccomp_install(const struct sock_filter *prog, unsigned short n);
