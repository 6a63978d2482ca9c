/* SPDX-License-Identifier: Apache-2.0 */

/* Turns a spec into the operations of a plan, and the request for a command into a message to
 * PID 1.
 */

#include "backend/native/plan.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/common.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/host_path.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "inside/init_wire.h"
#include "sandbox/cgroup/cgroup.h"
#include "sandbox/plan/plan.h"
#include "sandbox/setup/gvisor.h"
#include "spec/spec.h"

#define MIB (1024ULL * 1024ULL)
#define CPU_PERIOD_US 100000.0
#define ROOT_INODES 65536U
#define QUOTA_BYTES_PER_INODE 16384U
#define HOME "/home/box"
#define WANTED_MAX (SPEC_MOUNTS_MAX + 3U) /* with the workspace, the home and the artifacts */

static const char *const host_dirs[NATIVE_HOST_DIRS_MAX - 1] = {"/bin",   "/sbin",  "/lib",
                                                                "/lib32", "/lib64", "/libx32"};

void native_facts_read(struct native_facts *f)
{
    char pattern[8] = "";
    f->n_dirs = 0;
    for (size_t i = 0; i < ARRAY_SIZE(host_dirs) && host_dirs[i] != NULL; i++) {
        struct stat st;
        if (lstat(host_dirs[i], &st) < 0)
            continue;
        f->dirs[f->n_dirs].path = host_dirs[i];
        if (S_ISLNK(st.st_mode)) {
            ssize_t n =
                readlink(host_dirs[i], f->dirs[f->n_dirs].link, sizeof(f->dirs[0].link) - 1);
            if (n <= 0)
                continue;
            f->dirs[f->n_dirs].link[n] = '\0';
        }
        f->n_dirs++;
    }
    AUTO_CLOSE int fd = open("/proc/sys/kernel/core_pattern", O_RDONLY | O_CLOEXEC);
    f->core_by_pipe = fd >= 0 && read(fd, pattern, 1) == 1 && pattern[0] == '|';
}

/* Where the host has the command; one that it does not have yet would most likely come here. */
static char *find_command(const char *name)
{
    static const char *const dirs[] = {"/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"};
    for (size_t i = 0; i < ARRAY_SIZE(dirs); i++) {
        struct stat st;
        AUTO_FREE char *path = xasprintf("%s/%s", dirs[i], name);
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 0111) != 0)
            return TAKE_PTR(path);
    }
    return xasprintf("/usr/bin/%s", name);
}

char **native_aliases(char *const *aliases)
{
    char **paths = NULL;
    for (; aliases != NULL && *aliases != NULL; aliases++) {
        const char *target = strchr(*aliases, '=') + 1;
        AUTO_FREE char *path = target[0] == '/' ? xstrdup(target) : find_command(target);
        strv_push(&paths, xasprintf("%.*s%s", (int)(target - *aliases), *aliases, path));
    }
    return paths;
}

/* A mount of the caller's choice; without a host path it is private storage. */
struct wanted {
    const char *host_path, *target;
    const char *private_name;
    enum mount_mode mode;
};

static int add_host_mount(struct plan *p, const struct native_facts *facts, const struct spec *spec,
                          const struct wanted *w, struct err *err)
{
    const struct backend_roots roots = {facts->roots, facts->roots_are_outer, spec->own.place};
    if (spec->own.bound && facts->one_id)
        return backend_refuse_bound(spec, w->host_path, err);
    char source[4096];
    size_t root = 0;
    const char *rest = NULL;
    if (str_copy(source, sizeof(source), w->host_path) < 0)
        return err_set(err, ERR_INVALID, "host_path is longer than 4095 bytes");
    int r = backend_clean_source(source, err);
    if (r == 0)
        r = backend_find_root(&roots, source, &root, &rest, err);
    if (r < 0)
        return r;
    struct plan_op *op = plan_add(p, PLAN_OP_BIND, w->target);
    op->source_class = PLAN_SRC_ALLOWED;
    op->root = (uint16_t)root;
    op->source = plan_string(p, rest);
    op->flags = w->mode == MOUNT_RO ? PLAN_OP_RDONLY : PLAN_OP_LANDLOCK_RW;
    if (w->private_name != NULL) {
        op->mode = PLAN_BIND_DIR; /* it stands in for a workspace */
        op->entries = facts->workspace_entries;
    } else if (w->host_path == spec->own.artifacts) {
        op->mode = PLAN_BIND_PUBLIC; /* copies that box-fetch made, readable for every user */
    }
    return 0;
}

