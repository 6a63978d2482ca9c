/* SPDX-License-Identifier: Apache-2.0 */

/* Runs jobs of box-fetch one at a time: starts, talks, times out and parses the answer. */

#include "jobs/jobs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "fetch/job.h"
#include "fetch/launcher.h"
#include "jobs/queue.h"
#include "loop/loop.h"

#define READ_MAX 65536U
#define SEND_MAX (1U << 20)
#define GRACE_NS (2ULL * NSEC_PER_SEC) /* for a job to end by itself */

#define VALIDATION "BoxValidationError"

static const struct job_kind kinds[SKILLS_OP_MAX] = {
    [SKILLS_LIST] = {"list", "ValueError", true, true, 60},
    [SKILLS_GET] = {"get", "ValueError", true, true, 60},
    [SKILLS_CREATE] = {"create", VALIDATION, false, true, 60},
    [SKILLS_UPDATE] = {"update", VALIDATION, false, true, 60},
    [SKILLS_DELETE] = {"delete", VALIDATION, false, true, 60},
    [SKILLS_SCAN] = {"scan", VALIDATION, false, true, 60},
    [SKILLS_LIST_FILES] = {"list_files", VALIDATION, false, true, 60},
    [SKILLS_READ_FILE] = {"read_file", VALIDATION, false, true, 60},
    [SKILLS_WRITE_FILE] = {"write_file", VALIDATION, false, true, 60},
    [SKILLS_PREVIEW_ZIP] = {"preview_zip", VALIDATION, false, true, 60},
    [SKILLS_INSTALL_ZIP] = {"install_zip", VALIDATION, false, true, 120},
};

struct call {
    struct call *next;
    const struct job_kind *kind;
    char *dir;          /* owned */
    char *note;         /* owned or NULL */
    char *source;       /* owned or NULL */
    char *manifest;     /* owned or NULL */
    struct buf request; /* the line for the job */
    int zip_fd;         /* owned; -1: none */
    bool bound;         /* made for `uid` alone */
    uid_t uid;
    jobs_done_fn *done;
    void *arg;
    struct log_scope scope; /* who asked, for the log */
};

/*   STARTING ──► TALKING ──► ENDING ──► (gone)
 *       └───────────┴───────────┘               */
enum job_state {
    JOB_STARTING, /* the launcher is at it */
    JOB_TALKING,
    JOB_ENDING, /* it has been answered for; its process ends */
    JOB_STATE_MAX,
};

struct job {
    struct jobs *skills; /* borrowed; NULL: nobody is there any more to be told */
    enum job_state state;
    struct call *call; /* owned until it is answered */
    struct fetch_process process;
    struct loop_io in_io, out_io;
    struct loop_child child;
    struct loop_timer timer;
    size_t sent;    /* bytes of the request */
    off_t zip_sent; /* bytes of the archive */
    struct buf out;
};

struct jobs {
    struct loop *loop;
    struct fetch_launcher *launcher; /* borrowed, or `own` */
    struct fetch_launcher *own;      /* owned or NULL */
    char *root;                      /* owned or NULL */
    struct call *first, *last;       /* waiting, owned */
    size_t waiting;
    struct job *job; /* the one under way, NULL: none */
    struct loop_defer next;
    bool bound; /* the next call is made for `uid` alone */
    uid_t uid;
};

static void on_next(struct loop_defer *d);

static void move(struct job *j, enum job_state to)
{
    static const unsigned next[JOB_STATE_MAX] = {
        [JOB_STARTING] = 1U << JOB_TALKING | 1U << JOB_ENDING,
        [JOB_TALKING] = 1U << JOB_ENDING,
        [JOB_ENDING] = 0,
    };
    assert(next[j->state] & (1U << to));
    j->state = to;
}

static void call_free(struct call *c)
{
    if (c == NULL)
        return;
    free(c->dir);
    free(c->note);
    free(c->source);
    free(c->manifest);
    buf_done(&c->request);
    fd_close_many(&c->zip_fd, 1);
    free(c);
}

static void stop_watching(struct job *j)
{
    loop_io_stop(&j->in_io);
    loop_io_stop(&j->out_io);
    loop_child_stop(&j->child);
    loop_timer_stop(&j->timer);
}

static void job_free(struct job *j)
{
    stop_watching(j);
    fetch_process_done(&j->process);
    buf_done(&j->out);
    call_free(j->call);
    free(j);
}

