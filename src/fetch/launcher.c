/* SPDX-License-Identifier: Apache-2.0 */

/* Starts a job as a child of boxd itself, and finds the allowed root of its directory. */

#include "fetch/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/host_path.h"
#include "base/list.h"
#include "base/path.h"
#include "base/strv.h"
#include "loop/loop.h"
#include "sandbox/host/hostcmd.h"

void fetch_process_done(struct fetch_process *p)
{
    fd_close_many(&p->pidfd, 1);
    fd_close_many(&p->in_fd, 1);
    fd_close_many(&p->out_fd, 1);
}

void fetch_process_kill(const struct fetch_process *p)
{
    siginfo_t info;
    if (p->pidfd < 0 || pidfd_send_signal(p->pidfd, SIGKILL, NULL, 0) < 0)
        return;
    while (waitid(P_PIDFD, (id_t)p->pidfd, &info, WEXITED) < 0 && errno == EINTR)
        ;
}

void fetch_launcher_free(struct fetch_launcher *l)
{
    if (l != NULL)
        l->free(l);
}

int fetch_find_root(const struct fetch_roots *roots, const char *path, size_t *ret,
                    const char **ret_rest, struct err *err)
{
    if (!path_is_clean_absolute(path))
        return err_set(err, ERR_INVALID, "'%.200s' must be absolute, without '.', '..' or '//'",
                       path);
    if (!host_path_find_root(roots->paths, roots->outer, path, ret, ret_rest))
        return err_set(err, ERR_DENIED,
                       "'%.200s' is outside the directories that boxd may touch; add it to "
                       "allowed_mount_roots in the configuration, or set BOX_ALLOWED_MOUNT_ROOTS",
                       path);
    return 0;
}

/* Jobs of our own ---------------------------------------------------------------------------- */

struct direct {
    struct fetch_launcher base;
    struct loop *loop;
    const char *program;             /* borrowed */
    struct fetch_roots roots;        /* its paths are those: */
    char **paths;                    /* owned */
    LIST_HEAD(, direct_job) started; /* owned; not handed over yet */
};

/* A job that runs and waits for the loop to be handed over. */
struct direct_job {
    LIST_ENTRY(direct_job) entry;
    struct loop_defer defer;
    struct fetch_process process;
    fetch_started_fn *fn;
    void *arg;
};

static void on_started(struct loop_defer *d)
{
    struct direct_job *p = container_of(d, struct direct_job, defer);
    LIST_REMOVE(p, entry);
    p->fn(p->arg, &p->process, NULL);
    fetch_process_kill(&p->process); /* if it was not taken */
    fetch_process_done(&p->process);
    free(p);
}

