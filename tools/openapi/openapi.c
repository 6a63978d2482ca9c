/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the OpenAPI document from the served routes, the request models and the tables of
 * routes. */

#include "openapi.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "http/server/server_internal.h"
#include "spec/model.h"

#define JSON_TYPE "application/json"
#define PROBLEM_TYPE "application/problem+json"

/* Types. */

/* Whether a member of that type must be there. */
static int oa_type_required(const char *type)
{
    return type[0] != '~';
}

static void write_ref(const char *name, size_t len, struct jw *w)
{
    char ref[96];

    (void)str_fmt(ref, sizeof(ref), "#/components/schemas/%.*s", (int)len, name);
    jw_kstr(w, "$ref", ref);
}

static void write_words(const char *type, size_t len, struct jw *w)
{
    jw_kstr(w, "type", "string");
    jw_key(w, "enum");
    jw_array(w);
    for (const char *p = type, *end = type + len; p < end;) {
        size_t n = strcspn(p, "|]");
        jw_strn(w, p, n);
        p += n + 1;
    }
    jw_array_end(w);
}

static bool is_plain(const char *type, size_t len)
{
    static const char *const plain[] = {"string", "integer", "number", "boolean", "object"};

    for (size_t i = 0; i < ARRAY_SIZE(plain); i++)
        if (strlen(plain[i]) == len && strncmp(plain[i], type, len) == 0)
            return true;
    return false;
}

static void write_bare(const char *type, size_t len, bool nullable, struct jw *w)
{
    if (type[0] >= 'A' && type[0] <= 'Z' && memchr(type, '|', len) == NULL) {
        write_ref(type, len, w);
    } else if (!is_plain(type, len)) {
        write_words(type, len, w);
    } else if (nullable) {
        jw_key(w, "type");
        jw_array(w);
        jw_strn(w, type, len);
        jw_str(w, "null");
        jw_array_end(w);
    } else {
        jw_key(w, "type");
        jw_strn(w, type, len);
    }
}

static void oa_type_write(const char *type, struct jw *w)
{
    bool nullable = false;

    for (; *type == '~' || *type == '?'; type++)
        nullable = nullable || *type == '?';
    if (*type != '[') {
        write_bare(type, strlen(type), nullable, w);
        return;
    }
    jw_kstr(w, "type", "array");
    jw_key(w, "items");
    jw_object(w);
    write_bare(type + 1, strlen(type) - 2, false, w);
    jw_object_end(w);
}

/* Schemas. */

static void write_schema(const struct oa_schema *s, struct jw *w)
{
    jw_object(w);
    jw_kstr(w, "type", "object");
    jw_kstr(w, "description", s->doc);
    jw_key(w, "properties");
    jw_object(w);
    for (const struct oa_member *m = s->members; m->name != NULL; m++) {
        jw_key(w, m->name);
        jw_object(w);
        oa_type_write(m->type, w);
        jw_kstr(w, "description", m->doc);
        jw_object_end(w);
    }
    jw_object_end(w);
    jw_key(w, "required");
    jw_array(w);
    for (const struct oa_member *m = s->members; m->name != NULL; m++)
        if (oa_type_required(m->type))
            jw_str(w, m->name);
    jw_array_end(w);
    jw_object_end(w);
}

static void write_components(struct jw *w)
{
    jw_key(w, "components");
    jw_object(w);
    jw_key(w, "securitySchemes");
    jw_object(w);
    jw_key(w, "token");
    jw_object(w);
    jw_kstr(w, "type", "http");
    jw_kstr(w, "scheme", "bearer");
    jw_object_end(w);
    jw_object_end(w);
    jw_key(w, "schemas");
    jw_object(w);
    for (const struct oa_schema *s = oa_schemas; s->name != NULL; s++) {
        jw_key(w, s->name);
        write_schema(s, w);
    }
    for (const struct oa_route *r = oa_routes; r->method != NULL; r++)
        if (r->body != NULL) {
            jw_key(w, r->body->name);
            model_write_schema(r->body, w);
        }
    jw_object_end(w);
    jw_object_end(w);
}

/* Routes. */

