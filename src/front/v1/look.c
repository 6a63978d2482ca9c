/* SPDX-License-Identifier: Apache-2.0 */

/* Looking into sessions that run: their processes, and what they use. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "front/v1/v1_internal.h"
#include "policy/authz.h"
#include "spec/spec.h"

#define ANSWER_MAX (8U << 20)
#define STATS_MAX (32U << 20)
#define STATS_AT_ONCE 64U
#define NAMES_MAX 8192U /* bytes; the head of a request has no more */

/* A client that waits for the list of processes. */
struct top_call {
    struct http_request *req;
    struct session *session; /* held */
    bool left;
};

static void on_top(void *arg, const struct backend_process *rows, size_t n, bool more,
                   const struct err *err)
{
    AUTO_FREE struct top_call *c = arg;

    if (err != NULL) {
        front_fail(c->req, err);
    } else {
        AUTO_DONE(front_answer) struct front_answer out;
        struct jw *w = front_begin(&out, ANSWER_MAX);

        jw_kstr(w, "session_id", session_id(c->session));
        front_write_top(
            w, &(struct front_top){
                   .session = c->session, .rows = rows, .n = n, .more = more, .left = c->left});
        front_reply(&out, c->req, 200);
    }
    session_release(c->session);
}

static void get_top(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct err err = {0};
    struct session *s = front_look_session(req, &v->front, "exec");

    if (s == NULL)
        return;
    struct top_call *c = xnew(struct top_call);
    *c = (struct top_call){
        .req = req, .session = s, .left = v1_query_flag(req, "background", false)};
    session_hold(s);
    if (front_ask_top(s, on_top, c, &err) < 0) {
        front_fail(req, &err);
        session_release(s);
        free(c);
    }
}

/* What sessions use --------------------------------------------------------------------------- */

struct stats_entry {
    struct session *session; /* held */
    struct inside_usage usage;
    uint64_t time_ns; /* when it was so, by a clock that never jumps; 0: it is not known */
    struct stats_call *call;
};

/* A client that waits for all of them. */
struct stats_call {
    struct http_request *req;
    struct stats_entry *entries; /* owned */
    size_t n, asked, waiting;
};

static void write_known(struct jw *w, const char *key, uint64_t n)
{
    if (n == INSIDE_UNKNOWN)
        jw_knull(w, key);
    else
        jw_ku64(w, key, n);
}

static void write_usage(struct jw *w, const struct stats_entry *e)
{
    const struct inside_usage *u = &e->usage;
    const struct {
        const char *key;
        uint64_t n;
    } members[] = {{"memory_bytes", u->memory_bytes},
                   {"memory_limit_bytes", u->memory_max},
                   {"pids", u->pids},
                   {"pids_limit", u->pids_max},
                   {"disk_bytes", u->disk_bytes},
                   {"disk_limit_bytes", u->disk_max},
                   {"network_received_bytes", u->received_bytes},
                   {"network_sent_bytes", u->sent_bytes}};

    jw_object(w);
    jw_kstr(w, "session_id", session_id(e->session));
    jw_kstr(w, "state", session_state_name(session_state(e->session)));
    jw_kreal(w, "cpus", session_spec(e->session)->cpus);
    jw_ku64(w, "time_usec", e->time_ns / 1000);
    write_known(w, "cpu_usec", u->cpu_ns == INSIDE_UNKNOWN ? u->cpu_ns : u->cpu_ns / 1000);
    for (size_t i = 0; i < ARRAY_SIZE(members); i++)
        write_known(w, members[i].key, members[i].n);
    jw_object_end(w);
}

static void stats_reply(struct stats_call *c)
{
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, STATS_MAX);

    jw_karray(w, "stats");
    for (size_t i = 0; i < c->n; i++)
        write_usage(w, &c->entries[i]);
    jw_array_end(w);
    front_reply(&out, c->req, 200);
    for (size_t i = 0; i < c->n; i++)
        session_release(c->entries[i].session);
    free(c->entries);
    free(c);
}

static void stats_ask(struct stats_call *c);

static void on_usage(void *arg, const struct inside_usage *usage)
{
    struct stats_entry *e = arg;

    if (usage != NULL)
        e->usage = *usage;
    e->time_ns = clock_boot(&clock_system);
    e->call->waiting--;
    stats_ask(e->call);
}

/* A few at a time: other requests to box-priv get their turn in between. */
static void stats_ask(struct stats_call *c)
{
    struct err ignored = {0};

    while (c->asked < c->n && c->waiting < STATS_AT_ONCE) {
        struct stats_entry *e = &c->entries[c->asked++];
        struct sandbox *sb = session_sandbox(e->session);
        if (session_state(e->session) == SESSION_READY && sb != NULL &&
            sb->backend->ops->usage != NULL &&
            sb->backend->ops->usage(sb, on_usage, e, &ignored) == 0)
            c->waiting++;
    }
    if (c->asked == c->n && c->waiting == 0)
        stats_reply(c);
}

/* Whether a session is one of those that were asked for: names with commas between them. */
static bool is_named(const char *names, const char *id)
{
    size_t len = strlen(id);

    for (const char *at = names; (at = strstr(at, id)) != NULL; at += len)
        if ((at == names || at[-1] == ',') && (at[len] == ',' || at[len] == '\0'))
            return true;
    return false;
}

static void get_stats(struct http_request *req, void *arg)
{
    struct manager *m = ((const struct v1 *)arg)->front.manager;
    AUTO_FREE char *names = xnew_n(char, NAMES_MAX);
    ssize_t len = http_request_query_get(req, "sessions", names, NAMES_MAX);
    size_t room = 0;

    if (len < 0 && len != -ENOENT) {
        front_failf(req, ERR_INVALID,
                    "sessions must be names with commas between them, of %u bytes", NAMES_MAX - 1);
        return;
    }
    struct stats_call *c = xnew(struct stats_call);
    c->req = req;
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (!authz_sees(front_caller(req), NULL, session_id(s)) ||
            (len >= 0 ? !is_named(names, session_id(s)) : session_state(s) != SESSION_READY))
            continue;
        if (c->n == room) {
            room = room * 2 + 16;
            c->entries = xreallocarray(c->entries, room, sizeof(*c->entries));
        }
        session_hold(s);
        c->entries[c->n] = (struct stats_entry){.session = s, .call = c};
        usage_unknown(&c->entries[c->n++].usage);
    }
    stats_ask(c);
}

const struct http_route v1_look_routes[] = {
    {"GET", "/v1/sessions/{id}/top", get_top, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/stats", get_stats, HTTP_ROUTE_SCOPED, 0},
    {0},
};
