/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the engine's request to create a container from a plan: a pure function, so that a test
 * can look at all of it. */

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/json.h"
#include "base/str.h"
#include "sandbox/cgroup/cgroup.h"
#include "sandbox/setup/gvisor.h"
#include "sandbox/setup/masks.h"

#define MIB (1024LL * 1024LL)
#define NANO 1e9
#define TMP_SIZE "64m"
#define VOLUME_MIB 64
#define NAME_PART_MAX 32U
/* box-guest, and those of its children that are not programs yet. Where a limit per user id keeps
 * programs off them, there is place for some. */
#define RESERVE_OWN 16
#define RESERVE_SHARED 4

/* langbot-box-<32 characters of the sanitised id>-<8 random hex digits>. */
void engine_container_name(const char *session_id, const char *random, char *ret, size_t size)
{
    char part[NAME_PART_MAX + 1];
    size_t n = 0;
    bool gap = false;
    for (const char *s = session_id; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        bool plain = c < 128 && (isalnum(c) || c == '_' || c == '.' || c == '-');
        if (!plain || (c == '-' && n == 0)) {
            gap = n > 0;
            continue;
        }
        if (gap && n < NAME_PART_MAX)
            part[n++] = '-';
        gap = false;
        if (n == NAME_PART_MAX)
            break;
        part[n++] = (char)tolower(c);
    }
    while (n > 0 && part[n - 1] == '-')
        n--;
    part[n] = '\0';
    (void)snprintf(ret, size, "langbot-box-%s-%.8s", n > 0 ? part : "session", random);
}

/* A volume belongs to root, so only root can use one; a size has only memory. */
enum engine_workspace engine_workspace(const struct spec *spec, bool root)
{
    if (spec->host_path != NULL && spec->host_path_mode != MOUNT_NONE)
        return ENGINE_WORKSPACE_HOST;
    return root && spec->workspace_quota_mb == 0 ? ENGINE_WORKSPACE_VOLUME
                                                 : ENGINE_WORKSPACE_MEMORY;
}

int64_t engine_pids_reserve(bool own_id)
{
    return own_id ? RESERVE_OWN : RESERVE_SHARED;
}

/* gVisor's sandbox is one container to the host: its kernel is a program with threads, and with the
 * ptrace platform each process inside has more than ten tasks outside. When it gets no more of them
 * it ends, and the session with it. So the host's limit is one that only a broken gVisor comes
 * near; RLIMIT_NPROC, which gVisor counts by itself, is the session's. */
int64_t engine_pids_max(const struct spec *spec, bool own_id, bool gvisor)
{
    int64_t inside = spec->pids_limit + engine_pids_reserve(own_id);
    return gvisor ? gvisor_host_tasks((uint32_t)inside) : inside;
}

uint64_t engine_workspace_bytes(const struct spec *spec)
{
    return (uint64_t)(spec->workspace_quota_mb > 0 ? spec->workspace_quota_mb * MIB
                                                   : spec->memory_mb * MIB / 2);
}

static void put_labels(struct jw *w, const struct engine_plan *p)
{
    AUTO_DONE(buf) struct buf own;
    buf_init(&own, ENGINE_OWN_LABELS_MAX);
    jw_key(w, "Labels");
    jw_object(w);
    jw_kstr(w, LABEL_BOX, "true");
    jw_kstr(w, LABEL_SESSION, p->spec->session_id);
    jw_kstr(w, LABEL_INSTANCE, p->instance);
    jw_kstr(w, LABEL_HASH, p->hash);
    jw_kstr(w, LABEL_NAME, p->name);
    for (char *const *l = p->spec->own.labels; l != NULL && *l != NULL; l++) {
        AUTO_FREE char *key = xstrndup(*l, strcspn(*l, "="));
        jw_kstr(w, key, *l + strlen(key) + 1);
        (void)buf_printf(&own, "%s%s", own.len > 0 ? "," : "", key);
    }
    jw_kstr(w, LABEL_OWN, buf_str(&own)); /* also where there are none: an image's is replaced */
    jw_object_end(w);
}

static void put_list(struct jw *w, const char *key, const char *const *items)
{
    jw_key(w, key);
    jw_array(w);
    for (; *items != NULL; items++)
        jw_str(w, *items);
    jw_array_end(w);
}

static void put_mount(struct jw *w, const char *source, const char *target, bool read_only,
                      bool flat)
{
    jw_object(w);
    jw_kstr(w, "Type", "bind");
    jw_kstr(w, "Source", source);
    jw_kstr(w, "Target", target);
    jw_kbool(w, "ReadOnly", read_only);
    jw_key(w, "BindOptions");
    jw_object(w);
    jw_kstr(w, "Propagation", "rprivate");
    jw_kbool(w, "CreateMountpoint", false); /* of the source: nothing is made on the host */
    /* What is mounted below it would come along, and would not be read-only. Whoever is not root
     * has to take it along; then box-guest looks. */
    jw_kbool(w, "NonRecursive", flat);
    jw_object_end(w);
    jw_object_end(w);
}

