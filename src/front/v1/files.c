/* SPDX-License-Identifier: Apache-2.0 */

/* Files of sessions over HTTP: content with ranges and conditions, lists, stats, changes, and a
 * stream of what changes; docs/reference/files.md says what there is. */

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/files.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/common/sse.h"
#include "front/v1/v1_internal.h"
#include "http/codec/crypto.h"
#include "http/codec/http1.h"
#include "policy/audit/audit.h"
#include "spec/model.h"
#include "spec/spec.h"

#define ANSWER_MAX (32U << 20)
#define BODY_MAX (64U << 10)
#define UPLOAD_MAX (16ULL << 30) /* bytes; what the session's disk takes is usually less */
#define EVENT_MAX (64U << 10)

/* One request under way. Owned by its own callbacks: file_free() when the answer is given. */
struct v1_file {
    struct http_request *req;
    const struct v1 *v;
    struct session *session; /* held */
    struct files_call *call; /* owned */
    char path[FILES_PATH_MAX];
    struct files_stat stat;    /* as box-files sent it last */
    const char *change;        /* for the records: "PUT" and the like; NULL: it changes nothing */
    const char *to;            /* where it moves; borrowed from `more`, or NULL */
    void *more;                /* owned, by more_free */
    void (*more_free)(void *); /* NULL: free() */
    struct sse sse;            /* of a watch */
    uint64_t events;           /* that the watch has sent */
};

static bool file_path(const struct session *s, const char *given, char ret[static FILES_PATH_MAX])
{
    const char *base = given[0] == '/' ? "" : session_spec(s)->mount_path;
    return str_fmt(ret, FILES_PATH_MAX, "%s%s%s", base, given[0] == '/' ? "" : "/", given) >= 0;
}

/* Finds the session, and asks whether the caller may. A relative path starts in the session's
 * workspace. NULL: answered. */
static struct v1_file *file_at(struct http_request *req, const struct v1 *v, const char *tool,
                               const char *path)
{
    struct session *s = front_use_session(req, &v->front, tool);

    if (s == NULL)
        return NULL;
    struct v1_file *f = xnew(struct v1_file);
    f->req = req;
    f->v = v;
    if (path[0] == '\0' || !file_path(s, path, f->path)) {
        free(f);
        front_failf(req, ERR_INVALID,
                    "path must name a file inside the session, in less than 4096 bytes");
        return NULL;
    }
    f->session = s;
    session_hold(s);
    return f;
}

/* The same with the path from that member of the query. */
static struct v1_file *file_new(struct http_request *req, const struct v1 *v, const char *tool,
                                const char *member)
{
    char path[FILES_PATH_MAX];
    ssize_t n = http_request_query_get(req, member, path, sizeof(path));

    return file_at(req, v, tool, n > 0 ? path : "");
}

static void file_free(struct v1_file *f)
{
    files_call_free(f->call);
    session_release(f->session);
    sse_end(&f->sse);
    if (f->more_free != NULL)
        f->more_free(f->more);
    else
        free(f->more);
    free(f);
}

/* A change that happened, or did not. */
static void record_change(const struct v1_file *f, const char *outcome, const char *reason)
{
    char command[FILES_PATH_MAX + 16];
    struct audit_record r = {.event = AUDIT_FILE_WRITE,
                             .session = session_id(f->session),
                             .path = f->to,
                             .command = command,
                             .outcome = outcome,
                             .reason = reason};

    (void)snprintf(command, sizeof(command), "%s %s", f->change, f->path);
    r.command_len = strlen(command);
    (void)front_audit(&f->v->front, f->req, &r, NULL); /* it has happened; losses are counted */
}

/* The client has gone. Its change may have been made all the same. */
static void on_cancel(struct http_request *req, void *arg)
{
    struct v1_file *f = arg;

    if (f->change != NULL)
        record_change(f, "given_up", "the client has gone");
    if (f->sse.req == NULL)
        http_abort(req); /* else sse_end() gives the answer that is owed */
    file_free(f);
}

/* Asks box-files, with f as the argument of the events; a client that leaves takes the request
 * back. A change that must be recorded and cannot be is refused. False: answered, and f is gone. */
static bool file_start(struct v1_file *f, struct files_ask *ask, const struct files_events *events)
{
    struct audit *audit = f->change != NULL ? f->v->front.service->audit : NULL;
    struct err err = {0};

    ask->root = "/";
    ask->path = f->path;
    if ((audit != NULL && audit_ready(audit, &err) < 0) ||
        files_start(f->session, ask, events, f, &f->call, &err) < 0) {
        front_fail(f->req, &err);
        file_free(f);
        return false;
    }
    http_on_cancel(f->req, on_cancel, f);
    return true;
}

