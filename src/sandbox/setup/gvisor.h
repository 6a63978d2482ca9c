/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A sandbox whose programs run on gVisor's kernel instead of the host's. Everything outside is as
 * for any other: ids, namespaces, cgroups, storage, network. The difference is the last step: the
 * tree of the plan is not entered. It stays a directory of a small root of its own, and PID 1 is
 * runsc, which makes it the root of a container. So a hole in gVisor ends in an id that no
 * other session has, without a capability outside, under the limits of the session.
 *
 *     /rootfs      the tree of the plan
 *     /bundle      config.json
 *     /runsc       the program, which was opened when box-priv started
 *     /state /tmp  its own
 *     /proc /dev                                                                                 */

#include <stdint.h>

struct err;
struct plan;
struct setup;

#define GVISOR_ROOTFS "/rootfs"
#define GVISOR_MEETING_DIR "engine/runsc" /* in the state directory: a directory per session */
#define GVISOR_GUEST "/.box/guest"
#define GVISOR_MEETING "/.box/run"
#define GVISOR_USER_NAMESPACES 4U /* one for its kernel; each try to make one counts */

/* What gVisor itself needs of the session's memory group, beside what its programs have. */
#define GVISOR_MEMORY_RESERVE (192ULL << 20)

/* What runsc wants to have, all of it inside the session's user namespace: it builds the view of
 * the files, and files have two owners there. */
#define GVISOR_CAP(name) (UINT64_C(1) << CAP_##name)
#define GVISOR_CAPS                                                                                \
    (GVISOR_CAP(CHOWN) | GVISOR_CAP(DAC_OVERRIDE) | GVISOR_CAP(DAC_READ_SEARCH) |                  \
     GVISOR_CAP(FOWNER) | GVISOR_CAP(FSETID) | GVISOR_CAP(KILL) | GVISOR_CAP(SETGID) |             \
     GVISOR_CAP(SETUID) | GVISOR_CAP(SETPCAP) | GVISOR_CAP(SETFCAP) | GVISOR_CAP(NET_ADMIN) |      \
     GVISOR_CAP(SYS_CHROOT) | GVISOR_CAP(SYS_PTRACE) | GVISOR_CAP(SYS_ADMIN))

/* Tasks of the host for that many inside. gVisor counts those inside exactly; this is the wall
 * behind it, for its own threads and those that execute for it. */
uint32_t gvisor_host_tasks(uint32_t pids);

/* The small root below root_fd, and in it the tree of the plan. */
int gvisor_tree_child(const struct setup *s, int root_fd, struct err *err);

/* Becomes runsc; returns only with an error. */
int gvisor_exec_child(const struct plan *p, struct err *err);
