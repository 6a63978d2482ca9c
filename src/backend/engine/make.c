/* SPDX-License-Identifier: Apache-2.0 */

/* Creates or adopts a session's container, step by step; each step is one call to the engine. */

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "sandbox/setup/userns.h"

#define CREATE_TIMEOUT_NS (60ULL * NSEC_PER_SEC)
#define PULL_SILENCE_NS (120ULL * NSEC_PER_SEC)
#define PULL_WHOLE_NS (30ULL * 60 * NSEC_PER_SEC)
#define LOOK_TIMEOUT_NS (10ULL * NSEC_PER_SEC)
#define ADOPT_LOOKS 22 /* seconds of patience that an adoption has less: others wait for it */
#define NPROC_MAX 4096U
#define RUNTIMES_MAX 1024U
#define PLAIN_ID 1000U

/* What could not be removed while the engine was away. */

static void on_tidied(void *arg, const struct err *err)
{
    struct engine *e = arg;
    e->untidy = e->untidy || err != NULL;
}

static void tidy_up(struct engine *e)
{
    struct err err = {0};
    if (!e->untidy)
        return;
    e->untidy = false;
    if (engine_sweep(&e->base, on_tidied, e, &err) < 0)
        on_tidied(e, &err);
}

/* Starting. */

static void on_started(void *arg, const struct json *body, const struct err *err)
{
    struct engine_sandbox *sb = arg;
    sb->call = NULL;
    if (err != NULL) {
        engine_fail(sb, err);
        return;
    }
    tidy_up(sb->engine);
    engine_greet(sb);
}

/* An engine that does not find our files is not where they are. */
static void explain_far(const struct engine_sandbox *sb, struct err *err)
{
    if (!engine_endpoint_is_tcp(sb->engine->api->endpoint) ||
        (strstr(err->msg, "bind source path does not exist") == NULL &&
         strstr(err->msg, "no such file") == NULL))
        return;
    (void)err_wrap(err, "the engine at %.80s must be on the same host as boxd",
                   sb->engine->api->endpoint);
}

/* A proxy at the socket only passes on what the engine says: the engine has other mounts. */
static bool is_bind_unseen(const struct engine_sandbox *sb, const struct err *err)
{
    return sb->bind_name[0] != '\0' && err->sys == 0 && strstr(err->msg, sb->bind_name) != NULL;
}

static void on_created(void *arg, const struct json *body, const struct err *err)
{
    struct engine_sandbox *sb = arg;
    const char *id = json_str(json_get(body, "Id"));
    struct err odd = {0};
    sb->call = NULL;
    if (err != NULL && err->sys != 0) { /* no answer: it may be there all the same, or be yet */
        (void)str_copy(sb->id, sizeof(sb->id), sb->name);
        sb->engine->untidy = true;
    }
    if (sb->state == ENGINE_REMOVING) {
        if (err == NULL && id != NULL && id_valid(id))
            (void)str_copy(sb->id, sizeof(sb->id), id);
        engine_remove(sb);
        return;
    }
    if (err == NULL && (id == NULL || !id_valid(id) || str_copy(sb->id, sizeof(sb->id), id) < 0)) {
        (void)err_set(&odd, ERR_BACKEND, "%s backend error: it made a container without an id",
                      sb->engine->kind->name);
        err = &odd;
    }
    if (err != NULL && is_bind_unseen(sb, err)) {
        if (engine_bind_give_up(sb, &odd) < 0)
            engine_fail(sb, &odd);
        else
            engine_bound(sb);
        return;
    }
    if (err != NULL) {
        odd = *err;
        explain_far(sb, &odd);
        engine_fail(sb, &odd);
        return;
    }
    engine_move(sb, ENGINE_STARTING);
    AUTO_FREE char *target = xasprintf("/containers/%s/start", sb->id);
    engine_ask(sb,
               &(struct engine_request){
                   .method = "POST", .target = target, .timeout_ns = CREATE_TIMEOUT_NS},
               on_started);
}