/* The job is over in every respect: the next one may start. */
static void job_gone(struct job *j)
{
    struct jobs *s = j->skills;
    job_free(j);
    s->job = NULL;
    if (s->first != NULL)
        loop_defer_start(s->loop, &s->next, on_next);
}

/* A job that box-priv started has another owner than us; then its own alarm must do. */
static void kill_process(const struct job *j)
{
    if (j->process.pidfd >= 0)
        (void)pidfd_send_signal(j->process.pidfd, SIGKILL, NULL, 0);
}

static void on_child(struct loop_child *c, int wait_status)
{
    (void)wait_status; /* what it had to say came through the pipe, or not at all */
    struct job *j = container_of(c, struct job, child);
    if (j->state == JOB_ENDING)
        job_gone(j);
}

static void on_ending_slow(struct loop_timer *t)
{
    struct job *j = container_of(t, struct job, timer);
    log_warn(NULL, "a job of the skill store does not end; going on without it, ignoring");
    fetch_process_kill(&j->process);
    job_gone(j);
}

/* Answers for the job. Nobody waits for what its process still does but the next one. */
static void job_end(struct job *j, const char *json, size_t len, const char *message)
{
    struct call *c = TAKE_PTR(j->call);
    move(j, JOB_ENDING);
    loop_io_stop(&j->in_io);
    loop_io_stop(&j->out_io);
    loop_timer_stop(&j->timer);
    fd_close_many(&j->process.in_fd, 1);
    fd_close_many(&j->process.out_fd, 1);
    struct jobs *s = j->skills;
    if (j->child.loop == NULL)
        job_gone(j);
    else
        loop_timer_start(s->loop, &j->timer, GRACE_NS, on_ending_slow);
    LOG_REQUEST(c->scope.id);
    c->done(c->arg, json, len, message); /* may call us again, and may free us */
    call_free(c);
}

static void job_fail(struct job *j, const char *error_class, const char *text)
{
    AUTO_FREE char *message = xasprintf("%s: %s", error_class, text);
    job_end(j, NULL, 0, message);
}

/* What the launcher says is for whoever runs boxd, but for what clients know by other words. */
static void job_not_started(struct job *j, const struct err *err)
{
    const struct job_kind *k = j->call->kind;
    const char *text = err->msg;
    if (err->code == ERR_CONFLICT && k->not_a_directory != NULL)
        text = k->not_a_directory;
    else if (err->code == ERR_NOT_FOUND && k->missing != NULL)
        text = k->missing;
    job_fail(j, k->error_class, text);
}

static void deliver(struct job *j, const struct json *data)
{
    AUTO_DONE(buf) struct buf out;
    const struct job_kind *k = j->call->kind;
    buf_init(&out, FETCH_ANSWER_MAX + FETCH_ANSWER_MAX / 2);
    int r;
    if (k->translate != NULL) {
        r = k->translate(data, j->call->note, &out);
        if (r < 0) {
            job_fail(j, k->error_class, buf_str(&out));
            return;
        }
    } else {
        struct jw w;
        jw_init(&w, &out);
        jw_value(&w, data);
        r = jw_end(&w);
    }
    if (r < 0)
        job_fail(j, k->error_class, "the answer is too large");
    else
        job_end(j, buf_str(&out), out.len, NULL);
}

/* The process may have been taken over by what it read: its answer is parsed, and only what we
 * understand is passed on. */
static void on_answer(struct job *j)
{
    AUTO(json) struct json *answer = NULL;
    struct err err = {0};
    const struct job_kind *k = j->call->kind;
    const char *text = NULL;
    int r = j->out.len > 0 ? json_parse(j->out.data, j->out.len, &answer, &err) : -EPIPE;
    const struct json *data = r == 0 ? json_get(answer, "data") : NULL;
    if (r == 0)
        text = json_str(json_get(answer, "error"));
    if (json_type(data) == JSON_OBJECT) {
        deliver(j, data);
    } else if (text != NULL) {
        const char *kind = json_str(json_get(answer, "class"));
        job_fail(j, k->key_errors && str_eq(kind, "KeyError") ? "KeyError" : k->error_class, text);
    } else {
        log_warn(NULL, "job '%s' of the skill store died without an answer", k->op);
        job_fail(j, k->error_class, "the skill store's helper died while it worked on this");
    }
}