/* In place of a volume of the image: of a size, and gone with the container. */
static void put_memory(struct jw *w, const char *target)
{
    jw_object(w);
    jw_kstr(w, "Type", "tmpfs");
    jw_kstr(w, "Target", target);
    jw_key(w, "TmpfsOptions");
    jw_object(w);
    jw_kint(w, "SizeBytes", VOLUME_MIB * MIB);
    jw_kint(w, "Mode", 01777);
    jw_object_end(w);
    jw_object_end(w);
}

static enum engine_workspace workspace_of(const struct engine_plan *p)
{
    return engine_workspace(p->spec, str_eq(p->user, "0:0"));
}

static const char *source_of(const struct engine_mount *m)
{
    return m->bind != NULL ? m->bind : m->source;
}

/* Typed, never "source:target:mode" strings: a ':' in a path is nothing but a ':'. */
static void put_mounts(struct jw *w, const struct engine_plan *p)
{
    jw_key(w, "Mounts");
    jw_array(w);
    put_mount(w, p->guest_program, GUEST_PROGRAM, true, p->flat);
    put_mount(w, p->run_dir, GUEST_DIR, true, p->flat);
    for (size_t i = 0; i < p->mounts->n; i++)
        put_mount(w, source_of(&p->mounts->list[i]), p->mounts->list[i].target,
                  p->mounts->list[i].read_only, p->flat);
    if (workspace_of(p) == ENGINE_WORKSPACE_VOLUME) {
        jw_object(w); /* without a name: it goes with the container */
        jw_kstr(w, "Type", "volume");
        jw_kstr(w, "Target", p->spec->mount_path);
        jw_object_end(w);
    }
    for (size_t i = 0; p->volumes != NULL && p->volumes[i] != NULL; i++)
        put_memory(w, p->volumes[i]);
    jw_array_end(w);
}

static void put_tmpfs(struct jw *w, const struct engine_plan *p)
{
    const struct spec *spec = p->spec;
    char options[96];
    jw_key(w, "Tmpfs");
    jw_object(w);
    if (spec->read_only_rootfs)
        jw_kstr(w, "/tmp", "rw,exec,nosuid,nodev,mode=1777,size=" TMP_SIZE);
    if (workspace_of(p) == ENGINE_WORKSPACE_MEMORY) {
        (void)snprintf(options, sizeof(options), "rw,exec,nosuid,nodev,mode=1777,size=%llu",
                       (unsigned long long)engine_workspace_bytes(spec));
        jw_kstr(w, spec->mount_path, options);
    }
    /* gVisor heeds no masks. box-guest needs nothing there: its kernel has no control groups. */
    if (p->gvisor)
        jw_kstr(w, "/sys", "ro,nosuid,nodev,noexec,mode=555,size=4k");
    jw_object_end(w);
}

static void put_ulimit(struct jw *w, const char *name, uint64_t soft, uint64_t hard)
{
    jw_object(w);
    jw_kstr(w, "Name", name);
    jw_ku64(w, "Soft", soft);
    jw_ku64(w, "Hard", hard);
    jw_object_end(w);
}

/* All that an engine would otherwise set to more than its own limit and fail. */
static void put_ulimits(struct jw *w, const struct engine_plan *p)
{
    jw_key(w, "Ulimits");
    jw_array(w);
    put_ulimit(w, "core", 0, 0);
    put_ulimit(w, "nofile", 1024, 4096);
    put_ulimit(w, "nproc", p->nproc_max, p->nproc_max);
    jw_array_end(w);
}

/* Of /proc and of /sys. "timer_stats" is what engines mask by themselves, unless they are told what
 * to mask. */
static const char *const masked[] = {SANDBOX_MASKED_FILES, SANDBOX_MASKED_DIRS, "timer_stats"};
static const char *const masked_sys[] = {SANDBOX_MASKED_SYS};

/* The next path to mask, or NULL; `at` begins with 0. */
static char *next_mask(size_t *at)
{
    size_t i = (*at)++;
    if (i < ARRAY_SIZE(masked))
        return xasprintf("/proc/%s", masked[i]);
    i -= ARRAY_SIZE(masked);
    return i < ARRAY_SIZE(masked_sys) ? xasprintf("/sys/%s", masked_sys[i]) : NULL;
}

static void put_masks(struct jw *w)
{
    char *path = NULL;
    jw_key(w, "MaskedPaths");
    jw_array(w);
    for (size_t at = 0; (path = next_mask(&at)) != NULL; free(path))
        jw_str(w, path);
    jw_array_end(w);
}

/* What Docker has by itself, which a list of one's own replaces, and /dev: what is mounted below it
 * stays as it is, and a device can be written to all the same. */
