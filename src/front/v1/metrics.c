/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the metrics page, and counts and logs each answered request. */

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent/chat/chat.h"
#include "backend/backend.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/v1/v1_internal.h"
#include "http/codec/http1.h"
#include "loop/loop.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/share.h"
#include "session/metrics.h"

#define TEXT_MAX (1U << 20)
#define TEXT_TYPE "text/plain; version=0.0.4; charset=utf-8"
#define PATH_SHOWN 256

/* The page, and the first error of writing it. */
struct metrics_page {
    struct buf out;
    int error;
    const struct v1 *v;
    const struct metrics *m;
    const struct authz_scope *scope; /* of the caller, or NULL */
};

__attribute__((format(printf, 2, 3))) static void page_printf(struct metrics_page *p,
                                                              const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int r = buf_vprintf(&p->out, fmt, ap);
    va_end(ap);
    if (p->error == 0)
        p->error = r;
}

static void page_head(struct metrics_page *p, const char *name, const char *type, const char *help)
{
    page_printf(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void page_value(struct metrics_page *p, const char *name, const char *type, const char *help,
                       uint64_t value)
{
    page_head(p, name, type, help);
    page_printf(p, "%s %" PRIu64 "\n", name, value);
}

/* One line; `label` is a name of ours and needs no escape. */
static void page_labelled(struct metrics_page *p, const char *name, const char *label,
                          const char *value, uint64_t count)
{
    page_printf(p, "%s{%s=\"%s\"} %" PRIu64 "\n", name, label, value, count);
}

static void page_histogram(struct metrics_page *p, const char *name, const char *help,
                           const struct hist *h)
{
    uint64_t below = 0;

    page_head(p, name, "histogram", help);
    for (unsigned i = 0; i < HIST_BOUNDS; i++) {
        below += h->buckets[i];
        page_printf(p, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name,
                    (double)hist_bounds[i] / (double)NSEC_PER_SEC, below);
    }
    page_printf(p, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, hist_count(h));
    page_printf(p, "%s_sum %.9f\n", name, (double)h->sum_ns / (double)NSEC_PER_SEC);
    page_printf(p, "%s_count %" PRIu64 "\n", name, hist_count(h));
}

/* The numbers that a caller with a scope may see: what exists now in its sessions. */
static void put_seen(struct metrics_page *p)
{
    struct manager *m = p->v->front.manager;
    struct policy_counts n;

    policy_count_seen(m, p->scope, &n);
    page_head(p, "box_sessions", "gauge", "Sessions that exist now.");
    for (int i = 0; i < SESSION_STATE_MAX; i++)
        page_labelled(p, "box_sessions", "state", session_state_name((enum session_state)i),
                      n.by_state[i]);
    page_value(p, "box_sessions_max", "gauge", "Sessions that may exist at a time.",
               manager_get_options(m)->max_sessions);
    page_head(p, "box_processes", "gauge",
              "Managed processes that run, and ended ones remembered.");
    page_labelled(p, "box_processes", "state", "running", n.running);
    page_labelled(p, "box_processes", "state", "exited", n.exited);
}

static void put_sessions(struct metrics_page *p)
{
    static const char *const ends[METRICS_END_MAX] = {
        [METRICS_DELETED] = "deleted", [METRICS_EXPIRED] = "expired", [METRICS_LOST] = "lost"};

    page_value(p, "box_sessions_created_total", "counter", "Sessions made.",
               p->m->sessions_created);
    page_value(p, "box_sessions_adopted_total", "counter",
               "Sessions taken over from an earlier boxd.", p->m->sessions_adopted);
    page_value(p, "box_sessions_failed_total", "counter",
               "Sessions that could not be made or taken over.", p->m->sessions_failed);
    page_head(p, "box_sessions_ended_total", "counter", "Sessions that are gone, and why.");
    for (int i = 0; i < METRICS_END_MAX; i++)
        page_labelled(p, "box_sessions_ended_total", "reason", ends[i], p->m->sessions_ended[i]);
    page_histogram(p, "box_session_create_seconds",
                   "From the request for a session until it is ready.", &p->m->session_create);
}

static void put_execs(struct metrics_page *p)
{
    page_head(p, "box_execs_total", "counter", "Commands, by how they ended.");
    for (int i = 0; i < OUTCOME_KIND_MAX; i++)
        page_labelled(p, "box_execs_total", "outcome", outcome_name((enum outcome_kind)i),
                      p->m->execs[i]);
    page_labelled(p, "box_execs_total", "outcome", "abandoned",
                  p->m->execs[METRICS_EXEC_ABANDONED]);
    page_labelled(p, "box_execs_total", "outcome", "not_started", p->m->execs[METRICS_EXEC_FAILED]);
    page_value(p, "box_execs_running", "gauge", "Commands that run now.", p->m->execs_running);
    page_histogram(p, "box_exec_seconds", "How long commands took.", &p->m->exec);
    page_head(p, "box_exec_output_bytes_total", "counter", "Bytes that commands wrote.");
    page_labelled(p, "box_exec_output_bytes_total", "stream", "stdout",
                  p->m->output_bytes[EXEC_STDOUT]);
    page_labelled(p, "box_exec_output_bytes_total", "stream", "stderr",
                  p->m->output_bytes[EXEC_STDERR]);

    page_value(p, "box_processes_started_total", "counter", "Managed processes started.",
               p->m->processes_started);
    page_value(p, "box_processes_exited_total", "counter", "Managed processes that ended.",
               p->m->processes_exited);
    page_value(p, "box_process_output_bytes_total", "counter",
               "Bytes that managed processes wrote to stdout.", p->m->process_bytes);
}

static void put_http(struct metrics_page *p)
{
    const struct metrics_cells *t = &p->m->http;
    const struct http_server *server = p->v->server;
    size_t sockets = http_server_count_ws(server);

    page_head(p, "box_http_requests_total", "counter",
              "HTTP requests by route and status; status 0: the client left first.");
    for (size_t i = 0; i < METRICS_CELLS; i++)
        if (t->cells[i].a != NULL)
            page_printf(p,
                        "box_http_requests_total{method=\"%s\",route=\"%s\",status=\"%u\"} %" PRIu64
                        "\n",
                        t->cells[i].a, t->cells[i].b, t->cells[i].n, t->cells[i].count);
    if (t->rest > 0)
        page_printf(
            p,
            "box_http_requests_total{method=\"other\",route=\"other\",status=\"other\"} %" PRIu64
            "\n",
            t->rest);
    page_histogram(p, "box_http_request_seconds", "From a request's head to the end of its answer.",
                   &p->m->http_seconds);
    page_value(p, "box_http_answer_bytes_total", "counter", "Bytes of bodies answered.",
               p->m->http_bytes);
    page_head(p, "box_connections", "gauge", "Open connections.");
    page_labelled(p, "box_connections", "kind", "http", http_server_count(server) - sockets);
    page_labelled(p, "box_connections", "kind", "websocket", sockets);
    page_value(p, "box_websockets_opened_total", "counter", "WebSockets opened.", p->m->ws_opened);
}

static void put_rpc(struct metrics_page *p)
{
    const struct metrics_cells *t = &p->m->rpc;

    page_head(p, "box_rpc_calls_total", "counter",
              "Calls of LangBot clients by action and result.");
    for (size_t i = 0; i < METRICS_CELLS; i++)
        if (t->cells[i].a != NULL)
            page_printf(p, "box_rpc_calls_total{action=\"%s\",result=\"%s\"} %" PRIu64 "\n",
                        t->cells[i].a, t->cells[i].b, t->cells[i].count);
    page_histogram(p, "box_rpc_call_seconds", "From a call to its answer.", &p->m->langbot_seconds);
}

static void put_policy(struct metrics_page *p)
{
    const struct policy_service *s = p->v->front.service;

    page_head(p, "box_policy_refusals_total", "counter",
              "Requests that the policy or the scope of a token refused, by error.");
    for (int i = ERR_NONE + 1; i < ERR_CODE_MAX; i++)
        if (p->m->refused[i] > 0 || i == ERR_DENIED)
            page_labelled(p, "box_policy_refusals_total", "code", err_code_name((enum err_code)i),
                          p->m->refused[i]);
    if (s == NULL || s->audit == NULL)
        return;
    page_value(p, "box_audit_records_total", "counter",
               "Records of the audit log, since its chain began.", audit_count(s->audit));
    page_value(p, "box_audit_lost_total", "counter",
               "Records that could not be written: the disk was full or failed.",
               audit_lost(s->audit));
}

/* Names of tokens are the operator's choice, and at most as many as its file may hold. */
static void put_shares(struct metrics_page *p)
{
    static const struct {
        const char *name, *help;
    } gauges[SHARE_KIND_MAX] = {
        [SHARE_SESSIONS] = {"box_token_sessions", "Sessions that tokens have made."},
        [SHARE_EXECS] = {"box_token_execs", "Commands that run for tokens."},
        [SHARE_PROCESSES] = {"box_token_processes", "Managed processes that run for tokens."},
        [SHARE_OUTPUT] = {"box_token_output_bytes", "Bytes of outputs kept for tokens."},
    };
    const struct shares *all = p->v->front.service != NULL ? p->v->front.service->shares : NULL;

    for (int kind = 0; kind < SHARE_KIND_MAX; kind++) {
        page_head(p, gauges[kind].name, "gauge", gauges[kind].help);
        for (const struct share *s = shares_next(all, NULL); s != NULL; s = shares_next(all, s))
            if (authz_sees(p->scope, share_name(s), NULL))
                page_labelled(p, gauges[kind].name, "token", share_name(s),
                              share_used(s, (enum share_kind)kind));
    }
}

static void put_refusals(struct metrics_page *p)
{
    const struct shares *all = p->v->front.service != NULL ? p->v->front.service->shares : NULL;

    page_head(p, "box_share_refusals_total", "counter",
              "Requests refused because a token had its share already, by cap.");
    for (int kind = 0; kind < SHARE_OUTPUT; kind++) /* that one makes room instead */
        page_labelled(p, "box_share_refusals_total", "cap", share_cap_names[kind],
                      shares_refused(all, (enum share_kind)kind));
}

/* "sandbox.create.total" as box_sandbox_create_total. */
static void put_chats(struct metrics_page *p)
{
    struct chat_metric m;
    char name[64], last[64] = "";

    for (size_t i = 0; p->v->front.chat != NULL && chat_metric(p->v->front.chat, i, &m); i++) {
        (void)snprintf(name, sizeof(name), "box_%s", m.name);
        for (char *dot = name; (dot = strchr(dot, '.')) != NULL;)
            *dot = '_';
        if (!str_eq(name, last))
            page_head(p, name, m.gauge ? "gauge" : "counter",
                      m.gauge ? "Chat sandboxes that run." : "What was done for chat sandboxes.");
        if (m.result != NULL)
            page_labelled(p, name, "result", m.result, m.value);
        else
            page_printf(p, "%s %" PRIu64 "\n", name, m.value);
        (void)memcpy(last, name, sizeof(last));
    }
}

static uint64_t resident_bytes(void)
{
    char text[128];
    ssize_t n = fd_read_file_at(AT_FDCWD, "/proc/self/statm", text, sizeof(text));
    char *save = NULL;
    const char *word = n > 0 ? strtok_r(text, " ", &save) : NULL;
    uint64_t pages = 0;

    word = word != NULL ? strtok_r(NULL, " ", &save) : NULL;
    if (word == NULL || str_to_u64(word, &pages) < 0)
        return 0;
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint64_t n = 0;

    if (dir == NULL)
        return 0;
    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n > 3 ? n - 3 : 0; /* ".", ".." and the one that we read it by */
}

static double timeval_seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

/* Under the names that every client library of Prometheus uses. */
static void put_process(struct metrics_page *p)
{
    struct rusage usage = {0};
    struct rlimit files = {0};

    (void)getrusage(RUSAGE_SELF, &usage);
    (void)getrlimit(RLIMIT_NOFILE, &files);
    page_value(p, "process_resident_memory_bytes", "gauge", "Memory of boxd.", resident_bytes());
    page_value(p, "process_open_fds", "gauge", "Open descriptors of boxd.", open_fds());
    page_value(p, "process_max_fds", "gauge", "Descriptors that boxd may open.", files.rlim_cur);
    page_head(p, "process_cpu_seconds_total", "counter", "Processor time of boxd.");
    page_printf(p, "process_cpu_seconds_total %.6f\n",
                timeval_seconds(usage.ru_utime) + timeval_seconds(usage.ru_stime));
    page_head(p, "process_start_time_seconds", "gauge", "When boxd was started, since 1970.");
    page_printf(p, "process_start_time_seconds %.3f\n",
                (double)p->m->started_real / (double)NSEC_PER_SEC);
    page_histogram(p, "box_loop_turn_seconds",
                   "How long each turn of the event loop kept all others waiting.",
                   loop_turns(manager_loop(p->v->front.manager)));
}

static void put_build(struct metrics_page *p)
{
    const struct backend *backend = manager_backend(p->v->front.manager);

    page_head(p, "box_backend_up", "gauge", "Whether sandboxes can be had from the backend.");
    page_labelled(p, "box_backend_up", "backend", backend->ops->name,
                  backend_available(backend, NULL) == 0);
    page_head(p, "box_build_info", "gauge", "Constant 1.");
    page_printf(p, "box_build_info{version=\"%s\",backend=\"%s\"} 1\n", BOX_VERSION,
                backend->ops->name);
}

static void get_metrics(struct http_request *req, void *arg)
{
    static void (*const totals[])(struct metrics_page *) = {put_sessions, put_execs,  put_http,
                                                            put_rpc,      put_policy, put_refusals,
                                                            put_chats,    put_process};
    struct v1 *v = arg;
    struct metrics_page p = {
        .v = v, .m = manager_metrics(v->front.manager), .scope = front_caller(req)};

    if (!front_may(req, &v->front, "metrics"))
        return;
    buf_init(&p.out, TEXT_MAX);
    put_build(&p);
    put_seen(&p);
    put_shares(&p);
    /* The other metrics add up the work of all callers. */
    const bool whole = authz_sees(p.scope, NULL, NULL);
    for (size_t i = 0; whole && i < ARRAY_SIZE(totals); i++)
        totals[i](&p);
    if (!whole)
        page_printf(&p,
                    "# Counters of all callers are left out: token '%s' lacks sessions: [\"*\"].\n",
                    authz_name(p.scope));
    if (p.error < 0)
        http_reply_error(req, 500, "limit", "the answer is too large", NULL);
    else
        http_reply(req, 200, TEXT_TYPE, p.out.data, p.out.len);
    buf_done(&p.out);
}

const struct http_route v1_metrics_routes[] = {
    {"GET", "/metrics", get_metrics, HTTP_ROUTE_SCOPED, 0},
    {0},
};

/* Without the query: secrets have been seen in those. */
static void log_answer(const struct http_answer *a)
{
    enum log_level level = log_access_level();
    char path[PATH_SHOWN + 1];
    struct http1_str sent = http_request_head(a->req)->path;
    size_t len = sent.len < PATH_SHOWN ? sent.len : PATH_SHOWN;

    /* A failure of boxd is logged at every level; 503 (not ready) is no failure. */
    if (a->status >= 500 && a->status != 503 && level > LOG_LEVEL_WARN)
        level = LOG_LEVEL_WARN;
    if (len > 0)
        memcpy(path, sent.p, len);
    path[len] = '\0';
    const struct log_field fields[] = {
        {.key = "method", .text = http_request_method(a->req)},
        {.key = "path", .text = path},
        {.key = "status", .number = a->status},
        {.key = "bytes", .number = (int64_t)a->bytes},
        {.key = "duration_us", .number = (int64_t)(a->duration_ns / 1000)},
        {.key = "who", .text = a->status == 401 ? "nobody" : front_who(a->req)},
    };
    log_event(level, NULL, fields, ARRAY_SIZE(fields), "http");
}

void metrics_answered(struct manager *m, const struct http_answer *a)
{
    struct metrics *metrics = manager_metrics(m);
    const struct http_route *route = a->route;

    metrics_count(&metrics->http, route != NULL ? route->method : "other",
                  route != NULL ? route->pattern : "none", a->status);
    metrics->http_bytes += a->bytes;
    metrics->ws_opened += a->status == 101;
    if (a->req == NULL)
        return;
    if (a->status != 101)
        hist_add(&metrics->http_seconds, a->duration_ns);
    log_answer(a);
}
