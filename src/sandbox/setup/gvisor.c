/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the configuration of gVisor's sandbox from a plan; then the last steps of its child: the
 * bundle, its mounts, and execve of runsc. */

#include "sandbox/setup/gvisor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "sandbox/plan/plan.h"
#include "sandbox/setup/mount.h"
#include "sandbox/setup/setup.h"

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
    jw_karray(w, key);
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
    jw_kobject(w, "process");
    jw_kobject(w, "user");
    jw_ku64(w, "uid", p->payload_uid);
    jw_ku64(w, "gid", p->payload_gid);
    jw_object_end(w);
    put_strings(w, "args", args);
    put_strings(w, "env", plan_env);
    jw_kstr(w, "cwd", "/");
    jw_kbool(w, "noNewPrivileges", true);
    jw_kobject(w, "capabilities");
    for (size_t i = 0; i < ARRAY_SIZE(sets); i++) {
        jw_karray(w, sets[i]);
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
    jw_karray(w, "mounts");
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
    jw_kobject(w, "linux");
    jw_karray(w, "namespaces");
    for (size_t i = 0; i < ARRAY_SIZE(namespaces); i++) {
        jw_object(w);
        jw_kstr(w, "type", namespaces[i]);
        jw_object_end(w);
    }
    jw_array_end(w);
    jw_object_end(w);
}

/* The container as runsc is told it: a pure function of the plan. */
static int gvisor_config(const struct plan *p, struct buf *out)
{
    struct jw w = JW_INIT(out);
    jw_object(&w);
    jw_kstr(&w, "ociVersion", "1.0.2");
    put_process(&w, p);
    jw_kobject(&w, "root");
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

/* Names below are looked up in a tmpfs that no other process can reach. */
#define BUNDLE "bundle"
#define CONFIG_MAX (256U * 1024U)
#define RUNSC "runsc"

static int open_dir(int root_fd, const char *name, struct err *err)
{
    int fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? err_sys(err, errno, "open /%s", name) : fd;
}

static int write_config(const struct setup *s, int root_fd, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(CONFIG_MAX);
    int r = gvisor_config(s->plan, &text);
    if (r < 0)
        return err_sys(err, -r, "describe the container to runsc");
    AUTO_CLOSE int fd = openat(root_fd, BUNDLE "/config.json",
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    r = fd < 0 ? -errno : fd_write_all(fd, text.data, text.len);
    return r < 0 ? err_sys(err, -r, "write config.json") : 0;
}

static int attach_runsc(const struct setup *s, int root_fd, struct err *err)
{
    if (mknodat(root_fd, RUNSC, S_IFREG | 0555, 0) < 0)
        return err_sys(err, errno, "place for runsc");
    AUTO_CLOSE int place = openat(root_fd, RUNSC, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    int r = place < 0 ? -errno : mount_attach(s->runsc_fd, place);
    return r < 0 ? err_sys(err, -r, "mount runsc") : 0;
}

/* No file of this /proc is covered. gVisor's own kernel runs in a user namespace below this one,
 * and the host's kernel lets it mount a /proc there only if all of the /proc above is visible.
 * runsc also writes to this /proc: the ids of that namespace. */
static int mount_proc(const struct setup *s, int root_fd, struct err *err)
{
    static const struct mount_option options[] = {{0}};
    AUTO_CLOSE int place = open_dir(root_fd, "proc", err);
    if (place < 0)
        return place;
    AUTO_CLOSE int fs = setup_tree_proc_child(s, options, GVISOR_USER_NAMESPACES, err);
    if (fs < 0)
        return fs;
    int r = mount_attach(fs, place);
    return r < 0 ? err_sys(err, -r, "mount /proc") : 0;
}

/* The one directory that runsc writes to, on a root that will be read-only. */
static int mount_state(int root_fd, struct err *err)
{
    AUTO_CLOSE int dir = open_dir(root_fd, "state", err);
    if (dir < 0)
        return dir;
    AUTO_CLOSE int copy = setup_tree_self_mount(
        dir, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, "/state", err);
    return copy < 0 ? copy : 0;
}

/* The tree is a mount of its own: on a writable root it is written to, where ours is not. */
static int mount_rootfs(const struct setup *s, int root_fd, struct err *err)
{
    AUTO_CLOSE int dir = open_dir(root_fd, GVISOR_ROOTFS + 1, err);
    if (dir < 0)
        return dir;
    if ((s->plan->flags & PLAN_ROOT_WRITABLE) && s->switch_ids &&
        fchown(dir, s->plan->payload_uid, s->plan->payload_gid) < 0)
        return err_sys(err, errno, "chown the root");
    AUTO_CLOSE int copy =
        setup_tree_self_mount(dir, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, GVISOR_ROOTFS, err);
    return copy < 0 ? copy : setup_tree_child(s, copy, err);
}

int gvisor_tree_child(const struct setup *s, int root_fd, struct err *err)
{
    static const char *const dirs[] = {"proc", "dev", "tmp", "state", BUNDLE, GVISOR_ROOTFS + 1};
    for (size_t i = 0; i < ARRAY_SIZE(dirs); i++)
        if (mkdirat(root_fd, dirs[i], 0755) < 0)
            return err_sys(err, errno, "make /%s", dirs[i]);
    AUTO_CLOSE int dev = open_dir(root_fd, "dev", err);
    int r = dev < 0 ? dev : setup_tree_devices(dev, err);
    if (r == 0)
        r = mount_proc(s, root_fd, err);
    if (r == 0)
        r = mount_state(root_fd, err);
    if (r == 0)
        r = attach_runsc(s, root_fd, err);
    if (r == 0)
        r = write_config(s, root_fd, err);
    return r < 0 ? r : mount_rootfs(s, root_fd, err);
}

/* runsc gets no overlay: what a program writes to the root must reach the session's own storage,
 * which has a size limit, and not gVisor's memory. With a network runsc uses the host's stack,
 * which is that of the session's own network namespace, with its rules: gVisor's own stack needs
 * rights that no process here has. */
int gvisor_exec_child(const struct plan *p, struct err *err)
{
    const char *argv[] = {"runsc",
                          "--root=/state",
                          "--rootless",
                          "--ignore-cgroups",
                          "--host-uds=open",
                          "--overlay2=none",
                          p->flags & PLAN_NET_ON ? "--network=host" : "--network=none",
                          "run",
                          "--bundle=/bundle",
                          "box",
                          NULL};
    static char *const envp[] = {(char *)(uintptr_t) "PATH=/", NULL};
    (void)execve("/" RUNSC, (char *const *)(uintptr_t)argv, envp);
    return err_sys(err, errno, "start runsc");
}
