/* SPDX-License-Identifier: Apache-2.0 */

/* Joins the two halves of a session: outside, a sandbox of the native backend, which has processes,
 * limits, storage and a network but no control connection; inside, box-guest, which the code of the
 * engine backend talks to. Each half ends with the other. */

#include "backend/runsc/runsc.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/engine/engine_internal.h"
#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "sandbox/host/hostcmd.h"

#define MIB (1024ULL * 1024ULL)
#define VERSION_TIMEOUT_MS 10000U
#define HOME "/home/box"

struct runsc {
    struct engine engine;  /* first: it is freed as one */
    struct backend *outer; /* owned; native */
};

struct runsc_sandbox {
    struct engine_sandbox sb; /* first: it is freed as one */
    struct sandbox *outer;    /* NULL: not yet, or no more */
    bool making;              /* it will be told how that ended */
};

_Static_assert(offsetof(struct runsc, engine) == 0 && offsetof(struct runsc_sandbox, sb) == 0,
               "freed by their first members");

static const struct engine_kind kind = {.name = "runsc"};

static struct runsc *runsc_of(const struct engine *e)
{
    return container_of((struct engine *)(uintptr_t)e, struct runsc, engine);
}

static struct runsc_sandbox *sandbox_of(struct engine_sandbox *sb)
{
    return container_of(sb, struct runsc_sandbox, sb);
}

struct backend *runsc_outer(const struct backend *b)
{
    return runsc_of(container_of(b, struct engine, base))->outer;
}

/* Its end. */

static void on_outer_destroyed(void *arg, const struct err *err)
{
    engine_removed(arg, err);
}

static void on_nothing_there(struct loop_defer *d)
{
    engine_removed(container_of(d, struct engine_sandbox, defer), NULL);
}

static void remove_sandbox(struct engine_sandbox *sb)
{
    struct runsc_sandbox *s = sandbox_of(sb);
    struct sandbox *outer = TAKE_PTR(s->outer);
    if (outer != NULL)
        outer->backend->ops->destroy(outer, on_outer_destroyed, sb);
    else if (!s->making) /* else on_outer_created() goes on */
        loop_defer_start(sb->engine->loop, &sb->defer, on_nothing_there);
}

static void on_outer_lost(void *arg)
{
    struct runsc_sandbox *s = arg;
    struct err err = {0};
    if (s->sb.state == ENGINE_READY) {
        engine_lose(&s->sb);
        return;
    }
    const char *words = s->outer != NULL ? native_last_words(s->outer) : "";
    (void)err_set(&err, ERR_BACKEND, "gVisor could not start the session%s%.300s",
                  words[0] != '\0' ? ": " : "", words);
    engine_fail(&s->sb, &err);
}

/* Its beginning. */

static void on_outer_created(void *arg, struct sandbox *outer, const struct err *err)
{
    struct runsc_sandbox *s = arg;
    s->outer = outer;
    s->making = false;
    if (s->sb.state == ENGINE_REMOVING)
        remove_sandbox(&s->sb);
    else if (err != NULL)
        engine_fail(&s->sb, err);
    else
        engine_greet(&s->sb);
}

/* What box-init does on the native backend: limits of each process, behind those of the groups.
 * gVisor counts the processes of an id, which are all of the session's. */
static void hello(const struct engine_sandbox *sb, struct guest_hello *h)
{
    const struct spec *spec = sb->spec;
    uint64_t quota = (uint64_t)spec->workspace_quota_mb * MIB;
    h->rlimits[h->n_rlimits++] =
        (struct inside_rlimit){.resource = RLIMIT_NOFILE, .soft = 1024, .hard = 4096};
    if (quota == 0)
        return;
    h->rlimits[h->n_rlimits++] =
        (struct inside_rlimit){.resource = RLIMIT_FSIZE, .soft = quota, .hard = quota};
    if (h->quota_path[0] == '\0') /* the workspace is the host's; the rest is on the disk */
        (void)str_copy(h->quota_path, sizeof(h->quota_path), HOME);
}

static const struct engine_maker maker = {.remove = remove_sandbox, .hello = hello};

static struct runsc_sandbox *begin(struct runsc *r, const char *name, const struct spec *spec,
                                   struct err *err)
{
    struct runsc_sandbox *s = xnew(struct runsc_sandbox);
    struct engine_sandbox *sb = &s->sb;
    engine_sandbox_init(sb, &r->engine, spec);
    sb->own_id = true;
    /* There is no group for each command in there, and when the session's is full the kernel picks
     * gVisor itself. So box-guest looks, and ends what has too much before that. */
    sb->tree_bytes = (uint64_t)spec->memory_mb * MIB;
    (void)str_copy(sb->name, sizeof(sb->name), name);
    (void)str_copy(sb->id, sizeof(sb->id), name);
    if (engine_listen(sb, err) == 0)
        return s;
    engine_sandbox_free(sb);
    return NULL;
}

