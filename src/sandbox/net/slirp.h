/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Network "on" without root: a helper program of the host (slirp4netns, else pasta) holds the other
 * end of the session's interface and makes its connections as an ordinary user. Called by box-priv
 * in its own user namespace, which is above the session's.
 *
 * The rules stand inside the session's namespace, where its processes, without capabilities, cannot
 * touch them: no internal ranges (base/ipnet.h), no address that the host has at this time (one
 * that it gets later is not covered), no mail ports. The host's loopback is closed in the helper as
 * well. IPv4 only. There are no caps on connections: they count against the user's own limits.
 *
 * DNS: net_dns_open(). */

#include "sandbox/host/hostcmd.h"
#include "sandbox/net/net.h"

struct err;

struct slirp {
    struct hostcmd proc;
    int exit_fd; /* owned; the helper ends when it is closed, also by our death */
    enum net_kind kind;
};
#define SLIRP_NONE ((struct slirp){.proc = {.pidfd = -1}, .exit_fd = -1})

/* `helper` is "slirp4netns" or "pasta", or NULL for the better one that is installed. */

/* Loads the rules, then starts the helper and waits until the interface is up. `userns_fd`: of the
 * session's user namespace, -1 when it is the caller's own. ERR_UNSUPPORTED names what is missing.
 * Leaves no process on failure. */
int slirp_start(const char *helper, int netns_fd, int userns_fd, struct slirp *ret,
                struct err *err);

/* Ends the helper, which also lets go of the namespace. Fine on SLIRP_NONE and on a stopped one. */
void slirp_stop(struct slirp *s);

/* The same without waiting for its end, in which the kernel takes some 20 ms to remove the
 * interface: for an owner who reaps children as they come. */
void slirp_drop(struct slirp *s);

/* Whether this host can do it: a helper is installed and /dev/net/tun may be opened. */
int slirp_probe(const char *helper, struct err *err);
