/* SPDX-License-Identifier: Apache-2.0 */

/* The doctor's report of the native backend: what this host can and cannot enforce. box-priv tries
 * things out now; the rest it reported when it started. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "backend/common.h"
#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "inside/init_wire.h"
#include "sandbox/setup/gvisor.h"

#define DOCTOR_MAX (64U * 1024U)

struct doctor {
    struct native *n;
    backend_text_fn *done;
    void *arg;
};

static void check_ids(struct jw *w, const struct priv_host *host)
{
    bool as_root = !host->rootful && host->host_uid == 0;
    doctor_check(w, "id-ranges",
                 host->rootful ? "ok"
                 : as_root     ? "missing"
                               : "warn",
                 host->rootful ? "every session has host ids of its own"
                 : as_root     ? "sessions have the id of the host's root, without its capabilities"
                               : "all sessions share the host id of this user",
                 as_root ? "start boxd outside of this user namespace"
                         : "start boxd as root: it then gives every session its own range");
}

static void check_init_id(struct jw *w, const struct priv_host *host)
{
    bool second = host->rootful || host->init_uid != host->host_uid;
    doctor_check(
        w, "init-id", second ? "ok" : "warn",
        second ? "PID 1 of a session is out of its programs' reach by its id"
               : "PID 1 of a session has the id of its programs; the system call filter keeps "
                 "them from it",
        "install newuidmap and newgidmap (apt-get install uidmap) and give this user a range in "
        "/etc/subuid and /etc/subgid (usermod --add-subuids, --add-subgids)");
}

static void check_groups(struct jw *w, const struct priv_host *host)
{
    static const char *const ids[] = {"limit-cpu", "limit-memory", "limit-pids"};
    static const char *const modes[] = {
        "no cgroup for us: a timeout ends every process of the session",
        "cgroup v1 for limits, cgroup2 for killing",
        "cgroup v2",
    };
    uint32_t mode = host->cgroup_mode <= INIT_CGROUP_V2 ? host->cgroup_mode : 0;
    bool limits =
        host->enforced[CGROUP_CPU] || host->enforced[CGROUP_MEMORY] || host->enforced[CGROUP_PIDS];
    doctor_check(w, "kill", mode != INIT_CGROUP_NONE ? "ok" : "warn",
                 mode == INIT_CGROUP_HYBRID && !limits ? "cgroup2 for killing, without controllers"
                                                       : modes[mode],
                 "start boxd as root, or as a systemd user service with Delegate=yes");
    for (int i = 0; i < CGROUP_CONTROLLERS; i++)
        doctor_check(
            w, ids[i], host->enforced[i] ? "ok" : "missing",
            host->enforced[i] ? "enforced by cgroup" : host->why[i],
            "start boxd as root, or delegate the controller: systemd-run --user -p Delegate=yes "
            "boxd");
}

/* What differs from sessions on the host's own kernel. */
static void check_gvisor(struct jw *w, const struct native *n)
{
    char text[320];
    (void)snprintf(text, sizeof(text),
                   "gVisor %.60s (%.120s), inside the walls of a native session; its own filter is "
                   "around its kernel, ours around every command inside",
                   n->options.runsc_version, n->options.runsc_program);
    doctor_check(w, "runsc", "ok", text, NULL);
    (void)snprintf(text, sizeof(text),
                   "the host's memory limit of a session has %llu MiB for gVisor itself; a command "
                   "that takes more than its own is ended, but one that is too quick for that ends "
                   "the session",
                   GVISOR_MEMORY_RESERVE >> 20);
    doctor_check(w, "gvisor-limits", "warn", text,
                 "use the native backend, where that matters more than a kernel of its own");
}

static void check_kernel(struct jw *w, const struct priv_host *host, bool gvisor)
{
    char text[80], value[32] = "";
    struct utsname u;
    (void)uname(&u);
    (void)snprintf(text, sizeof(text), "Linux %.60s", u.release);
    doctor_check(w, "kernel", "ok", text, NULL);
    if (gvisor)
        return;
    (void)snprintf(text, sizeof(text), "ABI %u", host->landlock_abi);
    doctor_check(w, "landlock", host->landlock_abi > 0 ? "ok" : "warn",
                 host->landlock_abi > 0 ? text : "not in this kernel, or not switched on",
                 "boot with lsm=landlock,… ; it is a second wall, sessions run without it");
    doctor_check(w, "seccomp", "ok", "filter compiled and loaded for every command", NULL);
    if (fd_read_file_at(AT_FDCWD, "/proc/sys/kernel/core_pattern", value, sizeof(value)) > 0 &&
        value[0] == '|')
        doctor_check(
            w, "core-pattern", "warn",
            "the host pipes core dumps to a program; sessions get a core limit of 1, which "
            "stops that",
            "sysctl kernel.core_pattern=core");
}

