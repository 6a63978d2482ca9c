/* SPDX-License-Identifier: Apache-2.0 */

/* Keeps answers by their key, also over a restart, and holds repeated requests until the first
 * ends. */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/str.h"
#include "front/v1/v1_internal.h"
#include "http/codec/crypto.h"
#include "loop/loop.h"
#include "store/store.h"

#define BUCKETS 256U
#define ENTRIES_MAX 1024U
#define ANSWER_MAX (256U << 10) /* a larger answer is not kept: clients can ask again */
#define RECORD_MAX (1536U << 10)
#define BYTES_MAX (16U << 20)
/* Of one caller, so that a busy one does not push out the answers of others. */
#define OWN_ENTRIES_MAX (ENTRIES_MAX / 4U)
#define OWN_BYTES_MAX (BYTES_MAX / 4U)
#define KEEP_NS (24ULL * 3600 * NSEC_PER_SEC)
#define KEY_MAX 255U
#define REPEATS_MAX 64U
#define DIGEST_SIZE 65

/* A repeated request that waits for the answer of the first. */
struct idem_repeat {
    LIST_ENTRY(idem_repeat) link; /* of entry->repeats */
    struct idem_entry *entry;
    struct http_request *req;
};

/* One key: at work, or with the answer. */
struct idem_entry {
    struct idem *d;
    LIST_ENTRY(idem_entry) bucket; /* of idem->buckets */
    TAILQ_ENTRY(idem_entry) link;  /* of idem->entries */
    char *key;                     /* owned; caller, method, path and key */
    char digest[DIGEST_SIZE];      /* of the body */
    bool done;
    unsigned status;
    char *type; /* owned, or NULL */
    struct buf body;
    uint64_t expires_real;
    LIST_HEAD(, idem_repeat) repeats;
    size_t n_repeats;
};

LIST_HEAD(bucket, idem_entry);

struct idem {
    struct loop *loop;   /* borrowed */
    struct store *store; /* borrowed, or NULL */
    struct bucket buckets[BUCKETS];
    TAILQ_HEAD(, idem_entry) entries; /* oldest first */
    size_t n, bytes;                  /* of entries, and of their answers */
};

static uint64_t now_real(const struct idem *d)
{
    return clock_real(loop_clock(d->loop));
}

static struct bucket *bucket_of(struct idem *d, const char *key)
{
    return &d->buckets[str_hash(key) % BUCKETS];
}

static struct idem_entry *entry_new(struct idem *d, const char *key, const char *digest)
{
    struct idem_entry *e = xnew(struct idem_entry);

    e->d = d;
    e->key = xstrdup(key);
    (void)str_copy(e->digest, sizeof(e->digest), digest);
    buf_init(&e->body, ANSWER_MAX);
    LIST_INSERT_HEAD(bucket_of(d, key), e, bucket);
    TAILQ_INSERT_TAIL(&d->entries, e, link);
    d->n++;
    return e;
}

static void entry_free(struct idem_entry *e)
{
    struct idem *d = e->d;

    assert(LIST_EMPTY(&e->repeats));
    assert(d->n > 0 && d->bytes >= e->body.len);
    LIST_REMOVE(e, bucket);
    TAILQ_REMOVE(&d->entries, e, link);
    d->n--;
    d->bytes -= e->body.len;
    buf_done(&e->body);
    free(e->key);
    free(e->type);
    free(e);
}

/* Takes the answer. */
static void entry_keep(struct idem_entry *e, unsigned status, const char *type, const void *body,
                       size_t len)
{
    assert(!e->done && len <= ANSWER_MAX); /* a request is answered once */
    e->done = true;
    e->status = status;
    e->type = type != NULL ? xstrdup(type) : NULL;
    (void)buf_append(&e->body, body, len);
    e->d->bytes += len;
}