/* On a writable root the layers above are each session's own anyway. */
static void add_image(struct plan *p, const struct native_facts *facts, bool network_on)
{
    unsigned view = p->flags & PLAN_ROOT_WRITABLE ? 0 : PLAN_OP_OWN_VIEW;
    struct plan_op *op = plan_add(p, PLAN_OP_BIND, "/usr");
    op->source_class = PLAN_SRC_HOST;
    op->source = plan_string(p, "/usr");
    op->flags = PLAN_OP_RDONLY | PLAN_OP_RECURSIVE | view;
    for (size_t i = 0; i < facts->n_dirs; i++) {
        bool link = facts->dirs[i].link[0] != '\0';
        op = plan_add(p, link ? PLAN_OP_SYMLINK : PLAN_OP_BIND, facts->dirs[i].path);
        op->source = plan_string(p, link ? facts->dirs[i].link : facts->dirs[i].path);
        if (link)
            continue;
        op->source_class = PLAN_SRC_HOST;
        op->flags = PLAN_OP_RDONLY | PLAN_OP_RECURSIVE | PLAN_OP_OPTIONAL | view;
    }
    op = plan_add(p, PLAN_OP_BIND, "/etc");
    op->source_class = PLAN_SRC_ETC;
    op->source = plan_string(p, network_on ? "on" : "off");
    op->flags = PLAN_OP_RDONLY | view;
}

static void add_layers(struct plan *p)
{
    static const struct {
        const char *target, *layer;
    } layers[] = {{"/usr", "layer-usr"}, {"/etc", "layer-etc"}};
    for (size_t i = 0; i < ARRAY_SIZE(layers); i++) {
        struct plan_op *op = plan_add(p, PLAN_OP_OVERLAY, layers[i].target);
        op->source_class = PLAN_SRC_PRIVATE;
        op->source = plan_string(p, layers[i].layer);
        op->flags = PLAN_OP_LANDLOCK_RW;
    }
}

static void add_dir(struct plan *p, const char *target, uint32_t mode, bool owned)
{
    struct plan_op *op = plan_add(p, PLAN_OP_DIR, target);
    op->mode = mode;
    op->flags = owned ? PLAN_OP_OWNED : 0;
}

static void add_private(struct plan *p, const char *target, const char *name)
{
    struct plan_op *op = plan_add(p, PLAN_OP_BIND, target);
    op->source_class = PLAN_SRC_PRIVATE;
    op->source = plan_string(p, name);
    op->flags = PLAN_OP_LANDLOCK_RW;
}

/* gVisor has a /proc, a /dev and a /sys of its own making, and wants places for them. */
static void add_gvisor(struct plan *p)
{
    static const char *const places[] = {"/proc", "/dev", "/sys"};
    for (size_t i = 0; i < ARRAY_SIZE(places); i++)
        add_dir(p, places[i], 0755, false);
    struct plan_op *op = plan_add(p, PLAN_OP_BIND, GVISOR_GUEST);
    op->source_class = PLAN_SRC_GUEST;
    op->source = plan_string(p, "program");
    op->flags = PLAN_OP_RDONLY;
    op = plan_add(p, PLAN_OP_BIND, GVISOR_MEETING);
    op->source_class = PLAN_SRC_GUEST;
    op->source = plan_string(p, "meeting");
    op->flags = PLAN_OP_RDONLY | PLAN_OP_NOEXEC;
}