/* Failures that have a status of their own in HTTP. */
static unsigned status_of(const struct files_failure *failure)
{
    if (failure->why == FILES_WHY_CHANGED || failure->why == FILES_WHY_RANGE)
        return failure->why == FILES_WHY_CHANGED ? 412 : 416;
    if (failure->why == FILES_WHY_TOO_LARGE || failure->error == EFBIG)
        return 413;
    if (failure->error == ENOSPC || failure->error == EDQUOT)
        return 507;
    return front_status(&failure->err);
}

/* What to do about a failure; the remedies of sessions do not fit files. */
static const char *remedy_of(const struct files_failure *failure)
{
    static const char *const remedies[ERR_CODE_MAX] = {
        [ERR_NOT_FOUND] = "check the path; a list of its directory shows what is there",
        [ERR_INVALID] = "correct the path or the request",
        [ERR_DENIED] = "use a place that the session's user may write, such as its workspace",
        [ERR_CONFLICT] = "look at its current state, then decide",
    };

    if (failure->error == ENOSPC || failure->error == EDQUOT)
        return "delete files of the session, or give it more room";
    const char *text = failure->why != 0 ? remedies[failure->err.code] : NULL;
    return text != NULL ? text : front_remedy(&failure->err);
}

/* Records a change with how it went. True: it failed; answered, and f is gone. */
static bool file_failed(struct v1_file *f, const struct files_failure *failure)
{
    if (f->change != NULL)
        record_change(f, failure == NULL ? "done" : err_code_name(failure->err.code),
                      failure != NULL ? failure->err.msg : NULL);
    if (failure == NULL)
        return false;
    unsigned status = status_of(failure);
    const struct err *err = &failure->err;
    if (status == 416)
        v1_put_range(f->req, 0, 0, failure->n);
    http_reply_error(f->req, status, err_code_name(err->code), err->msg, remedy_of(failure));
    file_free(f);
    return true;
}

/* The name of a file as text; when it is none, its bytes as well. */
static void write_name(struct jw *w, const char *key, const char *name, size_t len)
{
    char bytes[32];

    jw_kstrn(w, key, name, len);
    if (utf8_valid(name, len))
        return;
    char *base64 = xcalloc(1, 4 * ((len + 2) / 3) + 1);
    http_base64(name, len, base64);
    (void)snprintf(bytes, sizeof(bytes), "%s_base64", key);
    jw_kstr(w, bytes, base64);
    free(base64);
}

static void write_stat(struct jw *w, const struct files_stat *st)
{
    char text[FILES_ETAG_SIZE];

    jw_kstr(w, "type", files_type_name(st->mode));
    jw_ku64(w, "size", st->tag.size);
    (void)snprintf(text, sizeof(text), "%04o", (unsigned)(st->mode & 07777));
    jw_kstr(w, "mode", text);
    jw_ku64(w, "uid", st->uid);
    jw_ku64(w, "gid", st->gid);
    clock_format(st->tag.mtime_ns > 0 ? (uint64_t)st->tag.mtime_ns : 0, text, sizeof(text));
    jw_kstr(w, "modified_at", text);
    files_etag(&st->tag, text);
    jw_kstr(w, "etag", text);
}

/* Listing ------------------------------------------------------------------------------------- */

struct listing {
    struct front_answer out;
    struct jw *w; /* of out */
    char *last;   /* owned; the name of the last entry */
};

static void listing_free(void *arg)
{
    struct listing *l = arg;
    front_answer_done(&l->out);
    free(l->last);
    free(l);
}

static void on_entry(void *arg, enum files_type type, const char *data, size_t len)
{
    struct v1_file *f = arg;
    struct listing *l = f->more;
    struct files_entry e;
    const char *name = data + sizeof(e);

    if (type != FILES_FRAME_ENTRY || len < sizeof(e))
        return;
    memcpy(&e, data, sizeof(e));
    jw_object(l->w);
    write_name(l->w, "name", name, e.name_len);
    write_stat(l->w, &e.stat);
    if (e.target_len > 0)
        write_name(l->w, "target", name + e.name_len, e.target_len);
    jw_object_end(l->w);
    free(l->last);
    l->last = xstrndup(name, e.name_len);
}

