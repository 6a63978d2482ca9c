/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* User namespaces: which ids of the host stand behind the ids inside a sandbox. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"

struct err;

/* A private block of host ids, far above what accounts use. Every session has USERNS_STRIDE of
 * them: the first is PID 1, the second the payload. */
#define USERNS_BLOCK 2000000000U
#define USERNS_STRIDE 16U
#define USERNS_INDEX_MAX 1000000U

static inline uid_t userns_init_id(uint32_t index)
{
    return USERNS_BLOCK + index * USERNS_STRIDE;
}

static inline uid_t userns_payload_id(uint32_t index)
{
    return userns_init_id(index) + 1;
}

/* The numbers inside of the user namespace that box-priv makes for an ordinary user: of the user's
 * own ids, and of those that were added. */
#define SUBIDS_OWN 0U
#define SUBIDS_SECOND 1U

struct id_pair {
    uint32_t inside, outside;
};

/* clone_process() with CLONE_NEWUSER, by root, as if `owner` had called it. Besides the user
 * inside, the kernel charges the creator of a user namespace for what is used there: inotify
 * instances (128 of them, usually), watches, further namespaces. If root were the creator, all
 * sessions and the host's root would share one budget, and any session could use it up. */
pid_t userns_clone_owned(uint64_t flags, uid_t owner, int cgroup_fd, int *ret_pidfd);

/* Writes the maps of a child that was cloned with CLONE_NEWUSER and waits. The pid is our own
 * unreaped child's. */
int userns_map(pid_t pid, const struct id_pair *uids, const struct id_pair *gids, size_t n,
               struct err *err);

/* User namespaces whose only purpose is to be the id map of mounts: on-disk `uid`:`gid` appear as
 * the payload of range `index`; with `root_too`, on-disk root appears as its PID 1; with
 * `init_too`, what PID 1 makes is on disk its own. */
struct idmap_key {
    uint32_t index;
    uid_t uid;
    gid_t gid;
    bool root_too, init_too; /* not both */
};

/* One such namespace of `n` pairs, "inside" being what is on disk and "outside" what is seen. */
int userns_idmap(const struct id_pair *uids, const struct id_pair *gids, size_t n, struct err *err);

/* Those of one launch, whose mounts mostly share one. Zero-initialise n. */
#define IDMAPS_MAX 8
struct idmaps {
    size_t n;
    struct {
        struct idmap_key key;
        int fd; /* owned */
    } maps[IDMAPS_MAX];
};
int idmaps_get(struct idmaps *maps, const struct idmap_key *key,
               struct err *err); /* the descriptor is borrowed */
void idmaps_done(struct idmaps *maps);
DEFINE_CLEANUP_DONE(idmaps)
