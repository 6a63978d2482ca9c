/* SPDX-License-Identifier: Apache-2.0 */

/* The probe calls reboot(2) and its like in the hope of being refused. Where it would not be, it
 * must not start. So it wants to be told the host's mount and pid namespaces, which an accidental
 * run does not, and checks by signs of its own that it is somewhere else. */

#include "probe.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

/* include/linux/proc_ns.h: the initial namespaces have fixed numbers. */
#define INITIAL_PID_NS 0xeffffffcu
#define INITIAL_MNT_NS 0xeffffff8u

static bool refuse(const char *why)
{
    fprintf(stderr, "probe: refused: %s\n", why);
    return false;
}

/* All of the host's uids, and the capability to do harm with them. */
static bool is_real_root(void)
{
    char map[256], caps[64];
    unsigned long first, outer, count;
    char *p = map;

    if (probe_read("/proc/self/uid_map", map, sizeof(map)) < 0)
        return true; /* no idea: assume the worst */
    first = strtoul(p, &p, 10);
    outer = strtoul(p, &p, 10);
    count = strtoul(p, &p, 10);
    if (first != 0 || outer != 0 || count != 0xffffffff)
        return false;
    probe_status("/proc/self/status", "CapEff", caps, sizeof(caps));
    return caps[0] == '\0' || (strtoull(caps, NULL, 16) & UINT64_C(1) << CAP_SYS_ADMIN);
}

/* What its uname(2) says is a constant. It has no /proc/self/ns, and nothing of the host to harm.
 */
static bool is_gvisor(void)
{
    struct utsname uts;

    return uname(&uts) == 0 && strcmp(uts.version, "#1 SMP Sun Jan 10 15:06:54 PST 2016") == 0;
}

bool probe_guard(const struct probe_options *opt)
{
    uint64_t mnt = probe_ns_inode("mnt"), pid = probe_ns_inode("pid");

    if (opt->host_ns[NS_MNT] == 0 || opt->host_ns[NS_PID] == 0)
        return refuse("--host-ns must name the host's mnt and pid namespaces");
    if (mnt == 0 && is_gvisor())
        return true;
    if (mnt == 0 || pid == 0)
        return refuse("cannot read /proc/self/ns");
    if (mnt == opt->host_ns[NS_MNT] || pid == opt->host_ns[NS_PID])
        return refuse("this is the host's mount or pid namespace");
    if (pid == INITIAL_PID_NS || mnt == INITIAL_MNT_NS)
        return refuse("this is the initial mount or pid namespace of the machine");
    if (is_real_root())
        return refuse("this process is root of the whole machine");
    return true;
}