static void on_listed(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct v1_file *f = arg;
    struct listing *l = f->more;

    if (file_failed(f, failure))
        return;
    jw_array_end(l->w);
    write_name(l->w, "path", f->path, strlen(f->path));
    jw_ku64(l->w, "total", done->total);
    jw_kbool(l->w, "truncated", done->cut != FILES_CUT_NONE);
    if (done->cut != FILES_CUT_NONE && l->last != NULL)
        write_name(l->w, "next", l->last, strlen(l->last));
    front_reply(&l->out, f->req, 200);
    file_free(f);
}

static void list_files(struct http_request *req, const struct v1 *v)
{
    static const struct files_events events = {.frame = on_entry, .finished = on_listed};
    char after[FILES_PATH_MAX] = "";
    uint64_t limit;

    if (!v1_query_number(req, "limit", FILES_LIST_MAX, FILES_LIST_DEFAULT, &limit))
        return;
    ssize_t n = http_request_query_get(req, "after", after, sizeof(after));
    if ((n < 0 && n != -ENOENT) || limit == 0) {
        front_failf(req, ERR_INVALID,
                    "after must be a name of an earlier answer, and limit at least 1");
        return;
    }
    struct v1_file *f = file_new(req, v, "read", "list");
    if (f == NULL)
        return;
    struct listing *l = xnew(struct listing);
    f->more = l;
    f->more_free = listing_free;
    l->w = front_begin(&l->out, ANSWER_MAX);
    jw_karray(l->w, "entries");
    struct files_ask ask = {.head = {.op = FILES_LIST, .length = limit},
                            .a = {after, strlen(after)},
                            .timeout_ns = FILES_TIMEOUT_NS};
    (void)file_start(f, &ask, &events);
}

/* The stat of one file ------------------------------------------------------------------------ */

static void on_stat(void *arg, enum files_type type, const char *data, size_t len)
{
    struct v1_file *f = arg;

    if (type == FILES_FRAME_STAT && len == sizeof(f->stat))
        memcpy(&f->stat, data, len);
}

static void reply_stat(struct v1_file *f, unsigned status)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, ANSWER_MAX);
    char etag[FILES_ETAG_SIZE];

    files_etag(&f->stat.tag, etag);
    (void)http_reply_header(f->req, "ETag", etag);
    write_name(w, "path", f->path, strlen(f->path));
    write_stat(w, &f->stat);
    front_reply(&out, f->req, status);
    file_free(f);
}

/* The entry that was looked at, written, made or moved, as it is now. */
static void on_stated(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct v1_file *f = arg;

    if (file_failed(f, failure))
        return;
    if (f->to != NULL)
        memcpy(f->path, f->to, sizeof(f->path));
    reply_stat(f, done->created ? 201 : 200);
}

static void stat_file(struct http_request *req, const struct v1 *v)
{
    static const struct files_events events = {.frame = on_stat, .finished = on_stated};
    struct v1_file *f = file_new(req, v, "read", "stat");

    if (f == NULL)
        return;
    bool follow = v1_query_flag(req, "follow", false);
    struct files_ask ask = {.head = {.op = FILES_STAT, .flags = follow ? 0 : FILES_NOFOLLOW},
                            .timeout_ns = FILES_TIMEOUT_NS};
    (void)file_start(f, &ask, &events);
}

/* Conditions ---------------------------------------------------------------------------------- */

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

static void read_conditions(const struct http_request *req, struct files_request *head)
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

/* Content ------------------------------------------------------------------------------------- */

struct download {
    bool ranged;  /* a range was asked for */
    bool if_same; /* but only of this: */
    struct files_tag same;
    bool started;
};

static void put_headers(struct v1_file *f)
{
    char etag[FILES_ETAG_SIZE], date[CLOCK_HTTP_SIZE];

    files_etag(&f->stat.tag, etag);
    (void)http_reply_header(f->req, "ETag", etag);
    if (clock_format_http((time_t)(f->stat.tag.mtime_ns / (int64_t)NSEC_PER_SEC), date))
        (void)http_reply_header(f->req, "Last-Modified", date);
    (void)http_reply_header(f->req, "Accept-Ranges", "bytes");
    (void)http_reply_header(f->req, "Cache-Control", "no-cache");
    /* It is whatever a program inside made it: a browser is not to guess, or run it. */
    (void)http_reply_header(f->req, "X-Content-Type-Options", "nosniff");
    (void)http_reply_header(f->req, "Content-Security-Policy", "sandbox");
    (void)http_reply_header(f->req, "Box-File-Type", files_type_name(f->stat.mode));
}