/* Keys begin with the caller, and a line's end. */
static bool is_of(const struct idem_entry *e, const char *who)
{
    size_t len = strlen(who);

    return strncmp(e->key, who, len) == 0 && e->key[len] == '\n';
}

/* Makes room: drops expired answers, then the oldest if there are too many, the caller's own first.
 * Returns how many the caller has then. */
static size_t make_room(struct idem *d, const char *who)
{
    size_t n = 0, bytes = 0; /* of the caller */
    uint64_t now = now_real(d);
    struct idem_entry *e, *next;

    TAILQ_FOREACH (e, &d->entries, link)
        if (is_of(e, who)) {
            n++;
            bytes += e->body.len;
        }

    TAILQ_FOREACH_SAFE (e, &d->entries, link, next) {
        bool is_own = is_of(e, who);
        bool goes = e->expires_real <= now || d->n >= ENTRIES_MAX || d->bytes > BYTES_MAX ||
                    (is_own && (n >= OWN_ENTRIES_MAX || bytes > OWN_BYTES_MAX));
        if (!e->done || !goes)
            continue;
        n -= is_own ? 1 : 0;
        bytes -= is_own ? e->body.len : 0;
        /* If that fails, newer answers push it out. */
        if (d->store != NULL)
            (void)store_drop_answer(d->store, e->key, NULL);
        entry_free(e);
    }
    return n;
}

static struct idem_entry *entry_find(struct idem *d, const char *key)
{
    struct idem_entry *e;

    LIST_FOREACH (e, bucket_of(d, key), bucket)
        if (str_eq(e->key, key))
            return e;
    return NULL;
}

/* Answers that outlive us --------------------------------------------------------------------- */

static void put_record(const struct idem_entry *e)
{
    struct err err = {0};

    if (e->d->store == NULL)
        return;
    AUTO_DONE(front_answer) struct front_answer record;
    struct jw *w = front_begin(&record, RECORD_MAX);

    jw_kstr(w, "digest", e->digest);
    jw_kint(w, "status", e->status);
    jw_kstr(w, "type", e->type);
    jw_kstrn(w, "body", buf_str(&e->body), e->body.len);
    int r = front_end(&record);
    if (r == 0)
        r = store_drop_answers(e->d->store, now_real(e->d), ENTRIES_MAX - 1, &err);
    if (r == 0)
        r = store_put_answer(e->d->store, e->key, e->expires_real, record.out.data, record.out.len,
                             &err);
    if (r < 0)
        log_warn(NULL, "keep an answer with an Idempotency-Key for after a restart: %s; ignoring",
                 err.msg);
}

/* The file may have been edited: a record that does not fit is left out. */
static int take_record(void *arg, const char *key, uint64_t expires, const char *text, size_t len)
{
    struct idem *d = arg;
    AUTO(json) struct json *record = NULL;

    if (expires <= now_real(d) || d->n >= ENTRIES_MAX || entry_find(d, key) != NULL ||
        json_parse(text, len, &record, NULL) < 0)
        return 0;
    const struct json *body = json_get(record, "body");
    const char *digest = json_str(json_get(record, "digest"));
    const char *type = json_str(json_get(record, "type"));
    int64_t status = json_int(json_get(record, "status"));
    if (digest == NULL || strlen(digest) != DIGEST_SIZE - 1 || json_str(body) == NULL ||
        json_str_len(body) > ANSWER_MAX || status < 200 || status > 299)
        return 0;
    struct idem_entry *e = entry_new(d, key, digest);
    e->expires_real = expires;
    entry_keep(e, (unsigned)status, type, json_str(body), json_str_len(body));
    return 0;
}

struct idem *idem_new(struct loop *loop, struct store *store)
{
    struct idem *d = xnew(struct idem);
    struct err err = {0};

    d->loop = loop;
    d->store = store;
    TAILQ_INIT(&d->entries);
    if (store != NULL && store_each_answer(store, take_record, d, &err) < 0)
        log_warn(NULL, "read the answers that an earlier boxd kept: %s; ignoring", err.msg);
    return d;
}

