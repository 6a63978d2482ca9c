/* SPDX-License-Identifier: Apache-2.0 */

/* Ports of sessions: requests that are passed on to a server inside, and the list of ports of the
 * host that lead to one. */

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "front/v1/v1_internal.h"
#include "http/proxy/proxy.h"
#include "policy/authz.h"
#include "session/ports.h"
#include "spec/model.h"

#define ANSWER_MAX 65536U
#define PREFIX_SEGMENTS 5 /* /v1/sessions/ID/ports/PORT */

/* The number in the path. False: answered. */
static bool read_port(struct http_request *req, uint16_t *ret)
{
    uint64_t n = 0;

    if (str_to_u64(http_request_param(req, "port"), &n) == 0 && n > 0 && n <= UINT16_MAX) {
        *ret = (uint16_t)n;
        return true;
    }
    front_failf(req, ERR_INVALID, "the port must be a number from 1 to 65535");
    return false;
}

/* Requests to a server inside ------------------------------------------------------------------ */

struct port_request {
    struct http_request *req; /* until the proxy has it */
    struct loop *loop;
    struct port_dial *dial;   /* owned */
    struct http_proxy *proxy; /* owned; NULL until connected */
    uint16_t port;
};

static void port_request_free(struct port_request *p)
{
    http_proxy_free(p->proxy);
    port_dial_free(p->dial);
    free(p);
}

static void on_ended(void *arg)
{
    port_request_free(arg);
}

/* What follows the prefix, as it was sent. */
static const char *path_below(const char *path)
{
    for (int i = 0; i < PREFIX_SEGMENTS + 1 && path != NULL; i++)
        path = strchr(path + (i > 0 ? 1 : 0), '/');
    return path;
}

static void on_connected(void *arg, int fd)
{
    struct port_request *p = arg;
    const char *path = http_request_path(p->req), *below = path_below(path);
    AUTO_FREE char *prefix = xstrndup(path, (size_t)(below - path));
    char host[32];

    (void)str_fmt(host, sizeof(host), "localhost:%u", p->port);
    p->proxy = http_proxy_new(TAKE_PTR(p->req), &(struct http_proxy_opts){.loop = p->loop,
                                                                          .fd = fd,
                                                                          .prefix = prefix,
                                                                          .path = below,
                                                                          .host = host,
                                                                          .ended = on_ended,
                                                                          .arg = p});
}

static void on_failed(void *arg, const struct err *err)
{
    struct port_request *p = arg;
    bool absent = err->code == ERR_UNAVAILABLE;

    if (absent)
        http_reply_error(p->req, 502, "bad_gateway", err->msg, NULL);
    else
        front_fail(p->req, err);
    port_request_free(p);
}

static void on_cut(void *arg)
{
    port_request_free(arg);
}

static void on_cancel(struct http_request *req, void *arg)
{
    port_request_free(arg);
    http_abort(req);
}

static void pass_request(struct http_request *req, void *arg)
{
    static const struct port_dial_events events = {on_connected, on_failed, on_cut};
    const struct v1 *v = arg;
    struct session *s = front_look_session(req, &v->front, "port");
    struct err err = {0};
    uint16_t port;

    if (s == NULL || !read_port(req, &port))
        return;
    struct port_request *p = xnew(struct port_request);
    p->req = req;
    p->port = port;
    p->loop = manager_loop(v->front.manager);
    if (port_dial_start(s, port, &events, p, &p->dial, &err) < 0) {
        front_fail(req, &err);
        free(p);
        return;
    }
    http_on_cancel(req, on_cancel, p);
}

/* Published ports ------------------------------------------------------------------------------ */

struct publication {
    char *host, *protocol; /* owned */
    int64_t host_port, port;
};

/* clang-format off */
static const struct field publication_fields[] = {
    {"port", FIELD_INT, FIELD_REQUIRED | FIELD_STRICT, offsetof(struct publication, port), .min = 1, .max = UINT16_MAX,
     .rule = "port must be from 1 to 65535", .strict_text = "port must be a number",
     .doc = "Port of the server in the session."},
    {"host", FIELD_STR, 0, offsetof(struct publication, host), .text = "127.0.0.1", .max = PORT_ADDRESS_MAX - 1,
     .doc = "Address of the host to listen on: loopback, or one that `ports.publish_addresses` names."},
    {"host_port", FIELD_INT, FIELD_STRICT, offsetof(struct publication, host_port), .min = 0, .max = UINT16_MAX,
     .rule = "host_port must be from 0 to 65535", .strict_text = "host_port must be a number",
     .doc = "Port of the host; 0: any that is free."},
    {"protocol", FIELD_STR, 0, offsetof(struct publication, protocol), .text = "tcp", .max = 16,
     .doc = "Only `tcp`."},
};
/* clang-format on */

const struct model v1_publication_model = {.name = "PortRequest",
                                           .doc = "A port to publish.",
                                           MODEL_FIELDS(publication_fields, struct publication)};

static void write_port(struct jw *w, const struct port_map_info *info)
{
    jw_kstr(w, "host", info->address);
    jw_kint(w, "host_port", info->host_port);
    jw_kint(w, "port", info->port);
    jw_kstr(w, "protocol", "tcp");
    jw_kbool(w, "listening", info->listening);
    jw_kint(w, "connections", info->connections);
}

