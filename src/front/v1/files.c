/* SPDX-License-Identifier: Apache-2.0 */

/* Lists, stats, removes, creates and moves files of a session, and what all file requests share. */

#include "front/v1/files.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "http/codec/crypto.h"
#include "http/server/server.h"
#include "policy/audit/audit.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/spec.h"

#define ANSWER_MAX (32U << 20)
#define BODY_MAX (64U << 10)

/* Common. */

bool v1_query_flag(const struct http_request *req, const char *name, bool otherwise)
{
    char text[8];
    ssize_t n = http_request_query_get(req, name, text, sizeof(text));

    if (n == -ENOENT)
        return otherwise;
    return n == 0 || (n > 0 && (str_eq(text, "1") || str_eq(text, "true")));
}

static bool v1_file_path(const struct session *s, const char *given,
                         char ret[static FILES_PATH_MAX])
{
    const char *base = given[0] == '/' ? "" : session_spec(s)->mount_path;
    return str_fmt(ret, FILES_PATH_MAX, "%s%s%s", base, given[0] == '/' ? "" : "/", given) >= 0;
}

static void fail_plain(struct http_request *req, const char *text)
{
    struct err err = {0};
    (void)err_set(&err, ERR_INVALID, "%s", text);
    front_fail(req, &err);
}

static struct v1_file *v1_file_at(struct http_request *req, const struct v1 *v, const char *tool,
                                  const char *path)
{
    struct session *s = front_use_session(req, &v->front, tool);

    if (s == NULL)
        return NULL;
    struct v1_file *f = xnew(struct v1_file);
    f->req = req;
    f->v = v;
    if (path[0] == '\0' || !v1_file_path(s, path, f->path)) {
        free(f);
        fail_plain(req, "path must name a file inside the session, in less than 4096 bytes");
        return NULL;
    }
    f->session = s;
    session_hold(s);
    return f;
}

struct v1_file *v1_file_new(struct http_request *req, const struct v1 *v, const char *tool,
                            const char *member)
{
    char path[FILES_PATH_MAX];
    ssize_t n = http_request_query_get(req, member, path, sizeof(path));

    return v1_file_at(req, v, tool, n > 0 ? path : "");
}

void v1_file_free(struct v1_file *f)
{
    if (f == NULL)
        return;
    files_call_free(f->call);
    session_release(f->session);
    if (f->more_free != NULL)
        f->more_free(f->more);
    free(f);
}

static void record(const struct v1_file *f, const char *outcome, const char *reason)
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

/* Whoever asked is gone. What was to be changed may have been all the same. */
static void on_cancel(struct http_request *req, void *arg)
{
    struct v1_file *f = arg;

    if (f->change != NULL)
        record(f, "given_up", "whoever asked has gone");
    http_abort(req);
    v1_file_free(f);
}

bool v1_file_start(struct v1_file *f, struct files_ask *ask, const struct files_events *events)
{
    struct err err = {0};

    ask->root = "/";
    ask->path = f->path;
    if (files_start(f->session, ask, events, f, &f->call, &err) < 0) {
        front_fail(f->req, &err);
        v1_file_free(f);
        return false;
    }
    http_on_cancel(f->req, on_cancel, f);
    return true;
}

/* What HTTP has a status of its own for. */
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

/* What to do about it; those of sessions do not fit files. */
static const char *remedy_of(const struct files_failure *failure)
{
    static const char *const remedies[ERR_CODE_MAX] = {
        [ERR_NOT_FOUND] = "check the path; ?list= shows what is there",
        [ERR_INVALID] = "correct the path, or what is asked of it",
        [ERR_DENIED] = "use a place that the session's user may write, such as its workspace",
        [ERR_CONFLICT] = "look at what is there now, and decide anew",
    };

    if (failure->error == ENOSPC || failure->error == EDQUOT)
        return "delete files of the session, or give it more room";
    const char *text = failure->why != 0 ? remedies[failure->err.code] : NULL;
    return text != NULL ? text : front_remedy(&failure->err);
}

void v1_file_fail(struct v1_file *f, const struct files_failure *failure)
{
    unsigned status = status_of(failure);
    const struct err *err = &failure->err;
    char range[48];

    if (status == 416) {
        (void)snprintf(range, sizeof(range), "bytes */%llu", (unsigned long long)failure->n);
        (void)http_reply_header(f->req, "Content-Range", range);
    }
    http_reply_error(f->req, status, err_code_name(err->code), err->msg, remedy_of(failure));
    v1_file_free(f);
}

bool v1_file_recordable(struct v1_file *f, const char *change)
{
    struct audit *audit = f->v->front.service->audit;
    struct err err = {0};

    f->change = change;
    if (audit == NULL || audit_ready(audit, &err) == 0)
        return true;
    front_fail(f->req, &err);
    v1_file_free(f);
    return false;
}

