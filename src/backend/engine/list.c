/* SPDX-License-Identifier: Apache-2.0 */

/* The containers of this instance that are there, page by page. A list tells of those that run and
 * carry certain labels: each is inspected, because a page has the time of creation only in seconds.
 * A sweep ends those that an earlier daemon left, then the directories they were met in. The engine
 * filters by label, and whether a container is of this very instance is checked here again: what
 * another one made, alive or dead, is not ours to judge. */

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/coerce.h"

#define FOUND_MAX 10000U
#define FILTER_MAX 1024U
#define USEC_NS 1000U

/* The next page of containers that have these labels: behind `last`, unless that is "". */
static void ask_page(struct engine_job *job, const char *which, const char *const *labels,
                     const char *last, engine_answer_fn *fn)
{
    AUTO_DONE(buf) struct buf filters = BUF_INIT(FILTER_MAX);
    struct jw w = JW_INIT(&filters);
    jw_object(&w);
    jw_karray(&w, "label");
    for (; *labels != NULL; labels++)
        jw_str(&w, *labels);
    jw_array_end(&w);
    if (last[0] != '\0') {
        jw_karray(&w, "before");
        jw_str(&w, last);
        jw_array_end(&w);
    }
    jw_object_end(&w);
    AUTO_FREE char *quoted = engine_quote(buf_str(&filters));
    AUTO_FREE char *target =
        xasprintf("/containers/json?%slimit=%d&filters=%s", which, ENGINE_PAGE, quoted);
    engine_job_ask(job, &(struct engine_request){.target = target}, fn);
}

struct list {
    struct engine_job job;
    const char *const *labels; /* borrowed, static */
    backend_found_fn *each;
    char last[ENGINE_ID_MAX]; /* that the next page begins behind */
    char **ids;               /* owned; those to look at */
    size_t n, at, seen;
};

static void list_release(struct engine_job *job)
{
    strv_free(container_of(job, struct list, job)->ids);
}

static bool is_ours(const struct list *l, const struct json *labels)
{
    return str_eq(json_str(json_get(labels, LABEL_INSTANCE)), l->job.engine->instance);
}

/* Whether a label is the session's own, not its image's, which may carry any. */
static bool is_own(const struct json *labels, const char *name, size_t len)
{
    const char *at = json_str(json_get(labels, LABEL_OWN));
    for (; at != NULL && *at != '\0'; at += *at == ',') {
        size_t n = strcspn(at, ",");
        if (n == len && strncmp(at, name, n) == 0)
            return true;
        at += n;
    }
    return false;
}

static bool has_all(const struct list *l, const struct json *labels)
{
    bool all = true;
    for (const char *const *name = l->labels; *name != NULL; name++)
        all = all && is_own(labels, *name, strlen(*name));
    return all;
}

/* What the container says of itself; false: nothing that could be taken over. */
static bool read_found(const struct list *l, const struct json *body, struct backend_found *ret,
                       char ***ret_labels)
{
    const struct json *labels = json_get(json_get(body, "Config"), "Labels");
    int64_t usec = 0;
    bool zoned = false;
    ret->backend = l->job.engine->kind->name;
    ret->name = json_str(json_get(labels, LABEL_NAME));
    ret->id = json_str(json_get(body, "Id"));
    if (ret->name == NULL || !is_ours(l, labels) || !has_all(l, labels) ||
        !json_bool(json_get(json_get(body, "State"), "Running")) ||
        coerce_time(json_get(body, "Created"), &usec, &zoned) != ISSUE_NONE || usec < 0)
        return false;
    for (void *it = json_iter(labels); it != NULL; it = json_iter_next(labels, it)) {
        const char *key = json_iter_key(it), *value = json_str(json_iter_value(it));
        if (value != NULL && is_own(labels, key, strlen(key)))
            strv_push(ret_labels, xasprintf("%s=%s", key, value));
    }
    ret->labels = *ret_labels;
    ret->created_ns = (uint64_t)usec * USEC_NS;
    return true;
}

static void look_next(struct list *l);

static void on_looked(void *arg, const struct json *body, const struct err *err)
{
    struct list *l = arg;
    AUTO_STRV char **labels = NULL;
    struct backend_found found;
    l->job.call = NULL;
    if (err != NULL && err->code != ERR_NOT_FOUND) { /* not found: it has ended meanwhile */
        engine_job_end(&l->job, err);
        return;
    }
    if (err == NULL && read_found(l, body, &found, &labels))
        l->each(l->job.arg, &found);
    look_next(l);
}

static void look_next(struct list *l)
{
    if (l->at == l->n) {
        engine_job_end(&l->job, NULL);
        return;
    }
    AUTO_FREE char *target = xasprintf("/containers/%s/json", l->ids[l->at++]);
    engine_job_ask(&l->job, &(struct engine_request){.target = target}, on_looked);
}

static void list_page(struct list *l);