static int open_place(const struct direct *d, const struct fetch_start *s, const char **ret_missing,
                      struct err *err)
{
    size_t index = 0;
    const char *rest = NULL;
    int r = fetch_find_root(&d->roots, s->dir, &index, &rest, err);
    if (r < 0)
        return r;
    /* It would be done with our rights. */
    if (s->bound && s->uid != geteuid())
        return err_set(err, ERR_DENIED,
                       "'%.200s' cannot be used for uid %u: boxd was not started by root", s->dir,
                       s->uid);
    AUTO_CLOSE int root = open(d->roots.paths[index], O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return err_sys(err, errno, "open directory '%.200s'", d->roots.paths[index]);
    AUTO_CLOSE int fd = path_open_deepest(root, rest, ret_missing);
    if (fd < 0)
        return path_dir_error(fd, s->dir, err);
    if (**ret_missing != '\0' && !s->create)
        return err_set(err, ERR_NOT_FOUND, "directory '%.200s' does not exist", s->dir);
    return TAKE_FD(fd);
}

static const char *leaf_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* What is copied from, and the directory of its manifest. */
static int open_source(const struct direct *d, const struct fetch_start *s, int *ret_source,
                       int *ret_manifest, struct err *err)
{
    const char *rest = NULL;
    size_t index = 0;
    if (s->source == NULL)
        return 0;
    *ret_source = open_place(d, &(struct fetch_start){.dir = s->source}, &rest, err);
    if (*ret_source < 0)
        return *ret_source;
    int r = fetch_find_root(&d->roots, s->manifest, &index, &rest, err);
    if (r < 0)
        return r;
    AUTO_CLOSE int root = open(d->roots.paths[index], O_PATH | O_DIRECTORY | O_CLOEXEC);
    const char *leaf = leaf_of(rest);
    AUTO_FREE char *parent = xstrndup(rest, leaf > rest ? (size_t)(leaf - rest - 1) : 0);
    *ret_manifest = root < 0 ? -errno : path_open_beneath(root, parent, O_PATH | O_DIRECTORY, 0);
    return *ret_manifest < 0
               ? err_sys(err, -*ret_manifest, "Artifact manifest '%.200s'", s->manifest)
               : 0;
}

static int make_pipes(struct fetch_process *ours, int *ret_in, int *ret_out, struct err *err)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    ours->in_fd = in[1];
    *ret_in = in[0];
    if (pipe2(out, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    ours->out_fd = out[0];
    *ret_out = out[1];
    int r = fd_set_nonblock(ours->in_fd, true);
    if (r == 0)
        r = fd_set_nonblock(ours->out_fd, true);
    return r < 0 ? err_sys(err, -r, "pipe") : 0;
}

static int direct_start(struct fetch_launcher *l, const struct fetch_start *s, fetch_started_fn *fn,
                        void *arg, struct err *err)
{
    struct direct *d = container_of(l, struct direct, base);
    struct fetch_process ours = FETCH_PROCESS_NONE;
    struct hostcmd cmd = {.pidfd = -1};
    char seconds[16];
    const char *missing = "";
    AUTO_CLOSE int in = -1;
    AUTO_CLOSE int out = -1;
    AUTO_CLOSE int dir = open_place(d, s, &missing, err);
    if (dir < 0)
        return dir;
    AUTO_CLOSE int source = -1;
    AUTO_CLOSE int manifest = -1;
    int r = open_source(d, s, &source, &manifest, err);
    if (r == 0)
        r = make_pipes(&ours, &in, &out, err);
    if (r == 0) {
        (void)snprintf(seconds, sizeof(seconds), "%u", s->seconds);
        const char *name = s->source != NULL ? leaf_of(s->manifest) : "";
        const char *const argv[] = {d->program, "--make",    missing, "--manifest",
                                    name,       "--seconds", seconds, NULL};
        const int fds[] = {in, out, -1, dir, source, manifest};
        r = hostcmd_start(argv, fds, s->source != NULL ? 6 : 4, &cmd, err);
    }
    if (r < 0) {
        fetch_process_done(&ours);
        return r;
    }
    ours.pidfd = cmd.pidfd;
    struct direct_job *p = xnew(struct direct_job);
    *p = (struct direct_job){.process = ours, .fn = fn, .arg = arg};
    LIST_INSERT_HEAD(&d->started, p, entry);
    loop_defer_start(d->loop, &p->defer, on_started);
    return 0;
}

static void direct_free(struct fetch_launcher *l)
{
    struct direct *d = container_of(l, struct direct, base);
    while (!LIST_EMPTY(&d->started)) {
        struct direct_job *p = LIST_FIRST(&d->started);
        LIST_REMOVE(p, entry);
        loop_defer_stop(&p->defer);
        fetch_process_kill(&p->process);
        fetch_process_done(&p->process);
        free(p);
    }
    strv_free(d->paths);
    free(d);
}

void fetch_launcher_direct_add(struct fetch_launcher *l, const char *path)
{
    struct direct *d = container_of(l, struct direct, base);
    strv_add(&d->paths, path);
    d->roots.paths = d->paths;
}

struct fetch_launcher *fetch_launcher_direct(struct loop *loop, const char *program,
                                             const struct fetch_roots *roots)
{
    struct direct *d = xnew(struct direct);
    *d = (struct direct){.base = {.start = direct_start, .free = direct_free},
                         .loop = loop,
                         .program = program,
                         .roots = {.outer = roots->outer},
                         .paths = strv_copy(roots->paths)};
    d->roots.paths = d->paths;
    return &d->base;
}