static void add_system(struct plan *p, const struct spec *spec)
{
    static const char *const dirs[] = {"/home", "/mnt", "/opt", "/root", "/run", "/srv", "/var"};
    for (size_t i = 0; i < ARRAY_SIZE(dirs); i++)
        add_dir(p, dirs[i], 0755, !spec->read_only_rootfs);
    plan_add(p, PLAN_OP_SYMLINK, "/var/tmp")->source = plan_string(p, "/tmp");

    if (p->flags & PLAN_GVISOR) {
        add_gvisor(p);
    } else {
        (void)plan_add(p, PLAN_OP_PROC, "/proc");
        (void)plan_add(p, PLAN_OP_DEV, "/dev");
    }
    struct plan_op *op = plan_add(p, PLAN_OP_SCRATCH, "/tmp");
    op->mode = 01777;
    op->flags = PLAN_OP_LANDLOCK_RW;
}

/* At the end of the search path: a command that the image has under that name comes first. */
static void add_aliases(struct plan *p, const struct native_facts *facts)
{
    if (facts->aliases == NULL)
        return;
    add_dir(p, PLAN_ALIAS_DIR, 0755, false);
    for (char *const *a = facts->aliases; *a != NULL; a++) {
        const char *path = strchr(*a, '=') + 1;
        AUTO_FREE char *place = xasprintf(PLAN_ALIAS_DIR "/%.*s", (int)(path - 1 - *a), *a);
        plan_add(p, PLAN_OP_SYMLINK, place)->source = plan_string(p, path);
    }
}

static unsigned depth_of(const char *path)
{
    unsigned n = 0;
    for (; *path != '\0'; path++)
        n += *path == '/';
    return n;
}

/* Sorted by depth, so that a mount never hides one inside it, whatever the order they were asked
 * for in. */
static int add_wanted(struct wanted *list, size_t *n, const struct wanted *w, struct err *err)
{
    int r = backend_check_target(w->target, false, err);
    if (r < 0)
        return r;
    size_t at = *n;
    if (at == WANTED_MAX)
        return err_set(err, ERR_LIMIT, "more than %u mounts", SPEC_MOUNTS_MAX);
    for (size_t i = 0; i < *n; i++)
        if (str_eq(list[i].target, w->target))
            return err_set(err, ERR_INVALID, "mount_path %.200s is given twice", w->target);
    for (; at > 0 && depth_of(list[at - 1].target) > depth_of(w->target); at--)
        list[at] = list[at - 1];
    list[at] = *w;
    (*n)++;
    return 0;
}

static int collect_mounts(const struct spec *spec, struct wanted *list, size_t *n, struct err *err)
{
    bool mounted = spec->host_path != NULL && spec->host_path_mode != MOUNT_NONE;
    struct wanted w = {.host_path = mounted ? spec->host_path : NULL,
                       .target = spec->mount_path,
                       .private_name = "workspace",
                       .mode = spec->host_path_mode};
    int r = add_wanted(list, n, &w, err);
    for (size_t i = 0; i < spec->n_extra_mounts && r == 0; i++) {
        const struct mount_spec *m = &spec->extra_mounts[i];
        w = (struct wanted){m->host_path, m->mount_path, NULL, m->mode};
        if (m->mode != MOUNT_NONE)
            r = add_wanted(list, n, &w, err);
    }
    w = (struct wanted){spec->own.artifacts, SPEC_ARTIFACTS, NULL, MOUNT_RO};
    if (r == 0 && w.host_path != NULL)
        r = add_wanted(list, n, &w, err);
    /* The home is ours to give, unless a mount of the caller's is there or holds the place. */
    w = (struct wanted){.target = HOME, .private_name = "home"};
    for (size_t i = 0; i < *n; i++)
        if (str_eq(list[i].target, HOME) ||
            (list[i].host_path != NULL && path_at_or_below(HOME, list[i].target)))
            return r;
    return r < 0 ? r : add_wanted(list, n, &w, err);
}

