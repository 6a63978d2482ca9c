/* SPDX-License-Identifier: Apache-2.0 */

/* The states of a session's container, the link to its box-guest, and its removal. */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/path.h"
#include "base/state.h"
#include "base/str.h"
#include "base/strv.h"

#define GREET_TIMEOUT_NS (30ULL * NSEC_PER_SEC)
#define GREET_LOOK_NS (1ULL * NSEC_PER_SEC)
#define LOOK_TIMEOUT_NS (10ULL * NSEC_PER_SEC)
#define REMOVE_TRIES 3U
#define COMPARE_MAX 50U /* looks at mounts that change all the time */
#define CONFLICT_TRIES 200U
#define CONFLICT_PAUSE_NS (100ULL * NSEC_PER_MSEC)
#define REMOVE_PAUSE_NS (1ULL * NSEC_PER_SEC)

#define TO(s) (1U << ENGINE_##s)
static const unsigned moves[ENGINE_STATE_MAX] = {
    [ENGINE_PROBING] = TO(INSPECTING) | TO(STARTING) | TO(ADOPTING) | TO(REMOVING),
    [ENGINE_INSPECTING] = TO(PULLING) | TO(BINDING) | TO(CREATING) | TO(REMOVING),
    [ENGINE_PULLING] = TO(INSPECTING) | TO(REMOVING),
    [ENGINE_BINDING] = TO(CREATING) | TO(REMOVING),
    [ENGINE_CREATING] = TO(CREATING) | TO(STARTING) | TO(REMOVING),
    [ENGINE_STARTING] = TO(GREETING) | TO(REMOVING),
    [ENGINE_ADOPTING] = TO(GREETING) | TO(REMOVING),
    [ENGINE_GREETING] = TO(READY) | TO(REMOVING),
    [ENGINE_READY] = TO(REMOVING),
};

void engine_move(struct engine_sandbox *sb, enum engine_state to)
{
    STATE_MOVE(sb->state, moves, to);
}

/* What a sandbox needs of its spec after the call that made it. */
static struct spec *copy_spec(const struct spec *from)
{
    struct spec *s = spec_new();
    free(s->image);
    free(s->workdir);
    free(s->mount_path);
    strv_free(s->env);
    s->image = xstrdup(from->image);
    s->workdir = xstrdup(from->workdir);
    s->mount_path = xstrdup(from->mount_path);
    s->session_id = xstrdup(from->session_id != NULL ? from->session_id : "");
    s->env = strv_copy(from->env);
    s->host_path = from->host_path != NULL ? xstrdup(from->host_path) : NULL;
    s->host_path_mode = from->host_path_mode;
    s->network = from->network;
    s->persistent = from->persistent;
    s->cpus = from->cpus;
    s->memory_mb = from->memory_mb;
    s->pids_limit = from->pids_limit;
    s->read_only_rootfs = from->read_only_rootfs;
    s->workspace_quota_mb = from->workspace_quota_mb;
    s->own.labels = strv_copy(from->own.labels);
    return s;
}

void engine_sandbox_init(struct engine_sandbox *sb, struct engine *e, const struct spec *spec)
{
    tasks_init(&sb->tasks, &e->base, &engine_tasks_ops, e->loop);
    sb->engine = e;
    sb->spec = copy_spec(spec);
    sb->next_exec = 1;
    LIST_INSERT_HEAD(&e->sandboxes, sb, entry);
}

void engine_sandbox_free(struct engine_sandbox *sb)
{
    LIST_REMOVE(sb, entry);
    engine_call_cancel(sb->call);
    loop_timer_stop(&sb->timer);
    loop_defer_stop(&sb->defer);
    tasks_lose(&sb->tasks);
    engine_dials_lose(sb);
    engine_report_forget(sb);
    if (sb->linked)
        engine_link_close(&sb->link);
    engine_unbind(sb);
    engine_mounts_done(&sb->mounts);
    free(sb->pull);
    strv_free(sb->volumes);
    spec_free(sb->spec);
    free(sb);
}

int engine_send(struct engine_sandbox *sb, enum guest_type type, uint32_t id, uint32_t flags,
                const void *data, size_t len)
{
    struct guest_head head = {.type = type, .id = id, .flags = flags};
    return sb->linked ? engine_link_send(&sb->link, &head, data, len, NULL, 0) : -EPIPE;
}

