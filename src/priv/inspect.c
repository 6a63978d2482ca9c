/* SPDX-License-Identifier: Apache-2.0 */

/* What box-priv can tell: about one sandbox, and about this host. */

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "priv/server_internal.h"
#include "sandbox/quota/loopimg.h"
#include "sandbox/setup/gvisor.h"
#include "sandbox/setup/mount.h"
#include "sandbox/setup/userns.h"

static void read_namespaces(pid_t pid, uint64_t *ret)
{
    /* Of time what the children are in: before Linux 6.2 whoever makes one is not itself in it. */
    static const char *const names[PRIV_NS_MAX] = {"user", "mnt", "pid",    "net",
                                                   "ipc",  "uts", "cgroup", "time_for_children"};
    for (int i = 0; i < PRIV_NS_MAX; i++) {
        char path[64];
        struct stat st;
        (void)snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, names[i]);
        ret[i] = stat(path, &st) == 0 ? st.st_ino : 0;
    }
}

static void read_disk(const struct launch *l, struct priv_inspect *out)
{
    struct loopimg_usage usage = {0};
    struct err ignored = {0};
    if (l->disk_fd < 0 || loopimg_usage(l->disk_fd, &usage, &ignored) < 0)
        return;
    out->disk_total = usage.bytes_total;
    out->disk_used = usage.bytes_used;
    out->inodes_total = usage.inodes_total;
    out->inodes_used = usage.inodes_used;
}

/* Read back like everything else: what stands at /usr in there. */
static bool has_own_view(pid_t pid, bool gvisor)
{
    char path[64];
    struct statfs fs;
    (void)snprintf(path, sizeof(path), "/proc/%d/root%s/usr", pid, gvisor ? GVISOR_ROOTFS : "");
    AUTO_CLOSE int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 && fstatfs(fd, &fs) == 0 && fs.f_type == OVERLAYFS_SUPER_MAGIC;
}

int priv_on_inspect(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_session *s = priv_by_request(p, data, len, err);
    char path[64];
    if (s == NULL)
        return -ENOENT;
    struct priv_reply reply = {.head = {PRIV_INSPECT, ((const struct priv_name *)data)->head.id}};
    struct priv_inspect *out = &reply.inspect;
    struct cgroup groups;
    cgroup_open(&p->host->cgroups, s->launch.name, &groups);
    cgroup_read(&p->host->cgroups, &groups, &out->cgroup);
    cgroup_close(&groups);
    read_disk(&s->launch, out);
    out->pid = (uint32_t)s->launch.pid;
    out->own_view = has_own_view(s->launch.pid, (s->launch.flags & PLAN_GVISOR) != 0);
    out->payload_uid =
        p->host->rootful ? userns_payload_id(s->launch.uid_index) : p->host->host_uid;
    read_namespaces(s->launch.pid, out->ns);
    read_namespaces(getpid(), out->host_ns);
    out->host_uid = UINT32_MAX;
    (void)snprintf(path, sizeof(path), "/proc/%d/status", s->launch.pid);
    (void)fd_read_file_at(AT_FDCWD, path, out->status, sizeof(out->status));
    const char *uid = strstr(out->status, "\nUid:\t");
    if (!p->host->rootful) {
        /* The kernel tells us numbers of our own namespace. */
        out->host_uid = s->launch.flags & PLAN_GVISOR ? p->host->host_uid : p->host->init_uid;
    } else if (uid != NULL) {
        char digits[16] = "";
        size_t n = strspn(uid + 6, "0123456789");
        uint64_t value = 0;
        if (n < sizeof(digits)) {
            memcpy(digits, uid + 6, n);
            if (str_to_u64(digits, &value) == 0)
                out->host_uid = (uint32_t)value;
        }
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/uid_map", s->launch.pid);
    (void)fd_read_file_at(AT_FDCWD, path, out->uid_map, sizeof(out->uid_map));
    priv_answer(p, &reply, NULL, 0);
    return 0;
}

static int probe_quota(const struct launch_host *h, struct err *err)
{
    if (!h->rootful)
        return err_set(err, ERR_UNSUPPORTED, "an ordinary user cannot mount an image");
    AUTO_CLOSE int templates = loopimg_templates(h->state_fd, err);
    return templates < 0 ? templates : loopimg_probe(h->trash_fd, templates, err);
}

/* Whether the file system that holds our state can show its files under other ids. */
static int probe_idmap(const struct launch_host *h, struct err *err)
{
    struct idmap_key key = {.index = 0, .uid = h->daemon_uid, .gid = h->daemon_gid};
    if (!h->rootful)
        return err_set(err, ERR_UNSUPPORTED, "boxd was not started by root");
    AUTO_DONE(idmaps) struct idmaps maps = {0};
    int map = idmaps_get(&maps, &key, err);
    AUTO_CLOSE int copy = map < 0 ? -1 : mount_clone(h->sessions_fd, 0);
    if (copy < 0)
        return map < 0 ? map : err_sys(err, -copy, "copy a mount");
    int r = mount_set(copy, 0, map, 0);
    return r < 0 ? err_sys(err, -r, "map the ids of a mount") : 0;
}

/* Costs a requester nothing but our time: everything it makes is ours and gone when it returns. */
int priv_on_probe(struct priv *p, const void *data, size_t len, struct err *err)
{
    struct priv_reply reply = {.head = *(const struct priv_head *)data};
    struct {
        int (*run)(const struct launch_host *h, struct err *err);
        uint32_t *ok;
        char *why;
    } probes[] = {{probe_quota, &reply.probe.quota.ok, reply.probe.quota.why},
                  {launch_net_probe, &reply.probe.network.ok, reply.probe.network.why},
                  {probe_idmap, &reply.probe.idmap.ok, reply.probe.idmap.why}};
    if (len != sizeof(struct priv_head))
        return err_set(err, ERR_INVALID, "malformed request");
    for (size_t i = 0; i < ARRAY_SIZE(probes); i++) {
        struct err why = {0};
        *probes[i].ok = probes[i].run(p->host, &why) >= 0;
        (void)snprintf(probes[i].why, sizeof(reply.probe.quota.why), "%.199s", why.msg);
    }
    priv_answer(p, &reply, NULL, 0);
    return 0;
}