/* The conditions of RFC 9110 13.2.2 that we have. True: one is not met; answered, and f is gone. */
static bool answer_condition(struct v1_file *f)
{
    const char *match = http_request_header(f->req, "If-Match");
    const char *none = http_request_header(f->req, "If-None-Match");
    bool changed = match != NULL && !lists_tag(match, &f->stat.tag);

    if (!changed && (none == NULL || !lists_tag(none, &f->stat.tag)))
        return false;
    put_headers(f);
    if (changed)
        http_reply_error(f->req, 412, "conflict", "the file is not the one that If-Match names",
                         "read it again, and decide anew");
    else
        http_reply(f->req, 304, NULL, NULL, 0);
    file_free(f);
    return true;
}

static void begin_content(struct v1_file *f)
{
    struct download *d = f->more;
    const struct files_stat *st = &f->stat;
    bool part = d->ranged && (!d->if_same || memcmp(&d->same, &st->tag, sizeof(d->same)) == 0);

    if (answer_condition(f))
        return;
    put_headers(f);
    if (part)
        v1_put_range(f->req, st->begin, st->end, st->tag.size);
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

    on_stat(arg, type, data, len);
    if (type == FILES_FRAME_STAT) {
        begin_content(f);
    } else if (type == FILES_FRAME_DATA) {
        (void)http_reply_chunk(f->req, data, len); /* a peer that has gone is noticed elsewhere */
        if (http_reply_full(f->req))
            files_pause(f->call, true);
    }
}

static void on_read(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct v1_file *f = arg;
    const struct download *d = f->more;

    if (!d->started && file_failed(f, failure))
        return;
    if (failure != NULL)
        http_abort(f->req); /* the peer can tell that something is missing */
    else
        http_reply_end(f->req);
    file_free(f);
}

static void on_look_end(void *arg, const struct files_done *done,
                        const struct files_failure *failure)
{
    struct v1_file *f = arg;

    if (file_failed(f, failure) || answer_condition(f))
        return;
    put_headers(f);
    http_reply_start_length(f->req, 200, "application/octet-stream",
                            S_ISREG(f->stat.mode) ? f->stat.tag.size : 0);
    http_reply_end(f->req);
    file_free(f);
}

static void get_content(struct http_request *req, const struct v1 *v)
{
    static const struct files_events events = {.frame = on_content, .finished = on_read},
                                     look = {.frame = on_stat, .finished = on_look_end};
    struct files_ask ask = {.head = {.op = FILES_READ}};
    struct v1_range r;
    struct v1_file *f = file_new(req, v, "read", "path");

    if (f == NULL)
        return; /* and the request is gone */
    const char *range = http_request_header(req, "Range");
    const char *if_range = http_request_header(req, "If-Range");
    if (str_eq(http_request_method(req), "HEAD")) {
        ask = (struct files_ask){.head = {.op = FILES_STAT}, .timeout_ns = FILES_TIMEOUT_NS};
        (void)file_start(f, &ask, &look);
        return;
    }
    struct download *d = xnew(struct download);
    f->more = d;
    d->ranged = range != NULL && v1_range_parse(range, &r);
    if (d->ranged) {
        ask.head.flags |= r.is_suffix ? FILES_RANGE | FILES_SUFFIX : FILES_RANGE;
        ask.head.offset = r.from;
        ask.head.length = r.length;
    }
    if (d->ranged && if_range != NULL) {
        ask.head.flags |= FILES_IF_MATCH;
        (void)files_etag_parse(if_range, strlen(if_range), &ask.head.expect);
        d->if_same = true;
        d->same = ask.head.expect;
    }
    http_on_writable(req, on_writable, f);
    (void)file_start(f, &ask, &events);
}

static void on_drained(void *arg)
{
    struct v1_file *f = arg;
    http_body_hold(f->req, false);
}

static void on_body(struct http_request *req, const char *data, size_t len, bool end, void *arg)
{
    struct v1_file *f = arg;
    uint64_t *bytes = f->more; /* that have come so far */

    if (end) {
        files_write_end(f->call);
        return;
    }
    *bytes += len;
    if (*bytes > UPLOAD_MAX) {
        http_reply_error(req, 413, "limit", "the file is larger than an upload may be", NULL);
        file_free(f);
        return;
    }
    /* Not 0: box-files does not keep up, or has failed and reports that itself. */
    if (files_write(f->call, data, len) != 0)
        http_body_hold(req, true);
}

