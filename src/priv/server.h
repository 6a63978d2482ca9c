/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The privileged helper: serves one boxd until it goes away, then ends every sandbox it started. */

struct err;
struct launch_host;
struct loop;

/* `sock` is connected to boxd; borrowed, as is the host. Returns when boxd is gone and everything
 * is cleaned up. */
int priv_serve(struct loop *loop, struct launch_host *host, int sock, struct err *err);
