/* SPDX-License-Identifier: Apache-2.0 */

/* Ends what an earlier daemon of this instance left: containers by their label, page by page, then
 * the directories they were met in. Only the label of this very instance counts; what another one
 * made, alive or dead, is not ours to judge. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/path.h"
#include "base/str.h"

#define FILTER_MAX 512U

struct sweep {
    struct engine_job job;
    backend_done_fn *done;
    void *arg;
    struct engine_call *call;
    char last[ENGINE_ID_MAX]; /* that the next page begins behind */
    char ids[ENGINE_PAGE][ENGINE_ID_MAX];
    size_t n, at;
    bool more;
    struct err err; /* the first that went wrong; the others are removed all the same */
};

static void sweep_free(struct engine_job *job)
{
    struct sweep *s = container_of(job, struct sweep, job);
    engine_call_cancel(s->call);
    engine_job_remove(job);
    free(s);
}

static bool is_known(const struct engine *e, const char *id, const char *name)
{
    for (const struct engine_sandbox *sb = e->sandboxes; sb != NULL; sb = sb->next)
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

static void finish(struct sweep *s)
{
    backend_done_fn *done = s->done;
    void *arg = s->arg;
    struct err err = s->err;
    if (err.code == ERR_NONE)
        engine_sweep_directories(s->job.engine);
    sweep_free(&s->job);
    done(arg, err.code != ERR_NONE ? &err : NULL);
}

static void list_page(struct sweep *s);
static void remove_next(struct sweep *s);

static void on_removed(void *arg, const struct json *body, const struct err *err)
{
    struct sweep *s = arg;
    s->call = NULL;
    if (err != NULL && err->code != ERR_NOT_FOUND && err->code != ERR_CONFLICT &&
        s->err.code == ERR_NONE)
        s->err = *err;
    remove_next(s);
}

static void remove_next(struct sweep *s)
{
    if (s->at == s->n) {
        if (s->more && s->err.code == ERR_NONE)
            list_page(s);
        else
            finish(s);
        return;
    }
    AUTO_FREE char *target = xasprintf("/containers/%s?force=1&v=1", s->ids[s->at]);
    log_debug(NULL, "removing container %.12s of an earlier daemon", s->ids[s->at]);
    s->at++;
    s->call = engine_call_start(s->job.engine->api,
                                &(struct engine_request){.method = "DELETE", .target = target},
                                on_removed, s);
}

/* The engine filters by label; we look again, for an engine that does not. */
static void take(struct sweep *s, const struct json *container)
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

static void on_listed(void *arg, const struct json *body, const struct err *err)
{
    struct sweep *s = arg;
    s->call = NULL;
    if (err != NULL) {
        s->err = *err;
        finish(s);
        return;
    }
    s->n = s->at = 0;
    s->more = json_len(body) >= ENGINE_PAGE;
    for (size_t i = 0; i < json_len(body); i++)
        take(s, json_at(body, i));
    remove_next(s);
}

static void list_page(struct sweep *s)
{
    AUTO_DONE(buf) struct buf filters;
    struct jw w;
    /* What was listed last may be gone by now, and an engine refuses to count from it: the first
     * page again, unless all of it stays. */
    bool stays = s->n == 0 && s->last[0] != '\0';
    buf_init(&filters, FILTER_MAX);
    jw_init(&w, &filters);
    jw_object(&w);
    jw_key(&w, "label");
    jw_array(&w);
    AUTO_FREE char *label = xasprintf(LABEL_INSTANCE "=%s", s->job.engine->instance);
    jw_str(&w, label);
    jw_array_end(&w);
    if (stays) {
        jw_key(&w, "before");
        jw_array(&w);
        jw_str(&w, s->last);
        jw_array_end(&w);
    }
    jw_object_end(&w);
    AUTO_FREE char *quoted = engine_quote(buf_str(&filters));
    AUTO_FREE char *target =
        xasprintf("/containers/json?all=1&limit=%d&filters=%s", ENGINE_PAGE, quoted);
    s->call = engine_call_start(s->job.engine->api, &(struct engine_request){.target = target},
                                on_listed, s);
}

int engine_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err)
{
    struct engine *e = container_of(b, struct engine, base);
    struct sweep *s = xnew(struct sweep);
    s->done = done;
    s->arg = arg;
    engine_job_add(e, &s->job, sweep_free);
    list_page(s);
    return 0;
}