/* An octal number of the query; 0: none. False: answered. */
static bool read_mode(struct http_request *req, uint32_t *ret)
{
    char text[8];
    ssize_t n = http_request_query_get(req, "mode", text, sizeof(text));

    *ret = 0;
    if (n > 0 && n <= 4 && strspn(text, "01234567") == (size_t)n)
        for (ssize_t i = 0; i < n; i++)
            *ret = *ret << 3 | (uint32_t)(text[i] - '0');
    if (n == -ENOENT || (*ret > 0 && *ret <= 0777))
        return true;
    front_failf(req, ERR_INVALID, "mode must be an octal number from 1 to 777");
    return false;
}

static void put_content(struct http_request *req, void *arg)
{
    static const struct files_events events = {
        .frame = on_stat, .drained = on_drained, .finished = on_stated};
    struct files_ask ask = {.head = {.op = FILES_WRITE}};

    if (!read_mode(req, &ask.head.mode))
        return;
    struct v1_file *f = file_new(req, arg, "write", "path");
    if (f == NULL)
        return;
    f->change = "PUT";
    f->more = xcalloc(1, sizeof(uint64_t));
    read_conditions(req, &ask.head);
    ask.head.flags |= (v1_query_flag(req, "parents", true) ? FILES_PARENTS : 0) |
                      (v1_query_flag(req, "append", false) ? FILES_APPEND : 0) |
                      (v1_query_flag(req, "fsync", false) ? FILES_SYNC : 0);
    if (file_start(f, &ask, &events))
        http_body_start(req, on_body, f);
}

static void get_files(struct http_request *req, void *arg)
{
    char ignored[FILES_PATH_MAX];

    if (http_request_query_get(req, "list", ignored, sizeof(ignored)) != -ENOENT)
        list_files(req, arg);
    else if (http_request_query_get(req, "stat", ignored, sizeof(ignored)) != -ENOENT)
        stat_file(req, arg);
    else
        get_content(req, arg);
}

/* Changes ------------------------------------------------------------------------------------- */

static void on_removed(void *arg, const struct files_done *done,
                       const struct files_failure *failure)
{
    struct v1_file *f = arg;

    if (file_failed(f, failure))
        return;
    http_reply(f->req, 204, NULL, NULL, 0);
    file_free(f);
}

static void delete_file(struct http_request *req, void *arg)
{
    static const struct files_events events = {.finished = on_removed};
    struct v1_file *f = file_new(req, arg, "write", "path");
    struct files_ask ask = {.head = {.op = FILES_REMOVE}, .timeout_ns = FILES_TIMEOUT_NS};

    if (f == NULL)
        return;
    f->change = "DELETE";
    read_conditions(req, &ask.head);
    if (v1_query_flag(req, "recursive", false))
        ask.head.flags |= FILES_RECURSIVE;
    (void)file_start(f, &ask, &events);
}

enum change_op { CHANGE_MKDIR, CHANGE_MOVE };

struct change {
    enum change_op op;
    char *path, *to; /* owned */
    bool parents, replace;
};

/* clang-format off */
static const char *const change_ops[] = {"mkdir", "move", NULL};
static const struct field change_fields[] = {
    {"op", FIELD_ENUM, FIELD_REQUIRED, .offset = offsetof(struct change, op), .names = change_ops,
     .doc = "What to do."},
    {"path", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct change, path), .max = FILES_PATH_MAX - 1,
     .doc = "The directory to make, or what to move."},
    {"to", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct change, to), .max = FILES_PATH_MAX - 1,
     .doc = "move: the new path."},
    {"parents", FIELD_BOOL, .offset = offsetof(struct change, parents), .number = 1,
     .doc = "Make missing directories on the way."},
    {"replace", FIELD_BOOL, .offset = offsetof(struct change, replace),
     .doc = "move: what stands at `to` is replaced; otherwise that is an error."},
};
/* clang-format on */

const struct model v1_change_model = {.name = "FileChange",
                                      .doc = "A change of a session's files that is no content.",
                                      MODEL_FIELDS(change_fields, struct change)};

