/* SPDX-License-Identifier: Apache-2.0 */

/* Checks the directories of a job, becomes their owner in a child, and starts box-fetch. */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "inside/caps.h"
#include "inside/clone.h"
#include "priv/server.h"
#include "sandbox/host/children.h"
#include "sandbox/setup/userns.h"

#define CHILD_FDS 6 /* standard input, output, error, the directory; and what is copied from */
#define CHILD_FD_MIN 16
#define JOB_FDS 3U /* pidfd, and our ends of standard input and output */

void priv_jobs_done(struct priv *p)
{
    for (size_t i = 0; i < PRIV_JOBS_MAX; i++)
        if (p->jobs[i] >= 0)
            (void)pidfd_send_signal(p->jobs[i], SIGKILL, NULL, 0);
    fd_close_many(p->jobs, PRIV_JOBS_MAX);
}

/* A place for one more, after those that have ended are forgotten. NULL: there is none. */
static int *job_slot(struct priv *p)
{
    int *place = NULL;
    for (size_t i = 0; i < PRIV_JOBS_MAX; i++) {
        struct pollfd end = {.fd = p->jobs[i], .events = POLLIN};
        if (end.fd >= 0 && poll(&end, 1, 0) == 1)
            fd_close_many(&p->jobs[i], 1);
        if (p->jobs[i] < 0)
            place = &p->jobs[i];
    }
    return place;
}

static bool ends(const char *text, size_t size)
{
    return text[size - 1] == '\0';
}

/* A place in the allow-list, and a clean path below it. */
static int check_place(const struct launch_host *h, uint32_t root, const char *path,
                       struct err *err)
{
    char absolute[sizeof(((struct priv_job *)NULL)->path) + 1];
    if (str_fmt(absolute, sizeof(absolute), "/%s", path) < 0 || !path_is_clean_absolute(absolute))
        return err_set(err, ERR_INVALID, "job: path is not clean");
    if (root >= h->n_roots || h->root_fds[root] < 0)
        return err_set(err, ERR_DENIED, "directory root %u is not in the allow-list", root);
    return 0;
}

static int check(const struct launch_host *h, const struct priv_job *m, size_t len, struct err *err)
{
    const struct priv_copy *copy = m->head.type == PRIV_COPY ? (const void *)m : NULL;
    size_t want = copy != NULL                  ? sizeof(*copy)
                  : m->head.type == PRIV_JOB_AS ? sizeof(struct priv_job_as)
                                                : sizeof(*m);
    if (len != want || !ends(m->path, sizeof(m->path)) ||
        (copy != NULL && (!ends(copy->source, sizeof(copy->source)) ||
                          !ends(copy->manifest, sizeof(copy->manifest)))))
        return err_set(err, ERR_INVALID, "malformed request");
    if (m->seconds == 0 || m->seconds > PRIV_JOB_SECONDS_MAX)
        return err_set(err, ERR_INVALID, "job: time limit out of bounds");
    int r = check_place(h, m->root, m->path, err);
    if (r == 0 && copy != NULL)
        r = check_place(h, copy->source_root, copy->source, err);
    if (r == 0 && copy != NULL)
        r = check_place(h, copy->manifest_root, copy->manifest, err);
    if (r == 0 && copy != NULL && copy->manifest[0] == '\0')
        r = err_set(err, ERR_INVALID, "job: the manifest is no file");
    if (r == 0 && h->fetch_exe_fd < 0)
        r = err_set(err, ERR_UNSUPPORTED, "box-fetch is not installed");
    return r;
}

/* Our state, and the storage of sessions, are no business of jobs: neither from inside nor from
 * above. Of a directory that is yet to be made only the former can be true. */
