/* SPDX-License-Identifier: Apache-2.0 */

/* Runs jobs of box-fetch one at a time: starts, talks, times out and parses the answer. The jobs on
 * the skill store and on directories of the host are here, too. */

#include "jobs/jobs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/list.h"
#include "base/log.h"
#include "base/state.h"
#include "base/str.h"
#include "fetch/job.h"
#include "fetch/launcher.h"
#include "http/codec/crypto.h"
#include "loop/loop.h"

#define READ_MAX 65536U
#define SEND_MAX (1U << 20)
#define TRANSLATED_MAX 65536U
#define GRACE_NS (2ULL * NSEC_PER_SEC) /* for a job to end by itself */

#define MARKER_MAX 1024U

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

struct job_call {
    STAILQ_ENTRY(job_call) entry; /* while it waits */
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
    struct log_scope scope; /* of the request that it is made for */
};

/*   STARTING ──► TALKING ──► ENDING ──► (gone)
 *       └───────────┴───────────┘               */
enum job_state {
    JOB_STARTING, /* the launcher is at it */
    JOB_TALKING,
    JOB_ENDING, /* it has been answered for; its process ends */
    JOB_STATE_MAX,
};

static const unsigned job_moves[JOB_STATE_MAX] = {
    [JOB_STARTING] = 1U << JOB_TALKING | 1U << JOB_ENDING,
    [JOB_TALKING] = 1U << JOB_ENDING,
    [JOB_ENDING] = 0,
};

struct fetch_job {
    struct jobs *jobs; /* borrowed; NULL: freed, and nothing waits for this job any more */
    enum job_state state;
    struct job_call *call; /* owned until it is answered */
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
    STAILQ_HEAD(, job_call) calls;   /* waiting, owned */
    size_t waiting;
    struct fetch_job *job; /* the one under way, NULL: none */
    struct loop_defer next;
    bool bound; /* the next call is made for `uid` alone */
    uid_t uid;
};

static void on_next(struct loop_defer *d);

static struct job_call *take_first(struct jobs *s)
{
    struct job_call *c = STAILQ_FIRST(&s->calls);
    assert(s->waiting > 0);
    STAILQ_REMOVE_HEAD(&s->calls, entry);
    s->waiting--;
    return c;
}

static void call_free(struct job_call *c)
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

static void job_free(struct fetch_job *j)
{
    loop_io_stop(&j->in_io);
    loop_io_stop(&j->out_io);
    loop_child_stop(&j->child);
    loop_timer_stop(&j->timer);
    fetch_process_done(&j->process);
    buf_done(&j->out);
    call_free(j->call);
    free(j);
}

/* The job is over in every respect: the next one may start. */
static void job_gone(struct fetch_job *j)
{
    struct jobs *s = j->jobs;
    job_free(j);
    s->job = NULL;
    if (!STAILQ_EMPTY(&s->calls))
        loop_defer_start(s->loop, &s->next, on_next);
}

/* A job that box-priv started has another owner than us; then its own alarm must do. */
static void kill_process(const struct fetch_job *j)
{
    if (j->process.pidfd >= 0)
        (void)pidfd_send_signal(j->process.pidfd, SIGKILL, NULL, 0);
}

static void on_child(struct loop_child *c, int wait_status)
{
    (void)wait_status; /* what it had to say came through the pipe, or not at all */
    struct fetch_job *j = container_of(c, struct fetch_job, child);
    if (j->state == JOB_ENDING)
        job_gone(j);
}

static void on_ending_slow(struct loop_timer *t)
{
    struct fetch_job *j = container_of(t, struct fetch_job, timer);
    log_warn(NULL, "box-fetch does not end after its job; going on without it, ignoring");
    fetch_process_kill(&j->process);
    job_gone(j);
}

/* Answers for the job. Only the next job waits for the end of its process. */
static void job_end(struct fetch_job *j, const struct json *data, const struct job_failure *failure)
{
    struct job_call *c = TAKE_PTR(j->call);
    assert(c != NULL && (data == NULL) != (failure == NULL));
    STATE_MOVE(j->state, job_moves, JOB_ENDING);
    loop_io_stop(&j->in_io);
    loop_io_stop(&j->out_io);
    loop_timer_stop(&j->timer);
    fd_close_many(&j->process.in_fd, 1);
    fd_close_many(&j->process.out_fd, 1);
    struct jobs *s = j->jobs;
    if (j->child.loop == NULL)
        job_gone(j);
    else
        loop_timer_start(s->loop, &j->timer, GRACE_NS, on_ending_slow);
    LOG_REQUEST(c->scope.id);
    c->done(c->arg, data, failure); /* may call us again, and may free us */
    call_free(c);
}

