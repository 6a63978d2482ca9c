/* SPDX-License-Identifier: Apache-2.0 */

/* GET, HEAD and PUT of a file's content, with ranges and conditions. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "front/v1/files.h"
#include "http/codec/http1.h"
#include "http/server/server.h"

#define ANSWER_MAX (64U << 10)

/* Conditions. */

/* Whether a list of tags names this one. "W/" tags never do: ours are strong. */
static bool lists_tag(const char *list, const struct files_tag *tag)
{
    struct http1_str rest = {list, strlen(list)}, one;
    struct files_tag t;

    while (http1_next_element(&rest, &one)) {
        if (one.len == 1 && *one.p == '*')
            return true;
        if (files_etag_parse(one.p, one.len, &t) && memcmp(&t, tag, sizeof(t)) == 0)
            return true;
    }
    return false;
}

void v1_file_conditions(const struct http_request *req, struct files_request *head)
{
    const char *match = http_request_header(req, "If-Match");
    const char *none = http_request_header(req, "If-None-Match");

    if (none != NULL)
        head->flags |= FILES_MUST_NOT_EXIST; /* of tags only "*" makes sense for a change */
    if (match == NULL)
        return;
    if (str_eq(match, "*")) {
        head->flags |= FILES_MUST_EXIST;
        return;
    }
    /* A tag that is not ours is that of no file: all zero. */
    head->flags |= FILES_MUST_MATCH;
    (void)files_etag_parse(match, strlen(match), &head->expect);
}

/* Reading. */

struct download {
    bool ranged;  /* a range was asked for */
    bool if_same; /* but only of this: */
    struct files_tag same;
    bool started;
};

/* "bytes=a-b", "bytes=a-", "bytes=-n". Anything else, several ranges too, is as if not asked. */
static bool read_range(const char *text, struct files_request *head)
{
    char first[24], last[24];
    uint64_t a = 0, b = 0;

    if (!str_starts(text, "bytes=") || strchr(text, ',') != NULL)
        return false;
    text += strlen("bytes=");
    const char *dash = strchr(text, '-');
    if (dash == NULL || (size_t)(dash - text) >= sizeof(first) ||
        str_copy(last, sizeof(last), dash + 1) < 0)
        return false;
    memcpy(first, text, (size_t)(dash - text));
    first[dash - text] = '\0';
    if ((first[0] != '\0' && str_to_u64(first, &a) < 0) ||
        (last[0] != '\0' && str_to_u64(last, &b) < 0) || (first[0] == '\0' && last[0] == '\0'))
        return false;
    if (first[0] == '\0') {
        head->flags |= FILES_SUFFIX;
        head->length = b;
        return true;
    }
    if (last[0] != '\0' && b < a)
        return false;
    head->offset = a;
    head->length = last[0] == '\0' || b - a == UINT64_MAX ? UINT64_MAX - a : b - a + 1;
    return true;
}

static void put_date(struct http_request *req, int64_t mtime_ns)
{
    static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t t = (time_t)(mtime_ns / (int64_t)NSEC_PER_SEC);
    struct tm tm;
    char text[64];

    if (gmtime_r(&t, &tm) != NULL &&
        str_fmt(text, sizeof(text), "%s, %02d %s %04d %02d:%02d:%02d GMT", days[tm.tm_wday],
                tm.tm_mday, months[tm.tm_mon], tm.tm_year + 1900, tm.tm_hour, tm.tm_min,
                tm.tm_sec) >= 0)
        (void)http_reply_header(req, "Last-Modified", text);
}

static void put_headers(struct http_request *req, const struct files_stat *st)
{
    char text[FILES_ETAG_SIZE];

    files_etag(&st->tag, text);
    (void)http_reply_header(req, "ETag", text);
    put_date(req, st->tag.mtime_ns);
    (void)http_reply_header(req, "Accept-Ranges", "bytes");
    (void)http_reply_header(req, "Cache-Control", "no-cache");
    /* It is whatever a program inside made it: a browser is not to guess, or run it. */
    (void)http_reply_header(req, "X-Content-Type-Options", "nosniff");
    (void)http_reply_header(req, "Content-Security-Policy", "sandbox");
    (void)http_reply_header(req, "Box-File-Type", files_type_name(st->mode));
}

