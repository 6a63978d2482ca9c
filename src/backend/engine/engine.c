/* SPDX-License-Identifier: Apache-2.0 */

/* Makes and frees an engine backend: its directory, instance id, seccomp profiles, roots and
 * ping. */

#include "backend/engine/engine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/common.h"
#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "sandbox/seccomp/seccomp.h"
#include "sandbox/seccomp/seccomp_json.h"

#define PROFILE_MAX (256U << 10)
#define ENGINE_DIR "engine"
#define PROFILE_FILE "seccomp.json"
#define INSTANCE_FILE "instance-id"
#define PING_TIMEOUT_NS (3ULL * NSEC_PER_SEC)

void engine_job_add(struct engine *e, struct engine_job *job, void (*drop)(struct engine_job *job))
{
    job->engine = e;
    job->drop = drop;
    job->next = e->jobs;
    if (job->next != NULL)
        job->next->prev = job;
    e->jobs = job;
}

void engine_job_remove(struct engine_job *job)
{
    if (job->prev != NULL)
        job->prev->next = job->next;
    else
        job->engine->jobs = job->next;
    if (job->next != NULL)
        job->next->prev = job->prev;
}

/* By its program, because its name is the administrator's choice. */
static bool is_gvisor(const char *name, const struct json *runtimes)
{
    const char *path = name != NULL ? json_str(json_get(json_get(runtimes, name), "path")) : NULL;
    if (path == NULL)
        path = name != NULL ? name : "";
    const char *slash = strrchr(path, '/');
    return str_starts(slash != NULL ? slash + 1 : path, "runsc");
}

static bool has_argument(const struct json *runtime, const char *wanted)
{
    const struct json *args = json_get(runtime, "runtimeArgs");
    for (size_t i = 0; i < json_len(args); i++) {
        const char *arg = json_str(json_at(args, i));
        while (arg != NULL && *arg == '-')
            arg++;
        if (str_eq(arg, wanted))
            return true;
    }
    return false;
}

void engine_facts_read(struct engine_facts *f, const struct json *info, const char *wanted_runtime)
{
    const struct json *options = json_get(info, "SecurityOptions");
    const char *cgroups = json_str(json_get(info, "CgroupVersion"));
    /* Podman has a word of its own for it. */
    bool rootless = json_bool(json_get(info, "Rootless"));
    const char *runtime = json_str(json_get(info, "DefaultRuntime"));
    f->known = true;
    f->runtime[0] = '\0';
    if (runtime != NULL)
        (void)str_copy(f->runtime, sizeof(f->runtime), runtime);
    const char *used = wanted_runtime != NULL ? wanted_runtime : runtime;
    f->gvisor = is_gvisor(used, json_get(info, "Runtimes"));
    f->no_network =
        f->gvisor && has_argument(json_get(json_get(info, "Runtimes"), used), "network=none");
    f->narrow = rootless;
    f->live_restore = json_bool(json_get(info, "LiveRestoreEnabled"));
    for (size_t i = 0; i < json_len(options); i++) {
        const char *text = json_str(json_at(options, i));
        rootless = rootless || (text != NULL && str_starts(text, "name=rootless"));
        f->narrow = f->narrow || rootless || (text != NULL && str_starts(text, "name=userns"));
    }
    f->v1 = cgroups != NULL && str_eq(cgroups, "1");
    f->no_limits = rootless && !str_eq(cgroups, "2");
}