static void on_output(struct loop_io *io, uint32_t events)
{
    struct job *j = container_of(io, struct job, out_io);
    if (buf_reserve(&j->out, READ_MAX) < 0) {
        kill_process(j);
        job_fail(j, j->call->kind->error_class, "the answer is too large");
        return;
    }
    ssize_t n = read(io->fd, j->out.data + j->out.len, READ_MAX);
    if (n > 0)
        j->out.len += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        on_answer(j);
}

/* The line, then the archive, straight from its file. 1: all of it is gone, 0: later. */
static int send_some(struct job *j)
{
    const struct call *c = j->call;
    int fd = j->process.in_fd;
    ssize_t n;
    if (j->sent < c->request.len) {
        n = write(fd, c->request.data + j->sent, c->request.len - j->sent);
        if (n > 0)
            j->sent += (size_t)n;
    } else if (c->zip_fd >= 0) {
        n = sendfile(fd, c->zip_fd, &j->zip_sent, SEND_MAX);
        if (n == 0)
            return 1;
    } else {
        return 1;
    }
    return n < 0 && errno != EAGAIN && errno != EINTR ? -errno : 0;
}

/* A job that does not want to hear more has something to say instead. */
static void on_writable(struct loop_io *io, uint32_t events)
{
    struct job *j = container_of(io, struct job, in_io);
    if (send_some(j) == 0)
        return;
    loop_io_stop(&j->in_io);
    fd_close_many(&j->process.in_fd, 1);
}

static void on_timeout(struct loop_timer *t)
{
    struct job *j = container_of(t, struct job, timer);
    char text[80];
    (void)str_fmt(text, sizeof(text), "no answer from the skill store within %u seconds",
                  j->call->kind->seconds);
    kill_process(j);
    job_fail(j, j->call->kind->error_class, text);
}

static void on_started(void *arg, struct fetch_process *p, const struct err *err)
{
    struct job *j = arg;
    struct jobs *s = j->skills;
    if (s == NULL) { /* nobody waits any more; without a request it ends by itself */
        job_free(j);
        return;
    }
    if (p == NULL) {
        job_not_started(j, err);
        return;
    }
    j->process = *p;
    *p = FETCH_PROCESS_NONE;
    move(j, JOB_TALKING);
    int r = loop_child_start(s->loop, &j->child, j->process.pidfd, on_child);
    if (r == 0)
        r = loop_io_start(s->loop, &j->out_io, j->process.out_fd, EPOLLIN, on_output);
    if (r == 0)
        r = loop_io_start(s->loop, &j->in_io, j->process.in_fd, EPOLLOUT, on_writable);
    if (r < 0) {
        kill_process(j);
        job_fail(j, j->call->kind->error_class, err_errno_text(-r));
        return;
    }
    loop_timer_start(s->loop, &j->timer, j->call->kind->seconds * NSEC_PER_SEC + GRACE_NS,
                     on_timeout);
}

static void on_next(struct loop_defer *d)
{
    struct jobs *s = container_of(d, struct jobs, next);
    struct err err = {0};
    if (s->job != NULL || s->first == NULL)
        return;
    struct job *j = xnew(struct job);
    j->skills = s;
    j->process = FETCH_PROCESS_NONE;
    j->call = s->first;
    s->first = j->call->next;
    if (s->first == NULL)
        s->last = NULL;
    s->waiting--;
    s->job = j;
    buf_init(&j->out, FETCH_ANSWER_MAX + READ_MAX);
    const struct fetch_start start = {.dir = j->call->dir,
                                      .create = j->call->kind->create,
                                      .seconds = j->call->kind->seconds,
                                      .bound = j->call->bound,
                                      .uid = j->call->uid,
                                      .source = j->call->source,
                                      .manifest = j->call->manifest};
    if (s->launcher->start(s->launcher, &start, on_started, j, &err) < 0)
        job_not_started(j, &err);
}

static int write_request(const struct job_request *r, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_object(&w);
    jw_kstr(&w, "op", r->kind->op);
    jw_kstr(&w, "root", r->dir);
    jw_kbool(&w, "shared", r->shared);
    jw_key(&w, "data");
    jw_value(&w, r->data);
    jw_object_end(&w);
    int rc = jw_end(&w);
    return rc < 0 ? rc : buf_putc(out, '\n');
}

void jobs_act_for(struct jobs *s, const uid_t *uid)
{
    s->bound = uid != NULL;
    s->uid = uid != NULL ? *uid : 0;
}

