/* SPDX-License-Identifier: Apache-2.0 */

/* GET /v1/audit: pages of audit records, cut to what the caller's scope may see. */

#include <errno.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/v1/v1_internal.h"
#include "http/server/server.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"

#define ANSWER_MAX (8U << 20)
#define RECORDS_DEFAULT 100U
#define RECORDS_MAX 1000U
#define LOOK_MAX 10000U /* records looked at for one page of those that a scope sees */
#define CURSOR_TEXT 64U

struct page {
    struct jw w;
    const struct authz_scope *scope; /* of whoever asks */
    uint64_t after, limit;           /* as asked for */
    uint64_t last, looked, n;
    bool broken; /* a line that is no JSON */
};

/* A refusal concerns who was refused, and not the session that it asked for. Who asks by LangBot's
 * front is one of its workspaces, and no token of the same name. */
static bool sees_record(const struct authz_scope *scope, const struct json *record)
{
    const char *event = json_str(json_get(record, "event"));
    const char *via = json_str(json_get(record, "via"));
    const bool refusal = event != NULL && str_eq(event, "denied");
    const bool workspace = via != NULL && str_eq(via, "rpc");

    return authz_sees(scope, workspace ? NULL : json_str(json_get(record, "who")),
                      refusal ? NULL : json_str(json_get(record, "session")));
}

/* Number, hash and losses of a record tell of those between. */
static void write_cut(struct jw *w, const struct json *record)
{
    jw_object(w);
    for (void *it = json_iter(record); it != NULL; it = json_iter_next(record, it)) {
        const char *key = json_iter_key(it);
        if (str_eq(key, "seq") || str_eq(key, "prev") || str_eq(key, "lost"))
            continue;
        jw_key(w, key);
        jw_value(w, json_iter_value(it));
    }
    jw_object_end(w);
}

static void on_line(void *arg, uint64_t number, const char *line, size_t len)
{
    struct page *p = arg;
    AUTO(json) struct json *record = NULL;

    if (p->n == p->limit)
        return;
    p->last = number;
    p->looked++;
    if (json_parse(line, len, &record, NULL) < 0) {
        p->broken = true;
    } else if (authz_sees(p->scope, NULL, NULL)) {
        jw_value(&p->w, record);
        p->n++;
    } else if (sees_record(p->scope, record)) {
        write_cut(&p->w, record);
        p->n++;
    }
}

static void write_next(const struct v1 *v, struct page *p)
{
    char text[V1_CURSOR_SIZE];

    if (authz_sees(p->scope, NULL, NULL)) {
        jw_ku64(&p->w, "next_after", p->last);
        return;
    }
    v1_cursor_write(v, authz_name(p->scope), p->last, text);
    jw_kstr(&p->w, "next", text);
    jw_kbool(&p->w, "more", p->n > 0 || p->looked >= LOOK_MAX);
}

static int write_page(const struct v1 *v, struct page *p, struct err *err)
{
    const struct audit *a = v->front.service->audit;
    const bool whole = authz_sees(p->scope, NULL, NULL);
    uint64_t before;
    int r;

    jw_object(&p->w);
    jw_key(&p->w, "records");
    jw_array(&p->w);
    p->last = p->after;
    do {
        before = p->looked;
        r = audit_read(a, p->last, whole ? (size_t)p->limit : RECORDS_MAX, on_line, p, err);
    } while (r == 0 && p->n == 0 && p->looked > before && p->looked < LOOK_MAX);
    jw_array_end(&p->w);
    if (r == 0 && p->broken)
        r = err_set(err, ERR_STATE, "the audit log holds a line that is no record");
    write_next(v, p);
    jw_key(&p->w, "log");
    audit_write_status(a, whole, &p->w);
    jw_object_end(&p->w);
    return r;
}

/* Where to begin: by number, or for who sees only some of the records by the cursor of the page
 * before. False: answered. */
static bool read_start(struct http_request *req, const struct v1 *v, struct page *p)
{
    char text[CURSOR_TEXT] = "";

    if (authz_sees(p->scope, NULL, NULL))
        return v1_query_number(req, "after", UINT64_MAX - 1, 0, &p->after);
    ssize_t r = http_request_query_get(req, "cursor", text, sizeof(text));
    if (r == -ENOENT)
        return true;
    if (r >= 0 && v1_cursor_read(v, authz_name(p->scope), text, &p->after) &&
        p->after <= audit_count(v->front.service->audit))
        return true;
    http_reply_error(req, 400, "invalid", "cursor is none of this boxd and token",
                     "leave it out, or send `next` of the page before");
    return false;
}

/* after: the number of the last record that the caller has; limit: of records. */
static void get_audit(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    AUTO_DONE(buf) struct buf out;
    struct page page = {.scope = front_caller(req)};
    struct err err = {0};

    buf_init(&out, ANSWER_MAX);
    if (!front_may(req, &v->front, "audit") ||
        !v1_query_number(req, "limit", RECORDS_MAX, RECORDS_DEFAULT, &page.limit))
        return;
    if (v->front.service->audit == NULL) {
        http_reply_error(req, 404, "not_found", "nothing is recorded",
                         "set box.audit.enabled in boxd's configuration");
        return;
    }
    if (!read_start(req, v, &page))
        return;
    jw_init(&page.w, &out);
    if (write_page(v, &page, &err) < 0)
        http_reply_error(req, front_status(&err), err_code_name(err.code), err.msg,
                         "`box audit verify` tells which line it is");
    else
        front_reply_json(req, 200, &out, &page.w);
}

static const struct http_route routes[] = {
    {"GET", "/v1/audit", get_audit, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int v1_admin_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    return http_server_add_routes(server, routes, v, err);
}