static void on_listed(void *arg, const struct json *body, const struct err *err)
{
    struct list *l = arg;
    struct err odd = {0};
    l->job.call = NULL;
    if (err == NULL && (json_type(body) != JSON_ARRAY || l->seen > FOUND_MAX)) {
        (void)err_set(&odd, ERR_BACKEND, "%s backend error: its list of containers makes no sense",
                      l->job.engine->kind->name);
        err = &odd;
    }
    if (err != NULL) {
        engine_job_end(&l->job, err);
        return;
    }
    l->seen += json_len(body);
    for (size_t i = 0; i < json_len(body); i++) {
        const char *id = json_str(json_get(json_at(body, i), "Id"));
        if (id == NULL || !id_valid(id) || str_copy(l->last, sizeof(l->last), id) < 0)
            continue;
        if (is_ours(l, json_get(json_at(body, i), "Labels"))) {
            strv_add(&l->ids, id);
            l->n++;
        }
    }
    if (json_len(body) >= ENGINE_PAGE)
        list_page(l);
    else
        look_next(l);
}

static void list_page(struct list *l)
{
    ask_page(&l->job, "", l->labels, l->last, on_listed);
}

int engine_list(struct backend *b, const char *const *labels, backend_found_fn *each,
                backend_done_fn *done, void *arg, struct err *err)
{
    struct list *l = xnew(struct list);
    l->labels = labels;
    l->each = each;
    l->job.release = list_release;
    engine_job_start(container_of(b, struct engine, base), &l->job, done, arg);
    list_page(l);
    return 0;
}

struct engine_sweep {
    struct engine_job job;
    char last[ENGINE_ID_MAX]; /* that the next page begins behind */
    char ids[ENGINE_PAGE][ENGINE_ID_MAX];
    size_t n, at;
    bool more;
    struct err err; /* the first that went wrong; the others are removed all the same */
};

static bool is_known(const struct engine *e, const char *id, const char *name)
{
    const struct engine_sandbox *sb;
    LIST_FOREACH (sb, &e->sandboxes, entry)
        if (str_eq(sb->id, id) || str_eq(sb->name, name))
            return true;
    return false;
}

void engine_sweep_directories(const struct engine *e)
{
    int fd = fcntl(e->dir_fd, F_DUPFD_CLOEXEC, 3);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        fd_close_many(&fd, 1);
        return;
    }
    rewinddir(dir);
    for (struct dirent *d = readdir(dir); d != NULL; d = readdir(dir))
        if ((str_starts(d->d_name, ENGINE_PREFIX) || (e->maker != NULL && d->d_name[0] != '.')) &&
            !is_known(e, "", d->d_name))
            (void)path_remove_tree_at(e->dir_fd, d->d_name);
    (void)closedir(dir);
}

static void sweep_end(struct engine_sweep *s)
{
    if (s->err.code == ERR_NONE)
        engine_sweep_directories(s->job.engine);
    engine_job_end(&s->job, s->err.code != ERR_NONE ? &s->err : NULL);
}

static void sweep_page(struct engine_sweep *s);
static void remove_next(struct engine_sweep *s);

static void on_sweep_removed(void *arg, const struct json *body, const struct err *err)
{
    struct engine_sweep *s = arg;
    s->job.call = NULL;
    if (err != NULL && err->code != ERR_NOT_FOUND && err->code != ERR_CONFLICT &&
        s->err.code == ERR_NONE)
        s->err = *err;
    remove_next(s);
}

static void remove_next(struct engine_sweep *s)
{
    if (s->at == s->n) {
        if (s->more && s->err.code == ERR_NONE)
            sweep_page(s);
        else
            sweep_end(s);
        return;
    }
    AUTO_FREE char *target = xasprintf("/containers/%s?force=1&v=1", s->ids[s->at]);
    log_debug(NULL, "removing container %.12s of an earlier daemon", s->ids[s->at]);
    s->at++;
    engine_job_ask(&s->job, &(struct engine_request){.method = "DELETE", .target = target},
                   on_sweep_removed);
}

/* The engine filters by label; we look again, for an engine that does not. */
static void sweep_take(struct engine_sweep *s, const struct json *container)
{
    const struct json *labels = json_get(container, "Labels");
    const char *id = json_str(json_get(container, "Id"));
    const char *name = json_str(json_get(labels, LABEL_NAME));
    if (id == NULL || !id_valid(id) || str_copy(s->last, sizeof(s->last), id) < 0)
        return;
    if (!str_eq(json_str(json_get(labels, LABEL_INSTANCE)), s->job.engine->instance) ||
        is_known(s->job.engine, id, name != NULL ? name : "") || s->n == ENGINE_PAGE)
        return;
    (void)str_copy(s->ids[s->n++], ENGINE_ID_MAX, id);
}

static void on_sweep_listed(void *arg, const struct json *body, const struct err *err)
{
    struct engine_sweep *s = arg;
    s->job.call = NULL;
    if (err != NULL) {
        s->err = *err;
        sweep_end(s);
        return;
    }
    s->n = s->at = 0;
    s->more = json_len(body) >= ENGINE_PAGE;
    for (size_t i = 0; i < json_len(body); i++)
        sweep_take(s, json_at(body, i));
    remove_next(s);
}

static void sweep_page(struct engine_sweep *s)
{
    AUTO_FREE char *label = xasprintf(LABEL_INSTANCE "=%s", s->job.engine->instance);
    const char *const labels[] = {label, NULL};
    /* What was listed last may be gone by now, and an engine refuses to count from it: the first
     * page again, unless all of it stays. */
    const char *last = s->n == 0 ? s->last : "";
    ask_page(&s->job, "all=1&", labels, last, on_sweep_listed);
}

int engine_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err)
{
    struct engine_sweep *s = xnew(struct engine_sweep);
    engine_job_start(container_of(b, struct engine, base), &s->job, done, arg);
    sweep_page(s);
    return 0;
}