static int refuse_state(const struct launch_host *h, int fd, bool complete, struct err *err)
{
    struct stat dir, state;
    if (fstat(fd, &dir) < 0 || fstat(h->state_fd, &state) < 0)
        return err_sys(err, errno, "stat directory");
    int inside = launch_is_at_or_below(fd, &state);
    int above = complete ? launch_is_at_or_below(h->state_fd, &dir) : 0;
    if (inside < 0 || above < 0)
        return err_sys(err, inside < 0 ? -inside : -above, "find out where the directory lies");
    if (inside > 0 || above > 0)
        return err_set(err, ERR_DENIED,
                       "the directory overlaps with the state directory of boxd; choose another");
    return 0;
}

/* The user that the job becomes. None of a sandbox: its programs would share an identity with
 * it. */
static int find_owner(int fd, struct stat *ret, struct err *err)
{
    if (fstat(fd, ret) < 0)
        return err_sys(err, errno, "stat directory");
    if (ret->st_uid >= USERNS_BLOCK || ret->st_gid >= USERNS_BLOCK)
        return err_set(err, ERR_DENIED, "the directory belongs to a sandbox");
    return 0;
}

struct start {
    const struct launch_host *host;
    struct stat owner;
    int fds[CHILD_FDS]; /* what becomes of 0 and so on in the child; owned; the last may be -1 */
    const char *missing;
    const char *manifest; /* name of the file in the last of them; "": none */
    unsigned seconds;
};

/* Each source is first moved above all targets. */
static int place_fds_child(const struct start *s)
{
    int high[CHILD_FDS], n = 0;
    for (; n < CHILD_FDS && s->fds[n] >= 0; n++) {
        high[n] = fcntl(s->fds[n], F_DUPFD_CLOEXEC, CHILD_FD_MIN);
        if (high[n] < 0)
            return -errno;
    }
    for (int i = 0; i < n; i++)
        if (dup3(high[i], i, 0) < 0)
            return -errno;
    /* The program itself is among them: it goes when it has been executed. */
    return syscall(SYS_close_range, n, ~0U, CLOSE_RANGE_CLOEXEC) < 0 ? -errno : 0;
}

/* Root keeps its number where the directory is root's, and nothing else of what makes it root. */
static int become_owner_child(const struct start *s)
{
    int r = caps_lock_securebits();
    if (r == 0 && s->host->rootful &&
        (setresgid(s->owner.st_gid, s->owner.st_gid, s->owner.st_gid) < 0 ||
         setresuid(s->owner.st_uid, s->owner.st_uid, s->owner.st_uid) < 0))
        r = -errno;
    return r < 0 ? r : caps_drop_all();
}

static _Noreturn void job_child(const struct start *s)
{
    char seconds[16];
    char *const env[] = {NULL};
    const char *const argv[] = {"box-fetch", "--make",    s->missing, "--manifest",
                                s->manifest, "--seconds", seconds,    NULL};
    sigset_t none;
    (void)snprintf(seconds, sizeof(seconds), "%u", s->seconds);
    (void)setsid();
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    int exe = fcntl(s->host->fetch_exe_fd, F_DUPFD_CLOEXEC, CHILD_FD_MIN);
    if (exe < 0 || place_fds_child(s) < 0 || become_owner_child(s) < 0)
        child_exit(126);
    (void)execveat(exe, "", (char *const *)argv, env, AT_EMPTY_PATH);
    child_exit(127);
}