static int add_workspace(struct plan *p, const struct spec *spec, const struct native_facts *facts,
                         struct err *err)
{
    struct wanted list[WANTED_MAX];
    size_t n = 0;
    int r = collect_mounts(spec, list, &n, err);
    for (size_t i = 0; i < n && r == 0; i++) {
        if (list[i].host_path != NULL)
            r = add_host_mount(p, facts, spec, &list[i], err);
        else
            add_private(p, list[i].target, list[i].private_name);
    }
    /* A working directory that lies on nothing but our own root would not exist otherwise. */
    if (r == 0 && path_is_clean_absolute(spec->workdir) && !plan_target_reserved(spec->workdir)) {
        bool covered = false;
        for (uint32_t i = 0; i < p->n_ops; i++)
            covered = covered || (p->ops[i].kind != PLAN_OP_DIR &&
                                  path_at_or_below(spec->workdir, plan_str(p, p->ops[i].target)));
        if (!covered)
            add_dir(p, spec->workdir, 0755, true);
    }
    return r;
}

static void add_rlimit(struct plan *p, int resource, uint64_t soft, uint64_t hard)
{
    p->rlimits[p->n_rlimits++] =
        (struct inside_rlimit){.resource = (uint32_t)resource, .soft = soft, .hard = hard};
}

/* A second wall behind the cgroups; the numbers are per process or per user id, which no other
 * session shares. */
static void add_rlimits(struct plan *p, const struct spec *spec, const struct native_facts *facts)
{
    uint64_t core = facts->core_by_pipe ? 1 : 0;
    add_rlimit(p, RLIMIT_CORE, core, core);
    add_rlimit(p, RLIMIT_NOFILE, 1024, 4096);
    add_rlimit(p, RLIMIT_MEMLOCK, 65536, 65536);
    add_rlimit(p, RLIMIT_MSGQUEUE, 65536, 65536);
    add_rlimit(p, RLIMIT_SIGPENDING, 1024, 1024);
    add_rlimit(p, RLIMIT_STACK, 8 * MIB, 64 * MIB);
    add_rlimit(p, RLIMIT_NPROC, (uint64_t)spec->pids_limit, (uint64_t)spec->pids_limit);
    if (spec->workspace_quota_mb > 0)
        add_rlimit(p, RLIMIT_FSIZE, (uint64_t)spec->workspace_quota_mb * MIB,
                   (uint64_t)spec->workspace_quota_mb * MIB);
}

struct cgroup_limits native_limits(const struct spec *spec)
{
    double quota = spec->cpus * CPU_PERIOD_US;
    return (struct cgroup_limits){.memory_bytes = (uint64_t)spec->memory_mb * MIB,
                                  .pids = (uint32_t)spec->pids_limit,
                                  .cpu_quota_us = quota < 1000.0 ? 1000U : (uint32_t)quota};
}

static void set_limits(struct plan *p, const struct spec *spec)
{
    struct cgroup_limits limits = native_limits(spec);
    p->memory_bytes = limits.memory_bytes;
    p->pids = limits.pids;
    p->cpu_quota_us = limits.cpu_quota_us;
    p->quota_bytes = (uint64_t)spec->workspace_quota_mb * MIB;
    p->quota_inodes = p->quota_bytes / QUOTA_BYTES_PER_INODE;
    p->root_bytes = p->memory_bytes / 2;
    p->root_inodes = ROOT_INODES;
}

/* On a writable root the program is its root, without any capability: packages can then be
 * installed. runsc has to be uid 0, and where that is the only one, so are programs. */
