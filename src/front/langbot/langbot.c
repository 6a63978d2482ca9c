/* SPDX-License-Identifier: Apache-2.0 */

/* Creates the LangBot front, registers its HTTP routes and answers the health probes. */

#include "front/langbot/langbot.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "front/langbot/tenant/readiness.h"
#include "http/server/server.h"
#include "jobs/jobs.h"
#include "session/manager.h"

#define REAP_NS (30 * NSEC_PER_SEC)
#define HEALTH_MAX (64U * 1024)
#define JSON_TYPE "application/json; charset=utf-8"

static void on_reap(struct loop_timer *t)
{
    struct langbot *r = container_of(t, struct langbot, reaper);
    langbot_reap_grants(r);
    loop_timer_start(r->loop, t, REAP_NS, on_reap);
}

/* What the environment says, as if a client had said it first. */
static int preset(struct langbot *r, const char *text, struct err *err)
{
    AUTO(json) struct json *config = NULL;
    struct err parse_err = {0};
    if (text == NULL || text[0] == '\0')
        return 0;
    if (json_parse(text, strlen(text), &config, &parse_err) < 0 ||
        json_type(config) != JSON_OBJECT) {
        log_warn(NULL, "Failed to parse LANGBOT_BOX_CONFIG: %.100s", text);
        return 0;
    }
    return langbot_preset(r, config, err);
}

/* Sessions that were taken over say how far their workspaces have come: whoever was shut out before
 * we were started still is. */
static void find_generations(struct langbot *r)
{
    struct manager *m = r->o.manager;
    char ns[NS_SIZE];
    int64_t generation;
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s))
        if (tenant_of_physical(session_id(s), ns, &generation))
            fence_found(r->fence, ns, generation);
}

int langbot_new(const struct langbot_options *options, struct langbot **ret, struct err *err)
{
    AUTO(langbot) struct langbot *r = xnew(struct langbot);
    r->o = *options;
    r->loop = manager_loop(options->manager);
    r->limits = box_limits_default;
    r->sessions_max = manager_get_options(options->manager)->max_sessions;
    r->wanted = xstrdup("");
    r->fence = fence_new((size_t)r->limits.max_admission_records);
    r->admission = admission_new((size_t)r->limits.max_admission_records);
    r->readiness =
        readiness_new(&(struct readiness_options){.manager = options->manager,
                                                  .skills = options->skills,
                                                  .admission = r->admission,
                                                  .paths = &r->paths,
                                                  .limits = &r->limits,
                                                  .backend = langbot_selected,
                                                  .backend_arg = r,
                                                  .unsafe_storage = options->unsafe_storage});
    if (options->instance != NULL && !instance_id_valid(options->instance))
        return err_set(err, ERR_INVALID, "A valid trusted LangBot instance UUID is required");
    if (options->instance != NULL)
        r->instance = xstrdup(options->instance);
    int e = langbot_select_defaults(r, err);
    if (e == 0)
        e = preset(r, options->config, err);
    if (e < 0)
        return e;
    find_generations(r);
    loop_timer_start(r->loop, &r->reaper, REAP_NS, on_reap);
    *ret = TAKE_PTR(r);
    return 0;
}

void langbot_free(struct langbot *r)
{
    if (r == NULL)
        return;
    loop_timer_stop(&r->reaper);
    readiness_free(r->readiness);
    while (r->calls != NULL)
        langbot_call_free(r->calls);
    fence_free(r->fence);
    admission_free(r->admission);
    box_paths_done(&r->paths);
    free(r->instance);
    free(r->wanted);
    free(r);
}

/* Probes. */

static void reply(struct http_request *req, unsigned status, struct buf *out, struct jw *w)
{
    if (jw_end(w) < 0)
        http_reply_error(req, 500, "limit", "the answer is too large", NULL);
    else
        http_reply(req, status, JSON_TYPE, out->data, out->len);
}

/* Where several share boxd by tokens, how much all of them do is not for whoever can connect. */
static void write_resources(struct langbot *r, const struct http_request *req, struct jw *w)
{
    if (!r->o.quiet_probes || http_request_is_unix(req))
        langbot_write_resources(r, w);
}

static void get_healthz(struct http_request *req, void *arg)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, HEALTH_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kbool(&w, "live", true);
    write_resources(arg, req, &w);
    jw_object_end(&w);
    reply(req, 200, &out, &w);
}

struct probe {
    struct langbot *rpc;
    struct http_request *req;
};

static void on_readyz(void *arg, const struct readiness_report *report)
{
    AUTO_FREE struct probe *p = arg;
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, HEALTH_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    readiness_write(report, &w);
    write_resources(p->rpc, p->req, &w);
    jw_object_end(&w);
    reply(p->req, report->ready ? 200 : 503, &out, &w);
}

static void get_readyz(struct http_request *req, void *arg)
{
    struct langbot *r = arg;
    struct probe *p = xnew(struct probe);
    p->rpc = r;
    p->req = req;
    readiness_get(r->readiness, on_readyz, p);
}

/* These look after themselves who may pass; nobody needs to say who it is to a probe. */
static const struct http_route routes[] = {
    {"GET", "/healthz", get_healthz, HTTP_ROUTE_OPEN, 0},
    {"GET", "/readyz", get_readyz, HTTP_ROUTE_OPEN, 0},
    {"GET", "/rpc/ws", langbot_ws_open, HTTP_ROUTE_OPEN, 0},
    {"GET", "/v1/sessions/{session}/managed-process/{process}/ws", langbot_relay_open,
     HTTP_ROUTE_OPEN, 0},
    {"GET", "/v1/sessions/{session}/managed-process/ws", langbot_relay_open, HTTP_ROUTE_OPEN, 0},
    {0},
};

int langbot_routes(struct langbot *r, struct http_server *server, struct err *err)
{
    return http_server_add_routes(server, routes, r, err);
}
