/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/userns.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/clone.h"
#include "util/alloc.h"
#include "util/buf.h"
#include "util/cleanup.h"
#include "util/err.h"
#include "util/fd.h"

#define CACHE_SIZE 1024U

struct idmap_cache {
    struct {
        struct idmap_key key;
        int fd; /* owned, -1: empty */
    } entries[CACHE_SIZE];
};

static int write_map(pid_t pid, const char *file, const struct id_pair *pairs, size_t n)
{
    char path[64];
    AUTO_DONE(buf) struct buf text;
    buf_init(&text, 1024);
    for (size_t i = 0; i < n; i++)
        (void)buf_printf(&text, "%u %u 1\n", pairs[i].inside, pairs[i].outside);
    (void)snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
    return fd_write_file_at(AT_FDCWD, path, buf_str(&text));
}

int userns_map(pid_t pid, const struct id_pair *uids, const struct id_pair *gids, size_t n, struct err *err)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/setgroups", pid);
    int r = fd_write_file_at(AT_FDCWD, path, "deny");
    if (r >= 0)
        r = write_map(pid, "uid_map", uids, n);
    if (r >= 0)
        r = write_map(pid, "gid_map", gids, n);
    return r < 0 ? err_sys(err, -r, "map the session's ids") : 0;
}

/* A namespace lives as long as someone holds it: a child makes it, we open it, the child goes. */
static int make_idmap(const struct idmap_key *key, struct err *err)
{
    char path[64];
    AUTO_CLOSE int pidfd = -1;
    struct id_pair uids[2] = {{key->uid, userns_payload_id(key->index)}, {0, userns_init_id(key->index)}};
    struct id_pair gids[2] = {{key->gid, userns_payload_id(key->index)}, {0, userns_init_id(key->index)}};

    pid_t pid = clone_process(CLONE_NEWUSER, -1, &pidfd);
    if (pid == 0) {
        (void)pause();
        child_exit(0);
    }
    if (pid < 0)
        return err_sys(err, -pid, "user namespace for an id map");
    /* Root has to be left out of either list when the owner is root itself. */
    bool root_too = key->root_too && key->uid != 0 && key->gid != 0;
    int r = userns_map(pid, uids, gids, root_too ? 2 : 1, err);
    int fd = -1;
    if (r == 0) {
        (void)snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            r = err_sys(err, errno, "open the id map's namespace");
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    return r < 0 ? r : fd;
}

int idmap_get(struct idmap_cache *cache, const struct idmap_key *key, struct err *err)
{
    size_t slot = (key->index * 7U + key->uid + key->root_too) % CACHE_SIZE;
    if (cache->entries[slot].fd >= 0 && cache->entries[slot].key.index == key->index &&
        cache->entries[slot].key.uid == key->uid && cache->entries[slot].key.gid == key->gid &&
        cache->entries[slot].key.root_too == key->root_too)
        return cache->entries[slot].fd;
    int fd = make_idmap(key, err);
    if (fd < 0)
        return fd;
    if (cache->entries[slot].fd >= 0)
        (void)close(cache->entries[slot].fd);
    cache->entries[slot].fd = fd;
    cache->entries[slot].key = *key;
    return fd;
}

struct idmap_cache *idmap_cache_new(void)
{
    struct idmap_cache *cache = xnew(struct idmap_cache);
    for (size_t i = 0; i < CACHE_SIZE; i++)
        cache->entries[i].fd = -1;
    return cache;
}

void idmap_cache_free(struct idmap_cache *cache)
{
    if (cache == NULL)
        return;
    for (size_t i = 0; i < CACHE_SIZE; i++)
        if (cache->entries[i].fd >= 0)
            (void)close(cache->entries[i].fd);
    free(cache);
}