/* The conditions of RFC 9110 13.2.2 that we have. 0: go on. */
static unsigned judge(const struct http_request *req, const struct files_stat *st)
{
    const char *match = http_request_header(req, "If-Match");
    const char *none = http_request_header(req, "If-None-Match");

    if (match != NULL && !lists_tag(match, &st->tag))
        return 412;
    return none != NULL && lists_tag(none, &st->tag) ? 304 : 0;
}

/* True: answered, and f is gone. */
static bool answer_condition(struct v1_file *f, const struct files_stat *st)
{
    unsigned status = judge(f->req, st);

    if (status == 0)
        return false;
    put_headers(f->req, st);
    if (status == 412)
        http_reply_error(f->req, 412, "conflict", "it is not what If-Match says",
                         "read it again, and decide anew");
    else
        http_reply(f->req, 304, NULL, NULL, 0);
    v1_file_free(f);
    return true;
}

static void on_begin(struct v1_file *f, const struct files_stat *st)
{
    struct download *d = f->more;
    bool part = d->ranged && (!d->if_same || memcmp(&d->same, &st->tag, sizeof(d->same)) == 0);
    char range[96];

    if (answer_condition(f, st))
        return;
    put_headers(f->req, st);
    if (part) {
        (void)snprintf(range, sizeof(range), "bytes %llu-%llu/%llu", (unsigned long long)st->begin,
                       (unsigned long long)st->end - 1, (unsigned long long)st->tag.size);
        (void)http_reply_header(f->req, "Content-Range", range);
    }
    d->started = true;
    http_reply_start_length(f->req, part ? 206 : 200, "application/octet-stream",
                            st->end - st->begin);
}

static void on_writable(struct http_request *req, void *arg)
{
    struct v1_file *f = arg;
    files_pause(f->call, false);
}

static void on_content(void *arg, enum files_type type, const char *data, size_t len)
{
    struct v1_file *f = arg;
    struct files_stat st;

    if (type == FILES_FRAME_STAT) {
        memcpy(&st, data, sizeof(st));
        on_begin(f, &st);
    } else if (type == FILES_FRAME_DATA) {
        (void)http_reply_chunk(f->req, data, len); /* a peer that has gone is told elsewhere */
        if (http_reply_full(f->req))
            files_pause(f->call, true);
    }
}

static void on_read(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct v1_file *f = arg;
    const struct download *d = f->more;

    if (failure != NULL && !d->started) {
        v1_file_fail(f, failure);
        return;
    }
    if (failure != NULL)
        http_abort(f->req); /* the peer can tell that something is missing */
    else
        http_reply_end(f->req);
    v1_file_free(f);
}

/* HEAD. */

static void on_looked(void *arg, enum files_type type, const char *data, size_t len)
{
    struct v1_file *f = arg;

    if (type == FILES_FRAME_STAT && len == sizeof(struct files_stat))
        memcpy(f->more, data, len);
}

static void on_look_end(void *arg, const struct files_done *done,
                        const struct files_failure *failure)
{
    struct v1_file *f = arg;
    const struct files_stat *st = f->more;

    if (failure != NULL) {
        v1_file_fail(f, failure);
        return;
    }
    if (answer_condition(f, st))
        return;
    put_headers(f->req, st);
    http_reply_start_length(f->req, 200, "application/octet-stream",
                            S_ISREG(st->mode) ? st->tag.size : 0);
    http_reply_end(f->req);
    v1_file_free(f);
}

static void more_free(void *arg)
{
    free(arg);
}

static void head_file(struct v1_file *f)
{
    static const struct files_events events = {.frame = on_looked, .finished = on_look_end};
    struct files_ask ask = {.head = {.op = FILES_STAT}, .timeout_ns = FILES_TIMEOUT_NS};

    f->more = xnew(struct files_stat);
    f->more_free = more_free;
    (void)v1_file_start(f, &ask, &events);
}

void v1_file_get(struct http_request *req, const struct v1 *v)
{
    static const struct files_events events = {.frame = on_content, .finished = on_read};
    struct files_ask ask = {.head = {
                                .op = FILES_READ,
                            }};
    struct v1_file *f = v1_file_new(req, v, "read", "path");

    if (f == NULL)
        return; /* and the request is gone */
    const char *range = http_request_header(req, "Range");
    const char *if_range = http_request_header(req, "If-Range");
    if (str_eq(http_request_method(req), "HEAD")) {
        head_file(f);
        return;
    }
    struct download *d = xnew(struct download);
    f->more = d;
    f->more_free = more_free;
    d->ranged = range != NULL && read_range(range, &ask.head);
    if (d->ranged)
        ask.head.flags |= FILES_RANGE;
    if (d->ranged && if_range != NULL) {
        ask.head.flags |= FILES_IF_MATCH;
        (void)files_etag_parse(if_range, strlen(if_range), &ask.head.expect);
        d->if_same = true;
        d->same = ask.head.expect;
    }
    http_on_writable(req, on_writable, f);
    (void)v1_file_start(f, &ask, &events);
}