void v1_file_record(const struct v1_file *f, const struct err *err)
{
    record(f, err == NULL ? "done" : err_code_name(err->code), err != NULL ? err->msg : NULL);
}

void v1_file_write_name(struct jw *w, const char *key, const char *name, size_t len)
{
    char bytes[32];

    jw_key(w, key);
    jw_strn(w, name, len);
    if (utf8_valid(name, len))
        return;
    char *base64 = xcalloc(1, 4 * ((len + 2) / 3) + 1);
    http_base64(name, len, base64);
    (void)snprintf(bytes, sizeof(bytes), "%s_base64", key);
    jw_kstr(w, bytes, base64);
    free(base64);
}

void v1_file_write_stat(struct jw *w, const struct files_stat *st)
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

/* Listing. */

struct listing {
    struct buf out;
    struct jw w;
    char *last; /* owned; the name of the last entry */
};

static void listing_free(void *arg)
{
    struct listing *l = arg;
    buf_done(&l->out);
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
    jw_object(&l->w);
    v1_file_write_name(&l->w, "name", name, e.name_len);
    v1_file_write_stat(&l->w, &e.stat);
    if (e.target_len > 0)
        v1_file_write_name(&l->w, "target", name + e.name_len, e.target_len);
    jw_object_end(&l->w);
    free(l->last);
    l->last = xstrndup(name, e.name_len);
}

static void on_listed(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct v1_file *f = arg;
    struct listing *l = f->more;

    if (failure != NULL) {
        v1_file_fail(f, failure);
        return;
    }
    jw_array_end(&l->w);
    v1_file_write_name(&l->w, "path", f->path, strlen(f->path));
    jw_ku64(&l->w, "total", done->total);
    jw_kbool(&l->w, "truncated", done->cut != FILES_CUT_NONE);
    if (done->cut != FILES_CUT_NONE && l->last != NULL)
        v1_file_write_name(&l->w, "next", l->last, strlen(l->last));
    jw_object_end(&l->w);
    front_reply_json(f->req, 200, &l->out, &l->w);
    v1_file_free(f);
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
        fail_plain(req, "after must be a name of an earlier answer, and limit at least 1");
        return;
    }
    struct v1_file *f = v1_file_new(req, v, "read", "list");
    if (f == NULL)
        return;
    struct listing *l = xnew(struct listing);
    f->more = l;
    f->more_free = listing_free;
    buf_init(&l->out, ANSWER_MAX);
    jw_init(&l->w, &l->out);
    jw_object(&l->w);
    jw_key(&l->w, "entries");
    jw_array(&l->w);
    struct files_ask ask = {.head = {.op = FILES_LIST, .length = limit},
                            .a = {after, strlen(after)},
                            .timeout_ns = FILES_TIMEOUT_NS};
    (void)v1_file_start(f, &ask, &events);
}

/* One file in words; and what a change has left. */

static void stat_free(void *arg)
{
    free(arg);
}

static void on_stat(void *arg, enum files_type type, const char *data, size_t len)
{
    struct v1_file *f = arg;

    if (type == FILES_FRAME_STAT && len == sizeof(struct files_stat))
        memcpy(f->more, data, len);
}

static void keep_stat(struct v1_file *f)
{
    f->more = xnew(struct files_stat);
    f->more_free = stat_free;
}

static void reply_stat(struct v1_file *f, unsigned status)
{
    AUTO_DONE(buf) struct buf out;
    const struct files_stat *st = f->more;
    char etag[FILES_ETAG_SIZE];
    struct jw w;

    buf_init(&out, ANSWER_MAX);
    files_etag(&st->tag, etag);
    (void)http_reply_header(f->req, "ETag", etag);
    jw_init(&w, &out);
    jw_object(&w);
    v1_file_write_name(&w, "path", f->path, strlen(f->path));
    v1_file_write_stat(&w, st);
    jw_object_end(&w);
    front_reply_json(f->req, status, &out, &w);
    v1_file_free(f);
}

static void on_stated(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    if (failure != NULL)
        v1_file_fail(arg, failure);
    else
        reply_stat(arg, 200);
}

static void stat_file(struct http_request *req, const struct v1 *v)
{
    static const struct files_events events = {.frame = on_stat, .finished = on_stated};
    struct v1_file *f = v1_file_new(req, v, "read", "stat");

    if (f == NULL)
        return;
    keep_stat(f);
    bool follow = v1_query_flag(req, "follow", false);
    struct files_ask ask = {.head = {.op = FILES_STAT, .flags = follow ? 0 : FILES_NOFOLLOW},
                            .timeout_ns = FILES_TIMEOUT_NS};
    (void)v1_file_start(f, &ask, &events);
}

