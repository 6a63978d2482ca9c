/* SPDX-License-Identifier: Apache-2.0 */

/* Makes, fills, reuses and sweeps the artifact directories of sessions, by jobs. */

#include "session/artifacts.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/host_path.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "fetch/job.h"
#include "jobs/jobs.h"
#include "session/session_internal.h"
#include "spec/spec.h"

#define TAIL "/" FETCH_ARTIFACTS_TREE
#define NAME_LEN 16U
#define ERROR_CLASS "BoxError"
#define REQUEST_MAX (1U << 20)

#define SPARES_MAX 16U
#define SWEEP_DELAY_NS 500000000ULL

/* A directory that no session has yet, or one that a session has. When that session has ended and
 * the directory is unchanged, another session gets it: making one takes a process. */
struct artifacts_place {
    struct artifacts *a;
    LIST_ENTRY(artifacts_place) link;
    char *tree;           /* owned */
    char *lent;           /* owned; the session that has it; NULL: none */
    bool full;            /* something was put into it */
    struct timespec born; /* when it was changed last, before a session got it; 0: boxd may not
                             look, and only the owners of it and of host_root could change it */
};

struct artifacts {
    struct jobs *jobs;       /* owned */
    struct manager *manager; /* borrowed */
    const char *tag;         /* borrowed */
    char *root;              /* owned; of the host; NULL: none */
    char *base;              /* owned; where directories are made, below it */
    LIST_HEAD(, artifacts_place) places;
    struct artifacts_place *spares[SPARES_MAX]; /* for the next sessions */
    size_t n_spares;
    bool making;    /* one is under way */
    struct err why; /* why the last one could not be made; ERR_NONE: it was made */
    bool sweeping, sweep_again;
    struct loop_timer due; /* sessions have ended since the last sweep */
    struct events_reader events;
};

static const struct job_kind make_kind = {
    .op = "make_artifacts",
    .error_class = ERROR_CLASS,
    .create = true,
    .seconds = 10,
};

static const struct job_kind add_kind = {
    .op = "add_artifact",
    .error_class = ERROR_CLASS,
    .create = true,
    .seconds = FETCH_SECONDS_MAX,
};

static const struct job_kind sweep_kind = {
    .op = "sweep_artifacts",
    .error_class = ERROR_CLASS,
    .seconds = FETCH_SECONDS_MAX,
};

static int submit(struct artifacts *a, struct job_request request, struct buf *text,
                  jobs_done_fn *done, void *arg, struct err *err)
{
    AUTO(json) struct json *data = NULL;
    int r = json_parse(buf_str(text), text->len, &data, err);
    if (r < 0)
        return r;
    request.data = data;
    request.zip_fd = -1;
    return jobs_submit(a->jobs, &request, done, arg, err);
}

/* Sweeping ----------------------------------------------------------------------------------- */

static void sweep(struct artifacts *a);

static void on_swept(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct artifacts *a = arg;
    if (data == NULL)
        log_debug(NULL, "remove artifacts of sessions that are gone: %s; ignoring", failure->text);
    a->sweeping = false;
    if (a->sweep_again)
        sweep(a);
}

static void write_kept(struct jw *w, const char *tree)
{
    size_t len = strlen(tree);
    if (len > NAME_LEN + strlen(TAIL))
        jw_strn(w, tree + len - strlen(TAIL) - NAME_LEN, NAME_LEN);
}

/* Directories that are made from now on are made by jobs behind this one. */
static void sweep(struct artifacts *a)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(REQUEST_MAX);
    struct err err = {0};
    struct jw w = JW_INIT(&text);
    a->sweep_again = a->sweeping;
    if (a->sweeping || a->base == NULL)
        return;
    jw_object(&w);
    jw_karray(&w, "keep");
    const struct artifacts_place *p;
    LIST_FOREACH (p, &a->places, link)
        if (p->lent == NULL) /* else its session names it */
            write_kept(&w, p->tree);
    const struct session *s;
    TAILQ_FOREACH (s, &a->manager->sessions, link)
        if (s->spec->own.artifacts != NULL)
            write_kept(&w, s->spec->own.artifacts);
    jw_array_end(&w);
    jw_object_end(&w);
    const struct job_request request = {.kind = &sweep_kind, .dir = a->base};
    if (jw_end(&w) < 0 || submit(a, request, &text, on_swept, a, &err) < 0)
        log_debug(NULL, "remove artifacts of sessions that are gone: %s; later", err.msg);
    else
        a->sweeping = true;
}