/* The caller is promised an answer for a start that worked; a failed one leaves nothing. */
static int begun(struct runsc_sandbox *s, int rc, backend_created_fn *created,
                 backend_lost_fn *lost, void *arg)
{
    struct engine_sandbox *sb = &s->sb;
    if (rc >= 0) {
        sb->created = created;
        sb->on_lost = lost;
        sb->arg = arg;
        s->making = true;
        return rc;
    }
    int dir_fd = sb->engine->dir_fd;
    char name[ENGINE_NAME_MAX];
    (void)str_copy(name, sizeof(name), sb->name);
    engine_sandbox_free(sb);
    (void)unlinkat(dir_fd, name, AT_REMOVEDIR);
    return rc;
}

static int runsc_create(struct backend *b, const struct spec *spec, backend_created_fn *created,
                        backend_lost_fn *lost, void *arg, struct err *err)
{
    struct runsc *r = runsc_of(container_of(b, struct engine, base));
    char name[PLAN_NAME_LEN + 1];
    id_random(name);
    struct runsc_sandbox *s = begin(r, name, spec, err);
    if (s == NULL)
        return err_code_errno(err->code);
    engine_move(&s->sb, ENGINE_STARTING);
    int rc = native_create_named(r->outer, (struct native_name){.text = name}, spec,
                                 on_outer_created, on_outer_lost, s, err);
    return begun(s, rc, created, lost, arg);
}

/* box-guest comes back to the directory that it knows; the native half is known to box-priv. */
/* NOLINTNEXTLINE(readability-function-size): it is one of the backend's operations. */
static int runsc_adopt(struct backend *b, const char *name, const struct spec *spec,
                       backend_created_fn *created, backend_lost_fn *lost, void *arg,
                       struct err *err)
{
    struct runsc *r = runsc_of(container_of(b, struct engine, base));
    if (strlen(name) != PLAN_NAME_LEN || !id_valid(name))
        return err_set(err, ERR_INVALID, "'%.40s' is not the name of a sandbox", name);
    struct runsc_sandbox *s = begin(r, name, spec, err);
    if (s == NULL)
        return err_code_errno(err->code);
    engine_move(&s->sb, ENGINE_ADOPTING);
    int rc = r->outer->ops->adopt(r->outer, name, spec, on_outer_created, on_outer_lost, s, err);
    return begun(s, rc, created, lost, arg);
}

struct runsc_sweep {
    struct runsc *r;
    backend_done_fn *done;
    void *arg;
};

static void on_swept(void *arg, const struct err *err)
{
    struct runsc_sweep *s = arg;
    backend_done_fn *done = s->done;
    void *done_arg = s->arg;
    if (err == NULL)
        engine_sweep_directories(&s->r->engine);
    free(s);
    done(done_arg, err);
}

static int runsc_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err)
{
    struct runsc *r = runsc_of(container_of(b, struct engine, base));
    struct runsc_sweep *s = xnew(struct runsc_sweep);
    *s = (struct runsc_sweep){.r = r, .done = done, .arg = arg};
    int rc = r->outer->ops->sweep(r->outer, on_swept, s, err);
    if (rc < 0)
        free(s);
    return rc;
}

/* Both count the time: box-guest for a box-priv that is gone, too. */
static void runsc_set_deadline(struct sandbox *base, uint64_t boot_ns)
{
    struct runsc_sandbox *s = sandbox_of(container_of(base, struct engine_sandbox, tasks.sandbox));
    engine_ops.set_deadline(base, boot_ns);
    if (s->outer != NULL)
        s->outer->backend->ops->set_deadline(s->outer, boot_ns);
}

/* What is in force outside is the native backend's to tell; a process inside is its witness. */
static int posture(void *arg, const struct exec_request *req, const struct exec_events *events,
                   void *exec_arg, struct exec **ret, struct err *err)
{
    struct runsc_sandbox *s = arg;
    return s->sb.engine->ops.exec(&s->sb.tasks.sandbox, req, events, exec_arg, ret, err);
}

static int runsc_receipt(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err)
{
    struct runsc_sandbox *s = sandbox_of(container_of(base, struct engine_sandbox, tasks.sandbox));
    if (s->outer == NULL)
        return err_set(err, ERR_STATE, "the session is not running");
    return s->outer->backend->ops->receipt(s->outer, done, arg, err);
}

/* All of gVisor and the programs in it: the host counts no less. */
static int runsc_usage(struct sandbox *base, backend_usage_fn *done, void *arg, struct err *err)
{
    struct runsc_sandbox *s = sandbox_of(container_of(base, struct engine_sandbox, tasks.sandbox));
    if (s->outer == NULL)
        return err_set(err, ERR_STATE, "the session is not running");
    return s->outer->backend->ops->usage(s->outer, done, arg, err);
}

static const char *runsc_unenforced(const struct backend *b, const struct spec *spec,
                                    unsigned field)
{
    return backend_unenforced(runsc_outer(b), spec, field);
}