/* Creating. */

static uint64_t nproc_max(void)
{
    struct rlimit own;
    if (getrlimit(RLIMIT_NPROC, &own) < 0 || own.rlim_max > NPROC_MAX)
        return NPROC_MAX;
    return own.rlim_max;
}

static void create_now(struct engine_sandbox *sb)
{
    const struct engine *e = sb->engine;
    AUTO_FREE char *run_dir = xasprintf("%s/%s", e->dir_path, sb->name);
    AUTO_FREE char *target = xasprintf("/containers/create?name=%s", sb->name);
    AUTO_DONE(buf) struct buf body = BUF_INIT(ENGINE_CREATE_MAX);
    char hash[BACKEND_CONFIG_HASH_LEN + 1];
    struct err err = {0};
    backend_config_hash(sb->spec, hash);
    struct engine_plan plan = {.spec = sb->spec,
                               .mounts = &sb->mounts,
                               .name = sb->name,
                               .instance = e->instance,
                               .hash = hash,
                               .image = sb->spec->image,
                               .user = sb->user[0] != '\0' ? sb->user : NULL,
                               .runtime = e->options.runtime,
                               .seccomp = e->seccomp,
                               .guest_program = e->options.guest_program,
                               .run_dir = run_dir,
                               .volumes = sb->spec->read_only_rootfs ? sb->volumes : NULL,
                               .masks_by_option = e->kind->masks_by_option,
                               .flat = !e->facts.narrow,
                               .own_id = sb->own_id,
                               .gvisor = e->facts.gvisor,
                               .v1 = e->facts.v1,
                               .keep = sb->spec->persistent || e->facts.live_restore,
                               .nproc_max = nproc_max()};
    engine_move(sb, ENGINE_CREATING);
    if (engine_create_body(&plan, &body, &err) < 0) {
        engine_fail(sb, &err);
        return;
    }
    engine_ask(sb,
               &(struct engine_request){.method = "POST",
                                        .target = target,
                                        .body = body.data,
                                        .body_len = body.len,
                                        .timeout_ns = CREATE_TIMEOUT_NS},
               on_created);
}

static uint32_t private_id(const struct engine_sandbox *sb)
{
    return userns_payload_id((uint32_t)(str_hash(sb->name) % USERNS_INDEX_MAX));
}

static bool is_root(const char *user)
{
    return user == NULL || user[0] == '\0' || str_eq(user, "0") || str_eq(user, "root") ||
           str_starts(user, "0:") || str_starts(user, "root:");
}

/* The user id of programs. With host directories that box-priv maps, or without any: on a root that
 * can be written to, the image's root; else an id that no other session has, where the engine can
 * give it, and an image that has a user of its own keeps it. To write to a host directory that is
 * not mapped, programs must have the id of its owner. */
static void choose_user(struct engine_sandbox *sb)
{
    const struct engine_mount *shared = NULL;
    bool mapped = sb->bind_name[0] != '\0';
    for (size_t i = 0; i < sb->mounts.n && shared == NULL && !mapped; i++)
        shared = sb->mounts.list[i].read_only ? NULL : &sb->mounts.list[i];
    uint32_t uid = PLAIN_ID, gid = PLAIN_ID;
    sb->user[0] = '\0';
    sb->own_id = false;
    if (shared != NULL) {
        uid = sb->engine->facts.narrow ? 0 : shared->uid;
        gid = sb->engine->facts.narrow ? 0 : shared->gid;
    } else if (!sb->image_root && !mapped) {
        return;
    } else if (!sb->spec->read_only_rootfs) {
        uid = gid = 0;
    } else if (!sb->engine->facts.narrow) {
        sb->own_id = true;
        uid = gid = private_id(sb);
    }
    (void)snprintf(sb->user, sizeof(sb->user), "%u:%u", uid, gid);
}

void engine_bound(struct engine_sandbox *sb)
{
    choose_user(sb);
    create_now(sb);
}