static void check_network(struct jw *w, const struct priv_host *host,
                          const struct priv_probe *probe)
{
    char forward[8] = "";
    (void)fd_read_file_at(AT_FDCWD, "/proc/sys/net/ipv4/ip_forward", forward, sizeof(forward));
    const char *detail = !host->rootful ? "own namespace, user-mode, private ranges refused"
                         : forward[0] == '0'
                             ? "own namespace, NAT, private ranges refused; the first session with "
                               "a network turns on net.ipv4.ip_forward"
                             : "own namespace, NAT, private ranges refused";
    doctor_check(w, "network", probe->network.ok ? "ok" : "missing",
                 probe->network.ok ? detail : probe->network.why,
                 host->rootful
                     ? "start boxd as root with nftables (apt-get install nftables)"
                     : "apt-get install slirp4netns nftables, and /dev/net/tun open to users "
                       "(chmod 666 /dev/net/tun); or start boxd as root");
}

static void write_doctor(struct jw *w, const struct native *n, const struct priv_probe *probe)
{
    const struct priv_host *host = priv_client_host(n->priv);
    jw_object(w);
    jw_kstr(w, "version", BOX_VERSION);
    jw_kstr(w, "backend", n->facts.gvisor ? "runsc" : "native");
    jw_kbool(w, "rootful", host->rootful);
    jw_key(w, "checks");
    jw_array(w);
    if (n->facts.gvisor)
        check_gvisor(w, n);
    check_kernel(w, host, n->facts.gvisor);
    check_ids(w, host);
    if (!n->facts.gvisor)
        check_init_id(w, host);
    check_groups(w, host);
    doctor_check(w, "idmapped-mounts",
                 probe->idmap.ok ? "ok"
                 : host->rootful ? "missing"
                                 : "warn",
                 probe->idmap.ok ? "host directories keep their owners" : probe->idmap.why,
                 "keep the state directory on ext4, xfs, btrfs or tmpfs, on Linux 5.19 or newer");
    doctor_check(w, "disk-quota", probe->quota.ok ? "ok" : "missing",
                 probe->quota.ok ? "hard, by an image per session" : probe->quota.why,
                 "start boxd as root with loop devices and e2fsprogs (apt-get install e2fsprogs)");
    check_network(w, host, probe);
    jw_array_end(w);
    jw_object_end(w);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): others take the descriptors out of it. */
static void on_probed(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct doctor *d = arg;
    struct err err = {0};
    struct buf out;
    struct jw w;
    buf_init(&out, DOCTOR_MAX);
    jw_init(&w, &out);
    if (reply == NULL || reply->result < 0) {
        (void)err_set(&err, ERR_BACKEND, "box-priv cannot probe the host: %s",
                      reply != NULL ? reply->err.msg : "it has gone away");
    } else {
        struct priv_probe probe = reply->probe;
        probe.quota.why[sizeof(probe.quota.why) - 1] = '\0';
        probe.network.why[sizeof(probe.network.why) - 1] = '\0';
        probe.idmap.why[sizeof(probe.idmap.why) - 1] = '\0';
        write_doctor(&w, d->n, &probe);
        if (jw_end(&w) < 0)
            (void)err_set(&err, ERR_LIMIT, "the report is too large");
    }
    d->done(d->arg, out.data, out.len, err.code != ERR_NONE ? &err : NULL);
    buf_done(&out);
    free(d);
}

int native_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err)
{
    struct doctor *d = xnew(struct doctor);
    d->n = container_of(b, struct native, base);
    d->done = done;
    d->arg = arg;
    int r = priv_client_probe(d->n->priv, on_probed, d, err);
    if (r < 0)
        free(d);
    return r;
}
