/* SPDX-License-Identifier: Apache-2.0 */

/* Keeps answers by their key, also over a restart, and holds repeated requests until the first
 * ends. */

#include "front/v1/idem.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "front/v1/v1_internal.h"
#include "http/codec/crypto.h"
#include "http/server/server.h"
#include "loop/loop.h"
#include "store/store.h"

#define BUCKETS 256U
#define ENTRIES_MAX 1024U
#define ANSWER_MAX (256U << 10) /* a larger one is not kept: the request can be made again */
#define RECORD_MAX (1536U << 10)
#define BYTES_MAX (16U << 20)
/* Of one caller: others are not to pay for who is busy. */
#define OWN_ENTRIES_MAX (ENTRIES_MAX / 4U)
#define OWN_BYTES_MAX (BYTES_MAX / 4U)
#define KEEP_NS (24ULL * 3600 * NSEC_PER_SEC)
#define KEY_MAX 255U
#define WAITERS_MAX 64U
#define DIGEST_SIZE 65

struct waiter {
    struct waiter *next;
    struct entry *entry;
    struct http_request *req;
};

/* One key: at work, or with the answer. */
struct entry {
    struct idem *d;
    struct entry *bucket_next, *prev, *next; /* oldest first */
    char *key;                               /* owned; caller, method, path and key */
    char digest[DIGEST_SIZE];                /* of the body */
    bool done;
    unsigned status;
    char *type; /* owned, or NULL */
    struct buf body;
    uint64_t expires_real;
    struct waiter *waiters;
    size_t n_waiters;
};

struct idem {
    struct loop *loop;   /* borrowed */
    struct store *store; /* borrowed, or NULL */
    struct entry *buckets[BUCKETS];
    struct entry *first, *last;
    size_t n, bytes;
};

static uint64_t now_real(const struct idem *d)
{
    return clock_real(loop_clock(d->loop));
}

static struct entry **bucket_of(struct idem *d, const char *key)
{
    return &d->buckets[str_hash(key) % BUCKETS];
}

static struct entry *entry_new(struct idem *d, const char *key, const char *digest)
{
    struct entry *e = xnew(struct entry);
    struct entry **bucket = bucket_of(d, key);

    e->d = d;
    e->key = xstrdup(key);
    (void)str_copy(e->digest, sizeof(e->digest), digest);
    buf_init(&e->body, ANSWER_MAX);
    e->bucket_next = *bucket;
    *bucket = e;
    e->prev = d->last;
    *(d->last != NULL ? &d->last->next : &d->first) = e;
    d->last = e;
    d->n++;
    return e;
}

static void entry_free(struct entry *e)
{
    struct idem *d = e->d;
    struct entry **at = bucket_of(d, e->key);

    assert(e->waiters == NULL);
    while (*at != e)
        at = &(*at)->bucket_next;
    *at = e->bucket_next;
    *(e->prev != NULL ? &e->prev->next : &d->first) = e->next;
    *(e->next != NULL ? &e->next->prev : &d->last) = e->prev;
    d->n--;
    d->bytes -= e->body.len;
    buf_done(&e->body);
    free(e->key);
    free(e->type);
    free(e);
}

/* What one caller has here. */
struct share {
    size_t n, bytes;
};

/* Keys begin with the caller, and a line's end. */
static bool is_of(const struct entry *e, const char *who)
{
    size_t len = strlen(who);

    return strncmp(e->key, who, len) == 0 && e->key[len] == '\n';
}

static struct share share_of(const struct idem *d, const char *who)
{
    struct share own = {0};

    for (const struct entry *e = d->first; e != NULL; e = e->next)
        if (is_of(e, who)) {
            own.n++;
            own.bytes += e->body.len;
        }
    return own;
}

/* Makes room: what has expired, and the oldest answers where there are too many, the caller's own
 * first. How many the caller has then. */
static size_t trim(struct idem *d, const char *who)
{
    struct share own = share_of(d, who);
    uint64_t now = now_real(d);

    for (struct entry *e = d->first, *next; e != NULL; e = next) {
        next = e->next;
        bool is_own = is_of(e, who);
        bool goes = e->expires_real <= now || d->n >= ENTRIES_MAX || d->bytes > BYTES_MAX ||
                    (is_own && (own.n >= OWN_ENTRIES_MAX || own.bytes > OWN_BYTES_MAX));
        if (!e->done || !goes)
            continue;
        own.n -= is_own ? 1 : 0;
        own.bytes -= is_own ? e->body.len : 0;
        /* Where that fails, newer ones push it out. */
        if (d->store != NULL)
            (void)store_drop_answer(d->store, e->key, NULL);
        entry_free(e);
    }
    return own.n;
}

static struct entry *find(struct idem *d, const char *key)
{
    struct entry *e = *bucket_of(d, key);

    while (e != NULL && !str_eq(e->key, key))
        e = e->bucket_next;
    return e;
}

/* Answers that outlive us --------------------------------------------------------------------- */

static void put_record(const struct entry *e)
{
    AUTO_DONE(buf) struct buf out;
    struct err err = {0};
    struct jw w;
    buf_init(&out, RECORD_MAX);

    if (e->d->store == NULL)
        return;
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "digest", e->digest);
    jw_kint(&w, "status", e->status);
    jw_kstr(&w, "type", e->type);
    jw_key(&w, "body");
    jw_strn(&w, buf_str(&e->body), e->body.len);
    jw_object_end(&w);
    int r = jw_end(&w);
    if (r == 0)
        r = store_drop_answers(e->d->store, now_real(e->d), ENTRIES_MAX - 1, &err);
    if (r == 0)
        r = store_put_answer(e->d->store, e->key, e->expires_real, out.data, out.len, &err);
    if (r < 0)
        log_warn(NULL, "an answer will not be known after a restart: %s; ignoring", err.msg);
}

