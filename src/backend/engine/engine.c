/* SPDX-License-Identifier: Apache-2.0 */

/* Makes and frees an engine backend: what differs between Docker and Podman, where they listen, its
 * directory, instance id, seccomp profiles, roots and ping. */

#include "backend/engine/engine.h"

#include <arpa/inet.h>
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <stdlib.h>
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

#define PROFILE_MAX (256U << 10)
#define ENGINE_DIR "engine"
#define PROFILE_FILE "seccomp.json"
#define INSTANCE_FILE "instance-id"
#define PING_TIMEOUT_NS (3ULL * NSEC_PER_SEC)

/* A leading '~' stands for $XDG_RUNTIME_DIR: where an engine of the user's own listens. Root's own
 * comes first for root only, whose runtime directory may be another user's. */
static const char *const docker_sockets[] = {"/run/docker.sock", "/var/run/docker.sock",
                                             "~/docker.sock", NULL};
static const char *const podman_sockets[] = {"/run/podman/podman.sock", "~/podman/podman.sock",
                                             NULL};

static const struct engine_kind kinds[] = {
    {.name = "docker",
     .sockets = docker_sockets,
     .env = "DOCKER_HOST",
     .probe_import = "/images/create?fromSrc=-&repo=localhost%2Fbox-probe&tag=1"},
    {.name = "podman",
     .sockets = podman_sockets,
     .env = "CONTAINER_HOST",
     /* The other way it forgets the name. */
     .probe_import = "/v4.0.0/libpod/images/import?reference=localhost%2Fbox-probe%3A1",
     .seccomp_by_path = true,
     .masks_by_option = true,
     .is_podman = true,
     .mounts_as_text = true},
};

static const struct engine_kind *engine_kind_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (str_eq(kinds[i].name, name))
            return &kinds[i];
    return NULL;
}

bool engine_kind_known(const char *kind)
{
    return engine_kind_find(kind) != NULL;
}

static char *socket_path(const char *place)
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    if (place[0] != '~')
        return xstrdup(place);
    if (run == NULL || run[0] != '/')
        return xasprintf("/run/user/%u%s", (unsigned)geteuid(), place + 1);
    return xasprintf("%s%s", run, place + 1);
}

char *engine_find_endpoint(const char *kind, const char *given)
{
    const struct engine_kind *k = engine_kind_find(kind);
    assert(k != NULL);
    const char *env = getenv(k->env);
    struct stat st;
    if (given != NULL && given[0] != '\0')
        return given[0] == '/' ? xasprintf("unix://%s", given) : xstrdup(given);
    if (env != NULL && env[0] != '\0')
        return xstrdup(env);
    for (size_t i = 0; k->sockets[i] != NULL; i++) {
        AUTO_FREE char *path = socket_path(k->sockets[i]);
        /* A socket that we may not use belongs to another user; it is taken only if there is no
         * other. */
        if (stat(path, &st) == 0 && S_ISSOCK(st.st_mode) && access(path, W_OK) == 0)
            return xasprintf("unix://%s", path);
    }
    return xasprintf("unix://%s", k->sockets[0]);
}

/* What follows the scheme, or NULL. */
static const char *tcp_authority(const char *endpoint)
{
    static const char *const schemes[] = {"tcp://", "http://", "https://"};
    for (size_t i = 0; i < ARRAY_SIZE(schemes); i++)
        if (str_starts(endpoint, schemes[i]))
            return endpoint + strlen(schemes[i]);
    return NULL;
}

bool engine_endpoint_is_tcp(const char *endpoint)
{
    return tcp_authority(endpoint) != NULL;
}