/* A file of ours in the engine's directory, written whole or not at all. */
static int write_file(const struct engine *e, int dir_fd, const char *name, const struct buf *text,
                      struct err *err)
{
    AUTO_FREE char *fresh = xasprintf("%s.new", name);
    AUTO_CLOSE int fd =
        openat(dir_fd, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    int r = fd < 0 ? -errno : fd_write_all(fd, text->data, text->len);
    if (r == 0 && (fchown(fd, e->options.uid, e->options.gid) < 0 ||
                   renameat(dir_fd, fresh, dir_fd, name) < 0))
        r = -errno;
    return r < 0 ? err_sys(err, -r, "write '%s' for %s", name, e->kind->name) : 0;
}

/* Two daemons may share an engine, each in a container of its own with the same paths: what tells
 * their sessions apart is chosen once and kept. */
static int take_instance(struct engine *e, int dir_fd, struct err *err)
{
    AUTO_DONE(buf) struct buf fresh;
    char text[64] = "";
    buf_init(&fresh, sizeof(e->instance));
    ssize_t n = fd_read_file_at(dir_fd, INSTANCE_FILE, text, sizeof(text));
    text[strcspn(text, "\n")] = '\0';
    if (n > 0 && id_valid(text) && str_copy(e->instance, sizeof(e->instance), text) == 0)
        return 0;
    id_random(e->instance);
    (void)buf_puts(&fresh, e->instance);
    return write_file(e, dir_fd, INSTANCE_FILE, &fresh, err);
}

static int own_dir(const struct engine *e, int parent_fd, const char *name, struct err *err)
{
    AUTO_CLOSE int fd = path_make_dir_at(parent_fd, name, 0700);
    if (fd < 0)
        return err_sys(err, -fd, "make '%s' for %s", name, e->kind->name);
    if (fchown(fd, e->options.uid, e->options.gid) < 0 || fchmod(fd, 0700) < 0)
        return err_sys(err, errno, "own '%s' for %s", name, e->kind->name);
    return TAKE_FD(fd);
}

/* One name for all engines, a directory for each: what lies in there without a session is removed.
 */
int engine_open_dir(struct engine *e, struct err *err)
{
    const struct engine_options *o = &e->options;
    AUTO_CLOSE int state = open(o->state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (state < 0)
        return err_sys(err, errno, "open '%s'", o->state_dir);
    AUTO_CLOSE int all = own_dir(e, state, ENGINE_DIR, err);
    int r = all < 0 ? all : take_instance(e, all, err);
    if (r < 0)
        return r;
    e->dir_path = xasprintf("%s/" ENGINE_DIR "/%s", o->state_dir, e->kind->name);
    e->dir_fd = own_dir(e, all, e->kind->name, err);
    return e->dir_fd < 0 ? e->dir_fd : 0;
}

bool engine_has_left(const char *kind, const char *state_dir)
{
    AUTO_FREE char *path = xasprintf("%s/" ENGINE_DIR "/%s", state_dir, kind);
    bool found = false;
    DIR *dir = opendir(path);
    for (struct dirent *d = dir != NULL ? readdir(dir) : NULL; d != NULL && !found;
         d = readdir(dir))
        found = str_starts(d->d_name, ENGINE_PREFIX);
    if (dir != NULL)
        (void)closedir(dir);
    return found;
}

static int open_roots(struct engine *e, struct err *err)
{
    char *const *roots = e->roots = strv_copy(e->options.roots);
    size_t n = strv_len(roots);
    e->root_fds = xnew_n(int, n + 1);
    memset(e->root_fds, 0xff, n * sizeof(int)); /* -1 */
    for (size_t i = 0; i < n; i++) {
        e->root_fds[i] = open(roots[i], O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (e->root_fds[i] < 0)
            return err_sys(err, errno, "open '%.200s' of allowed_mount_roots", roots[i]);
    }
    return 0;
}

/* `fd` is taken; -1: only box-priv can open it. */
static void add_place(struct engine *e, const char *path, int fd)
{
    size_t n = strv_len(e->roots), i = 0;
    while (i < n && !str_eq(e->roots[i], path))
        i++;
    if (i == n) {
        strv_add(&e->roots, path);
        e->root_fds = xreallocarray(e->root_fds, n + 2, sizeof(int));
        e->root_fds[n] = -1;
    }
    fd_close_many(&e->root_fds[i], 1);
    e->root_fds[i] = fd;
}

static void learn_place(void *who, uint32_t number, const char *path)
{
    (void)number; /* bind.c finds it by the path */
    int fd = path_open_unlinked(path, O_PATH | O_DIRECTORY);
    add_place(who, path, fd < 0 ? -1 : fd);
}

/* Without box-priv: what runs as our own user we may look at ourselves. */
static int engine_place(struct backend *b, const struct backend_place *want, backend_place_fn *fn,
                        void *arg, struct err *err)
{
    struct engine *e = container_of(b, struct engine, base);
    if (e->options.priv != NULL)
        return backend_place_by_priv(e->options.priv, want,
                                     &(struct backend_placer){learn_place, e, fn, arg}, err);
    if (want->rest[0] == '\0')
        return err_set(err, ERR_UNSUPPORTED, "%s cannot look at other users' processes",
                       e->kind->name);
    if (!e->options.roots_are_outer)
        return err_set(err, ERR_DENIED, "it is not below one of allowed_mount_roots; add it there");
    int fd = backend_make_place(want, err);
    if (fd < 0)
        return fd;
    AUTO_FREE char *path = xasprintf("%s/%s", want->base, want->rest);
    add_place(e, path, fd);
    return 1;
}

static int make_profiles(struct engine *e, struct err *err)
{
    AUTO_DONE(buf) struct buf text;
    size_t n = 0;
    buf_init(&text, PROFILE_MAX);
    int r = seccomp_compile(SECCOMP_DEFAULT, &e->filter, &n, err);
    if (r == 0)
        r = seccomp_json(SECCOMP_DEFAULT, &text, err);
    if (r < 0)
        return r;
    e->filter_len = n * sizeof(struct sock_filter);
    if (e->kind->seccomp_by_path) {
        e->seccomp = xasprintf("%s/" PROFILE_FILE, e->dir_path);
        return write_file(e, e->dir_fd, PROFILE_FILE, &text, err);
    }
    e->seccomp = buf_take(&text);
    return 0;
}

/* The containers stay as they are: their supervisors wait for the next daemon. */
void engine_detach(struct backend *b)
{
    struct engine *e = container_of(b, struct engine, base);
    while (e->jobs != NULL)
        e->jobs->drop(e->jobs);
    while (e->sandboxes != NULL) {
        engine_proc_drop_all(e->sandboxes);
        engine_sandbox_free(e->sandboxes);
    }
    engine_api_free(e->api);
    for (size_t i = 0; e->root_fds != NULL && i < strv_len(e->roots); i++)
        fd_close_many(&e->root_fds[i], 1);
    strv_free(e->roots);
    fd_close_many(&e->dir_fd, 1);
    free(e->root_fds);
    free(e->dir_path);
    free(e->seccomp);
    free(e->filter);
    free(e);
}

/* Whoever had the time has destroyed them properly. Those that are left end by themselves. */
void engine_free(struct backend *b)
{
    const struct engine *e = container_of(b, struct engine, base);
    uint64_t at_once = 1;
    for (struct engine_sandbox *sb = e->sandboxes; sb != NULL; sb = sb->next)
        (void)engine_send(sb, GUEST_DEADLINE, 0, 0, &at_once, sizeof(at_once));
    engine_detach(b);
}

/* Whether it is there. */
struct ping {
    struct engine_job job;
    struct engine_call *call;
    backend_done_fn *done;
    void *arg;
};

static void ping_free(struct engine_job *job)
{
    struct ping *p = container_of(job, struct ping, job);
    engine_call_cancel(p->call);
    engine_job_remove(job);
    free(p);
}

static void on_pong(void *arg, const struct json *body, const struct err *err)
{
    struct ping *p = arg;
    backend_done_fn *done = p->done;
    void *done_arg = p->arg;
    p->call = NULL;
    ping_free(&p->job);
    done(done_arg, err);
}

static void engine_ping(struct backend *b, backend_done_fn *done, void *arg)
{
    struct engine *e = container_of(b, struct engine, base);
    struct ping *p = xnew(struct ping);
    p->done = done;
    p->arg = arg;
    engine_job_add(e, &p->job, ping_free);
    p->call = engine_call_start(e->api,
                                &(struct engine_request){.target = "/_ping",
                                                         .unversioned = true,
                                                         .timeout_ns = PING_TIMEOUT_NS},
                                on_pong, p);
}

/* The same for all kinds but for the name, which people and clients see. */
const struct backend_ops engine_ops = {
    .own_images = true,
    .ping = engine_ping,
    .create = engine_create,
    .abandon = engine_abandon,
    .destroy = engine_destroy,
    .exec = engine_exec_start,
    .exec_write = engine_exec_write,
    .exec_close_stdin = engine_exec_close_stdin,
    .exec_signal = engine_exec_signal,
    .exec_kill = engine_exec_kill,
    .exec_resize = engine_exec_resize,
    .exec_pause = engine_exec_pause,
    .exec_free = engine_exec_free,
    .sandbox_name = engine_sandbox_name,
    .sandbox_id = engine_sandbox_id,
    .list = engine_list,
    .adopt = engine_adopt,
    .sweep = engine_sweep,
    .set_deadline = engine_set_deadline,
    .proc_start = engine_proc_start,
    .proc_adopt = engine_proc_adopt,
    .proc_range = engine_proc_range,
    .proc_read = engine_proc_read,
    .proc_release = engine_proc_release,
    .proc_stderr = engine_proc_stderr,
    .proc_stderr_from = engine_proc_stderr_from,
    .proc_unwritten = engine_proc_unwritten,
    .proc_write = engine_proc_write,
    .proc_close_stdin = engine_proc_close_stdin,
    .proc_signal = engine_proc_signal,
    .proc_kill = engine_proc_kill,
    .proc_end = engine_proc_end,
    .proc_free = engine_proc_free,
    .receipt = engine_receipt,
    .place = engine_place,
    .doctor = engine_doctor,
    .free = engine_free,
    .detach = engine_detach,
};

/* What goes over a network in plain is anybody's to change, and an engine does what it is told. */
static int check_endpoint(const char *endpoint, const struct tls_files *tls, struct err *err)
{
    if (tls != NULL || !engine_endpoint_is_tcp(endpoint) || engine_endpoint_is_loopback(endpoint))
        return 0;
    return err_set(err, ERR_DENIED,
                   "engine_socket %.120s is not on this host's loopback and has no TLS: set "
                   "engine_tls_ca, engine_tls_cert and engine_tls_key",
                   endpoint);
}

int engine_new(struct loop *loop, const struct engine_options *options, struct backend **ret,
               struct err *err)
{
    AUTO_FREE char *endpoint = engine_find_endpoint(options->kind, options->endpoint);
    struct engine *e = xnew(struct engine);
    e->ops = engine_ops;
    e->base.ops = &e->ops;
    e->loop = loop;
    e->options = *options;
    e->kind = engine_kind_find(options->kind);
    e->ops.name = e->kind->name;
    e->dir_fd = -1;
    int r = check_endpoint(endpoint, options->tls, err);
    if (r == 0)
        r = engine_api_new_tls(loop, e->kind->name, endpoint, options->tls, &e->api, err);
    if (r == 0)
        r = engine_open_dir(e, err);
    if (r == 0)
        r = open_roots(e, err);
    if (r == 0)
        r = make_profiles(e, err);
    if (r < 0) {
        engine_free(&e->base);
        return r;
    }
    *ret = &e->base;
    return 0;
}