void engine_ask(struct engine_sandbox *sb, const struct engine_request *req, engine_answer_fn *fn)
{
    assert(sb->call == NULL);
    sb->call = engine_call_start(sb->engine->api, req, fn, sb);
}

/* Removal. */

static void forget_directory(struct engine_sandbox *sb)
{
    if (sb->linked)
        engine_link_close(&sb->link);
    sb->linked = false;
    (void)path_remove_tree_at(sb->engine->dir_fd, sb->name);
}

void engine_removed(struct engine_sandbox *sb, const struct err *err)
{
    backend_done_fn *done = sb->destroyed;
    backend_created_fn *created = sb->destroyed == NULL ? sb->created : NULL;
    void *arg = done != NULL ? sb->destroyed_arg : sb->arg;
    struct err failure = sb->failure;
    if (err == NULL)
        forget_directory(sb);
    else
        sb->engine->untidy = true;
    engine_sandbox_free(sb);
    if (done != NULL)
        done(arg, err);
    else if (created != NULL && failure.code != ERR_NONE)
        created(arg, NULL, &failure);
}

static void on_remove_again(struct loop_timer *t)
{
    engine_remove(container_of(t, struct engine_sandbox, timer));
}

static void on_removed(void *arg, const struct json *body, const struct err *err)
{
    struct engine_sandbox *sb = arg;
    sb->call = NULL;
    if (err == NULL || err->code == ERR_NOT_FOUND) {
        engine_removed(sb, NULL);
    } else if (err->code == ERR_CONFLICT && ++sb->conflicts < CONFLICT_TRIES) {
        /* Being removed already: by the engine itself, because it ended. When that is done there
         * is none, and not before. */
        loop_timer_start(sb->engine->loop, &sb->timer, CONFLICT_PAUSE_NS, on_remove_again);
    } else if (++sb->removals < REMOVE_TRIES) {
        loop_timer_start(sb->engine->loop, &sb->timer, REMOVE_PAUSE_NS, on_remove_again);
    } else {
        engine_removed(sb, err);
    }
}

static void on_nothing_there(struct loop_defer *d)
{
    engine_removed(container_of(d, struct engine_sandbox, defer), NULL);
}

void engine_remove(struct engine_sandbox *sb)
{
    if (sb->engine->maker != NULL) {
        sb->engine->maker->remove(sb);
        return;
    }
    if (sb->id[0] == '\0') {
        loop_defer_start(sb->engine->loop, &sb->defer, on_nothing_there);
        return;
    }
    AUTO_FREE char *target = xasprintf("/containers/%s?force=1&v=1", sb->id);
    engine_ask(sb, &(struct engine_request){.method = "DELETE", .target = target}, on_removed);
}

/* A container that is being made has no id yet, and hanging up does not stop the engine:
 * on_created() goes on with the removal. */
static void start_removal(struct engine_sandbox *sb)
{
    bool making = sb->state == ENGINE_CREATING && sb->call != NULL;
    engine_move(sb, ENGINE_REMOVING);
    loop_timer_stop(&sb->timer);
    tasks_lose(&sb->tasks);
    engine_dials_lose(sb);
    if (making)
        return;
    engine_call_cancel(TAKE_PTR(sb->call));
    engine_remove(sb);
}

void engine_fail(struct engine_sandbox *sb, const struct err *err)
{
    if (sb->state == ENGINE_REMOVING)
        return;
    sb->failure = *err;
    start_removal(sb);
}

void engine_destroy(struct sandbox *base, backend_done_fn *done, void *arg)
{
    struct engine_sandbox *sb = container_of(base, struct engine_sandbox, tasks.sandbox);
    if (sb->state == ENGINE_REMOVING)
        return;
    sb->destroyed = done;
    sb->destroyed_arg = arg;
    start_removal(sb);
}

/* The guest. */

void engine_lose(struct engine_sandbox *sb)
{
    if (sb->lost || sb->state == ENGINE_REMOVING)
        return;
    sb->lost = true;
    tasks_lose(&sb->tasks);
    engine_dials_lose(sb);
    sb->on_lost(sb->arg);
}