/* Maps the owners of what is mounted, then makes the container. */
static void bind_now(struct engine_sandbox *sb)
{
    const char *why = NULL;
    struct err err = {0};
    int r = 0;
    if (sb->mounts.n == 0) {
        engine_bound(sb);
        return;
    }
    engine_move(sb, ENGINE_BINDING);
    bool mapped = engine_can_bind(sb->engine, &why);
    if (mapped)
        r = engine_bind(sb, sb->spec->read_only_rootfs ? private_id(sb) : 0, &err);
    else
        r = engine_bind_plain(sb, why, &err);
    if (r < 0)
        engine_fail(sb, &err);
    else if (!mapped)
        engine_bound(sb);
}

/* The image. */

static void inspect_now(struct engine_sandbox *sb);

static void on_pulled(void *arg, const struct json *body, const struct err *err)
{
    struct engine_sandbox *sb = arg;
    sb->call = NULL;
    loop_timer_stop(&sb->timer);
    if (err != NULL) {
        struct err why = *err;
        if (strstr(why.msg, sb->spec->image) == NULL)
            (void)err_wrap(&why, "fetch %.100s", sb->spec->image);
        why.thing = ERR_THING_IMAGE;
        engine_fail(sb, &why);
        return;
    }
    sb->pulled = true;
    inspect_now(sb);
}

static int on_progress(void *arg, const struct json *object, struct err *err)
{
    struct engine_sandbox *sb = arg;
    const char *status = json_str(json_get(object, "status"));
    const char *error = json_str(json_get(object, "error"));
    const char *layer = json_str(json_get(object, "id"));
    int64_t bytes = json_int(json_get(json_get(object, "progressDetail"), "total"));
    if (layer != NULL && bytes > 0 && engine_pull_excess(&sb->pull, layer, (uint64_t)bytes))
        return err_set(
            err, ERR_LIMIT,
            "image %.100s is larger than %llu GiB; fetch it by hand (%s pull) if that is "
            "meant",
            sb->spec->image, ENGINE_PULL_MAX >> 30, sb->engine->kind->name);
    if (error != NULL)
        return err_set(err, ERR_BACKEND, "%s backend error: pull %.100s: %.200s",
                       sb->engine->kind->name, sb->spec->image, error);
    if (status != NULL)
        log_debug(sb->spec->session_id, "pull %.100s: %.100s", sb->spec->image, status);
    return 0;
}

static void on_pull_late(struct loop_timer *t)
{
    struct engine_sandbox *sb = container_of(t, struct engine_sandbox, timer);
    struct err err = {0};
    (void)err_set(&err, ERR_BACKEND, "image %.100s could not be fetched within %llu minutes",
                  sb->spec->image, PULL_WHOLE_NS / NSEC_PER_SEC / 60);
    engine_fail(sb, &err);
}

/* Giving the session up ends the pull, by hanging up on the engine. */
static void pull_now(struct engine_sandbox *sb)
{
    AUTO_FREE char *image = engine_quote(sb->spec->image);
    /* Without a tag an engine would fetch them all. */
    const char *slash = strrchr(sb->spec->image, '/');
    bool tagged = strpbrk(slash != NULL ? slash : sb->spec->image, ":@") != NULL;
    AUTO_FREE char *target =
        xasprintf("/images/create?fromImage=%s%s", image, tagged ? "" : "&tag=latest");
    engine_move(sb, ENGINE_PULLING);
    log_info(sb->spec->session_id, "fetching image %.100s", sb->spec->image);
    loop_timer_start(sb->engine->loop, &sb->timer, PULL_WHOLE_NS, on_pull_late);
    engine_ask(
        sb,
        &(struct engine_request){
            .method = "POST", .target = target, .timeout_ns = PULL_SILENCE_NS, .line = on_progress},
        on_pulled);
}