static void list_ports(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct session *s = front_look_session(req, &v->front, "port");
    struct port_map_info info;

    if (s == NULL)
        return;
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, ANSWER_MAX);

    jw_karray(w, "ports");
    for (unsigned i = 0; session_port_at(s, i, &info); i++) {
        jw_object(w);
        write_port(w, &info);
        jw_object_end(w);
    }
    jw_array_end(w);
    front_reply(&out, req, 200);
}

static int check_publication(const struct manager *m, const struct publication *p, struct err *err)
{
    if (!str_eq(p->protocol, "tcp"))
        return err_set(err, ERR_UNSUPPORTED,
                       "only TCP ports can be published, not '%.16s'; leave /%.16s out",
                       p->protocol, p->protocol);
    return manager_may_publish(m, p->host, err);
}

static int read_publication(const struct v1 *v, const struct json *object,
                            struct port_map_info *ret, struct err *err)
{
    struct publication p = {0};
    int r = front_read(&v1_publication_model, object, NULL, &p, err);

    if (r < 0)
        return r;
    r = check_publication(v->front.manager, &p, err);
    *ret = (struct port_map_info){.host_port = (uint16_t)p.host_port, .port = (uint16_t)p.port};
    (void)str_copy(ret->address, sizeof(ret->address), p.host);
    model_done(&v1_publication_model, &p);
    return r;
}

struct v1_ports {
    unsigned n;
    struct port_map_info list[PORT_MAPS_MAX];
};

void v1_ports_free(struct v1_ports *p)
{
    free(p);
}

int v1_ports_parse(const struct v1 *v, const struct authz_scope *scope, const struct json *list,
                   struct v1_ports **ret, struct err *err)
{
    if (list == NULL)
        return 0;
    if (json_type(list) != JSON_ARRAY || json_len(list) > PORT_MAPS_MAX)
        return err_set(err, ERR_INVALID, "ports must be a list of at most %u objects",
                       PORT_MAPS_MAX);
    AUTO_FREE struct v1_ports *p = xnew(struct v1_ports);
    int r = authz_check_tool(scope, "port", err);
    for (size_t i = 0; r == 0 && i < json_len(list); i++)
        r = read_publication(v, json_at(list, i), &p->list[p->n++], err);
    if (r == 0)
        *ret = TAKE_PTR(p);
    return r;
}

int v1_ports_publish(struct v1_ports *p, struct session *s, struct err *err)
{
    int r = 0;

    for (unsigned i = 0; p != NULL && r == 0 && i < p->n; i++)
        r = session_publish(s, &p->list[i], err);
    return r;
}

void v1_ports_write(const struct v1_ports *p, struct jw *w)
{
    if (p == NULL)
        return;
    jw_karray(w, "ports");
    for (unsigned i = 0; i < p->n; i++) {
        jw_object(w);
        write_port(w, &p->list[i]);
        jw_object_end(w);
    }
    jw_array_end(w);
}

static void publish_port(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct session *s = front_use_session(req, &v->front, "port");
    AUTO(json) struct json *body = NULL;
    struct port_map_info info;
    struct err err = {0};

    if (s == NULL || !front_read_body(req, &body))
        return;
    int r = read_publication(v, body, &info, &err);
    if (r == 0)
        r = session_publish(s, &info, &err);
    if (r < 0) {
        front_fail(req, &err);
        return;
    }
    AUTO_DONE(front_answer) struct front_answer out;

    write_port(front_begin(&out, ANSWER_MAX), &info);
    front_reply(&out, req, 201);
}

static void unpublish_port(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct session *s = front_look_session(req, &v->front, "port");
    struct err err = {0};
    uint64_t host_port;
    uint16_t port;

    if (s == NULL || !read_port(req, &port) ||
        !v1_query_number(req, "host_port", UINT16_MAX, 0, &host_port))
        return;
    if (session_unpublish(s, port, (uint16_t)host_port, &err) < 0)
        front_fail(req, &err);
    else
        front_done(req, NULL);
}

#define PASSED HTTP_ROUTE_SCOPED | HTTP_ROUTE_STREAM | HTTP_ROUTE_BELOW, SIZE_MAX

const struct http_route v1_ports_routes[] = {
    {"GET", "/v1/sessions/{id}/ports", list_ports, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/ports", publish_port, HTTP_ROUTE_SCOPED, 0},
    {"DELETE", "/v1/sessions/{id}/ports/{port}", unpublish_port, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions/{id}/ports/{port}/{path}", pass_request, PASSED},
    {"POST", "/v1/sessions/{id}/ports/{port}/{path}", pass_request, PASSED},
    {"PUT", "/v1/sessions/{id}/ports/{port}/{path}", pass_request, PASSED},
    {"PATCH", "/v1/sessions/{id}/ports/{port}/{path}", pass_request, PASSED},
    {"DELETE", "/v1/sessions/{id}/ports/{port}/{path}", pass_request, PASSED},
    {"OPTIONS", "/v1/sessions/{id}/ports/{port}/{path}", pass_request, PASSED},
    {0},
};