static void on_link_lost(void *arg)
{
    struct engine_sandbox *sb = arg;
    if (sb->state == ENGINE_READY)
        engine_lose(sb);
}

static void add_rlimit(struct guest_hello *h, int resource, uint64_t soft, uint64_t hard)
{
    h->rlimits[h->n_rlimits++] =
        (struct inside_rlimit){.resource = (uint32_t)resource, .soft = soft, .hard = hard};
}

static void on_link_connected(void *arg)
{
    struct engine_sandbox *sb = arg;
    const struct engine *e = sb->engine;
    if (sb->state != ENGINE_GREETING)
        return; /* quicker than the engine's answer: it waits */
    struct guest_head head = {.type = GUEST_HELLO};
    struct guest_hello h = {.version = GUEST_WIRE_VERSION,
                            .filter_len = (uint32_t)e->filter_len,
                            .n_checks = (uint32_t)sb->mounts.n,
                            .processes = (uint32_t)sb->spec->pids_limit + 1,
                            .linger_ns = e->options.linger_sec * NSEC_PER_SEC + 1};
    AUTO_DONE(buf) struct buf rest;
    buf_init(&rest, e->filter_len + (size_t)ENGINE_MOUNTS_MAX * (SPEC_PATH_MAX + 1));
    (void)buf_append(&rest, e->filter, e->filter_len);
    for (size_t i = 0; i < sb->mounts.n; i++)
        (void)buf_append(&rest, sb->mounts.list[i].target, strlen(sb->mounts.list[i].target) + 1);
    add_rlimit(&h, RLIMIT_CORE, 0, 0);
    add_rlimit(&h, RLIMIT_MEMLOCK, 65536, 65536);
    add_rlimit(&h, RLIMIT_MSGQUEUE, 65536, 65536);
    add_rlimit(&h, RLIMIT_SIGPENDING, 1024, 1024);
    add_rlimit(&h, RLIMIT_STACK, 8ULL << 20, 64ULL << 20);
    if (sb->own_id)
        h.nproc = (uint32_t)sb->spec->pids_limit + 1; /* box-guest */
    if (engine_workspace(sb->spec, false) == ENGINE_WORKSPACE_MEMORY &&
        sb->spec->workspace_quota_mb > 0)
        (void)str_copy(h.quota_path, sizeof(h.quota_path), sb->spec->mount_path);
    if (e->maker != NULL)
        e->maker->hello(sb, &h);
    (void)engine_link_send(&sb->link, &head, &h, sizeof(h), rest.data, rest.len);
}

static void become_ready(struct engine_sandbox *sb)
{
    loop_timer_stop(&sb->timer);
    engine_call_cancel(TAKE_PTR(sb->call));
    engine_mounts_checked(&sb->mounts);
    engine_unbind(sb);
    engine_move(sb, ENGINE_READY);
    sb->created(sb->arg, &sb->tasks.sandbox, NULL);
    if (sb->state == ENGINE_READY)
        engine_proc_forget_found(sb);
}

static void on_welcome(struct engine_sandbox *sb, const struct guest_head *head, const char *body)
{
    struct guest_welcome w;
    struct guest_check checks[GUEST_CHECKS_MAX];
    struct err err = {0};
    bool again = false;
    memcpy(&w, body, head->len < sizeof(w) ? head->len : sizeof(w));
    if (head->len < sizeof(w) || w.version != GUEST_WIRE_VERSION || w.n_checks != sb->mounts.n ||
        w.n_procs > GUEST_CELLS_MAX ||
        head->len !=
            sizeof(w) + w.n_checks * sizeof(checks[0]) + w.n_procs * sizeof(struct guest_proc)) {
        (void)err_set(&err, ERR_BACKEND, "the container's supervisor makes no sense");
        engine_fail(sb, &err);
        return;
    }
    memcpy(checks, body + sizeof(w), w.n_checks * sizeof(checks[0]));
    memcpy(sb->found, body + sizeof(w) + w.n_checks * sizeof(checks[0]),
           w.n_procs * sizeof(sb->found[0]));
    sb->n_found = w.n_procs;
    sb->guest_uid = w.uid;
    sb->gvisor = (w.flags & GUEST_WELCOME_GVISOR) != 0;
    if (engine_mounts_check(&sb->mounts, checks, sb->gvisor, &again, &err) == 0)
        become_ready(sb);
    else if (again && ++sb->compared < COMPARE_MAX)
        on_link_connected(sb);
    else
        engine_fail(sb, &err);
}

