/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Host directories under other ids, for container engines. An engine takes only names and maps no
 * ids. So box-priv makes an id-mapped mount of the directory, beneath the allow-list and by
 * descriptor, and puts it where the engine finds it: in the engine's own mount namespace, below
 * PRIV_BINDS in the state directory, in a tmpfs that only root can enter. The container gets a copy
 * of that mount, so it is taken away as soon as the container runs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct launch_host;
struct priv_bind;

#define PRIV_BINDS "binds"
/* A directory in the tmpfs, and a file below it: who does not see the tmpfs cannot make what is
 * missing there, as Podman would. */
#define PRIV_BINDS_INSIDE PRIV_BINDS "/in"

struct priv_binds {
    const char *state;  /* path of the state directory; borrowed */
    const char *engine; /* path of the engine's socket; borrowed; NULL: there is none */
    int ns_fd;          /* owned; mount namespace where binds are, -1: there are none */
    struct {
        uint32_t uid, gid, seen, flags; /* on disk, and to the container */
        int fd;                         /* owned; -1: none */
    } map;                              /* the last: a container's directories mostly share one */
};

/* Removes what an earlier box-priv left there, if the engine can be reached. */
void priv_binds_init(struct priv_binds *b, const struct launch_host *h, const char *state,
                     const char *engine);
void priv_binds_done(struct priv_binds *b, const struct launch_host *h); /* removes them all */

/* *ret_fd: what was mounted (O_PATH), as it is seen there; -1 when it was only to be looked at.
 * ERR_UNSUPPORTED: kernel, file system or engine cannot do that; the message says which. */
int priv_bind_make(struct priv_binds *b, const struct launch_host *h, const struct priv_bind *m,
                   size_t len, int *ret_fd, struct err *err);
void priv_bind_remove(struct priv_binds *b, const struct launch_host *h, const char *name);