/* Our own image, of nothing: enough for our own supervisor. */
static void import_now(struct engine_sandbox *sb)
{
    static const char empty_tar[1024] = {0};
    const char *target = sb->engine->kind->probe_import;
    engine_move(sb, ENGINE_PULLING);
    engine_ask(sb,
               &(struct engine_request){.method = "POST",
                                        .target = target,
                                        .unversioned = str_starts(target, "/v"),
                                        .body = empty_tar,
                                        .body_len = sizeof(empty_tar),
                                        .type = "application/x-tar",
                                        .timeout_ns = LOOK_TIMEOUT_NS,
                                        .line = on_progress},
               on_pulled);
}

/* What requests without an image ask for, and native has. An image of that name in a registry is
 * not meant. */
static bool is_host(const struct engine_sandbox *sb)
{
    return str_eq(sb->spec->image, "host");
}

static void explain_missing(const struct engine_sandbox *sb, struct err *err)
{
    const char *kind = sb->engine->kind->name;
    if (is_host(sb))
        (void)err_missing(
            err, ERR_THING_IMAGE,
            "%s has no image 'host', which stands for the programs of this host: name one "
            "(box run --image NAME)",
            kind);
    else
        (void)err_missing(
            err, ERR_THING_IMAGE,
            "%s has no image '%.120s'; fetch it (%s pull), or set image_pull: missing", kind,
            sb->spec->image, kind);
}

static void on_image(void *arg, const struct json *body, const struct err *err)
{
    struct engine_sandbox *sb = arg;
    struct err missing = {0};
    sb->call = NULL;
    if (err != NULL && err->code == ERR_NOT_FOUND && !sb->pulled &&
        str_eq(sb->spec->image, ENGINE_PROBE_IMAGE)) {
        import_now(sb);
        return;
    }
    if (err != NULL && err->code == ERR_NOT_FOUND && sb->engine->options.pull && !sb->pulled &&
        !is_host(sb)) {
        pull_now(sb);
        return;
    }
    if (err != NULL && err->code == ERR_NOT_FOUND) {
        explain_missing(sb, &missing);
        err = &missing;
    }
    if (err == NULL && engine_image_labels(body, sb->spec->image, &missing) < 0)
        err = &missing;
    if (err == NULL && sb->volumes == NULL &&
        engine_image_volumes(body, sb->spec, &sb->mounts, &sb->volumes, &missing) < 0)
        err = &missing;
    if (err != NULL) {
        engine_fail(sb, err);
        return;
    }
    sb->image_root = is_root(json_str(json_get(json_get(body, "Config"), "User")));
    bind_now(sb);
}

static void inspect_now(struct engine_sandbox *sb)
{
    AUTO_FREE char *target = xasprintf("/images/%s/json", sb->spec->image);
    engine_move(sb, ENGINE_INSPECTING);
    engine_ask(sb, &(struct engine_request){.target = target, .timeout_ns = LOOK_TIMEOUT_NS},
               on_image);
}

/* Adoption. */

static bool is_paused(const struct json *inspected)
{
    return json_bool(json_get(json_get(inspected, "State"), "Paused"));
}

static bool is_ours(const struct engine_sandbox *sb, const struct json *inspected)
{
    const struct json *labels = json_get(json_get(inspected, "Config"), "Labels");
    return str_eq(json_str(json_get(labels, LABEL_INSTANCE)), sb->engine->instance) &&
           (json_bool(json_get(json_get(inspected, "State"), "Running")) || is_paused(inspected));
}

static void on_found(void *arg, const struct json *body, const struct err *err)
{
    struct engine_sandbox *sb = arg;
    const char *id = json_str(json_get(body, "Id"));
    struct err gone = {0};
    sb->call = NULL;
    if (err != NULL && err->sys != 0)
        return; /* the engine is down, which its containers need not be */
    if (err == NULL && id != NULL && id_valid(id) && is_ours(sb, body) &&
        str_copy(sb->id, sizeof(sb->id), id) == 0) {
        if (is_paused(body))
            engine_thaw(sb);
        return;
    }
    if (err == NULL)
        sb->id[0] = '\0'; /* what is not ours, or has ended, is for the sweep to judge */
    (void)err_set(&gone, ERR_NOT_FOUND, "container '%s' does not run any more", sb->name);
    engine_fail(sb, &gone);
}

