/* SPDX-License-Identifier: Apache-2.0 */

/* What the native backend and the engines decide and tell alike: mount sources, places of callers,
 * how programs ended, and the walls in receipts. */

#include "backend/common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/host_path.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "inside/wire.h"
#include "loop/loop.h"
#include "priv/client.h"
#include "sandbox/plan/plan.h"
#include "spec/spec.h"

int backend_find_root(const struct backend_roots *all, const char *path, size_t *ret,
                      const char **ret_rest, struct err *err)
{
    if (host_path_blocked(path, all->place))
        return err_set(err, ERR_DENIED, "host_path %.300s is blocked for security", path);
    if (!host_path_find_root(all->paths, all->outer, path, ret, ret_rest))
        return err_set(err, ERR_DENIED,
                       "host_path %.300s is outside the directories that may be mounted; add it to "
                       "allowed_mount_roots in the configuration, or set BOX_ALLOWED_MOUNT_ROOTS",
                       path);
    return 0;
}

int backend_check_target(const char *target, bool reserved, struct err *err)
{
    if (!path_is_clean_absolute(target))
        return err_set(err, ERR_INVALID,
                       "mount_path %.200s must be absolute, without '.', '..' or '//'", target);
    if (reserved || plan_target_reserved(target))
        return err_set(err, ERR_DENIED,
                       "mount_path %.200s is reserved; use /workspace, /mnt, /data or the like",
                       target);
    return 0;
}

int backend_clean_source(char *source, struct err *err)
{
    for (size_t len = strlen(source); len > 1 && source[len - 1] == '/'; len--)
        source[len - 1] = '\0';
    if (!path_is_clean_absolute(source))
        return err_set(err, ERR_INVALID,
                       "host_path %.200s must be absolute, without '.', '..' or '//'", source);
    return 0;
}

int backend_refuse_bound(const struct spec *spec, const char *path, struct err *err)
{
    return err_set(err, ERR_DENIED,
                   "host_path %.150s cannot be mounted for uid %u: only the native backend and "
                   "runsc, started by root, can find out what that user may open; use a token",
                   path, spec->own.uid);
}

int backend_make_place(const struct backend_place *want, struct err *err)
{
    AUTO_CLOSE int base = path_open_unlinked(want->base, O_PATH | O_DIRECTORY);
    if (base < 0)
        return err_sys(err, -base, "open %.300s", want->base);
    int fd = path_make_beneath(base, want->rest);
    return fd < 0 ? err_sys(err, -fd, "make %.200s in %.300s", want->rest, want->base) : fd;
}

static void status_field(const char *status, const char *name, char *ret, size_t size)
{
    size_t len = strlen(name);
    ret[0] = '\0';
    for (const char *line = status; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        size_t n = end != NULL ? (size_t)(end - line) : strlen(line);
        if (n > len + 1 && strncmp(line, name, len) == 0 && line[len] == ':') {
            const char *value = line + len + 1;
            while (*value == '\t' || *value == ' ')
                value++;
            size_t m = (size_t)(line + n - value);
            m = m < size ? m : size - 1;
            memcpy(ret, value, m);
            ret[m] = '\0';
            return;
        }
        line = end != NULL ? end + 1 : NULL;
    }
}

void backend_write_status(struct jw *w, const char *key, const char *status)
{
    static const struct {
        const char *key, *name;
    } fields[] = {
        {"uid", "Uid"},
        {"gid", "Gid"},
        {"groups", "Groups"},
        {"cap_inheritable", "CapInh"},
        {"cap_permitted", "CapPrm"},
        {"cap_effective", "CapEff"},
        {"cap_bounding", "CapBnd"},
        {"cap_ambient", "CapAmb"},
        {"no_new_privs", "NoNewPrivs"},
        {"seccomp", "Seccomp"},
        {"seccomp_filters", "Seccomp_filters"},
    };
    jw_kobject(w, key);
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        char value[128];
        status_field(status, fields[i].name, value, sizeof(value));
        jw_kstr(w, fields[i].key, value);
    }
    jw_object_end(w);
}

void backend_begin_limit(struct jw *w, const char *key, bool enforced, uint64_t value,
                         const char *why)
{
    jw_kobject(w, key);
    jw_kbool(w, "enforced", enforced);
    if (enforced)
        jw_ku64(w, "value", value);
    else
        jw_kstr(w, "reason", why);
}

void backend_write_limit(struct jw *w, const char *key, bool enforced, uint64_t value,
                         const char *why)
{
    backend_begin_limit(w, key, enforced, value, why);
    jw_object_end(w);
}

void doctor_check(struct jw *w, const char *id, const char *status, const char *detail,
                  const char *remedy)
{
    jw_object(w);
    jw_kstr(w, "id", id);
    jw_kstr(w, "status", status);
    jw_kstr(w, "detail", detail);
    jw_kstr(w, "remedy", str_eq(status, "ok") ? NULL : remedy);
    jw_object_end(w);
}

