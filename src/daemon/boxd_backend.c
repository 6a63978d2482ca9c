/* SPDX-License-Identifier: Apache-2.0 */

/* The table of backends that boxd knows, and the functions that make each of them. */

#include "daemon/boxd_backend.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/choice.h"
#include "backend/engine/engine.h"
#include "backend/fake/fake.h"
#include "backend/native/native.h"
#include "backend/runsc/runsc.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "config/config.h"
#include "fetch/launcher.h"
#include "http/stream/tls.h"
#include "policy/policy.h"
#include "priv/client.h"

#define GROUPS_MAX 4

struct boxd_backend {
    struct boxd_backend_options o;
    struct backend *choice;          /* owned */
    struct fetch_launcher *launcher; /* owned; NULL: jobs are our own children */
    struct priv_client *priv;        /* owned; of an engine; native has its own */
    struct err no_priv;              /* why there is none */
    struct choice_candidate candidates[CHOICE_MAX];
    struct tls_files tls;
    char program[PATH_MAX], init_program[PATH_MAX], files_program[PATH_MAX],
        guest_program[PATH_MAX], runsc_program[PATH_MAX];
    char runsc_version[RUNSC_VERSION_MAX];
    gid_t groups[GROUPS_MAX];
    size_t n_groups;
    bool dropped; /* engines that are not there by now cannot be had: the right to use them went */
};

/* Our helpers stand beside us in a build tree, or in libexec when installed. */
int boxd_find_program(const char *name, char *ret, struct err *err)
{
    static const char *const beside[] = {"%s/%s", "%s/../libexec/box/%s"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n <= 0)
        return err_sys(err, errno, "find our own program");
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < ARRAY_SIZE(beside); i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        int r = str_fmt(ret, PATH_MAX, beside[i], self, name);
#pragma GCC diagnostic pop
        if (r >= 0 && access(ret, X_OK) == 0)
            return 0;
    }
    if (str_fmt(ret, PATH_MAX, "%s/%s", BOX_LIBEXECDIR, name) >= 0 && access(ret, X_OK) == 0)
        return 0;
    return err_set(err, ERR_NOT_FOUND, "'%s' is missing: it should stand beside boxd or in %s",
                   name, BOX_LIBEXECDIR);
}

/* The path of an engine's socket, if that is what it has. */
static char *find_socket(const struct config *c, const char *kind)
{
    static const char scheme[] = "unix://";
    AUTO_FREE char *endpoint = engine_find_endpoint(kind, c->engine_socket);
    return str_starts(endpoint, scheme) ? xstrdup(endpoint + strlen(scheme)) : NULL;
}

/* Whoever can use a rootful engine is root anyway. What we can still do without is the id of root:
 * the group of the socket is enough, where the socket has one. */
void boxd_backend_ids(const struct config *c, uid_t *uid, gid_t *gid)
{
    struct stat st;
    AUTO_FREE char *path = engine_kind_known(c->backend) ? find_socket(c, c->backend) : NULL;
    if (path == NULL || stat(path, &st) < 0 || (st.st_mode & (S_IWGRP | S_IWOTH)))
        return;
    *uid = st.st_uid;
    *gid = st.st_gid;
    log_warn(NULL, "only uid %u may use '%s': boxd keeps that id; give the socket a group", *uid,
             path);
}

/* Of an engine that is not there yet, the group that packages give its socket. */
static void keep_group(struct boxd_backend *b, const char *kind)
{
    struct stat st;
    AUTO_FREE char *path = find_socket(b->o.config, kind);
    const struct group *usual = getgrnam(kind);
    if (!b->o.rootful || path == NULL || b->n_groups == GROUPS_MAX)
        return;
    bool there = stat(path, &st) == 0;
    if (there && (st.st_mode & S_IWGRP))
        b->groups[b->n_groups++] = st.st_gid;
    else if (!there && usual != NULL)
        b->groups[b->n_groups++] = usual->gr_gid;
    else if (there && (st.st_mode & S_IWOTH) == 0 && st.st_uid != b->o.uid)
        log_warn(NULL,
                 "%s: only uid %u may use '%s', an id that boxd gives up; give the socket a group, "
                 "or start boxd with --backend %s",
                 kind, st.st_uid, path, kind);
}

size_t boxd_backend_groups(const struct boxd_backend *b, const gid_t **ret)
{
    *ret = b->groups;
    return b->n_groups;
}

static bool is_any(const char *name)
{
    return str_eq(name, "auto") || str_eq(name, "local");
}

/* Makers. */

static void on_priv_gone(void *arg)
{
    struct boxd_backend *b = arg;
    const char *name = b->choice != NULL ? b->choice->ops->name : NULL;
    if (str_eq(name, "native") || str_eq(name, "runsc"))
        b->o.gone(b->o.gone_arg);
    else
        log_warn(NULL, "box-priv has died; the native backend is gone until boxd starts again");
}