/* A program that connects in that directory is in the container that has it: the engine is asked
 * only whether there still is one. */
static void adopt_now(struct engine_sandbox *sb)
{
    AUTO_FREE char *target = xasprintf("/containers/%s/json", sb->name);
    (void)str_copy(sb->id, sizeof(sb->id), sb->name);
    sb->looks = ADOPT_LOOKS;
    engine_move(sb, ENGINE_ADOPTING);
    engine_greet(sb);
    engine_ask(sb, &(struct engine_request){.target = target, .timeout_ns = LOOK_TIMEOUT_NS},
               on_found);
}

/* The engine itself. */

/* Both speak the same language, and yet not quite. */
static int check_kind(const struct engine *e, struct err *err)
{
    bool podman = e->api->libpod;
    if (podman == e->kind->is_podman)
        return 0;
    return err_set(err, ERR_UNAVAILABLE, "it is %s that listens at %.200s: use backend: %s",
                   podman ? "Podman" : "Docker", e->api->endpoint, podman ? "podman" : "docker");
}

/* An engine would say so itself, in the end, but not what there is instead. */
static int check_runtime(const struct engine *e, const struct json *info, struct err *err)
{
    const struct json *all = json_get(info, "Runtimes");
    const char *wanted = e->options.runtime;
    AUTO_DONE(buf) struct buf names = BUF_INIT(RUNTIMES_MAX);
    if (wanted == NULL || wanted[0] == '/' || json_get(all, wanted) != NULL)
        return 0;
    for (void *it = json_iter(all); it != NULL; it = json_iter_next(all, it))
        (void)buf_printf(&names, "%s%s", names.len > 0 ? ", " : "", json_iter_key(it));
    return err_set(
        err, ERR_UNAVAILABLE,
        "%s has no runtime '%.60s' (engine_runtime); it has: %.120s. Install it and list "
        "it in the engine's configuration",
        e->kind->name, wanted, names.len > 0 ? buf_str(&names) : "none that it names");
}

const char *engine_unenforced(const struct backend *b, const struct spec *spec, unsigned field)
{
    const struct engine *e = container_of(b, const struct engine, base);
    return field != SPEC_WORKSPACE_QUOTA_MB && field != SPEC_IMAGE && e->facts.known &&
                   e->facts.no_limits
               ? "the engine is rootless, and the host has no cgroup v2"
               : NULL;
}

static int check_enforced(const struct engine *e, const struct spec *spec, struct err *err)
{
    int r = backend_require(&e->base, spec, err);
    if (r < 0)
        return r;
    if (!e->options.require_limits || !e->facts.no_limits)
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "%s enforces no limits: it is rootless, and the host has no cgroup v2 "
                   "(require_limits)",
                   e->kind->name);
}

/* A session must not be told that it has what it was asked to have, and have nothing. */
static int check_network(const struct engine *e, const struct spec *spec, struct err *err)
{
    if (spec->network == NETWORK_OFF || !e->facts.no_network)
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "%s's runtime '%.60s' has --network=none among its runtimeArgs: it gives no "
                   "session a network",
                   e->kind->name,
                   e->options.runtime != NULL ? e->options.runtime : e->facts.runtime);
}

static void on_info(void *arg, const struct json *body, const struct err *err)
{
    struct engine_sandbox *sb = arg;
    struct err why = {0};
    sb->call = NULL;
    if (err == NULL &&
        (check_kind(sb->engine, &why) < 0 || check_runtime(sb->engine, body, &why) < 0))
        err = &why;
    if (err != NULL) {
        engine_fail(sb, err);
        return;
    }
    engine_facts_read(&sb->engine->facts, body, sb->engine->options.runtime);
    if (check_enforced(sb->engine, sb->spec, &why) < 0 ||
        check_network(sb->engine, sb->spec, &why) < 0)
        engine_fail(sb, &why);
    else
        inspect_now(sb);
}