/* A sweep takes a process: one for all sessions that end at about the same time. */
static void on_due(struct loop_timer *t)
{
    sweep(container_of(t, struct artifacts, due));
}

static bool is_end(void *arg, const struct event *event)
{
    return event->kind == EVENT_SESSION_DELETED || event->kind == EVENT_SESSION_EXPIRED ||
           event->kind == EVENT_SESSION_LOST;
}

/* Places ------------------------------------------------------------------------------------- */

static struct artifacts_place *place_new(struct artifacts *a)
{
    struct artifacts_place *p = xnew(struct artifacts_place);
    char name[NAME_LEN + 1];
    id_random(name);
    p->a = a;
    p->tree = xasprintf("%s/%s" TAIL, a->base, name);
    LIST_INSERT_HEAD(&a->places, p, link);
    return p;
}

static void place_drop(struct artifacts_place *p)
{
    LIST_REMOVE(p, link);
    free(p->tree);
    free(p->lent);
    free(p);
}

static struct timespec changed(const struct artifacts_place *p)
{
    struct stat st;
    return stat(p->tree, &st) == 0 ? st.st_mtim : (struct timespec){0};
}

/* Its session has ended. True: it cannot be used again. */
static bool take_back(struct artifacts_place *p)
{
    struct artifacts *a = p->a;
    struct timespec now = changed(p);
    bool clean = !p->full && now.tv_sec == p->born.tv_sec && now.tv_nsec == p->born.tv_nsec;
    if (!clean || a->base == NULL || !str_starts(p->tree, a->base) || a->n_spares == SPARES_MAX) {
        place_drop(p);
        return true;
    }
    free(TAKE_PTR(p->lent));
    a->spares[a->n_spares++] = p;
    return false;
}

/* The directory of the event's session; unknown for an earlier boxd or an older client. */
static bool on_end(struct artifacts *a, const char *id)
{
    const struct session *s = session_lookup(a->manager, id);
    bool sweeps = true;
    struct artifacts_place *p, *next;
    LIST_FOREACH_SAFE (p, &a->places, link, next)
        if (str_eq(p->lent, id) && (s == NULL || !str_eq(s->spec->own.artifacts, p->tree)))
            sweeps = take_back(p);
    return sweeps;
}

static void on_events(void *arg)
{
    struct artifacts *a = arg;
    uint64_t missed = 0;
    bool sweeps = false;
    for (const struct event *e; (e = events_next(&a->events, &missed)) != NULL;)
        sweeps = on_end(a, e->session) || sweeps;
    if ((sweeps || missed > 0) && a->due.loop == NULL)
        loop_timer_start(manager_loop(a->manager), &a->due, SWEEP_DELAY_NS, on_due);
}

static void on_spare(void *arg, const struct json *data, const struct job_failure *failure)
{
    struct artifacts_place *p = arg;
    struct artifacts *a = p->a;
    a->making = false;
    bool current = a->base != NULL && str_starts(p->tree, a->base);
    if (data != NULL && current && a->n_spares < SPARES_MAX) {
        a->spares[a->n_spares++] = p;
        a->why = (struct err){0};
        return;
    }
    if (data == NULL && current) {
        (void)err_set(&a->why, ERR_STATE, "%s cannot be made: %s", a->base, failure->text);
        log_info(NULL, "sessions have no place for artifacts: %s", a->why.msg);
    }
    place_drop(p);
}

