/* SPDX-License-Identifier: Apache-2.0 */

/* Lists the running containers of this instance that carry certain labels: page by page, then each
 * is inspected, because a list has the time of creation only in seconds. The engine filters by the
 * labels, exactly as they are named; whether a container is of this instance is checked here. */

#include <string.h>

#include "backend/engine/engine_internal.h"
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/coerce.h"

#define FOUND_MAX 10000U
#define FILTER_MAX 1024U
#define USEC_NS 1000U

struct list {
    struct engine_job job;
    const char *const *labels; /* borrowed, static */
    backend_found_fn *each;
    backend_done_fn *done;
    void *arg;
    struct engine_call *call;
    char last[ENGINE_ID_MAX]; /* that the next page begins behind */
    char **ids;               /* owned; those to look at */
    size_t n, at, seen;
};

static void list_free(struct engine_job *job)
{
    struct list *l = container_of(job, struct list, job);
    engine_call_cancel(l->call);
    engine_job_remove(job);
    strv_free(l->ids);
    free(l);
}

static void finish(struct list *l, const struct err *err)
{
    backend_done_fn *done = l->done;
    void *arg = l->arg;
    struct err why = err != NULL ? *err : (struct err){0};
    list_free(&l->job);
    done(arg, why.code != ERR_NONE ? &why : NULL);
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
    l->call = NULL;
    if (err != NULL && err->code != ERR_NOT_FOUND) { /* not found: it has ended meanwhile */
        finish(l, err);
        return;
    }
    if (err == NULL && read_found(l, body, &found, &labels))
        l->each(l->arg, &found);
    look_next(l);
}

static void look_next(struct list *l)
{
    if (l->at == l->n) {
        finish(l, NULL);
        return;
    }
    AUTO_FREE char *target = xasprintf("/containers/%s/json", l->ids[l->at++]);
    l->call = engine_call_start(l->job.engine->api, &(struct engine_request){.target = target},
                                on_looked, l);
}

static void list_page(struct list *l);

static void on_listed(void *arg, const struct json *body, const struct err *err)
{
    struct list *l = arg;
    struct err odd = {0};
    l->call = NULL;
    if (err == NULL && (json_type(body) != JSON_ARRAY || l->seen > FOUND_MAX)) {
        (void)err_set(&odd, ERR_BACKEND, "%s backend error: its list of containers makes no sense",
                      l->job.engine->kind->name);
        err = &odd;
    }
    if (err != NULL) {
        finish(l, err);
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
    AUTO_DONE(buf) struct buf filters;
    struct jw w;
    buf_init(&filters, FILTER_MAX);
    jw_init(&w, &filters);
    jw_object(&w);
    jw_key(&w, "label");
    jw_array(&w);
    for (const char *const *name = l->labels; *name != NULL; name++)
        jw_str(&w, *name);
    jw_array_end(&w);
    if (l->last[0] != '\0') {
        jw_key(&w, "before");
        jw_array(&w);
        jw_str(&w, l->last);
        jw_array_end(&w);
    }
    jw_object_end(&w);
    AUTO_FREE char *quoted = engine_quote(buf_str(&filters));
    AUTO_FREE char *target = xasprintf("/containers/json?limit=%d&filters=%s", ENGINE_PAGE, quoted);
    l->call = engine_call_start(l->job.engine->api, &(struct engine_request){.target = target},
                                on_listed, l);
}

int engine_list(struct backend *b, const char *const *labels, backend_found_fn *each,
                backend_done_fn *done, void *arg, struct err *err)
{
    struct engine *e = container_of(b, struct engine, base);
    struct list *l = xnew(struct list);
    l->labels = labels;
    l->each = each;
    l->done = done;
    l->arg = arg;
    engine_job_add(e, &l->job, list_free);
    list_page(l);
    return 0;
}