/* What runs inside is gVisor's, what is around it is native's: one maker for both. */
static int find_gvisor(struct boxd_backend *b, struct native_options *options, struct err *err)
{
    int r = runsc_find(b->o.rootful ? NULL : getenv("PATH"), b->runsc_program,
                       sizeof(b->runsc_program), b->runsc_version, err);
    if (r == 0)
        r = boxd_find_program("box-guest", b->guest_program, err);
    options->runsc_program = b->runsc_program;
    options->guest_program = b->guest_program;
    options->runsc_version = b->runsc_version;
    return r;
}

static int make_native(void *arg, const char *name, struct backend **ret, struct err *err)
{
    struct boxd_backend *b = arg;
    const struct config *c = b->o.config;
    struct native_options options = {.program = b->program,
                                     .init_program = b->init_program,
                                     .files_program = b->files_program,
                                     .fetch_program = b->o.fetch_program,
                                     .state_dir = c->state_dir,
                                     .tag = b->o.tag,
                                     .uid = b->o.uid,
                                     .gid = b->o.gid,
                                     .roots = c->mount_roots,
                                     .aliases = c->aliases,
                                     .roots_are_outer = c->mount_roots_builtin,
                                     .require_limits = c->require_limits,
                                     .linger_sec = c->linger_sec,
                                     .gone = on_priv_gone,
                                     .gone_arg = b};
    options.workspace_entries = (uint32_t)policy_settings(c->policy)->max_workspace_entries;
    bool gvisor = str_eq(name, "runsc");
    if (b->dropped)
        return err_set(err, ERR_UNAVAILABLE,
                       "box-priv did not start when boxd did; start boxd again to try again");
    int r = boxd_find_program("box-priv", b->program, err);
    if (r == 0)
        r = boxd_find_program("box-init", b->init_program, err);
    if (r == 0)
        r = boxd_find_program("box-files", b->files_program, err);
    if (r == 0 && gvisor)
        r = find_gvisor(b, &options, err);
    if (r == 0)
        r = gvisor ? runsc_new(b->o.loop, &options, ret, err)
                   : native_new(b->o.loop, &options, ret, err);
    if (r == 0)
        b->launcher = native_launcher_new(gvisor ? runsc_outer(*ret) : *ret);
    return r;
}

static void on_engine_priv_gone(void *arg)
{
    log_warn(NULL, "box-priv has died; sessions with host directories are refused until boxd "
                   "starts again");
}

/* An engine does without box-priv, and then cannot map the owners of what it mounts. */
static int start_priv(struct boxd_backend *b, const char *socket, struct err *err)
{
    const struct config *c = b->o.config;
    if (!b->o.rootful)
        return err_set(err, ERR_UNSUPPORTED, "boxd was not started by root");
    if (socket == NULL)
        return err_set(err, ERR_UNSUPPORTED, "the engine is reached over the network");
    if (is_any(c->backend))
        return err_set(err, ERR_UNSUPPORTED, "the backend was not asked for by name");
    int r = boxd_find_program("box-priv", b->program, err);
    if (r == 0)
        r = boxd_find_program("box-init", b->init_program, err);
    struct priv_client_options options = {.program = b->program,
                                          .fetch_program = b->o.fetch_program,
                                          .init_program = b->init_program,
                                          .engine_socket = socket,
                                          .state_dir = c->state_dir,
                                          .tag = b->o.tag,
                                          .uid = b->o.uid,
                                          .gid = b->o.gid,
                                          .roots = c->mount_roots,
                                          .places = c->mount_roots_builtin,
                                          .linger_sec = c->linger_sec};
    if (r == 0)
        r = priv_client_new(b->o.loop, &options, &b->priv, err);
    if (r < 0)
        return r;
    priv_client_on_gone(b->priv, on_engine_priv_gone, b);
    b->launcher = native_launcher_by(b->priv, c->mount_roots, c->mount_roots_builtin);
    return 0;
}

static int make_engine(void *arg, const char *name, struct backend **ret, struct err *err)
{
    struct boxd_backend *b = arg;
    const struct config *c = b->o.config;
    bool tls = b->tls.ca != NULL || b->tls.cert != NULL || b->tls.key != NULL;
    struct engine_options options = {.kind = name,
                                     .endpoint = c->engine_socket,
                                     .tls = tls ? &b->tls : NULL,
                                     .state_dir = c->state_dir,
                                     .guest_program = b->guest_program,
                                     .runtime = c->engine_runtime,
                                     .linger_sec = c->linger_sec,
                                     .roots = c->mount_roots,
                                     .roots_are_outer = c->mount_roots_builtin,
                                     .require_limits = c->require_limits,
                                     .uid = b->o.uid,
                                     .gid = b->o.gid,
                                     .pull = c->image_pull};
    if (b->dropped)
        return err_set(err, ERR_UNAVAILABLE,
                       "not used: native works, and boxd, started by root, then gives up the right "
                       "to use an engine");
    AUTO_FREE char *endpoint = engine_find_endpoint(name, c->engine_socket);
    if (!tls && engine_endpoint_is_tcp(endpoint))
        log_warn(NULL, "%s: everybody on this host can use an engine at %s, and so be root", name,
                 endpoint);
    int r = boxd_find_program("box-guest", b->guest_program, err);
    if (r < 0)
        return r;
    AUTO_FREE char *socket = find_socket(c, name);
    if (b->priv == NULL && start_priv(b, socket, &b->no_priv) < 0)
        log_info(NULL, "%s: owners of host directories are not mapped: %s", name, b->no_priv.msg);
    options.priv = b->priv;
    options.no_priv = b->no_priv.msg;
    return engine_new(b->o.loop, &options, ret, err);
}

