/* SPDX-License-Identifier: Apache-2.0 */

/* Which walls of a native session another session lacks, and why, as its receipt tells it. */

#include "backend/walls.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#include "backend/common.h"
#include "base/json.h"
#include "base/str.h"

/* include/linux/proc_ns.h: the first namespaces of a machine have fixed numbers. */
#define FIRST_IPC 0xefffffffU
#define FIRST_UTS 0xeffffffeU
#define FIRST_USER 0xeffffffdU
#define FIRST_PID 0xeffffffcU
#define FIRST_CGROUP 0xeffffffbU
#define FIRST_TIME 0xeffffffaU
#define UNKNOWN_NUMBER 0U

static const struct {
    const char *name, *wall;
    uint64_t first;
} kinds[] = {
    {"user", "user-namespace", FIRST_USER},       {"mnt", "mnt-namespace", UNKNOWN_NUMBER},
    {"pid", "pid-namespace", FIRST_PID},          {"net", "net-namespace", UNKNOWN_NUMBER},
    {"ipc", "ipc-namespace", FIRST_IPC},          {"uts", "uts-namespace", FIRST_UTS},
    {"cgroup", "cgroup-namespace", FIRST_CGROUP}, {"time", "time-namespace", FIRST_TIME},
};

/* In which boxd is, 0: it does not know. With an engine on another machine, or when boxd is in a
 * container itself, the fixed numbers tell. */
static uint64_t number_here(const char *name)
{
    char path[64];
    struct stat st;
    (void)snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
    return stat(path, &st) < 0 ? 0 : st.st_ino;
}

/* A number that the witness has told by that name, 0: it has not. */
static uint64_t told(const struct walls *f, const char *lead, const char *name)
{
    char field[32], value[32];
    uint64_t number = 0;
    (void)snprintf(field, sizeof(field), "%s%s", lead, name);
    backend_status_field(f->posture, field, value, sizeof(value));
    return str_to_u64(value, &number) < 0 ? 0 : number;
}

static bool is_shared(const struct walls *f, size_t i)
{
    uint64_t number = told(f, "Ns-", kinds[i].name);
    return number != 0 && (number == number_here(kinds[i].name) || number == kinds[i].first);
}

static const char *why_shared(const struct walls *f, size_t i)
{
    switch (told(f, "Ns-errno-", kinds[i].name)) {
    case 0:
        return "the engine did not make it";
    case EPERM:
    case EACCES:
        if (f->root)
            return "programs are root, and the kernel lets no process without privileges make a "
                   "user namespace that holds root";
        return "the host lets processes without privileges make none (AppArmor, SELinux, "
               "kernel.unprivileged_userns_clone)";
    case ENOSPC:
    case EUSERS:
        return "the host's limit of them is reached (user.max_user_namespaces and its like)";
    case EINVAL:
    case ENOSYS:
        return "the kernel does not have it";
    default:
        return "box-guest could not make it";
    }
}

static void put(struct jw *w, const char *wall, const char *reason)
{
    jw_object(w);
    jw_kstr(w, "wall", wall);
    jw_kstr(w, "reason", reason);
    jw_object_end(w);
}

struct gap {
    const char *wall, *reason;
};

static void put_all(struct jw *w, const struct gap *gaps, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put(w, gaps[i].wall, gaps[i].reason);
}

/* docs/how-to/engines.md has the checks that show them. */
static const struct gap of_containers[] = {
    {"landlock", "box-guest uses none: it does not know which places an image's programs need"},
    {"second-refusal-of-namespaces",
     "the filter refuses them; the setting that would do so again is read-only in containers"},
    {"no-control-groups", "the engine shows the session its own group, read-only; box-guest reads "
                          "there what the kernel killed for memory"},
    {"mount-flags", "engines mount /dev without nodev; no program can make a device there"},
    {"mount-paths", "the mount table shows where the engine and boxd keep their files"},
};

static const struct gap of_gvisor[] = {
    {"landlock", "gVisor has none"},
    {"first-process", "gVisor lets programs read environment and map of box-guest, which has "
                      "their id; they hold nothing"},
    {"priorities", "gVisor takes any nice value and oom_score_adj, and heeds none"},
    {"masks", "/proc and /dev are gVisor's own, and cannot be masked; of the host they tell the "
              "number of processors and the memory"},
    {"mount-flags", "gVisor's mounts do not show nosuid and nodev; programs have no_new_privs, and "
                    "no device of the host is there"},
};

static void put_namespaces(struct jw *w, const struct walls *f)
{
    jw_key(w, "namespaces");
    jw_object(w);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        jw_kstr(w, kinds[i].name,
                is_shared(f, i)                      ? "shared with the host"
                : told(f, "Ns-", kinds[i].name) != 0 ? "private"
                                                     : "unknown");
    jw_object_end(w);
}

static void put_gaps_of_container(struct jw *w, const struct walls *f)
{
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        if (told(f, "Ns-", kinds[i].name) == 0)
            put(w, kinds[i].wall,
                "the session's box-guest does not tell: an earlier version of boxd started it");
        else if (is_shared(f, i))
            put(w, kinds[i].wall, why_shared(f, i));
    }
    if (f->writable_dev)
        put(w, "read-only-dev",
            "the engine's API takes no list of read-only paths; /dev is root's");
    put_all(w, of_containers, ARRAY_SIZE(of_containers));
}

void walls_write(struct jw *w, const struct walls *f)
{
    if (!f->gvisor)
        put_namespaces(w, f);
    jw_key(w, "weaker_than_native");
    jw_array(w);
    if (f->ids_shared != NULL)
        put(w, "private-ids", f->ids_shared);
    if (f->gvisor)
        put_all(w, of_gvisor, ARRAY_SIZE(of_gvisor));
    else
        put_gaps_of_container(w, f);
    jw_array_end(w);
}
