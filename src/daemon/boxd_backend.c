/* SPDX-License-Identifier: Apache-2.0 */

/* The table of backends that boxd knows, and the functions that make each of them. */

#include "daemon/boxd_backend.h"

#include <grp.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "backend/backend.h"
#include "backend/choice.h"
#include "backend/engine/engine.h"
#include "backend/native/native.h"
#include "backend/runsc/runsc.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "config/config.h"
#include "fetch/launcher.h"
#include "http/stream/tls.h"
#include "loop/loop.h"
#include "policy/policy.h"
#include "priv/client.h"

struct backends {
    struct boxd_backend seen; /* by others */
    struct boxd_backend_options o;
    struct priv_client *priv; /* owned; of an engine; native has its own */
    struct err no_priv;       /* why there is none */
    struct choice_candidate candidates[CHOICE_MAX];
    struct tls_files tls;
    char program[PATH_MAX], init_program[PATH_MAX], files_program[PATH_MAX],
        guest_program[PATH_MAX], runsc_program[PATH_MAX];
    char runsc_version[RUNSC_VERSION_MAX];
    bool dropped; /* engines that are not there by now cannot be had: the right to use them went */
};

/* The path of an engine's socket, if that is what it has. */
static char *find_socket(const struct config *c, const char *kind)
{
    static const char scheme[] = "unix://";
    AUTO_FREE char *endpoint = engine_find_endpoint(kind, c->engine_socket);
    return str_starts(endpoint, scheme) ? xstrdup(endpoint + strlen(scheme)) : NULL;
}

/* A user of a rootful engine is root anyway. What boxd can still do without is the id of root: the
 * group of the socket is enough, where the socket has one. */
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
static void keep_group(struct backends *b, const char *kind)
{
    struct stat st;
    AUTO_FREE char *path = find_socket(b->o.config, kind);
    const struct group *usual = getgrnam(kind);
    if (!b->o.rootful || path == NULL || b->seen.n_groups == BOXD_GROUPS_MAX)
        return;
    bool there = stat(path, &st) == 0;
    if (there && (st.st_mode & S_IWGRP))
        b->seen.groups[b->seen.n_groups++] = st.st_gid;
    else if (!there && usual != NULL)
        b->seen.groups[b->seen.n_groups++] = usual->gr_gid;
    else if (there && (st.st_mode & S_IWOTH) == 0 && st.st_uid != b->o.uid)
        log_warn(NULL,
                 "%s: only uid %u may use '%s', an id that boxd gives up; give the socket a group, "
                 "or start boxd with --backend %s",
                 kind, st.st_uid, path, kind);
}

static bool is_any(const char *name)
{
    return str_eq(name, "auto") || str_eq(name, "local");
}

/* Makers. */

static void on_priv_gone(void *arg)
{
    struct backends *b = arg;
    const char *name = b->seen.backend != NULL ? b->seen.backend->ops->name : NULL;
    if (str_eq(name, "native") || str_eq(name, "runsc"))
        b->o.gone(b->o.gone_arg);
    else
        log_warn(NULL, "box-priv has died; the native backend is gone until boxd starts again");
}

/* What runs inside is gVisor's, what is around it is native's: one maker for both. */
static int find_gvisor(struct backends *b, struct native_options *options, struct err *err)
{
    int r = runsc_find(b->o.rootful ? NULL : getenv("PATH"), b->runsc_program,
                       sizeof(b->runsc_program), b->runsc_version, err);
    if (r == 0)
        r = config_find_program("box-guest", b->guest_program, err);
    options->runsc_program = b->runsc_program;
    options->guest_program = b->guest_program;
    options->runsc_version = b->runsc_version;
    return r;
}

