/* SPDX-License-Identifier: Apache-2.0 */

/* Namespaces of the session's own that no engine can be asked for: a user namespace that holds the
 * one id of the programs, a clock that starts at zero, and a cgroup namespace where the engine made
 * none. box-guest makes them once and stays outside; every program enters them. The container's
 * profile lets box-guest do that; the filter of programs refuses it to them. */

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "inside/clone.h"
#include "inside/guest/guest.h"

#define START_TIME_FIELD 22

/* One id, to itself. The kernel wants setgroups(2) to be given up first, and CAP_SETFCAP for id 0
 * (since Linux 5.12), so a session whose programs are root has no user namespace. */
static int map_ids(uid_t uid, gid_t gid)
{
    char text[64];
    int r = fd_write_file_at(AT_FDCWD, "/proc/self/setgroups", "deny");
    (void)str_fmt(text, sizeof(text), "%u %u 1\n", uid, uid);
    if (r == 0)
        r = fd_write_file_at(AT_FDCWD, "/proc/self/uid_map", text);
    (void)str_fmt(text, sizeof(text), "%u %u 1\n", gid, gid);
    if (r == 0)
        r = fd_write_file_at(AT_FDCWD, "/proc/self/gid_map", text);
    return r;
}

/* When box-guest, our parent, was started, in seconds since boot. The 22nd field, counted from the
 * name in parentheses, which is the second. */
static long long seconds_at_start(long long now)
{
    char text[512], *at = NULL;
    uint64_t ticks = 0;
    long per_second = sysconf(_SC_CLK_TCK);
    if (fd_read_file_at(AT_FDCWD, "/proc/1/stat", text, sizeof(text)) > 0)
        at = strrchr(text, ')');
    for (int i = 2; at != NULL && i < START_TIME_FIELD; i++)
        at = strchr(at + 1, ' ');
    if (at == NULL || per_second <= 0)
        return now;
    at[1 + strcspn(at + 1, " ")] = '\0';
    return str_to_u64(at + 1, &ticks) < 0 ? now : (long long)ticks / per_second;
}

/* How long the host is up is none of the session's business. The clock begins with box-guest: what
 * started before it would have started, as programs see it, in the far future. */
static int set_clock(void)
{
    char text[128];
    struct timespec mono, boot;
    (void)clock_gettime(CLOCK_MONOTONIC, &mono);
    (void)clock_gettime(CLOCK_BOOTTIME, &boot);
    long long start = seconds_at_start(boot.tv_sec);
    (void)str_fmt(text, sizeof(text), "monotonic -%lld 0\nboottime -%lld 0\n",
                  (long long)mono.tv_sec - (boot.tv_sec - start), start);
    return fd_write_file_at(AT_FDCWD, "/proc/self/timens_offsets", text);
}

static int make_namespace(enum child_ns kind)
{
    uid_t uid = geteuid(); /* of the namespace that is left */
    gid_t gid = getegid();
    if (unshare(child_ns_kinds[kind].flag) < 0)
        return -errno;
    if (kind == CHILD_NS_USER)
        return map_ids(uid, gid);
    return kind == CHILD_NS_TIME ? set_clock() : 0;
}

/* Makes one kind after the other, says how each went, and stays until the parent has taken them. */
static _Noreturn void maker_child(int results, int gate)
{
    int r[CHILD_NS_MAX] = {0};
    char byte;
    /* Or its files in /proc would be root's. No program runs yet that could look into it. */
    (void)prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    for (int i = 0; i < CHILD_NS_MAX; i++)
        r[i] = i > CHILD_NS_USER && r[CHILD_NS_USER] < 0 ? r[CHILD_NS_USER]
                                                         : make_namespace((enum child_ns)i);
    (void)fd_write_all(results, r, sizeof(r));
    (void)!read(gate, &byte, 1);
    child_exit(0);
}

static void take_namespaces(struct guest *g, pid_t pid, const int *made)
{
    char path[64];
    for (int i = 0; i < CHILD_NS_MAX; i++) {
        (void)str_fmt(path, sizeof(path), "/proc/%d/ns/%s", pid, child_ns_kinds[i].own);
        g->within[i] = made[i] < 0 ? made[i] : open(path, O_RDONLY | O_CLOEXEC);
        if (made[i] == 0 && g->within[i] < 0)
            g->within[i] = -errno;
    }
}

/* A security module may let namespaces be made and not be entered. Then commands run without them,
 * and the receipt says so. */
static void try_entering(struct guest *g)
{
    int status = -1;
    pid_t pid = clone_plain();
    if (pid == 0)
        child_exit(child_enter(g->within) < 0);
    if (pid > 0 && waitpid(pid, &status, __WALL) == pid && status == 0)
        return;
    for (int i = 0; i < CHILD_NS_MAX; i++) {
        fd_close_many(&g->within[i], 1);
        g->within[i] = -EPERM;
    }
}

void within_make(struct guest *g)
{
    int results[2] = {-1, -1}, gate[2] = {-1, -1}, made[CHILD_NS_MAX];
    pid_t pid = -1;
    for (int i = 0; i < CHILD_NS_MAX; i++)
        made[i] = -EIO;
    if (!g->gvisor && pipe2(results, O_CLOEXEC) == 0 && pipe2(gate, O_CLOEXEC) == 0)
        pid = clone_plain();
    if (pid == 0) {
        fd_close_many(&gate[1], 1);
        maker_child(results[1], gate[0]);
    }
    fd_close_many(&results[1], 1);
    if (pid > 0 && read(results[0], made, sizeof(made)) != (ssize_t)sizeof(made))
        made[CHILD_NS_USER] = made[CHILD_NS_TIME] = made[CHILD_NS_CGROUP] = -EIO;
    take_namespaces(g, pid, made);
    fd_close_many(results, 2);
    fd_close_many(gate, 2);
    if (pid > 0)
        (void)waitpid(pid, NULL, __WALL);
    if (g->within[CHILD_NS_USER] >= 0)
        try_entering(g);
}
