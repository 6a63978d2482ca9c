/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/ahead.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "sandbox/net.h"
#include "util/err.h"
#include "util/fd.h"

#define RETURN_TRIES 1000

void ahead_init(struct ahead *a, bool on)
{
    *a = (struct ahead){.home_fd = -1, .netns_fd = -1};
    if (on)
        a->home_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    a->on = a->home_fd >= 0;
}

void ahead_done(struct ahead *a)
{
    if (!a->on)
        return;
    fd_close_many(&a->home_fd, 1);
    fd_close_many(&a->netns_fd, 1);
    idmaps_done(&a->maps);
    a->on = false;
}

void ahead_leave_netns(const struct ahead *a)
{
    for (int i = 0; i < RETURN_TRIES; i++)
        if (setns(a->home_fd, CLONE_NEWNET) == 0)
            return;
    abort();
}

static void make_netns(struct ahead *a)
{
    if (unshare(CLONE_NEWNET) < 0)
        return;
    if (net_lo_up() == 0)
        a->netns_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    ahead_leave_netns(a);
}

void ahead_refill(struct ahead *a, uint32_t next_index, uid_t daemon_uid, gid_t daemon_gid)
{
    struct err ignored = {0};
    const struct idmap_key key = {
        .index = next_index, .uid = daemon_uid, .gid = daemon_gid, .root_too = true};
    if (!a->on)
        return;
    if (a->netns_fd < 0)
        make_netns(a);
    if (a->maps.n == 0 || a->maps_index != next_index) {
        idmaps_done(&a->maps);
        a->maps_index = next_index;
        (void)idmaps_get(&a->maps, &key, &ignored); /* the session tries again, and tells */
    }
}

void ahead_take_maps(struct ahead *a, uint32_t index, struct idmaps *ret)
{
    if (!a->on || a->maps_index != index)
        return;
    *ret = a->maps;
    a->maps.n = 0;
}

bool ahead_enter_netns(struct ahead *a)
{
    if (!a->on || a->netns_fd < 0)
        return false;
    bool entered = setns(a->netns_fd, CLONE_NEWNET) == 0;
    fd_close_many(&a->netns_fd, 1);
    return entered;
}