static void on_link_frame(void *arg, const struct guest_head *head, const char *body)
{
    struct engine_sandbox *sb = arg;
    if (head->type == GUEST_WELCOME && sb->state == ENGINE_GREETING)
        on_welcome(sb, head, body);
    else if (sb->state != ENGINE_READY)
        return;
    else if (head->type == GUEST_REFUSED)
        engine_on_refused(sb, head);
    else if (head->type == GUEST_LISTENING)
        engine_on_listening(sb, head);
    else
        engine_task_frame(sb, head, body);
}

static void on_link_extra(void *arg, int fd)
{
    engine_on_extra(arg, fd);
}

static const struct engine_link_handlers link_handlers = {.connected = on_link_connected,
                                                          .frame = on_link_frame,
                                                          .lost = on_link_lost,
                                                          .extra = on_link_extra};

static void on_greet_time(struct loop_timer *t);

/* A supervisor that does not come may have no container any more: that need not be waited for. */
static void on_looked(void *arg, const struct json *body, const struct err *err)
{
    struct engine_sandbox *sb = arg;
    const struct json *state = json_get(body, "State");
    struct err why = {0};
    sb->call = NULL;
    bool runs = err == NULL && json_bool(json_get(state, "Running"));
    if (runs || (err != NULL && err->sys != 0)) { /* or the engine cannot be asked */
        loop_timer_start(sb->engine->loop, &sb->timer, GREET_LOOK_NS, on_greet_time);
        return;
    }
    const char *error = json_str(json_get(state, "Error"));
    (void)err_set(&why, ERR_BACKEND, "%s backend error: the container ended at once%s%.200s",
                  sb->engine->kind->name, error != NULL && error[0] != '\0' ? ": " : "",
                  error != NULL ? error : "");
    engine_fail(sb, &why);
}

static void on_greet_time(struct loop_timer *t)
{
    struct engine_sandbox *sb = container_of(t, struct engine_sandbox, timer);
    struct err err = {0};
    if (++sb->looks * GREET_LOOK_NS < GREET_TIMEOUT_NS &&
        (sb->call != NULL || sb->engine->maker != NULL)) {
        loop_timer_start(sb->engine->loop, t, GREET_LOOK_NS, on_greet_time);
        return;
    }
    if (sb->looks * GREET_LOOK_NS < GREET_TIMEOUT_NS) {
        AUTO_FREE char *target = xasprintf("/containers/%s/json", sb->id);
        engine_ask(sb, &(struct engine_request){.target = target, .timeout_ns = LOOK_TIMEOUT_NS},
                   on_looked);
        return;
    }
    (void)err_set(&err, ERR_BACKEND,
                  "%s backend error: the container started, but its supervisor does not answer",
                  sb->engine->kind->name);
    engine_fail(sb, &err);
}

void engine_greet(struct engine_sandbox *sb)
{
    engine_move(sb, ENGINE_GREETING);
    loop_timer_start(sb->engine->loop, &sb->timer, GREET_LOOK_NS, on_greet_time);
    if (sb->link.fd >= 0)
        on_link_connected(sb);
}

int engine_listen(struct engine_sandbox *sb, struct err *err)
{
    struct engine *e = sb->engine;
    engine_link_init(&sb->link, e->loop, &link_handlers, sb);
    int r = engine_link_open(&sb->link, e->dir_fd, sb->name, err);
    sb->linked = r == 0;
    return r;
}

void engine_set_deadline(struct sandbox *base, uint64_t boot_ns)
{
    struct engine_sandbox *sb = container_of(base, struct engine_sandbox, tasks.sandbox);
    uint64_t now = clock_boot(loop_clock(sb->engine->loop)), left = 0;
    if (boot_ns > 0)
        left = boot_ns > now ? boot_ns - now : 1;
    (void)engine_send(sb, GUEST_DEADLINE, 0, 0, &left, sizeof(left));
}