static int make_fake(void *arg, const char *name, struct backend **ret, struct err *err)
{
    static const struct fake_options at_once = {0};
    const struct boxd_backend *b = arg;
    log_warn(NULL, "backend 'fake': commands are simulated, nothing runs");
    return fake_new(b->o.loop, &at_once, ret, err);
}

/* clang-format off */
/* In the order in which they are tried. */
static const struct choice_candidate known[] = {
    {.name = "native", .make = make_native, .image = "host", .program = "true",
     .remedy = "start boxd as root, or let users make user namespaces; boxd's log says more"},
    {.name = "docker", .make = make_engine, .image = ENGINE_PROBE_IMAGE,
     .remedy = "start Docker, and give the user that boxd runs as its socket; or --backend docker"},
    {.name = "podman", .make = make_engine, .image = ENGINE_PROBE_IMAGE,
     .remedy = "systemctl [--user] start podman.socket, and give the user that boxd runs as its "
               "socket; or --backend podman"},
    {.name = "runsc", .make = make_native, .image = "host", .program = "true",
     .remedy = "install runsc, and start boxd as root, or let users make user namespaces"},
    {.name = "fake", .make = make_fake, .program = "pwd"},
};
/* clang-format on */

/* What runs on gVisor is slower, and not everything runs: that is for people to choose. */
static bool is_by_name_only(const char *name)
{
    return str_eq(name, "runsc") || str_eq(name, "fake");
}

/* Names that say nothing about which one, and those of one. */
static size_t pick(struct boxd_backend *b, struct err *err)
{
    const char *name = b->o.config->backend;
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if (str_eq(name, known[i].name) || (is_any(name) && !is_by_name_only(known[i].name)))
            b->candidates[n++] = known[i];
    if (n == 0)
        (void)err_set(err, ERR_INVALID,
                      "unknown backend '%s'; this boxd has: auto, native, docker, podman, runsc, "
                      "fake",
                      name);
    return n;
}

static void on_changed(void *arg, const char *name, const struct err *err)
{
    if (name != NULL)
        log_info(NULL, "backend: %s", name);
    else
        log_error(NULL, "%s; every call that needs a sandbox fails until one can", err->msg);
}

/* One that was asked for by name and cannot even be made is an error of who asked: nothing would
 * change by waiting. */
static int start_sole(struct boxd_backend *b, struct err *err)
{
    const char *name = b->candidates[0].name;
    if (engine_kind_known(name))
        keep_group(b, name);
    return choice_make(b->choice, name, err);
}

static void start_any(struct boxd_backend *b)
{
    static const char *const engines[] = {"docker", "podman"};
    struct err err = {0};
    bool native = choice_try_now(b->choice, "native", &err) == 0;
    if (!native)
        log_warn(NULL, "native: %s", err.msg);
    for (size_t i = 0; i < ARRAY_SIZE(engines); i++) {
        struct err why = {0};
        if (native && !engine_has_left(engines[i], b->o.config->state_dir))
            continue;
        keep_group(b, engines[i]);
        if (choice_make(b->choice, engines[i], &why) < 0)
            log_warn(NULL, "%s: %s", engines[i], why.msg);
    }
    b->dropped = b->o.rootful;
}

int boxd_backend_new(const struct boxd_backend_options *options, struct boxd_backend **ret,
                     struct err *err)
{
    struct boxd_backend *b = xnew(struct boxd_backend);
    int r = 0;
    b->o = *options;
    b->tls = (struct tls_files){.ca = options->config->engine_tls_ca,
                                .cert = options->config->engine_tls_cert,
                                .key = options->config->engine_tls_key};
    *ret = b;
    struct choice_options co = {
        .candidates = b->candidates, .n = pick(b, err), .arg = b, .changed = on_changed};
    if (co.n == 0)
        return err_code_errno(err->code);
    b->choice = choice_new(options->loop, &co);
    if (co.n == 1)
        r = start_sole(b, err);
    else
        start_any(b);
    return r;
}

struct backend *boxd_backend_get(const struct boxd_backend *b)
{
    return b->choice;
}

struct fetch_launcher *boxd_backend_launcher(const struct boxd_backend *b)
{
    return b->launcher;
}

void boxd_backend_free(struct boxd_backend *b, bool detach)
{
    if (b == NULL)
        return;
    fetch_launcher_free(b->launcher);
    if (b->choice != NULL && detach)
        b->choice->ops->detach(b->choice);
    else if (b->choice != NULL)
        b->choice->ops->free(b->choice);
    priv_client_free(b->priv);
    free(b);
}
