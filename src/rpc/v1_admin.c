/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core/audit.h"
#include "core/policy_service.h"
#include "http/server.h"
#include "rpc/v1_internal.h"
#include "util/buf.h"
#include "util/err.h"
#include "util/json.h"

#define ANSWER_MAX (8U << 20)
#define RECORDS_DEFAULT 100U
#define RECORDS_MAX 1000U

struct page {
    struct jw w;
    uint64_t last;
    bool broken; /* a line that is no JSON */
};

static void on_line(void *arg, uint64_t number, const char *line, size_t len)
{
    struct page *p = arg;
    AUTO(json) struct json *record = NULL;

    if (json_parse(line, len, &record, NULL) < 0)
        p->broken = true;
    else
        jw_value(&p->w, record);
    p->last = number;
}

static int write_page(const struct audit *a, uint64_t after, uint64_t limit, struct page *p,
                      struct err *err)
{
    jw_object(&p->w);
    jw_key(&p->w, "records");
    jw_array(&p->w);
    p->last = after;
    int r = audit_read(a, after, (size_t)limit, on_line, p, err);
    jw_array_end(&p->w);
    if (r == 0 && p->broken)
        r = err_set(err, ERR_STATE, "the audit log holds a line that is no record");
    jw_ku64(&p->w, "next_after", p->last);
    jw_key(&p->w, "log");
    audit_write_status(a, &p->w);
    jw_object_end(&p->w);
    return r;
}

/* after: the number of the last record that the caller has; limit: of records. */
static void get_audit(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    AUTO_DONE(buf) struct buf out;
    struct page page = {0};
    struct err err = {0};
    uint64_t after, limit;

    buf_init(&out, ANSWER_MAX);
    if (!v1_may(req, v, "audit") || !v1_query_number(req, "after", UINT64_MAX - 1, 0, &after) ||
        !v1_query_number(req, "limit", RECORDS_MAX, RECORDS_DEFAULT, &limit))
        return;
    if (v->service->audit == NULL) {
        http_reply_error(req, 404, "not_found", "nothing is recorded",
                         "set box.audit.enabled in boxd's configuration");
        return;
    }
    jw_init(&page.w, &out);
    if (write_page(v->service->audit, after, limit, &page, &err) < 0)
        http_reply_error(req, v1_status(&err), err_code_name(err.code), err.msg,
                         "`box audit verify` tells which line it is");
    else
        v1_reply_json(req, 200, &out, &page.w);
}

static const struct http_route routes[] = {
    {"GET", "/v1/audit", get_audit, HTTP_ROUTE_SCOPED, 0},
    {0},
};

int v1_admin_routes(struct http_server *server, struct v1 *v, struct err *err)
{
    return http_server_add_routes(server, routes, v, err);
}