static void get_files(struct http_request *req, void *arg)
{
    char ignored[FILES_PATH_MAX];

    if (http_request_query_get(req, "list", ignored, sizeof(ignored)) != -ENOENT)
        list_files(req, arg);
    else if (http_request_query_get(req, "stat", ignored, sizeof(ignored)) != -ENOENT)
        stat_file(req, arg);
    else
        v1_file_get(req, arg);
}

/* Changes. */

static void on_removed(void *arg, const struct files_done *done,
                       const struct files_failure *failure)
{
    struct v1_file *f = arg;

    v1_file_record(f, failure != NULL ? &failure->err : NULL);
    if (failure != NULL) {
        v1_file_fail(f, failure);
        return;
    }
    http_reply(f->req, 204, NULL, NULL, 0);
    v1_file_free(f);
}

static void delete_file(struct http_request *req, void *arg)
{
    static const struct files_events events = {.finished = on_removed};
    struct v1_file *f = v1_file_new(req, arg, "write", "path");
    struct files_ask ask = {.head = {.op = FILES_REMOVE}, .timeout_ns = FILES_TIMEOUT_NS};

    if (f == NULL || !v1_file_recordable(f, "DELETE"))
        return;
    v1_file_conditions(req, &ask.head);
    if (v1_query_flag(req, "recursive", false))
        ask.head.flags |= FILES_RECURSIVE;
    (void)v1_file_start(f, &ask, &events);
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

const struct model v1_change_model = {
    .name = "FileChange",
    .doc = "A change of a session's files that is no content.",
    .fields = change_fields,
    .n_fields = ARRAY_SIZE(change_fields),
    .size = sizeof(struct change),
};

/* What a change has left; first the stat, which others keep alone. */
struct changed {
    struct files_stat stat;
    char to[FILES_PATH_MAX]; /* of a move */
};

static void on_changed(void *arg, const struct files_done *done,
                       const struct files_failure *failure)
{
    struct v1_file *f = arg;
    const struct changed *c = f->more;

    v1_file_record(f, failure != NULL ? &failure->err : NULL);
    if (failure != NULL) {
        v1_file_fail(f, failure);
        return;
    }
    if (f->to != NULL)
        memcpy(f->path, c->to, sizeof(f->path));
    reply_stat(f, done->created ? 201 : 200);
}

static void start_change(struct http_request *req, const struct v1 *v, const struct change *c)
{
    static const struct files_events events = {.frame = on_stat, .finished = on_changed};
    struct files_ask ask = {.head = {.op = c->op == CHANGE_MOVE ? FILES_MOVE : FILES_MKDIR,
                                     .flags = c->parents ? FILES_PARENTS : 0},
                            .timeout_ns = FILES_TIMEOUT_NS};
    struct v1_file *f = v1_file_at(req, v, "write", c->path);

    if (f == NULL || !v1_file_recordable(f, c->op == CHANGE_MOVE ? "MOVE" : "MKDIR"))
        return;
    struct changed *kept = xnew(struct changed);
    f->more = kept;
    f->more_free = stat_free;
    if (c->op == CHANGE_MOVE) {
        if (c->to == NULL || c->to[0] == '\0' || !v1_file_path(f->session, c->to, kept->to)) {
            v1_file_free(f);
            fail_plain(req, "to must be a path inside the session");
            return;
        }
        f->to = kept->to;
        ask.a = (struct files_text){kept->to, strlen(kept->to)};
        ask.head.flags |= c->replace ? 0 : FILES_MUST_NOT_EXIST;
    }
    (void)v1_file_start(f, &ask, &events);
}

static void change_files(struct http_request *req, void *arg)
{
    AUTO(json) struct json *body = NULL;
    struct report report = {0};
    struct change c = {0};
    struct err err = {0};

    if (!front_read_body(req, &body))
        return;
    model_init(&v1_change_model, &c);
    if (front_strict(&v1_change_model, body, NULL, &err) < 0 ||
        (model_parse(&v1_change_model, body, 0, &c, &report) < 0 &&
         report_fail_plain(&report, &err) < 0))
        front_fail(req, &err);
    else
        start_change(req, arg, &c);
    model_done(&v1_change_model, &c);
}

static const struct http_route routes[] = {
    {"GET", "/v1/sessions/{id}/files", get_files, HTTP_ROUTE_SCOPED, 0},
    {"PUT", "/v1/sessions/{id}/files", v1_file_put, HTTP_ROUTE_SCOPED | HTTP_ROUTE_STREAM,
     V1_UPLOAD_MAX},
    {"DELETE", "/v1/sessions/{id}/files", delete_file, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/files", change_files, HTTP_ROUTE_SCOPED, BODY_MAX},
    {"GET", "/v1/sessions/{id}/files/watch", v1_file_watch, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int v1_files_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    return http_server_add_routes(server, routes, v, err);
}