static void write_param(const char *name, const char *in, const char *type, const char *doc,
                        struct jw *w)
{
    jw_object(w);
    jw_kstr(w, "name", name);
    jw_kstr(w, "in", in);
    jw_kbool(w, "required", oa_type_required(type));
    jw_kstr(w, "description", doc);
    jw_key(w, "schema");
    jw_object(w);
    oa_type_write(type, w);
    jw_object_end(w);
    jw_object_end(w);
}

static void write_path_params(const char *path, struct jw *w)
{
    static const struct {
        const char *name, *doc;
    } known[] = {{"id", "Name of the session."},
                 {"exec", "Id of the command."},
                 {"process", "Id of the process."},
                 {"output", "Id of the output."},
                 {"port", "Port of a server in the session."},
                 {"path", "Path at that server; it may have any number of segments, also none."},
                 {"tool", "Name of the tool."},
                 {"chat_id", "UUID of the chat, in any spelling."}};

    for (const char *p = strchr(path, '{'); p != NULL; p = strchr(p + 1, '{'))
        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
            if (strncmp(p + 1, known[i].name, strlen(known[i].name)) == 0 &&
                p[1 + strlen(known[i].name)] == '}')
                write_param(known[i].name, "path", "string", known[i].doc, w);
}

static void write_content(const char *type, const char *schema, struct jw *w)
{
    jw_key(w, "content");
    jw_object(w);
    jw_key(w, type != NULL ? type : JSON_TYPE);
    jw_object(w);
    jw_key(w, "schema");
    jw_object(w);
    if (schema != NULL) {
        oa_type_write(schema, w);
    } else {
        jw_kstr(w, "type", "string");
        if (type != NULL && str_eq(type, "application/octet-stream"))
            jw_kstr(w, "format", "binary");
    }
    jw_object_end(w);
    jw_object_end(w);
    jw_object_end(w);
}

static void write_answer(const char *status, const struct oa_answer *a, struct jw *w)
{
    jw_key(w, status);
    jw_object(w);
    jw_kstr(w, "description", a->doc);
    if (a->schema != NULL || a->type != NULL)
        write_content(a->type, a->schema, w);
    jw_object_end(w);
}

static void write_answers(const struct oa_route *r, struct jw *w)
{
    static const struct oa_answer problem = {.doc =
                                                 "A problem document: code, cause and remediation.",
                                             .schema = "Problem",
                                             .type = PROBLEM_TYPE};

    jw_key(w, "responses");
    jw_object(w);
    for (size_t i = 0; i < OA_ANSWERS_MAX && r->answers[i].status != 0; i++) {
        char status[8];
        (void)str_fmt(status, sizeof(status), "%u", r->answers[i].status);
        write_answer(status, &r->answers[i], w);
    }
    write_answer("default", &problem, w);
    jw_object_end(w);
}

static void write_body(const struct oa_route *r, struct jw *w)
{
    const char *schema = r->body != NULL ? r->body->name : r->body_name;

    if (schema == NULL && r->body_type == NULL)
        return;
    jw_key(w, "requestBody");
    jw_object(w);
    jw_kbool(w, "required", true);
    write_content(r->body_type, schema, w);
    jw_object_end(w);
}

static void write_operation(const struct oa_route *r, unsigned flags, struct jw *w)
{
    static const char *const methods[][2] = {{"GET", "get"},     {"POST", "post"},
                                             {"PUT", "put"},     {"DELETE", "delete"},
                                             {"PATCH", "patch"}, {"OPTIONS", "options"}};

    for (size_t i = 0; i < ARRAY_SIZE(methods); i++)
        if (str_eq(methods[i][0], r->method))
            jw_key(w, methods[i][1]);
    jw_object(w);
    jw_kstr(w, "operationId", r->id);
    jw_key(w, "tags");
    jw_array(w);
    jw_str(w, r->tag);
    jw_array_end(w);
    jw_kstr(w, "summary", r->summary);
    if (r->doc != NULL)
        jw_kstr(w, "description", r->doc);
    if ((flags & HTTP_ROUTE_OPEN) != 0) {
        jw_key(w, "security");
        jw_array(w);
        jw_array_end(w);
    }
    jw_key(w, "parameters");
    jw_array(w);
    write_path_params(r->path, w);
    for (const struct oa_param *p = r->params; p != NULL && p->name != NULL; p++)
        write_param(p->name, p->in, p->type, p->doc, w);
    jw_array_end(w);
    write_body(r, w);
    write_answers(r, w);
    jw_object_end(w);
}