static void job_fail(struct fetch_job *j, const char *error_class, const char *text)
{
    job_end(j, NULL, &(struct job_failure){error_class, text});
}

/* The launcher's words are for the operator of boxd; clients know some failures by other words. */
static void job_not_started(struct fetch_job *j, const struct err *err)
{
    const struct job_kind *k = j->call->kind;
    const char *text = err->msg;
    if (err->code == ERR_CONFLICT && k->not_a_directory != NULL)
        text = k->not_a_directory;
    else if (err->code == ERR_NOT_FOUND && k->missing != NULL)
        text = k->missing;
    job_fail(j, k->error_class, text);
}

static void deliver(struct fetch_job *j, const struct json *data)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(TRANSLATED_MAX);
    AUTO(json) struct json *translated = NULL;
    const struct job_kind *k = j->call->kind;
    struct err err = {0};
    if (k->translate == NULL)
        job_end(j, data, NULL);
    else if (k->translate(data, j->call->note, &out) < 0)
        job_fail(j, k->error_class, buf_str(&out));
    else if (json_parse(buf_str(&out), out.len, &translated, &err) < 0)
        job_fail(j, k->error_class, err.msg);
    else
        job_end(j, translated, NULL);
}

/* The process may have been taken over by what it read: its answer is parsed, and only what we
 * understand is passed on. */
static void on_answer(struct fetch_job *j)
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
        log_warn(NULL, "box-fetch died during job '%s', without an answer", k->op);
        job_fail(j, k->error_class, "the skill store's helper died while it worked on this");
    }
}