/* Writing. */

struct upload {
    uint64_t bytes;
    struct files_stat st;
};

static void reply_written(struct v1_file *f, const struct files_done *done)
{
    AUTO_DONE(buf) struct buf out;
    const struct upload *u = f->more;
    char etag[FILES_ETAG_SIZE];
    struct jw w;

    buf_init(&out, ANSWER_MAX);
    files_etag(&u->st.tag, etag);
    (void)http_reply_header(f->req, "ETag", etag);
    jw_init(&w, &out);
    jw_object(&w);
    v1_file_write_name(&w, "path", f->path, strlen(f->path));
    v1_file_write_stat(&w, &u->st);
    jw_object_end(&w);
    front_reply_json(f->req, done->created ? 201 : 200, &out, &w);
    v1_file_free(f);
}

static void on_written(void *arg, const struct files_done *done,
                       const struct files_failure *failure)
{
    v1_file_record(arg, failure != NULL ? &failure->err : NULL);
    if (failure != NULL)
        v1_file_fail(arg, failure);
    else
        reply_written(arg, done);
}

static void on_stat(void *arg, enum files_type type, const char *data, size_t len)
{
    struct v1_file *f = arg;
    struct upload *u = f->more;

    if (type == FILES_FRAME_STAT && len == sizeof(u->st))
        memcpy(&u->st, data, len);
}

static void on_drained(void *arg)
{
    struct v1_file *f = arg;
    http_body_hold(f->req, false);
}

static void on_body(struct http_request *req, const char *data, size_t len, bool end, void *arg)
{
    struct v1_file *f = arg;
    struct upload *u = f->more;

    if (end) {
        files_write_end(f->call);
        return;
    }
    u->bytes += len;
    if (u->bytes > V1_UPLOAD_MAX) {
        http_reply_error(req, 413, "limit", "the file is larger than an upload may be", NULL);
        v1_file_free(f);
        return;
    }
    /* Not 0: it does not keep up, or has given up, which it then says itself. */
    if (files_write(f->call, data, len) != 0)
        http_body_hold(req, true);
}

/* An octal number of the query; 0: none. False: answered. */
static bool read_mode(struct http_request *req, uint32_t *ret)
{
    char text[8];
    struct err err = {0};
    ssize_t n = http_request_query_get(req, "mode", text, sizeof(text));

    *ret = 0;
    for (ssize_t i = 0; i < n && n <= 4; i++) {
        if (text[i] < '0' || text[i] > '7')
            n = 0;
        else
            *ret = *ret << 3 | (uint32_t)(text[i] - '0');
    }
    if (n == -ENOENT || (n > 0 && n <= 4 && *ret > 0 && *ret <= 0777))
        return true;
    (void)err_set(&err, ERR_INVALID, "mode must be an octal number from 1 to 777");
    front_fail(req, &err);
    return false;
}

void v1_file_put(struct http_request *req, void *arg)
{
    static const struct files_events events = {
        .frame = on_stat, .drained = on_drained, .finished = on_written};
    struct files_ask ask = {.head = {.op = FILES_WRITE}};

    if (!read_mode(req, &ask.head.mode))
        return;
    struct v1_file *f = v1_file_new(req, arg, "write", "path");
    if (f == NULL || !v1_file_recordable(f, "PUT"))
        return;
    f->more = xnew(struct upload);
    f->more_free = more_free;
    v1_file_conditions(req, &ask.head);
    ask.head.flags |= (v1_query_flag(req, "parents", true) ? FILES_PARENTS : 0) |
                      (v1_query_flag(req, "append", false) ? FILES_APPEND : 0) |
                      (v1_query_flag(req, "fsync", false) ? FILES_SYNC : 0);
    if (v1_file_start(f, &ask, &events))
        http_body_start(req, on_body, f);
}