static void start_change(struct http_request *req, const struct v1 *v, const struct change *c)
{
    static const struct files_events events = {.frame = on_stat, .finished = on_stated};
    struct files_ask ask = {.head = {.op = c->op == CHANGE_MOVE ? FILES_MOVE : FILES_MKDIR,
                                     .flags = c->parents ? FILES_PARENTS : 0},
                            .timeout_ns = FILES_TIMEOUT_NS};
    struct v1_file *f = file_at(req, v, "write", c->path);

    if (f == NULL)
        return;
    f->change = c->op == CHANGE_MOVE ? "MOVE" : "MKDIR";
    if (c->op == CHANGE_MOVE) {
        f->to = f->more = xcalloc(1, FILES_PATH_MAX);
        if (c->to == NULL || c->to[0] == '\0' || !file_path(f->session, c->to, f->more)) {
            file_free(f);
            front_failf(req, ERR_INVALID, "to must be a path inside the session");
            return;
        }
        ask.a = (struct files_text){f->to, strlen(f->to)};
        ask.head.flags |= c->replace ? 0 : FILES_MUST_NOT_EXIST;
    }
    (void)file_start(f, &ask, &events);
}

static void change_files(struct http_request *req, void *arg)
{
    AUTO(json) struct json *body = NULL;
    struct change c = {0};
    struct err err = {0};

    if (!front_read_body(req, &body))
        return;
    if (front_read(&v1_change_model, body, NULL, &c, &err) < 0) {
        front_fail(req, &err);
        return;
    }
    start_change(req, arg, &c);
    model_done(&v1_change_model, &c);
}

/* Watching ------------------------------------------------------------------------------------ */

static void send_watched(struct v1_file *f, const char *name, struct front_answer *out)
{
    char id[24];

    if (front_end(out) < 0)
        return;
    (void)snprintf(id, sizeof(id), "%llu", (unsigned long long)++f->events);
    sse_send(&f->sse, name, id, &out->out);
}

static void begin_watch(struct v1_file *f)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *jw = front_begin(&out, EVENT_MAX);

    sse_start(&f->sse, f->req, manager_loop(f->v->front.manager));
    write_name(jw, "path", f->path, strlen(f->path));
    write_stat(jw, &f->stat);
    send_watched(f, "watching", &out);
}

static void send_change(struct v1_file *f, const char *data)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *jw = front_begin(&out, EVENT_MAX);
    struct files_event e;

    memcpy(&e, data, sizeof(e));
    const char *name = files_change_name((enum files_change)e.change);
    jw_kstr(jw, "change", name);
    write_name(jw, "path", data + sizeof(e), e.path_len);
    jw_kbool(jw, "is_directory", e.is_dir != 0);
    if (e.cookie != 0)
        jw_ku64(jw, "cookie", e.cookie);
    send_watched(f, name, &out);
}

static void on_watch_frame(void *arg, enum files_type type, const char *data, size_t len)
{
    struct v1_file *f = arg;

    on_stat(arg, type, data, len);
    if (type == FILES_FRAME_STAT && len == sizeof(f->stat))
        begin_watch(f);
    else if (type == FILES_FRAME_EVENT && f->sse.req != NULL)
        send_change(f, data);
    /* A reader that does not keep up holds box-files back, and then the kernel says what was lost.
     */
    if (sse_full(&f->sse))
        files_pause(f->call, true);
}

static void on_watch_end(void *arg, const struct files_done *done,
                         const struct files_failure *failure)
{
    struct v1_file *f = arg;

    if (f->sse.req != NULL || !file_failed(f, failure))
        file_free(f); /* which ends the stream */
}

static void watch_files(struct http_request *req, void *arg)
{
    static const struct files_events events = {.frame = on_watch_frame, .finished = on_watch_end};
    struct v1_file *f = file_new(req, arg, "read", "path");

    if (f == NULL)
        return;
    if (str_eq(http_request_method(req), "HEAD")) { /* it would never end */
        http_reply(req, 200, "text/event-stream", NULL, 0);
        file_free(f);
        return;
    }
    struct files_ask ask = {
        .head = {.op = FILES_WATCH,
                 .flags = v1_query_flag(req, "recursive", false) ? FILES_RECURSIVE : 0},
        .quiet = true};
    if (file_start(f, &ask, &events))
        http_on_writable(req, on_writable, f);
}

const struct http_route v1_files_routes[] = {
    {"GET", "/v1/sessions/{id}/files", get_files, HTTP_ROUTE_SCOPED, 0},
    {"PUT", "/v1/sessions/{id}/files", put_content, HTTP_ROUTE_SCOPED | HTTP_ROUTE_STREAM,
     UPLOAD_MAX},
    {"DELETE", "/v1/sessions/{id}/files", delete_file, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/files", change_files, HTTP_ROUTE_SCOPED, BODY_MAX},
    {"GET", "/v1/sessions/{id}/files/watch", watch_files, HTTP_ROUTE_SCOPED, 0},
    {0},
};