static void on_output(struct loop_io *io, uint32_t events)
{
    struct fetch_job *j = container_of(io, struct fetch_job, out_io);
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
static int send_some(struct fetch_job *j)
{
    const struct job_call *c = j->call;
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
    struct fetch_job *j = container_of(io, struct fetch_job, in_io);
    if (send_some(j) == 0)
        return;
    loop_io_stop(&j->in_io);
    fd_close_many(&j->process.in_fd, 1);
}

static void on_timeout(struct loop_timer *t)
{
    struct fetch_job *j = container_of(t, struct fetch_job, timer);
    char text[80];
    (void)str_fmt(text, sizeof(text), "no answer from the skill store within %u seconds",
                  j->call->kind->seconds);
    kill_process(j);
    job_fail(j, j->call->kind->error_class, text);
}

static void on_started(void *arg, struct fetch_process *p, const struct err *err)
{
    struct fetch_job *j = arg;
    struct jobs *s = j->jobs;
    if (s == NULL) { /* nothing waits for it; without a request the process ends by itself */
        job_free(j);
        return;
    }
    if (p == NULL) {
        job_not_started(j, err);
        return;
    }
    j->process = *p;
    *p = FETCH_PROCESS_NONE;
    STATE_MOVE(j->state, job_moves, JOB_TALKING);
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
    if (s->job != NULL || STAILQ_EMPTY(&s->calls))
        return;
    struct fetch_job *j = xnew(struct fetch_job);
    j->jobs = s;
    j->process = FETCH_PROCESS_NONE;
    j->call = take_first(s);
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
    struct jw w = JW_INIT(out);
    jw_object(&w);
    jw_kstr(&w, "op", r->kind->op);
    jw_kstr(&w, "root", r->dir);
    jw_kbool(&w, "shared", r->shared);
    jw_kvalue(&w, "data", r->data);
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
    struct job_call *c = xnew(struct job_call);
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
    STAILQ_INSERT_TAIL(&s->calls, c, entry);
    s->waiting++;
    if (s->job == NULL && s->next.loop == NULL)
        loop_defer_start(s->loop, &s->next, on_next);
    return 0;
}

/* The skill store. */

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

/* Directories of the host. */

static int hex_value(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c != '\0' ? strchr(digits, c) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

/* The job sends the file in hexadecimal digits. */
static int decode_marker(const char *hex, unsigned char ret[static MARKER_MAX], size_t *ret_len)
{
    size_t len = hex != NULL ? strlen(hex) : 0;
    if (len == 0 || len % 2 != 0 || len / 2 > MARKER_MAX)
        return -EINVAL;
    for (size_t i = 0; i < len / 2; i++) {
        int high = hex_value(hex[2 * i]), low = hex_value(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return -EINVAL;
        ret[i] = (unsigned char)(high << 4 | low);
    }
    *ret_len = len / 2;
    return 0;
}

static int marker_answer(const struct json *data, const char *note, struct buf *ret)
{
    unsigned char content[MARKER_MAX];
    char digest[65];
    size_t len = 0;
    struct jw w = JW_INIT(ret);
    int r = decode_marker(json_str(json_get(data, "content")), content, &len);
    if (r == 0)
        r = http_sha256_hex(content, len, digest);
    if (r < 0) {
        (void)buf_puts(ret, "Box Runtime cannot read the Core shared Workspace probe");
        return r;
    }
    jw_object(&w);
    jw_kstr(&w, "marker_name", note);
    jw_kstr(&w, "sha256", digest);
    jw_ku64(&w, "size", len);
    jw_object_end(&w);
    return jw_end(&w);
}

static const struct job_kind ensure_kind = {
    .op = "make_dir",
    .error_class = "BoxValidationError",
    .create = true,
    .seconds = 10,
    .not_a_directory =
        "box.local.default_workspace must point to a directory on the Box runtime host",
};

static const struct job_kind marker_kind = {
    .op = "read_marker",
    .error_class = "BoxReadinessError",
    .seconds = 10,
    .not_a_directory = "Managed sandbox workspace path is not a directory",
    .missing = "Managed sandbox workspace path is not a directory",
    .translate = marker_answer,
};

static const struct job_kind measure_kind = {
    .op = "measure",
    .error_class = "BoxError",
    .seconds = 15,
    .not_a_directory = HOSTDIR_MISSING,
    .missing = HOSTDIR_MISSING,
};

/* The request of a job that is about one directory and, maybe, names in it. */
static int submit_dir(struct jobs *s, struct job_request request, const char *const *parts,
                      jobs_done_fn *done, void *arg, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(8192);
    AUTO(json) struct json *data = NULL;
    struct jw w = JW_INIT(&text);
    jw_object(&w);
    if (request.note != NULL)
        jw_kstr(&w, "marker_name", request.note);
    if (parts != NULL) {
        jw_karray(&w, "parts");
        for (; *parts != NULL; parts++)
            jw_str(&w, *parts);
        jw_array_end(&w);
    }
    jw_object_end(&w);
    int r = jw_end(&w) < 0
                ? err_set(err, ERR_INVALID, "Invalid Box shared Workspace probe basename")
                : json_parse(text.data, text.len, &data, err);
    if (r < 0) {
        jobs_act_for(s, NULL); /* that call is not made */
        return r;
    }
    request.data = data;
    request.zip_fd = -1;
    return jobs_submit(s, &request, done, arg, err);
}

int hostdir_ensure(struct jobs *s, const char *path, jobs_done_fn *done, void *arg, struct err *err)
{
    return submit_dir(s, (struct job_request){.kind = &ensure_kind, .dir = path}, NULL, done, arg,
                      err);
}

int hostdir_measure(struct jobs *s, const char *path, const char *const *parts, jobs_done_fn *done,
                    void *arg, struct err *err)
{
    return submit_dir(s, (struct job_request){.kind = &measure_kind, .dir = path}, parts, done, arg,
                      err);
}

int hostdir_verify_marker(struct jobs *s, const char *path, const char *marker_name,
                          jobs_done_fn *done, void *arg, struct err *err)
{
    const struct job_request request = {.kind = &marker_kind, .dir = path, .note = marker_name};
    return submit_dir(s, request, NULL, done, arg, err);
}

/* The life of all. */

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
    STAILQ_INIT(&s->calls);
    s->loop = loop;
    s->launcher = options->launcher;
    if (s->launcher == NULL)
        s->launcher = s->own = fetch_launcher_direct(loop, options->program, &roots);
    *ret = s;
    return 0;
}

void jobs_free(struct jobs *s)
{
    if (s == NULL)
        return;
    loop_defer_stop(&s->next);
    while (!STAILQ_EMPTY(&s->calls))
        call_free(take_first(s));
    if (s->job != NULL && s->job->state == JOB_STARTING && s->own == NULL) {
        s->job->jobs = NULL; /* the launcher still has it */
    } else if (s->job != NULL) {
        fetch_process_kill(&s->job->process);
        job_free(s->job);
    }
    fetch_launcher_free(s->own);
    free(s->root);
    free(s);
}