static void make_spare(struct artifacts *a)
{
    struct err err = {0};
    if (a->base == NULL || a->making || a->n_spares > 0)
        return;
    struct artifacts_place *p = place_new(a);
    a->making = artifacts_make(a, p->tree, on_spare, p, &err) == 0;
    if (!a->making)
        place_drop(p);
}

void artifacts_place_free(struct artifacts_place *p)
{
    if (p == NULL)
        return;
    struct artifacts *a = p->a;
    const struct session *s;
    TAILQ_FOREACH (s, &a->manager->sessions, link)
        if (str_eq(s->spec->own.artifacts, p->tree))
            break;
    if (s != NULL) {
        p->lent = xstrdup(s->spec->session_id);
    } else {
        place_drop(p);
        sweep(a);
    }
    make_spare(a); /* there are clients that need some */
}

/* A mount of the caller's that would contain our directory: we make nothing there. */
static bool is_covered(const struct spec *spec)
{
    static const char place[] = SPEC_ARTIFACTS;
    bool covered = false;
    for (size_t i = 0; i <= spec->n_extra_mounts; i++) {
        bool extra = i < spec->n_extra_mounts;
        const char *target = extra ? spec->extra_mounts[i].mount_path : spec->mount_path;
        size_t len = strlen(target);
        covered = covered ||
                  ((!extra || spec->extra_mounts[i].mode != MOUNT_NONE) &&
                   strncmp(place, target, len) == 0 && (place[len] == '\0' || place[len] == '/'));
    }
    return covered;
}

/* True when its directory was removed from outside; then it is made once more. */
static bool is_gone(const struct artifacts_place *p)
{
    struct stat st;
    return stat(p->tree, &st) < 0 && errno == ENOENT; /* we may not be allowed to look */
}

const char *artifacts_problem(const struct artifacts *a)
{
    return a->base == NULL ? "box.local.host_root is not set" : a->why.msg;
}

struct artifacts_place *artifacts_place(struct artifacts *a, struct spec *spec, bool needed,
                                        bool *ret_ready, struct err *err)
{
    struct artifacts_place *p = NULL;
    const struct spec there = {.host_path = a->root};
    if (a->base == NULL)
        (void)err_set(err, ERR_STATE, "%s", artifacts_problem(a));
    else if (is_covered(spec))
        (void)err_set(err, ERR_STATE, "a mount of this Box covers %s", SPEC_ARTIFACTS);
    else if (hostpath_check(&there, err) == 0 &&
             (needed || a->n_spares > 0 || a->why.code == ERR_NONE))
        p = a->n_spares > 0 ? a->spares[a->n_spares - 1] : place_new(a);
    if (p == NULL)
        return NULL;
    bool ahead = a->n_spares > 0;
    *ret_ready = ahead && !is_gone(p);
    if (ahead) {
        p->born = changed(p);
        a->n_spares--;
        make_spare(a);
    }
    free(spec->own.artifacts);
    spec->own.artifacts = xstrdup(p->tree);
    return p;
}

/* Jobs --------------------------------------------------------------------------------------- */

static char *holder_of(const char *tree)
{
    return xstrndup(tree, strlen(tree) - strlen(TAIL));
}

int artifacts_make(struct artifacts *a, const char *tree, jobs_done_fn *done, void *arg,
                   struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(8);
    AUTO_FREE char *dir = holder_of(tree);
    (void)buf_puts(&text, "{}");
    return submit(a, (struct job_request){.kind = &make_kind, .dir = dir}, &text, done, arg, err);
}

/* Found by name only for a better message: the job that opens it follows no link. */
static int find_real(const char *path, mode_t type, char **ret, struct err *err)
{
    const struct spec named = {.host_path = (char *)(uintptr_t)path};
    struct stat st;
    int r = hostpath_check(&named, err);
    if (r < 0)
        return r;
    if (!host_path_valid(path) || path[0] != '/')
        return err_set(err, ERR_INVALID, "'%.200s' is no path of this host", path);
    *ret = path_real(path);
    bool seen = stat(*ret, &st) == 0; /* we may not be allowed to look */
    if (seen ? (st.st_mode & S_IFMT) != type : errno == ENOENT || errno == ENOTDIR)
        return err_set(err, ERR_INVALID, "%s '%.200s' does not exist, or is no %s",
                       type == S_IFDIR ? "Artifact source" : "Artifact manifest", path,
                       type == S_IFDIR ? "directory" : "file");
    return 0;
}