void idem_free(struct idem *d)
{
    if (d == NULL)
        return;
    while (!TAILQ_EMPTY(&d->entries))
        entry_free(TAILQ_FIRST(&d->entries));
    free(d);
}

/* Waiting ------------------------------------------------------------------------------------- */

static void reply_again(struct http_request *req, unsigned status, const char *type,
                        const void *body, size_t len)
{
    (void)http_reply_header(req, "Idempotency-Replayed", "true");
    http_reply(req, status, type, body, len);
}

static struct http_request *repeat_free(struct idem_repeat *w)
{
    struct http_request *req = w->req;

    LIST_REMOVE(w, link);
    w->entry->n_repeats--;
    free(w);
    return req;
}

static void on_repeat_gone(struct http_request *req, void *arg)
{
    (void)repeat_free(arg);
    http_abort(req);
}

static void wait_for(struct idem_entry *e, struct http_request *req)
{
    if (e->n_repeats >= REPEATS_MAX) {
        front_failf(req, ERR_LIMIT, "too many requests wait for this Idempotency-Key");
        return;
    }
    struct idem_repeat *w = xnew(struct idem_repeat);
    w->entry = e;
    w->req = req;
    LIST_INSERT_HEAD(&e->repeats, w, link);
    e->n_repeats++;
    http_on_cancel(req, on_repeat_gone, w);
}

/* The first request is answered: so are its repeats. */
static void on_reply(void *arg, unsigned status, const char *type, const void *body, size_t len)
{
    struct idem_entry *e = arg;
    bool keep = status >= 200 && status < 300 && len <= ANSWER_MAX;

    struct idem_repeat *w, *next;
    LIST_FOREACH_SAFE (w, &e->repeats, link, next) {
        struct http_request *req = repeat_free(w);
        http_on_cancel(req, NULL, NULL);
        if (status != 0)
            reply_again(req, status, type, body, len);
        else
            front_failf(req, ERR_STATE, "the first request of this Idempotency-Key was given up");
    }
    if (!keep) {
        entry_free(e);
        return;
    }
    e->expires_real = now_real(e->d) + KEEP_NS;
    entry_keep(e, status, type, body, len);
    put_record(e);
}

static bool key_valid(const char *key)
{
    size_t len = strlen(key);

    for (size_t i = 0; i < len; i++)
        if (key[i] <= 0x20 || key[i] >= 0x7f)
            return false;
    return len > 0 && len <= KEY_MAX;
}

bool idem_begin(struct idem *d, struct http_request *req, const char *who)
{
    const char *key = http_request_header(req, "Idempotency-Key");
    char digest[DIGEST_SIZE];
    size_t len;

    if (key == NULL)
        return true;
    const char *body = http_request_body(req, &len);
    if (!key_valid(key) || http_sha256_hex(body, len, digest) < 0) {
        front_failf(req, ERR_INVALID, "Idempotency-Key must be 1 to %u visible characters of ASCII",
                    KEY_MAX);
        return false;
    }
    AUTO_FREE char *full =
        xasprintf("%s\n%s %s\n%s", who, http_request_method(req), http_request_path(req), key);
    size_t own = make_room(d, who);
    struct idem_entry *e = entry_find(d, full);
    if (e == NULL && d->n < ENTRIES_MAX && own < OWN_ENTRIES_MAX) {
        http_on_reply(req, on_reply, entry_new(d, full, digest));
        return true;
    }
    if (e == NULL)
        front_failf(req, ERR_LIMIT, "too many requests with an Idempotency-Key are at work");
    else if (!str_eq(e->digest, digest))
        http_reply_error(req, 422, "key_reused",
                         "this Idempotency-Key came with another body before", NULL);
    else if (e->done)
        reply_again(req, e->status, e->type, e->body.data, e->body.len);
    else
        wait_for(e, req);
    return false;
}