static void put_read_only(struct jw *w)
{
    static const char *const paths[] = {"/proc/bus",           "/proc/fs", "/proc/irq", "/proc/sys",
                                        "/proc/sysrq-trigger", "/dev",     NULL};
    put_list(w, "ReadonlyPaths", paths);
}

/* The masks as one option, in addition to its own. */
static void put_mask_option(struct jw *w)
{
    AUTO_DONE(buf) struct buf option;
    char *path = NULL;
    buf_init(&option, 4096);
    (void)buf_puts(&option, "mask=");
    for (size_t at = 0; (path = next_mask(&at)) != NULL; free(path))
        (void)buf_printf(&option, "%s%s", at > 1 ? ":" : "", path);
    jw_str(w, buf_str(&option));
}

static void put_security(struct jw *w, const struct engine_plan *p)
{
    static const char *const all[] = {"ALL", NULL};
    AUTO_FREE char *seccomp = xasprintf("seccomp=%s", p->seccomp);
    put_list(w, "CapDrop", all);
    jw_key(w, "SecurityOpt");
    jw_array(w);
    jw_str(w, "no-new-privileges");
    jw_str(w, seccomp);
    if (p->masks_by_option)
        put_mask_option(w);
    jw_array_end(w);
    if (!p->masks_by_option) {
        put_masks(w);
        put_read_only(w);
    }
    jw_kbool(w, "Privileged", false);
    jw_kbool(w, "ReadonlyRootfs", p->spec->read_only_rootfs);
    jw_kstr(w, "IpcMode", "private");
    jw_kstr(w, "CgroupnsMode", "private");
    /* box-guest is one that reaps. The engine's could be looked into by programs, and killed. */
    jw_kbool(w, "Init", false);
    if (p->runtime != NULL)
        jw_kstr(w, "Runtime", p->runtime);
}

static void put_limits(struct jw *w, const struct engine_plan *p)
{
    const struct spec *spec = p->spec;
    jw_kint(w, "Memory", spec->memory_mb * MIB);
    jw_kint(w, "MemorySwap", spec->memory_mb * MIB); /* of both together: no swap */
    if (p->v1)
        jw_kint(w, "KernelMemoryTCP",
                (int64_t)cgroup_socket_bytes((uint64_t)spec->memory_mb * MIB));
    jw_kint(w, "NanoCpus", (int64_t)(spec->cpus * NANO));
    jw_kint(w, "PidsLimit", engine_pids_max(spec, p->own_id, p->gvisor));
}

static void put_host_config(struct jw *w, const struct engine_plan *p)
{
    jw_key(w, "HostConfig");
    jw_object(w);
    put_security(w, p);
    put_limits(w, p);
    put_ulimits(w, p);
    put_mounts(w, p);
    put_tmpfs(w, p);
    if (p->spec->network == NETWORK_OFF)
        jw_kstr(w, "NetworkMode", "none");
    jw_kbool(w, "AutoRemove", !p->keep);
    jw_key(w, "RestartPolicy");
    jw_object(w);
    jw_kstr(w, "Name", "no");
    jw_object_end(w);
    jw_key(w, "LogConfig");
    jw_object(w);
    jw_kstr(w, "Type", "none");
    jw_object_end(w);
    jw_object_end(w);
}

static void put_process(struct jw *w, const struct engine_plan *p)
{
    static const char *const entrypoint[] = {GUEST_PROGRAM, NULL};
    static const char *const none[] = {NULL};
    static const char *const no_check[] = {"NONE", NULL};
    static const char *const home[] = {"HOME=/tmp", NULL};
    put_list(w, "Entrypoint", entrypoint);
    put_list(w, "Cmd", none);
    jw_kstr(w, "WorkingDir", "/");
    jw_kstr(w, "Hostname", "box");
    /* box-guest has nothing to tidy up. A forced removal by Podman 5 waits ten seconds for what
     * another signal would do, and that signal is otherwise the image's choice. */
    jw_kstr(w, "StopSignal", "SIGKILL");
    /* Nothing of the caller's environment: that goes with each command, to the command alone. */
    if (p->user != NULL) {
        jw_kstr(w, "User", p->user);
        if (!str_eq(p->user, "0:0"))
            put_list(w, "Env", home);
    }
    jw_key(w, "Healthcheck"); /* an image must not run programs by itself */
    jw_object(w);
    put_list(w, "Test", no_check);
    jw_object_end(w);
    jw_kbool(w, "AttachStdin", false);
    jw_kbool(w, "AttachStdout", false);
    jw_kbool(w, "AttachStderr", false);
    jw_kbool(w, "OpenStdin", false);
    jw_kbool(w, "Tty", false);
}

int engine_create_body(const struct engine_plan *plan, struct buf *ret, struct err *err)
{
    struct jw w;
    jw_init(&w, ret);
    jw_object(&w);
    jw_kstr(&w, "Image", plan->image);
    put_process(&w, plan);
    put_labels(&w, plan);
    put_host_config(&w, plan);
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_LIMIT, "what the engine would be asked for is too large");
    return 0;
}