static int make_native(void *arg, struct loop *loop, const char *name, struct backend **ret,
                       struct err *err)
{
    struct backends *b = arg;
    const struct config *c = b->o.config;
    struct native_options options = {.program = b->program,
                                     .init_program = b->init_program,
                                     .files_program = b->files_program,
                                     .fetch_program = b->seen.fetch_program,
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
    int r = config_find_program("box-priv", b->program, err);
    if (r == 0)
        r = config_find_program("box-init", b->init_program, err);
    if (r == 0)
        r = config_find_program("box-files", b->files_program, err);
    if (r == 0 && gvisor)
        r = find_gvisor(b, &options, err);
    if (r == 0)
        r = gvisor ? runsc_new(loop, &options, ret, err) : native_new(loop, &options, ret, err);
    if (r == 0)
        b->seen.launcher = native_launcher_new(gvisor ? runsc_outer(*ret) : *ret);
    return r;
}

static void on_engine_priv_gone(void *arg)
{
    log_warn(NULL, "box-priv has died; sessions with host directories are refused until boxd "
                   "starts again");
}

/* An engine does without box-priv, and then cannot map the owners of what it mounts. */
static int start_priv(struct backends *b, const char *socket, struct err *err)
{
    const struct config *c = b->o.config;
    if (!b->o.rootful)
        return err_set(err, ERR_UNSUPPORTED, "boxd was not started by root");
    if (socket == NULL)
        return err_set(err, ERR_UNSUPPORTED, "the engine is reached over the network");
    if (is_any(c->backend))
        return err_set(err, ERR_UNSUPPORTED, "the backend was not asked for by name");
    int r = config_find_program("box-priv", b->program, err);
    if (r == 0)
        r = config_find_program("box-init", b->init_program, err);
    struct priv_client_options options = {.program = b->program,
                                          .fetch_program = b->seen.fetch_program,
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
    b->seen.launcher = native_launcher_by(b->priv, c->mount_roots, c->mount_roots_builtin);
    return 0;
}

static int make_engine(void *arg, struct loop *loop, const char *name, struct backend **ret,
                       struct err *err)
{
    struct backends *b = arg;
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
        log_warn(NULL, "%s: every user of this host can use the engine at %s, and so become root",
                 name, endpoint);
    int r = config_find_program("box-guest", b->guest_program, err);
    if (r < 0)
        return r;
    AUTO_FREE char *socket = find_socket(c, name);
    if (b->priv == NULL && start_priv(b, socket, &b->no_priv) < 0)
        log_info(NULL, "%s: owners of host directories are not mapped: %s", name, b->no_priv.msg);
    options.priv = b->priv;
    options.no_priv = b->no_priv.msg;
    return engine_new(loop, &options, ret, err);
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
};
/* clang-format on */

/* `auto` never picks runsc: programs on gVisor are slower, and some do not run at all. */
static bool is_candidate(const char *name, const char *wanted)
{
    return str_eq(name, wanted) || (is_any(wanted) && !str_eq(name, "runsc"));
}

/* All that may be chosen, or the one that was asked for by name. */
static size_t pick_candidates(struct backends *b, struct err *err)
{
    const char *name = b->o.config->backend;
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        if (is_candidate(known[i].name, name))
            b->candidates[n++] = known[i];
    if (&boxd_extra_backend != NULL && str_eq(name, boxd_extra_backend.name))
        b->candidates[n++] = boxd_extra_backend;
    if (n == 0)
        (void)err_set(err, ERR_INVALID,
                      "unknown backend '%s'; this boxd has: auto, native, docker, podman, runsc",
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

/* A backend that was asked for by name and cannot even be made is an error of the configuration:
 * nothing would change by waiting. */
static int start_sole(struct backends *b, struct err *err)
{
    const char *name = b->candidates[0].name;
    if (engine_kind_known(name))
        keep_group(b, name);
    return choice_make(b->seen.backend, name, err);
}

static void start_any(struct backends *b)
{
    static const char *const engines[] = {"docker", "podman"};
    struct err err = {0};
    bool native = choice_try_now(b->seen.backend, "native", &err) == 0;
    if (!native)
        log_warn(NULL, "native: %s", err.msg);
    for (size_t i = 0; i < ARRAY_SIZE(engines); i++) {
        struct err why = {0};
        if (native && !engine_has_left(engines[i], b->o.config->state_dir))
            continue;
        keep_group(b, engines[i]);
        if (choice_make(b->seen.backend, engines[i], &why) < 0)
            log_warn(NULL, "%s: %s", engines[i], why.msg);
    }
    b->dropped = b->o.rootful;
}

int boxd_backend_new(const struct boxd_backend_options *options, struct boxd_backend **ret,
                     struct err *err)
{
    struct backends *b = xnew(struct backends);
    b->o = *options;
    b->tls = (struct tls_files){.ca = options->config->engine_tls_ca,
                                .cert = options->config->engine_tls_cert,
                                .key = options->config->engine_tls_key};
    *ret = &b->seen;
    int r = config_find_program("box-fetch", b->seen.fetch_program, err);
    if (r < 0)
        return r;
    struct choice_options co = {
        .candidates = b->candidates, .n = pick_candidates(b, err), .arg = b, .changed = on_changed};
    if (co.n == 0)
        return err_code_errno(err->code);
    b->seen.backend = choice_new(options->loop, &co);
    if (co.n == 1)
        r = start_sole(b, err);
    else
        start_any(b);
    return r;
}

void boxd_backend_free(struct boxd_backend *seen, bool detach)
{
    if (seen == NULL)
        return;
    struct backends *b = container_of(seen, struct backends, seen);
    fetch_launcher_free(b->seen.launcher);
    if (b->seen.backend != NULL && detach)
        b->seen.backend->ops->detach(b->seen.backend);
    else if (b->seen.backend != NULL)
        b->seen.backend->ops->free(b->seen.backend);
    priv_client_free(b->priv);
    free(b);
}