/* Both tables hold the same. */

static const struct oa_route *find_doc(const struct http_route *route)
{
    for (const struct oa_route *r = oa_routes; r->method != NULL; r++)
        if (str_eq(r->method, route->method) && str_eq(r->path, route->pattern))
            return r;
    return NULL;
}

/* The routes that handlers with this argument have: table t of the server, or NULL. */
static const struct http_route *routes_of(const struct http_server *server, const void *arg,
                                          size_t t)
{
    return server->tables[t].arg == arg ? server->tables[t].routes : NULL;
}

/* The route of the server for a row; NULL: it has none. */
static const struct http_route *find_route(const struct http_server *server, const void *arg,
                                           const struct oa_route *row)
{
    for (size_t t = 0; t < server->n_tables; t++)
        for (const struct http_route *route = routes_of(server, arg, t);
             route != NULL && route->method != NULL; route++)
            if (str_eq(row->method, route->method) && str_eq(row->path, route->pattern))
                return route;
    return NULL;
}

static int check_tables(const struct http_server *server, const void *arg, struct err *err)
{
    for (size_t t = 0; t < server->n_tables; t++)
        for (const struct http_route *route = routes_of(server, arg, t);
             route != NULL && route->method != NULL; route++)
            /* What else is served here (metrics, chat sandboxes) is no part of this API. */
            if (str_starts(route->pattern, "/v1/") && find_doc(route) == NULL)
                return err_set(err, ERR_STATE, "%s %s is not described", route->method,
                               route->pattern);
    for (const struct oa_route *r = oa_routes; r->method != NULL; r++)
        if (find_route(server, arg, r) == NULL)
            return err_set(err, ERR_STATE, "%s %s is described, but not served", r->method,
                           r->path);
    return 0;
}

/* Operations of one path stand together, in the order of the first. */
static void write_paths(const struct http_server *server, const void *arg, struct jw *w)
{
    jw_key(w, "paths");
    jw_object(w);
    for (const struct oa_route *r = oa_routes; r->method != NULL; r++) {
        bool seen = false;
        for (const struct oa_route *o = oa_routes; o < r; o++)
            seen = seen || str_eq(o->path, r->path);
        if (seen)
            continue;
        jw_key(w, r->path);
        jw_object(w);
        for (const struct oa_route *o = r; o->method != NULL; o++)
            if (str_eq(o->path, r->path))
                write_operation(o, find_route(server, arg, o)->flags, w);
        jw_object_end(w);
    }
    jw_object_end(w);
}

int oa_write(const struct http_server *server, const void *arg, struct buf *out, struct err *err)
{
    struct jw w;
    int r = check_tables(server, arg, err);

    if (r < 0)
        return r;
    jw_init(&w, out);
    jw_object(&w);
    jw_kstr(&w, "openapi", "3.1.0");
    jw_key(&w, "info");
    jw_object(&w);
    jw_kstr(&w, "title", "Box");
    jw_kstr(&w, "version", BOX_VERSION);
    jw_kstr(&w, "description", "Sandboxes for agents. See docs/reference/http.md.");
    jw_key(&w, "license");
    jw_object(&w);
    jw_kstr(&w, "name", "Apache-2.0");
    jw_kstr(&w, "identifier", "Apache-2.0");
    jw_object_end(&w);
    jw_object_end(&w);
    jw_key(&w, "security");
    jw_array(&w);
    jw_object(&w);
    jw_key(&w, "token");
    jw_array(&w);
    jw_array_end(&w);
    jw_object_end(&w);
    jw_object(&w); /* the unix socket asks for none */
    jw_object_end(&w);
    jw_array_end(&w);
    write_paths(server, arg, &w);
    write_components(&w);
    jw_object_end(&w);
    r = jw_end(&w);
    if (r == 0)
        r = buf_putc(out, '\n');
    return r < 0 ? err_sys(err, -r, "write the OpenAPI document") : 0;
}
