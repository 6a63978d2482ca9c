/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/engine_internal.h"
#include "sandbox/seccomp.h"
#include "sandbox/seccomp_json.h"
#include "util/alloc.h"
#include "util/cleanup.h"
#include "util/fd.h"
#include "util/json.h"
#include "util/path.h"
#include "util/str.h"
#include "util/strv.h"

#define PROFILE_MAX (256U << 10)
#define PROFILE_FILE "seccomp.json"
#define INSTANCE_FILE "instance-id"

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

void engine_facts_read(struct engine_facts *f, const struct json *info)
{
    const struct json *options = json_get(info, "SecurityOptions");
    f->known = true;
    f->narrow = false;
    f->live_restore = json_bool(json_get(info, "LiveRestoreEnabled"));
    for (size_t i = 0; i < json_len(options); i++) {
        const char *text = json_str(json_at(options, i));
        f->narrow = f->narrow || (text != NULL && (str_starts(text, "name=rootless") ||
                                                   str_starts(text, "name=userns")));
    }
}

/* A file of ours in the engine's directory, written whole or not at all. */
static int write_file(const struct engine *e, const char *name, const char *text, size_t len,
                      struct err *err)
{
    AUTO_FREE char *fresh = xasprintf("%s.new", name);
    AUTO_CLOSE int fd =
        openat(e->dir_fd, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    int r = fd < 0 ? -errno : fd_write_all(fd, text, len);
    if (r == 0 && (fchown(fd, e->options.uid, e->options.gid) < 0 ||
                   renameat(e->dir_fd, fresh, e->dir_fd, name) < 0))
        r = -errno;
    return r < 0 ? err_sys(err, -r, "write '%s/%s'", e->dir_path, name) : 0;
}

/* Two daemons may share an engine, each in a container of its own with the same paths: what tells
 * their sessions apart is chosen once and kept. */
static int take_instance(struct engine *e, struct err *err)
{
    char text[64] = "";
    ssize_t n = fd_read_file_at(e->dir_fd, INSTANCE_FILE, text, sizeof(text));
    text[strcspn(text, "\n")] = '\0';
    if (n > 0 && id_valid(text) && str_copy(e->instance, sizeof(e->instance), text) == 0)
        return 0;
    id_random(e->instance);
    return write_file(e, INSTANCE_FILE, e->instance, strlen(e->instance), err);
}

static int open_dir(struct engine *e, struct err *err)
{
    const struct engine_options *o = &e->options;
    AUTO_CLOSE int state = open(o->state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (state < 0)
        return err_sys(err, errno, "open '%s'", o->state_dir);
    e->dir_path = xasprintf("%s/engine", o->state_dir);
    e->dir_fd = path_make_dir_at(state, "engine", 0700);
    if (e->dir_fd < 0)
        return err_sys(err, -e->dir_fd, "make '%s'", e->dir_path);
    if (fchown(e->dir_fd, o->uid, o->gid) < 0 || fchmod(e->dir_fd, 0700) < 0)
        return err_sys(err, errno, "own '%s'", e->dir_path);
    return take_instance(e, err);
}

static int open_roots(struct engine *e, struct err *err)
{
    char *const *roots = e->options.roots;
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
        return write_file(e, PROFILE_FILE, text.data, text.len, err);
    }
    e->seccomp = buf_take(&text);
    return 0;
}

/* The containers stay as they are: their supervisors wait for the next daemon. */
static void engine_detach(struct backend *b)
{
    struct engine *e = container_of(b, struct engine, base);
    while (e->jobs != NULL)
        e->jobs->drop(e->jobs);
    while (e->sandboxes != NULL) {
        engine_proc_drop_all(e->sandboxes);
        engine_sandbox_free(e->sandboxes);
    }
    engine_api_free(e->api);
    for (size_t i = 0; e->root_fds != NULL && i < strv_len(e->options.roots); i++)
        fd_close_many(&e->root_fds[i], 1);
    fd_close_many(&e->dir_fd, 1);
    free(e->root_fds);
    free(e->dir_path);
    free(e->seccomp);
    free(e->filter);
    free(e);
}

/* Whoever had the time has destroyed them properly. Those that are left end by themselves. */
static void engine_free(struct backend *b)
{
    const struct engine *e = container_of(b, struct engine, base);
    uint64_t at_once = 1;
    for (struct engine_sandbox *sb = e->sandboxes; sb != NULL; sb = sb->next)
        (void)engine_send(sb, GUEST_DEADLINE, 0, 0, &at_once, sizeof(at_once));
    engine_detach(b);
}

/* The same for all kinds but for the name, which people and clients see. */
static const struct backend_ops engine_ops = {
    .create = engine_create,
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
    .proc_free = engine_proc_free,
    .receipt = engine_receipt,
    .doctor = engine_doctor,
    .free = engine_free,
    .detach = engine_detach,
};

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
    int r = engine_api_new(loop, e->kind->name, endpoint, &e->api, err);
    if (r == 0)
        r = open_dir(e, err);
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