int jobs_submit(struct jobs *s, const struct job_request *request, jobs_done_fn *done, void *arg,
                struct err *err)
{
    const bool bound = s->bound;
    s->bound = false;
    if (s->waiting >= SKILLS_QUEUE_MAX)
        return err_set(err, ERR_LIMIT, "too many calls to the skill store wait; try again");
    struct call *c = xnew(struct call);
    c->kind = request->kind;
    c->bound = bound;
    c->uid = s->uid;
    c->zip_fd = -1;
    c->done = done;
    c->arg = arg;
    c->scope = log_scope_now();
    c->dir = xstrdup(request->dir);
    c->note = request->note != NULL ? xstrdup(request->note) : NULL;
    c->source = request->source != NULL ? xstrdup(request->source) : NULL;
    c->manifest = request->manifest != NULL ? xstrdup(request->manifest) : NULL;
    buf_init(&c->request, FETCH_REQUEST_MAX);
    if (write_request(request, &c->request) < 0) {
        call_free(c);
        return err_set(err, ERR_LIMIT, "the request is too large");
    }
    if (request->zip_fd >= 0) {
        c->zip_fd = fcntl(request->zip_fd, F_DUPFD_CLOEXEC, 3);
        if (c->zip_fd < 0) {
            int r = err_sys(err, errno, "keep the archive");
            call_free(c);
            return r;
        }
    }
    if (s->last != NULL)
        s->last->next = c;
    else
        s->first = c;
    s->last = c;
    s->waiting++;
    if (s->job == NULL && s->next.loop == NULL)
        loop_defer_start(s->loop, &s->next, on_next);
    return 0;
}

/* NOLINTNEXTLINE(readability-function-size): what a call of the wire consists of. */
int jobs_skill(struct jobs *s, const char *workspace, enum skills_op op, const struct json *request,
               int zip_fd, jobs_done_fn *done, void *arg, struct err *err)
{
    assert(op < SKILLS_OP_MAX);
    bool known = workspace == NULL || id_valid(workspace);
    if (s->root == NULL || !known)
        s->bound = false; /* that call is not made */
    if (s->root == NULL)
        return err_set(
            err, ERR_STATE,
            "boxd does not know where LangBot keeps its skills: set box.local.host_root in "
            "LangBot's configuration, or langbot_base_dir of boxd");
    if (!known)
        return err_set(err, ERR_INVALID, "not the name of a workspace");
    AUTO_FREE char *dir =
        workspace != NULL ? xasprintf("%s/tenants/%s", s->root, workspace) : xstrdup(s->root);
    const struct job_request r = {.kind = &kinds[op],
                                  .dir = dir,
                                  .shared = workspace == NULL,
                                  .data = request,
                                  .zip_fd = zip_fd};
    return jobs_submit(s, &r, done, arg, err);
}

void jobs_set_skills_root(struct jobs *s, const char *path)
{
    char *root = path != NULL ? xstrdup(path) : NULL;
    for (size_t len = root != NULL ? strlen(root) : 0; len > 1 && root[len - 1] == '/'; len--)
        root[len - 1] = '\0';
    free(s->root);
    s->root = root;
}

void jobs_add_place(struct jobs *s, const char *path)
{
    if (s->own != NULL)
        fetch_launcher_direct_add(s->own, path);
}

int jobs_new(struct loop *loop, const struct jobs_options *options, struct jobs **ret,
             struct err *err)
{
    static char everything[] = "/";
    static char *const anywhere[] = {everything, NULL};
    const struct fetch_roots roots = {.paths = options->roots != NULL ? options->roots : anywhere};
    struct jobs *s = xnew(struct jobs);
    s->loop = loop;
    s->launcher = options->launcher;
    if (s->launcher == NULL) {
        int r = fetch_launcher_direct(loop, options->program, &roots, &s->own, err);
        if (r < 0) {
            free(s);
            return r;
        }
        s->launcher = s->own;
    }
    *ret = s;
    return 0;
}

void jobs_free(struct jobs *s)
{
    if (s == NULL)
        return;
    loop_defer_stop(&s->next);
    while (s->first != NULL) {
        struct call *c = s->first;
        s->first = c->next;
        call_free(c);
    }
    if (s->job != NULL && s->job->state == JOB_STARTING && s->own == NULL) {
        s->job->skills = NULL; /* the launcher still has it */
    } else if (s->job != NULL) {
        fetch_process_kill(&s->job->process);
        job_free(s->job);
    }
    fetch_launcher_free(s->own);
    free(s->root);
    free(s);
}