static const char *stage_text(uint32_t stage, int error)
{
    static const char *const texts[] = {
        [INSIDE_STAGE_LIMIT] = "no process could be started",
        [INSIDE_STAGE_REQUEST] = "the request was malformed",
        [INSIDE_STAGE_CWD] = "working directory",
        [INSIDE_STAGE_CONFINE] = "the process could not be confined",
        [INSIDE_STAGE_EXEC] = "cannot execute",
    };
    /* One that is missing is made, where the payload can. */
    if (stage == INSIDE_STAGE_CWD && error == EROFS)
        return "working directory: it is not there and cannot be made; name one that exists, or "
               "one "
               "below /workspace or /tmp";
    return stage > INSIDE_STAGE_NONE && stage <= INSIDE_STAGE_EXEC ? texts[stage] : "failed";
}

void backend_outcome(struct outcome *o, const struct inside_exited *m)
{
    *o = (struct outcome){.duration_ns = m->duration_ns,
                          .cpu_ns = m->cpu_ns,
                          .max_rss_kb = m->max_rss_kb,
                          .remaining = m->remaining};
    if (m->stage != INSIDE_STAGE_NONE) {
        o->kind = OUTCOME_EXITED;
        o->exit_code = m->stage == INSIDE_STAGE_EXEC && m->error == ENOENT ? 127 : 126;
        (void)snprintf(o->error, sizeof(o->error), "%s: %s", stage_text(m->stage, m->error),
                       err_errno_text(m->error));
    } else if (m->flags & INSIDE_EXITED_TIMEOUT) {
        o->kind = OUTCOME_TIMED_OUT;
    } else if (m->flags & INSIDE_EXITED_OOM) {
        o->kind = OUTCOME_OOM_KILLED;
    } else if (m->flags & INSIDE_EXITED_DISK_FULL) {
        o->kind = OUTCOME_QUOTA_EXCEEDED;
        o->exit_code = WIFEXITED(m->wait_status) ? WEXITSTATUS(m->wait_status)
                                                 : 128 + WTERMSIG(m->wait_status);
    } else if (WIFSIGNALED(m->wait_status)) {
        o->kind = OUTCOME_SIGNALED;
        o->signo = WTERMSIG(m->wait_status);
    } else {
        o->kind = OUTCOME_EXITED;
        o->exit_code = WEXITSTATUS(m->wait_status);
    }
}

/* NOLINTNEXTLINE(readability-non-const-parameter): as priv_reply_fn has it. */
static void on_placed(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct backend_placer p = *(struct backend_placer *)arg;
    struct err err = {0};
    char path[PRIV_PLACE_PATH_MAX];
    free(arg);
    if (reply == NULL || reply->result < 0) {
        (void)err_set(&err, ERR_BACKEND, "box-priv has gone away");
        p.fn(p.arg, NULL, reply != NULL ? &reply->err : &err);
        return;
    }
    (void)str_copy(path, sizeof(path), reply->placed.path);
    if (reply->placed.root != PRIV_NO_ROOT)
        p.learn(p.who, reply->placed.root, path);
    p.fn(p.arg, path, NULL);
}

int backend_place_by_priv(struct priv_client *priv, const struct backend_place *want,
                          const struct backend_placer *who, struct err *err)
{
    bool rootful = priv_client_host(priv)->rootful;
    AUTO_FREE char *path = NULL;
    if (!rootful && want->rest[0] == '\0')
        return err_set(err, ERR_UNSUPPORTED, "boxd was not started by root");
    if (!rootful) {
        path = xasprintf("%s/%s", want->base, want->rest);
        int r = backend_make_place(want, err);
        if (r < 0)
            return r;
        (void)close(r);
    }
    struct backend_placer *p = xnew(struct backend_placer);
    *p = *who;
    int r = priv_client_place(priv, rootful ? want->sock : -1, rootful ? want->rest : path,
                              on_placed, p, err);
    if (r < 0)
        free(p);
    return r;
}

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
    status_field(f->posture, field, value, sizeof(value));
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
    jw_kobject(w, "namespaces");
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
    jw_karray(w, "weaker_than_native");
    if (f->ids_shared != NULL)
        put(w, "private-ids", f->ids_shared);
    if (f->gvisor)
        put_all(w, of_gvisor, ARRAY_SIZE(of_gvisor));
    else
        put_gaps_of_container(w, f);
    jw_array_end(w);
}

struct connected_news {
    struct loop_defer defer;
    int fd; /* the callee's */
    struct err err;
    backend_connected_fn *done;
    void *arg;
};

static void on_connected_news(struct loop_defer *d)
{
    struct connected_news *n = container_of(d, struct connected_news, defer);
    n->done(n->arg, n->fd, n->fd < 0 ? &n->err : NULL);
    free(n);
}

void backend_tell_connected(struct loop *loop, int fd, const struct err *err,
                            backend_connected_fn *done, void *arg)
{
    struct connected_news *n = xnew(struct connected_news);
    n->fd = fd;
    n->err = *err;
    n->done = done;
    n->arg = arg;
    loop_defer_start(loop, &n->defer, on_connected_news);
}