/* Listens for the supervisor in a directory of that name. */
static struct engine_sandbox *begin(struct engine *e, const struct spec *spec, const char *name,
                                    struct err *err)
{
    struct engine_mounts mounts;
    if (engine_mounts_collect(spec, e, &mounts, err) < 0)
        return NULL;
    struct engine_sandbox *sb = xnew(struct engine_sandbox);
    engine_sandbox_init(sb, e, spec);
    sb->mounts = mounts;
    (void)str_copy(sb->name, sizeof(sb->name), name);
    if (engine_listen(sb, err) == 0)
        return sb;
    engine_sandbox_free(sb);
    return NULL;
}

/* From here on its user hears of it. */
static void promise(struct engine_sandbox *sb, backend_created_fn *created, backend_lost_fn *lost,
                    void *arg)
{
    sb->created = created;
    sb->on_lost = lost;
    sb->arg = arg;
}

/* What an engine cannot hold to is refused where the configuration demands it. */
static int check_limits(const struct engine *e, const struct spec *spec, struct err *err)
{
    if (e->options.require_limits && spec->workspace_quota_mb > 0 &&
        engine_workspace(spec, false) == ENGINE_WORKSPACE_HOST)
        return err_set(err, ERR_UNSUPPORTED,
                       "workspace_quota_mb cannot be enforced on a host directory by %s",
                       e->kind->name);
    return 0;
}

int engine_create(struct backend *b, const struct spec *spec, backend_created_fn *created,
                  backend_lost_fn *lost, void *arg, struct err *err)
{
    struct engine *e = container_of(b, struct engine, base);
    char random[17], name[ENGINE_NAME_MAX];
    int r = engine_image_check(spec->image, err);
    if (r == 0)
        r = check_limits(e, spec, err);
    if (r == 0 && e->facts.known)
        r = check_enforced(e, spec, err);
    if (r == 0 && e->facts.known)
        r = check_network(e, spec, err);
    if (r < 0)
        return r;
    id_random(random);
    engine_container_name(spec->session_id != NULL ? spec->session_id : "", random, name,
                          sizeof(name));
    struct engine_sandbox *sb = begin(e, spec, name, err);
    if (sb == NULL)
        return err_code_errno(err->code);
    promise(sb, created, lost, arg);
    if (e->facts.known)
        inspect_now(sb);
    else
        engine_ask(sb, &(struct engine_request){.target = "/info", .timeout_ns = LOOK_TIMEOUT_NS},
                   on_info);
    return 0;
}

void engine_abandon(struct backend *b, void *arg)
{
    struct engine *e = container_of(b, struct engine, base);
    struct engine_sandbox *sb = LIST_FIRST(&e->sandboxes);
    struct err err = {0};
    while (sb != NULL && (sb->arg != arg || sb->state >= ENGINE_READY))
        sb = LIST_NEXT(sb, entry);
    if (sb == NULL)
        return;
    (void)err_set(&err, ERR_STATE, "the session was given up while it was being made");
    engine_fail(sb, &err);
}

/* NOLINTNEXTLINE(readability-function-size): it is one of the backend's operations. */
int engine_adopt(struct backend *b, const char *name, const struct spec *spec,
                 backend_created_fn *created, backend_lost_fn *lost, void *arg, struct err *err)
{
    struct engine *e = container_of(b, struct engine, base);
    if (!str_starts(name, ENGINE_PREFIX) || strchr(name, '/') != NULL ||
        strlen(name) >= ENGINE_NAME_MAX)
        return err_set(err, ERR_INVALID, "'%.60s' is no name of a container of ours", name);
    struct engine_sandbox *sb = begin(e, spec, name, err);
    if (sb == NULL)
        return err_code_errno(err->code);
    promise(sb, created, lost, arg);
    adopt_now(sb);
    return 0;
}
