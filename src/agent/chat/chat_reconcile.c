/* SPDX-License-Identifier: Apache-2.0 */

/* What an earlier daemon left. The labels of the sandboxes themselves are what counts, where the
 * backend keeps any: the records are made to agree with them, and manager_adopt() goes by the
 * records. So a sandbox is found again even when its record is lost. */

#include <string.h>

#include "agent/chat/chat_internal.h"
#include "backend/backend.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/log.h"
#include "base/str.h"
#include "base/strv.h"
#include "policy/chat_config.h"
#include "session/manager.h"
#include "session/record.h"
#include "spec/spec.h"
#include "store/store.h"

/* Of a sandbox whose record is lost nobody knows which numbers its processes had. */
#define NUMBERS_UNKNOWN (1U << 24)

struct found {
    struct chat_labels labels;
    char backend[32], name[RECORD_NAME_MAX + 1], id[RECORD_NAME_MAX + 1];
    uint64_t created_ns;
    bool recorded; /* the store knows just this one */
    bool foreign;  /* its name is that of a session of another kind */
};

struct chat_reconcile {
    struct chat *chat;
    chat_done_fn *done;
    void *arg;
    struct found *list; /* owned; one per chat */
    size_t n;
    char **useless; /* owned; ids of records whose labels make no sense */
    struct err err;
    struct loop_defer defer;
};

void chat_reconcile_free(struct chat_reconcile *r)
{
    if (r == NULL)
        return;
    loop_defer_stop(&r->defer);
    strv_free(r->useless);
    free(r->list);
    free(r);
}

static void on_told(struct loop_defer *d)
{
    struct chat_reconcile *r = container_of(d, struct chat_reconcile, defer);
    chat_done_fn *done = r->done;
    void *arg = r->arg;
    struct err err = r->err;
    r->chat->reconcile = NULL;
    chat_reconcile_free(r);
    done(arg, err.code != ERR_NONE ? &err : NULL);
}

static struct found *find(struct chat_reconcile *r, const char *chat_id)
{
    for (size_t i = 0; i < r->n; i++)
        if (str_eq(r->list[i].labels.chat_id, chat_id))
            return &r->list[i];
    return NULL;
}

static bool is_newer(const struct found *a, const struct found *b)
{
    if (a->created_ns != b->created_ns)
        return a->created_ns > b->created_ns;
    return strcmp(a->labels.session_id, b->labels.session_id) > 0;
}

/* The newest of a chat. */
static void on_found(void *arg, const struct backend_found *seen)
{
    struct chat_reconcile *r = arg;
    struct found f = {.created_ns = seen->created_ns};
    if (chat_labels_parse(seen->labels, &f.labels) < 0 ||
        str_copy(f.backend, sizeof(f.backend), seen->backend) < 0 ||
        str_copy(f.name, sizeof(f.name), seen->name) < 0 ||
        str_copy(f.id, sizeof(f.id), seen->id != NULL ? seen->id : seen->name) < 0) {
        log_warn(NULL, "sandbox '%.80s' has labels of a chat that make no sense; skipping it",
                 seen->name);
        return;
    }
    struct found *have = find(r, f.labels.chat_id);
    if (have == NULL) {
        r->list = xreallocarray(r->list, r->n + 1, sizeof(*r->list));
        r->list[r->n++] = f;
        return;
    }
    log_warn(f.labels.chat_id, "the chat has more than one sandbox; keeping the newest");
    if (is_newer(&f, have))
        *have = f;
}

/* What the store says of chats. */
static int on_record(void *arg, const char *id, uint64_t used, const char *json, size_t len)
{
    struct chat_reconcile *r = arg;
    AUTO_DONE(session_record) struct session_record record = {0};
    struct chat_labels labels;
    if (session_record_read(json, len, &record, NULL) < 0)
        return 0; /* manager_adopt() says so */
    struct found *f = find(r, id);
    bool ours = record.spec->own.expires_ns > 0 || strv_len(record.spec->own.labels) > 0;
    if (ours && (chat_labels_parse(record.spec->own.labels, &labels) < 0 ||
                 !str_eq(labels.chat_id, id) || labels.expires_ns != record.spec->own.expires_ns)) {
        log_warn(id, "the record of a chat sandbox makes no sense; forgetting it");
        strv_add(&r->useless, id);
        return 0;
    }
    if (f != NULL) {
        f->foreign = !ours;
        f->recorded = ours && str_eq(record.sandbox, f->name) &&
                      str_eq(labels.session_id, f->labels.session_id);
    }
    return 0;
}

static int put_record(struct chat *c, const struct found *f, struct err *err)
{
    AUTO(spec) struct spec *spec = NULL;
    AUTO_DONE(buf) struct buf text;
    struct store *store = manager_get_options(c->m)->store;
    struct found copy = *f; /* whose texts the record may point to */
    buf_init(&text, STORE_RECORD_MAX);
    int r = chat_make_spec(c, &f->labels, f->created_ns, &spec, err);
    if (r < 0)
        return r;
    struct session_record record = {.spec = spec,
                                    .backend = copy.backend,
                                    .sandbox = copy.name,
                                    .sandbox_id = copy.id,
                                    .created_ns = (int64_t)f->created_ns,
                                    .numbers_end = NUMBERS_UNKNOWN};
    if (session_record_write(&record, &text) < 0)
        return err_set(err, ERR_LIMIT, "the record is too large");
    return store_put_session(store, f->labels.chat_id, text.data, text.len, err);
}

static int settle(struct chat_reconcile *r, struct err *err)
{
    struct store *store = manager_get_options(r->chat->m)->store;
    if (store == NULL)
        return 0;
    int e = store_each_session(store, on_record, r, err);
    for (size_t i = 0; e == 0 && r->useless != NULL && r->useless[i] != NULL; i++)
        e = store_drop_session(store, r->useless[i], err);
    for (size_t i = 0; e == 0 && i < r->n; i++) {
        struct err why = {0};
        if (r->list[i].recorded || r->list[i].foreign)
            continue;
        if (put_record(r->chat, &r->list[i], &why) < 0)
            log_warn(r->list[i].labels.chat_id, "found by its labels, but of no use: %s", why.msg);
        else
            log_info(r->list[i].labels.chat_id, "found again by its labels");
    }
    return e;
}

static void on_listed(void *arg, const struct err *err)
{
    struct chat_reconcile *r = arg;
    if (err != NULL)
        (void)err_set(&r->err, err->code, "chat sandboxes cannot be listed: %s", err->msg);
    else
        (void)settle(r, &r->err);
    loop_defer_start(manager_loop(r->chat->m), &r->defer, on_told);
}

int chat_reconcile(struct chat *c, chat_done_fn *done, void *arg, struct err *err)
{
    struct backend *b = manager_backend(c->m);
    struct chat_reconcile *r = xnew(struct chat_reconcile);
    *r = (struct chat_reconcile){.chat = c, .done = done, .arg = arg};
    c->reconcile = r;
    if (!chat_configured(c->options.config) || b->ops->list == NULL) {
        on_listed(r, NULL);
        return 0;
    }
    int e = b->ops->list(b, chat_label_names, on_found, on_listed, r, err);
    if (e < 0)
        chat_reconcile_free(TAKE_PTR(c->reconcile));
    return e;
}