/* Whoever edited the file may have written anything: what does not fit is left out. */
static int take_record(void *arg, const char *key, uint64_t expires, const char *text, size_t len)
{
    struct idem *d = arg;
    AUTO(json) struct json *record = NULL;

    if (expires <= now_real(d) || d->n >= ENTRIES_MAX || find(d, key) != NULL ||
        json_parse(text, len, &record, NULL) < 0)
        return 0;
    const struct json *body = json_get(record, "body");
    const char *digest = json_str(json_get(record, "digest"));
    const char *type = json_str(json_get(record, "type"));
    int64_t status = json_int(json_get(record, "status"));
    if (digest == NULL || strlen(digest) != DIGEST_SIZE - 1 || json_str(body) == NULL ||
        json_str_len(body) > ANSWER_MAX || status < 200 || status > 299)
        return 0;
    struct entry *e = entry_new(d, key, digest);
    e->done = true;
    e->status = (unsigned)status;
    e->type = type != NULL ? xstrdup(type) : NULL;
    e->expires_real = expires;
    (void)buf_append(&e->body, json_str(body), json_str_len(body));
    d->bytes += e->body.len;
    return 0;
}

struct idem *idem_new(struct loop *loop, struct store *store)
{
    struct idem *d = xnew(struct idem);
    struct err err = {0};

    d->loop = loop;
    d->store = store;
    if (store != NULL && store_each_answer(store, take_record, d, &err) < 0)
        log_warn(NULL, "answers of an earlier boxd: %s; ignoring", err.msg);
    return d;
}

void idem_free(struct idem *d)
{
    if (d == NULL)
        return;
    while (d->first != NULL)
        entry_free(d->first);
    free(d);
}

/* Waiting ------------------------------------------------------------------------------------- */

static void replay(struct http_request *req, unsigned status, const char *type, const void *body,
                   size_t len)
{
    (void)http_reply_header(req, "Idempotency-Replayed", "true");
    http_reply(req, status, type, body, len);
}

static struct http_request *waiter_free(struct waiter *w)
{
    struct entry *e = w->entry;
    struct waiter **at = &e->waiters;
    struct http_request *req = w->req;

    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    e->n_waiters--;
    free(w);
    return req;
}

static void on_waiter_gone(struct http_request *req, void *arg)
{
    (void)waiter_free(arg);
    http_abort(req);
}

static void wait_for(struct entry *e, struct http_request *req)
{
    struct err err = {0};

    if (e->n_waiters >= WAITERS_MAX) {
        (void)err_set(&err, ERR_LIMIT, "too many requests wait for this Idempotency-Key");
        front_fail(req, &err);
        return;
    }
    struct waiter *w = xnew(struct waiter);
    w->entry = e;
    w->req = req;
    w->next = e->waiters;
    e->waiters = w;
    e->n_waiters++;
    http_on_cancel(req, on_waiter_gone, w);
}

/* The first is answered: so are those who wait for it. */
static void on_reply(void *arg, unsigned status, const char *type, const void *body, size_t len)
{
    struct entry *e = arg;
    struct err err = {0};
    bool keep = status >= 200 && status < 300 && len <= ANSWER_MAX;

    for (struct waiter *w = e->waiters, *next; w != NULL; w = next) {
        next = w->next;
        struct http_request *req = waiter_free(w);
        http_on_cancel(req, NULL, NULL);
        if (status != 0) {
            replay(req, status, type, body, len);
            continue;
        }
        (void)err_set(&err, ERR_STATE, "the first request of this Idempotency-Key was given up");
        front_fail(req, &err);
    }
    if (!keep) {
        entry_free(e);
        return;
    }
    e->done = true;
    e->status = status;
    e->type = type != NULL ? xstrdup(type) : NULL;
    e->expires_real = now_real(e->d) + KEEP_NS;
    (void)buf_append(&e->body, body, len);
    e->d->bytes += len;
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

static void refuse_reuse(struct http_request *req)
{
    http_reply_error(req, 422, "key_reused", "this Idempotency-Key came with another body before",
                     NULL);
}

bool idem_begin(struct idem *d, struct http_request *req, const char *who)
{
    const char *key = http_request_header(req, "Idempotency-Key");
    struct err err = {0};
    char digest[DIGEST_SIZE];
    size_t len;

    if (key == NULL)
        return true;
    const char *body = http_request_body(req, &len);
    if (!key_valid(key) || http_sha256_hex(body, len, digest) < 0) {
        (void)err_set(&err, ERR_INVALID,
                      "Idempotency-Key must be 1 to %u visible characters of ASCII", KEY_MAX);
        front_fail(req, &err);
        return false;
    }
    AUTO_FREE char *full =
        xasprintf("%s\n%s %s\n%s", who, http_request_method(req), http_request_path(req), key);
    size_t own = trim(d, who);
    struct entry *e = find(d, full);
    if (e == NULL && d->n < ENTRIES_MAX && own < OWN_ENTRIES_MAX) {
        http_on_reply(req, on_reply, entry_new(d, full, digest));
        return true;
    }
    if (e == NULL) {
        (void)err_set(&err, ERR_LIMIT, "too many requests with an Idempotency-Key are at work");
        front_fail(req, &err);
    } else if (!str_eq(e->digest, digest)) {
        refuse_reuse(req);
    } else if (e->done) {
        replay(req, e->status, e->type, e->body.data, e->body.len);
    } else {
        wait_for(e, req);
    }
    return false;
}