static int make_pipes(struct start *s, int ret_fds[static JOB_FDS], struct err *err)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    s->fds[0] = in[0];
    ret_fds[1] = in[1];
    if (pipe2(out, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    s->fds[1] = out[1];
    ret_fds[2] = out[0];
    s->fds[2] = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (s->fds[2] < 0)
        return err_sys(err, errno, "open /dev/null");
    int r = fd_set_nonblock(ret_fds[1], true);
    if (r == 0)
        r = fd_set_nonblock(ret_fds[2], true);
    return r < 0 ? err_sys(err, -r, "pipe") : 0;
}

static int find_dir(const struct launch_host *h, const struct priv_job *m, struct start *s,
                    struct err *err)
{
    int root = launch_allowed_root(h, m->root, err);
    if (root < 0)
        return root;
    int fd = path_open_deepest(root, m->path, &s->missing);
    if (fd < 0)
        return path_dir_error(fd, m->path, err);
    s->fds[3] = fd;
    if (*s->missing != '\0' && !m->create)
        return err_set(err, ERR_NOT_FOUND, "directory '%.200s' does not exist", m->path);
    int r = refuse_state(h, fd, *s->missing == '\0', err);
    return r < 0 ? r : find_owner(fd, &s->owner, err);
}

/* Opened as O_PATH, without any right to read: the job reads with the rights of the target
 * directory's owner. In the directory that holds the manifest the job opens only that file. */
static int find_source(const struct launch_host *h, const struct priv_copy *m, struct start *s,
                       struct err *err)
{
    const char *slash = strrchr(m->manifest, '/');
    char parent[sizeof(m->manifest)] = "";
    s->manifest = slash != NULL ? slash + 1 : m->manifest;
    if (slash != NULL)
        memcpy(parent, m->manifest, (size_t)(slash - m->manifest));
    int source = launch_allowed_root(h, m->source_root, err);
    int listed = source < 0 ? source : launch_allowed_root(h, m->manifest_root, err);
    if (listed < 0)
        return listed;
    s->fds[4] = path_open_storage(source, m->source, O_DIRECTORY);
    if (s->fds[4] < 0)
        return path_dir_error(s->fds[4], m->source, err);
    s->fds[5] = path_open_storage(listed, parent, O_DIRECTORY);
    if (s->fds[5] < 0)
        return path_dir_error(s->fds[5], m->manifest, err);
    int r = refuse_state(h, s->fds[4], true, err);
    return r < 0 ? r : refuse_state(h, s->fds[5], false, err);
}

/* A requester gains the rights of a directory's owner, without any capability, for a program of
 * ours that confines itself to that directory before it reads what the requester sends. The
 * directory lies below a root that was opened before the first request, reached through no link and
 * no other mount, so a requester could have had the same by mounting it into a sandbox. What is
 * missing of it is made by that owner, not by us. A job that copies gets descriptors of two more
 * directories, found the same way, which that owner has to be allowed to read. */
int priv_on_job(struct priv *p, const void *data, size_t len, struct err *err)
{
    const struct launch_host *h = p->host;
    const struct priv_job *m = data;
    struct priv_reply reply = {.head = m->head};
    struct start s = {.host = h, .fds = {-1, -1, -1, -1, -1, -1}, .manifest = ""};
    int fds[JOB_FDS] = {-1, -1, -1};
    int r = check(h, m, len, err);
    if (r < 0)
        return r;
    int *place = job_slot(p);
    if (place == NULL)
        return err_set(err, ERR_LIMIT, "too many jobs under way: %u", PRIV_JOBS_MAX);
    s.seconds = m->seconds;
    r = find_dir(h, m, &s, err);
    const struct priv_job_as *as = m->head.type == PRIV_JOB ? NULL : (const void *)m;
    if (r == 0 && as != NULL && as->bound && s.owner.st_uid != as->uid)
        r = err_set(err, ERR_DENIED, "'%.200s' belongs to uid %u and not to uid %u, who asks",
                    m->path, s.owner.st_uid, as->uid);
    if (r == 0 && m->head.type == PRIV_COPY)
        r = find_source(h, (const void *)m, &s, err);
    if (r == 0)
        r = make_pipes(&s, fds, err);
    if (r == 0) {
        pid_t pid = clone_process(CLONE_CLEAR_SIGHAND, -1, &fds[0]);
        if (pid == 0)
            job_child(&s);
        children_add(pid);
        r = pid < 0 ? err_sys(err, -pid, "start a job") : 0;
    }
    if (r == 0) {
        *place = fcntl(fds[0], F_DUPFD_CLOEXEC, 3);
        if (*place < 0)
            r = err_sys(err, errno, "keep a job");
    }
    fd_close_many(s.fds, CHILD_FDS);
    if (r == 0)
        priv_answer(p, &reply, fds, JOB_FDS);
    fd_close_many(fds, JOB_FDS); /* without a request the child ends by itself */
    return r;
}
