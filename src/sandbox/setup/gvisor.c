/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the configuration of gVisor's sandbox from a plan. */

#include "sandbox/setup/gvisor.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"
#include "sandbox/plan/plan.h"

/* With the ptrace platform a process inside has more than ten tasks outside, and a gVisor that gets
 * no more of them ends: only a broken one comes near this. */
#define HOST_TASKS_EACH 24U
#define HOST_TASKS_OWN 1024U
#define HOST_TASKS_MAX 4194304U /* the kernel's PID_MAX_LIMIT */

uint32_t gvisor_host_tasks(uint32_t pids)
{
    uint64_t n = (uint64_t)pids * HOST_TASKS_EACH + HOST_TASKS_OWN;
    return n < HOST_TASKS_MAX ? (uint32_t)n : HOST_TASKS_MAX;
}

static void put_strings(struct jw *w, const char *key, const char *const *list)
{
    jw_key(w, key);
    jw_array(w);
    for (; *list != NULL; list++)
        jw_str(w, *list);
    jw_array_end(w);
}

/* The environment of commands is told with each of them; what stands here they can override. */
static void put_process(struct jw *w, const struct plan *p)
{
    static const char *const args[] = {GVISOR_GUEST, NULL};
    static const char *const sets[] = {"bounding", "effective", "inheritable", "permitted",
                                       "ambient"};
    jw_key(w, "process");
    jw_object(w);
    jw_key(w, "user");
    jw_object(w);
    jw_ku64(w, "uid", p->payload_uid);
    jw_ku64(w, "gid", p->payload_gid);
    jw_object_end(w);
    put_strings(w, "args", args);
    put_strings(w, "env", plan_env);
    jw_kstr(w, "cwd", "/");
    jw_kbool(w, "noNewPrivileges", true);
    jw_key(w, "capabilities");
    jw_object(w);
    for (size_t i = 0; i < ARRAY_SIZE(sets); i++) {
        jw_key(w, sets[i]);
        jw_array(w);
        jw_array_end(w);
    }
    jw_object_end(w);
    jw_object_end(w);
}

static void put_mount(struct jw *w, const char *type, const char *source, const char *target,
                      const char *const *options)
{
    jw_object(w);
    jw_kstr(w, "destination", target);
    jw_kstr(w, "type", type);
    jw_kstr(w, "source", source);
    put_strings(w, "options", options);
    jw_object_end(w);
}

/* What the host may change behind gVisor's back, and what can be written to on a root that cannot,
 * are mounts to it, too. The rest is part of its root: it need not ask again and again. */
static bool is_mount(const struct plan *p, const struct plan_op *op)
{
    return op->kind == PLAN_OP_SCRATCH ||
           (op->kind == PLAN_OP_BIND &&
            (op->source_class == PLAN_SRC_PRIVATE || op->source_class == PLAN_SRC_ALLOWED ||
             str_eq(plan_str(p, op->target), GVISOR_MEETING)));
}

static int put_bind(struct jw *w, const struct plan *p, const struct plan_op *op)
{
    const char *options[5] = {"rbind", op->flags & PLAN_OP_RDONLY ? "ro" : "rw", "nosuid", "nodev",
                              NULL};
    char source[4096 + sizeof(GVISOR_ROOTFS)];
    if (str_fmt(source, sizeof(source), GVISOR_ROOTFS "%s", plan_str(p, op->target)) < 0)
        return -ENAMETOOLONG;
    put_mount(w, "bind", source, plan_str(p, op->target), options);
    return 0;
}

static int put_mounts(struct jw *w, const struct plan *p)
{
    static const char *const none[] = {NULL};
    static const char *const empty[] = {"ro",        "nosuid",    "nodev", "noexec",
                                        "mode=0555", "size=4096", NULL};
    char size[40];
    const char *const shm[] = {"nosuid", "nodev", "noexec", "mode=1777", size, NULL};
    int r = 0;
    (void)snprintf(size, sizeof(size), "size=%llu", (unsigned long long)p->root_bytes);
    jw_key(w, "mounts");
    jw_array(w);
    put_mount(w, "proc", "proc", "/proc", none);
    put_mount(w, "tmpfs", "tmpfs", "/dev/shm", shm);
    /* Or gVisor mounts one of its own there. Natively there is none. */
    put_mount(w, "tmpfs", "tmpfs", "/sys", empty);
    for (uint32_t i = 0; i < p->n_ops && r == 0; i++)
        if (is_mount(p, &p->ops[i]))
            r = put_bind(w, p, &p->ops[i]);
    jw_array_end(w);
    return r;
}

static void put_linux(struct jw *w)
{
    static const char *const namespaces[] = {"pid", "mount", "ipc", "uts"};
    jw_key(w, "linux");
    jw_object(w);
    jw_key(w, "namespaces");
    jw_array(w);
    for (size_t i = 0; i < ARRAY_SIZE(namespaces); i++) {
        jw_object(w);
        jw_kstr(w, "type", namespaces[i]);
        jw_object_end(w);
    }
    jw_array_end(w);
    jw_object_end(w);
}

int gvisor_config(const struct plan *p, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_object(&w);
    jw_kstr(&w, "ociVersion", "1.0.2");
    put_process(&w, p);
    jw_key(&w, "root");
    jw_object(&w);
    jw_kstr(&w, "path", GVISOR_ROOTFS);
    jw_kbool(&w, "readonly", (p->flags & PLAN_ROOT_WRITABLE) == 0);
    jw_object_end(&w);
    jw_kstr(&w, "hostname", "box");
    int r = put_mounts(&w, p);
    put_linux(&w);
    jw_object_end(&w);
    int bad = jw_end(&w);
    return r < 0 ? r : bad;
}