/* A name is not looked up for that: a resolver may answer anything. */
static bool is_loopback(const char *endpoint)
{
    const char *at = tcp_authority(endpoint);
    struct in_addr address;
    if (at == NULL || str_starts(at, "[::1]"))
        return at != NULL;
    AUTO_FREE char *host = xstrndup(at, strcspn(at, ":/"));
    return inet_pton(AF_INET, host, &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

/* Row L12: runtimes below these versions have known ways out of a container. A branch without a fix
 * counts as below. Docker's own floor (29.4.3, for kernels with AF_ALG) is not here: our system
 * call profile has no AF_ALG. */

struct version {
    unsigned major, minor, patch, rc; /* rc 0: none */
};

static const struct {
    const char *program;
    struct version fixed; /* first good one of its minor branch */
    const char *cves;
} floors[] = {
    {"runc", {1, 3, 6, 0}, "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881, CVE-2026-41579"},
    {"runc", {1, 4, 3, 0}, "CVE-2026-41579"},
    {"runc", {1, 5, 0, 3}, "CVE-2026-41579"},
    {"crun", {1, 28, 0, 0}, "CVE-2026-30892, CVE-2026-47766"},
};

static unsigned take_number(const char **at)
{
    unsigned n = 0;
    for (; **at >= '0' && **at <= '9' && n < 100000; (*at)++)
        n = n * 10 + (unsigned)(**at - '0');
    return n;
}

/* The first "1.2.3", "1.2" or "1.2.3-rc.4" in a text. */
static bool find_version(const char *text, struct version *ret)
{
    const char *at = text;
    while (*at != '\0' && !(*at >= '0' && *at <= '9'))
        at++;
    *ret = (struct version){.major = take_number(&at)};
    if (*at != '.')
        return false;
    at++;
    ret->minor = take_number(&at);
    if (*at == '.') {
        at++;
        ret->patch = take_number(&at);
    }
    const char *rc = str_starts(at, "-rc.") || str_starts(at, "~rc.") ? at + 4
                     : str_starts(at, "-rc") || str_starts(at, "~rc") ? at + 3
                                                                      : NULL;
    if (rc != NULL)
        ret->rc = take_number(&rc);
    return true;
}

static bool is_below(const struct version *v, const struct version *fixed)
{
    if (v->patch != fixed->patch)
        return v->patch < fixed->patch;
    unsigned a = v->rc > 0 ? v->rc : ~0U, b = fixed->rc > 0 ? fixed->rc : ~0U;
    return a < b;
}

const char *engine_floor_breach(const char *program, const char *text)
{
    struct version v;
    const char *newest = NULL;
    bool branch_known = false;
    unsigned newest_minor = 0;
    if (!find_version(text, &v))
        return NULL;
    for (size_t i = 0; i < ARRAY_SIZE(floors); i++) {
        if (!str_eq(floors[i].program, program))
            continue;
        if (v.major == floors[i].fixed.major && v.minor == floors[i].fixed.minor) {
            branch_known = true;
            if (is_below(&v, &floors[i].fixed))
                return floors[i].cves;
        }
        if (newest == NULL || floors[i].fixed.minor < newest_minor) {
            newest = floors[i].cves; /* that of the oldest branch with a fix */
            newest_minor = floors[i].fixed.minor;
        }
    }
    if (newest == NULL || branch_known)
        return NULL;
    return v.major < 1 || (v.major == 1 && v.minor < newest_minor) ? newest : NULL;
}

void engine_job_start(struct engine *e, struct engine_job *job, backend_done_fn *done, void *arg)
{
    job->engine = e;
    job->done = done;
    job->arg = arg;
    LIST_INSERT_HEAD(&e->jobs, job, entry);
}

void engine_job_ask(struct engine_job *job, const struct engine_request *req, engine_answer_fn *fn)
{
    assert(job->call == NULL);
    job->call = engine_call_start(job->engine->api, req, fn, job);
}

void engine_job_free(struct engine_job *job)
{
    engine_call_cancel(job->call);
    LIST_REMOVE(job, entry);
    if (job->release != NULL)
        job->release(job);
    free(job);
}

void engine_job_end(struct engine_job *job, const struct err *err)
{
    backend_done_fn *done = job->done;
    void *arg = job->arg;
    struct err why = err != NULL ? *err : (struct err){0}; /* it may be the job's */
    engine_job_free(job);
    done(arg, err != NULL ? &why : NULL);
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
    (void)number; /* mounts.c finds it by the path */
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

int engine_load_filter(struct engine *e, struct err *err)
{
    size_t n = 0;
    int r = seccomp_compile(SECCOMP_DEFAULT, &e->filter, &n, err);
    e->filter_len = n * sizeof(struct sock_filter);
    return r;
}

static int make_profiles(struct engine *e, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(PROFILE_MAX);
    int r = engine_load_filter(e, err);
    if (r == 0)
        r = seccomp_json(SECCOMP_DEFAULT, &text, err);
    if (r < 0)
        return r;
    if (e->kind->seccomp_by_path) {
        e->seccomp = xasprintf("%s/" PROFILE_FILE, e->dir_path);
        return write_file(e, e->dir_fd, PROFILE_FILE, &text, err);
    }
    e->seccomp = buf_take(&text);
    return 0;
}

/* The containers stay as they are: their supervisors wait for the next daemon. */
static void engine_detach(struct backend *b)
{
    struct engine *e = container_of(b, struct engine, base);
    struct engine_job *job, *next;
    struct engine_sandbox *sb;
    LIST_FOREACH_SAFE (job, &e->jobs, entry, next)
        engine_job_free(job);
    while ((sb = LIST_FIRST(&e->sandboxes)) != NULL) {
        tasks_drop(&sb->tasks);
        engine_sandbox_free(sb);
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

/* Sandboxes that were not destroyed before are told to end by themselves. */
static void engine_free(struct backend *b)
{
    const struct engine *e = container_of(b, struct engine, base);
    uint64_t at_once = 1;
    struct engine_sandbox *sb;
    LIST_FOREACH (sb, &e->sandboxes, entry)
        (void)engine_send(sb, GUEST_DEADLINE, 0, 0, &at_once, sizeof(at_once));
    engine_detach(b);
}

static void on_pong(void *arg, const struct json *body, const struct err *err)
{
    struct engine_job *job = arg;
    job->call = NULL;
    engine_job_end(job, err);
}

/* Whether it is there. */
static void engine_ping(struct backend *b, backend_done_fn *done, void *arg)
{
    struct engine_job *job = xnew(struct engine_job);
    engine_job_start(container_of(b, struct engine, base), job, done, arg);
    engine_job_ask(job,
                   &(struct engine_request){
                       .target = "/_ping", .unversioned = true, .timeout_ns = PING_TIMEOUT_NS},
                   on_pong);
}

static const char *sandbox_name(const struct sandbox *base)
{
    return container_of(base, struct engine_sandbox, tasks.sandbox)->name;
}

static const char *sandbox_id(const struct sandbox *base)
{
    return container_of(base, struct engine_sandbox, tasks.sandbox)->id;
}

/* The same for all kinds but for the name, which people and clients see. */
const struct backend_ops engine_ops = {
    .own_images = true,
    .ping = engine_ping,
    .create = engine_create,
    .unenforced = engine_unenforced,
    .abandon = engine_abandon,
    .destroy = engine_destroy,
    .sandbox_name = sandbox_name,
    .sandbox_id = sandbox_id,
    .list = engine_list,
    .adopt = engine_adopt,
    .sweep = engine_sweep,
    .set_deadline = engine_set_deadline,
    .connect = engine_connect,
    .listen = engine_host_listen,
    .pause = engine_pause,
    .update = engine_update,
    .diff = engine_diff,
    .receipt = engine_receipt,
    .usage = tasks_usage,
    .place = engine_place,
    .doctor = engine_doctor,
    .free = engine_free,
    .detach = engine_detach,
};

/* Calls in plain text can be changed on their way through a network, and an engine obeys them. */
static int check_endpoint(const char *endpoint, const struct tls_files *tls, struct err *err)
{
    if (tls != NULL || !engine_endpoint_is_tcp(endpoint) || is_loopback(endpoint))
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
    tasks_operations(&e->ops);
    e->base.ops = &e->ops;
    e->loop = loop;
    e->options = *options;
    e->kind = engine_kind_find(options->kind);
    assert(e->kind != NULL);
    e->ops.name = e->kind->name;
    e->dir_fd = -1;
    int r = check_endpoint(endpoint, options->tls, err);
    if (r == 0)
        r = engine_api_new(loop, e->kind->name, endpoint, options->tls, &e->api, err);
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