int artifacts_add(struct artifacts *a, const char *tree, const struct mount_spec *m,
                  jobs_done_fn *done, void *arg, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(256);
    AUTO_FREE char *dir = holder_of(tree);
    AUTO_FREE char *source = NULL, *manifest = NULL;
    struct jw w = JW_INIT(&text);
    int r = find_real(m->host_path, S_IFDIR, &source, err);
    if (r == 0)
        r = find_real(m->manifest_path, S_IFREG, &manifest, err);
    if (r < 0)
        return r;
    jw_object(&w);
    jw_kstr(&w, "content_digest", m->content_digest);
    jw_object_end(&w);
    struct artifacts_place *p;
    LIST_FOREACH (p, &a->places, link)
        p->full = p->full || str_eq(p->tree, tree);
    const struct job_request request = {
        .kind = &add_kind, .dir = dir, .source = source, .manifest = manifest};
    return jw_end(&w) < 0 ? err_set(err, ERR_INVALID, "content_digest is too long")
                          : submit(a, request, &text, done, arg, err);
}

/* Sessions ----------------------------------------------------------------------------------- */

bool session_has_artifact(const struct session *s, const struct mount_spec *m)
{
    for (char *const *d = s->spec->own.artifact_digests; d != NULL && *d != NULL; d++)
        if (str_eq(*d, m->content_digest))
            return true;
    return false;
}

void session_add_artifact(struct session *s, const struct mount_spec *m)
{
    struct err err = {0};
    if (session_has_artifact(s, m))
        return;
    strv_add(&s->spec->own.artifact_digests, m->content_digest);
    /* Without the record the next daemon copies it again, and finds that it exists. */
    if (session_sandbox(s) != NULL && durable_put_session(s, &err) < 0)
        log_warn(session_id(s), "%s; ignoring", err.msg);
}

/* The whole ---------------------------------------------------------------------------------- */

void artifacts_set_root(struct artifacts *a, const char *host_root)
{
    AUTO_FREE char *base = host_root != NULL
                               ? xasprintf("%s/" ARTIFACTS_HOLDER "/%s",
                                           str_eq(host_root, "/") ? "" : host_root, a->tag)
                               : NULL;
    if (str_eq(base, a->base))
        return;
    free(a->root);
    a->root = host_root != NULL ? xstrdup(host_root) : NULL;
    free(a->base);
    a->base = TAKE_PTR(base);
    a->why = (struct err){0};
    while (a->n_spares > 0)
        place_drop(a->spares[--a->n_spares]);
    sweep(a);
}

int artifacts_new(struct loop *loop, const struct artifacts_options *options,
                  struct artifacts **ret, struct err *err)
{
    struct artifacts *a = xnew(struct artifacts);
    struct events *events = options->manager->options.events;
    a->manager = options->manager;
    a->tag = options->tag;
    a->events = (struct events_reader){.visible = is_end, .ready = on_events, .arg = a};
    int r = jobs_new(loop, &options->jobs, &a->jobs, err);
    if (r < 0) {
        free(a);
        return r;
    }
    if (events != NULL)
        events_attach(events, &a->events, events_last(events));
    *ret = a;
    return 0;
}

void artifacts_free(struct artifacts *a)
{
    if (a == NULL)
        return;
    if (a->events.hub != NULL)
        events_detach(&a->events);
    loop_timer_stop(&a->due);
    jobs_free(a->jobs);
    while (!LIST_EMPTY(&a->places))
        place_drop(LIST_FIRST(&a->places));
    free(a->root);
    free(a->base);
    free(a);
}