static void choose_ids(struct plan *p, const struct spec *spec, const struct native_facts *facts)
{
    bool root = !spec->read_only_rootfs || (facts->gvisor && facts->one_id);
    p->payload_uid = p->payload_gid = root ? 0 : 1000;
    p->init_uid = p->init_gid = root && !facts->gvisor ? 999 : 0;
}

int native_plan(const struct spec *spec, const struct native_facts *facts, const char *name,
                uint32_t uid_index, struct plan *ret, struct err *err)
{
    struct plan *p = ret;
    bool network_on = spec->network == NETWORK_ON;
    plan_init(p);
    if (str_copy(p->name, sizeof(p->name), name) < 0)
        return err_set(err, ERR_INVALID, "bad sandbox name");
    p->uid_index = uid_index;
    p->flags = (network_on ? PLAN_NET_ON : 0) | (spec->read_only_rootfs ? 0 : PLAN_ROOT_WRITABLE) |
               (facts->require_limits ? PLAN_REQUIRE_LIMITS : 0) |
               (facts->gvisor ? PLAN_GVISOR : 0) |
               (spec->own.durable && !facts->gvisor ? PLAN_DURABLE : 0); /* runsc keeps none */
    if (spec->own.bound) {
        p->flags |= PLAN_AS_CALLER;
        p->as_uid = spec->own.uid;
    }
    choose_ids(p, spec, facts);
    set_limits(p, spec);
    add_rlimits(p, spec, facts);
    add_image(p, facts, network_on);
    if (!spec->read_only_rootfs)
        add_layers(p);
    add_system(p, spec);
    add_aliases(p, facts);
    int r = add_workspace(p, spec, facts, err);
    if (r < 0)
        return r;
    return plan_check(p, plan_wire_size(p), err);
}

/* The first byte of each list must not change once a name was seen: later entries win. */
static void merge_env(char ***env, char *const *more)
{
    for (size_t i = 0; more != NULL && more[i] != NULL; i++) {
        size_t name = strcspn(more[i], "=") + 1;
        size_t at = 0, n = strv_len(*env);
        while (at < n && strncmp((*env)[at], more[i], name) != 0)
            at++;
        if (at == n) {
            strv_add(env, more[i]);
        } else {
            free((*env)[at]);
            (*env)[at] = xstrdup(more[i]);
        }
    }
}

int native_pack(struct buf *out, struct init_exec *head, const struct exec_request *req,
                char *const *session_env, const char *workdir)
{
    AUTO_STRV char **env = NULL;
    int r = 0;
    for (size_t i = 0; i < PLAN_ENV_LEN; i++)
        strv_add(&env, plan_env[i]);
    if (req->tty)
        strv_add(&env, "TERM=xterm-256color");
    merge_env(&env, session_env);
    merge_env(&env, req->env);
    if (req->files) {
        head->argc = 1;
        r = buf_append(out, NATIVE_FILES, sizeof(NATIVE_FILES));
    } else if (req->argv != NULL) {
        head->argc = (uint32_t)strv_len(req->argv);
        for (size_t i = 0; i < head->argc && r == 0; i++)
            r = buf_append(out, req->argv[i], strlen(req->argv[i]) + 1);
    } else {
        const char *cmd = req->cmd != NULL ? req->cmd : "";
        head->argc = 1;
        head->flags |= INIT_EXEC_SCRIPT | (req->bash ? INIT_EXEC_BASH : 0U);
        r = buf_append(out, cmd, strlen(cmd) + 1);
    }
    head->envc = (uint32_t)strv_len(env);
    for (size_t i = 0; i < head->envc && r == 0; i++)
        r = buf_append(out, env[i], strlen(env[i]) + 1);
    const char *cwd = req->cwd != NULL ? req->cwd : workdir;
    if (r == 0)
        r = buf_append(out, cwd, strlen(cwd) + 1);
    head->strings_len = (uint32_t)(out->len - sizeof(*head));
    return r;
}