static int runsc_place(struct backend *b, const struct backend_place *want, backend_place_fn *fn,
                       void *arg, struct err *err)
{
    return runsc_outer(b)->ops->place(runsc_outer(b), want, fn, arg, err);
}

static int runsc_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err)
{
    return runsc_outer(b)->ops->doctor(runsc_outer(b), done, arg, err);
}

static void runsc_detach(struct backend *b)
{
    struct backend *outer = runsc_outer(b);
    engine_ops.detach(b);
    if (outer != NULL)
        outer->ops->detach(outer);
}

static void runsc_free(struct backend *b)
{
    struct backend *outer = runsc_outer(b);
    engine_ops.free(b);
    if (outer != NULL)
        outer->ops->free(outer);
}

/* Commands and managed processes are as in a container; how it comes to be, and what is around it,
 * is not. */
static void take_ops(struct backend_ops *ops)
{
    *ops = engine_ops;
    tasks_operations(ops);
    ops->name = kind.name;
    ops->own_images = false;
    ops->ping = NULL;
    ops->pause = NULL;
    ops->update = NULL;
    ops->diff = NULL;
    ops->create = runsc_create;
    ops->sandbox_id = NULL;
    ops->list = NULL;
    ops->adopt = runsc_adopt;
    ops->sweep = runsc_sweep;
    ops->set_deadline = runsc_set_deadline;
    ops->receipt = runsc_receipt;
    ops->usage = runsc_usage;
    ops->unenforced = runsc_unenforced;
    ops->place = runsc_place;
    ops->doctor = runsc_doctor;
    ops->free = runsc_free;
    ops->detach = runsc_detach;
}

/* The program. */

/* In the directories of the system, or in those of a list like $PATH, which is for users other
 * than root: a variable must not decide what root runs. */
static bool find_program(const char *path_list, char *ret, size_t size)
{
    struct err ignored = {0};
    if (hostcmd_find("runsc", ret, size, &ignored) == 0)
        return true;
    while (path_list != NULL && *path_list != '\0') {
        size_t len = strcspn(path_list, ":");
        if (path_list[0] == '/' && str_fmt(ret, size, "%.*s/runsc", (int)len, path_list) >= 0 &&
            access(ret, X_OK) == 0)
            return true;
        path_list += len + (path_list[len] == ':');
    }
    return false;
}

/* "runsc version release-20240101.0", then more. */
static int read_version(const char *program, char ret[RUNSC_VERSION_MAX], struct err *err)
{
    static const char lead[] = "runsc version ";
    char text[256] = "";
    const char *const argv[] = {program, "--version", NULL};
    AUTO_CLOSE int out = memfd_create("runsc-version", MFD_CLOEXEC);
    if (out < 0)
        return err_sys(err, errno, "memory for the version of runsc");
    const struct hostcmd_opts opts = {
        .stdin_fd = -1, .stdout_fd = out, .timeout_ms = VERSION_TIMEOUT_MS};
    int r = hostcmd_wait_opts(argv, &opts, err);
    if (r < 0)
        return r;
    if (pread(out, text, sizeof(text) - 1, 0) < 0 || !str_starts(text, lead))
        return err_set(err, ERR_UNAVAILABLE, "'%s' does not say that it is gVisor's runsc",
                       program);
    text[strcspn(text, "\n")] = '\0';
    text[strlen(lead) + RUNSC_VERSION_MAX - 1] = '\0';
    return str_copy(ret, RUNSC_VERSION_MAX, text + strlen(lead));
}

int runsc_find(const char *path_list, char *ret_path, size_t path_size,
               char ret_version[RUNSC_VERSION_MAX], struct err *err)
{
    if (!find_program(path_list, ret_path, path_size))
        return err_set(err, ERR_UNAVAILABLE,
                       "backend runsc needs gVisor's program runsc, which is not installed: on "
                       "Debian 12 'apt-get install runsc'; elsewhere put it into /usr/local/bin "
                       "(https://gvisor.dev/docs/user_guide/install)");
    return read_version(ret_path, ret_version, err);
}

int runsc_new(struct loop *loop, const struct native_options *options, struct backend **ret,
              struct err *err)
{
    struct runsc *r = xnew(struct runsc);
    struct engine *e = &r->engine;
    take_ops(&e->ops);
    e->base.ops = &e->ops;
    e->loop = loop;
    e->kind = &kind;
    e->maker = &maker;
    e->dir_fd = -1;
    e->options = (struct engine_options){.kind = kind.name,
                                         .state_dir = options->state_dir,
                                         .linger_sec = options->linger_sec,
                                         .uid = options->uid,
                                         .gid = options->gid};
    int rc = engine_open_dir(e, err);
    if (rc == 0)
        rc = engine_load_filter(e, err);
    if (rc == 0)
        rc = native_new(loop, options, &r->outer, err);
    if (rc < 0) {
        runsc_detach(&e->base);
        return rc;
    }
    container_of(r->outer, struct native, base)->posture = posture;
    *ret = &e->base;
    return 0;
}
