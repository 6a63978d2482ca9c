/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The LangBot front on the fake backend, with a carrier of messages that is a list in memory: the
 * protocol needs nothing but text in and text out (row I05). */

#include "core_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "command/policy_service.h"
#include "front/langbot/langbot_internal.h"
#include "jobs/jobs.h"
#include "policy/error_ring.h"
#include "policy/policy.h"

#define SEC NSEC_PER_SEC
#define INSTANCE "inst-a"
#define NS1 "ws-5ae072b797fd533f5dc5cc63" /* of inst-a and ws-1 */
#define CTX(ws, gen)                                                                               \
    "\"context\":{\"instance_uuid\":\"" INSTANCE "\",\"workspace_uuid\":\"" ws                     \
    "\",\"placement_generation\":" #gen "}"
#define CTX1 CTX("ws-1", 1)

struct peer {
    struct langbot_conn *conn;
    char **heard; /* owned */
};

struct langbot_fixture {
    struct fixture f;
    struct policy *policy;
    struct policy_service service;
    struct langbot *rpc;
    struct peer a, b;
    char dir[64]; /* of our own */
    int dir_fd;
};

static inline void peer_hears(void *arg, const char *text, size_t len)
{
    struct peer *p = arg;
    strv_push(&p->heard, xstrndup(text, len));
}

static const struct langbot_transport peer_transport = {.send = peer_hears};

static inline void peer_open(struct langbot_fixture *x, struct peer *p, unsigned flags)
{
    *p = (struct peer){.conn = langbot_conn_new(x->rpc, &peer_transport, p, flags)};
}

static inline void peer_close(struct peer *p)
{
    langbot_conn_free(p->conn);
    p->conn = NULL;
}

static inline void start_with(struct langbot_fixture *x, const struct fake_options *fake,
                              const struct langbot_options *given)
{
    static const struct manager_options options = {.max_sessions = 100,
                                                   .max_processes = 64,
                                                   .max_exited = 256,
                                                   .exited_ns = 300 * SEC,
                                                   .ttl_ns = 300 * SEC};
    struct langbot_options o = given != NULL ? *given : (struct langbot_options){0};
    struct err err = {0};
    *x = (struct langbot_fixture){0};
    fixture_start(&x->f, fake, &options);
    (void)snprintf(x->dir, sizeof(x->dir), "/tmp/box-rpc-XXXXXX");
    assert_non_null(mkdtemp(x->dir));
    x->dir_fd = open(x->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(x->dir_fd >= 0);
    assert_int_equal(policy_new(&(struct policy_options){.cwd = "/"}, &x->policy, &err), 0);
    x->service =
        (struct policy_service){.policy = x->policy, .manager = x->f.m, .errors = error_ring_new()};
    o.service = &x->service;
    o.manager = x->f.m;
    o.spool_fd = x->dir_fd;
    if (o.instance == NULL && !o.legacy)
        o.instance = INSTANCE;
    assert_int_equal(langbot_new(&o, &x->rpc, &err), 0);
    peer_open(x, &x->a, o.legacy ? LANGBOT_CONN_BARE : 0);
    peer_open(x, &x->b, 0);
}

static inline void start_rpc(struct langbot_fixture *x)
{
    start_with(x, NULL, NULL);
}

static inline void stop_rpc(struct langbot_fixture *x)
{
    peer_close(&x->a);
    peer_close(&x->b);
    pump(&x->f);
    langbot_free(x->rpc);
    fixture_stop(&x->f);
    error_ring_free(x->service.errors);
    policy_free(x->policy);
    strv_free(x->a.heard);
    strv_free(x->b.heard);
    assert_int_equal(close(x->dir_fd), 0);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, x->dir), 0);
}

static inline void say(struct peer *p, const char *text)
{
    langbot_conn_message(p->conn, text, strlen(text));
}

/* A request: its action, its data, and the rest of the envelope ("" or CTX1). */
static inline void ask(struct peer *p, int seq, const char *action, const char *data,
                       const char *rest)
{
    AUTO_FREE char *text = xasprintf("{\"seq_id\":%d,\"action\":\"%s\",\"data\":%s%s%s}", seq,
                                     action, data, rest[0] != '\0' ? "," : "", rest);
    say(p, text);
}

/* The reply to that request, parsed (owned); NULL: there is none. */
static inline struct json *reply_to(const struct peer *p, int seq)
{
    for (char **t = p->heard; t != NULL && *t != NULL; t++) {
        struct json *v = NULL;
        struct err err = {0};
        assert_int_equal(json_parse(*t, strlen(*t), &v, &err), 0);
        if (json_int(json_get(v, "seq_id")) == seq)
            return v;
        json_free(v);
    }
    return NULL;
}

static inline bool is_answered(const struct peer *p, int seq)
{
    AUTO(json) struct json *v = reply_to(p, seq);
    return v != NULL;
}

static inline void expect_error(struct langbot_fixture *x, const struct peer *p, int seq,
                                const char *message)
{
    pump(&x->f);
    AUTO(json) struct json *v = reply_to(p, seq);
    assert_non_null(v);
    assert_string_equal(json_str(json_get(v, "message")), message);
    assert_int_equal(json_int(json_get(v, "code")), 1);
    assert_int_equal(json_len(json_get(v, "data")), 0);
    assert_int_equal(json_type(json_get(v, "data")), JSON_OBJECT);
    assert_string_equal(json_str(json_get(v, "chunk_status")), "continue");
    assert_non_null(json_str(json_get(v, "error_code")));
}

/* The data of a success, as compact text; owned. */
static inline char *expect_ok(struct langbot_fixture *x, const struct peer *p, int seq)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    pump(&x->f);
    buf_init(&out, 1 << 24);
    AUTO(json) struct json *v = reply_to(p, seq);
    if (v == NULL)
        fail_msg("no answer to %d", seq);
    assert_non_null(v);
    if (json_int(json_get(v, "code")) != 0)
        fail_msg("%s", json_str(json_get(v, "message")));
    assert_string_equal(json_str(json_get(v, "message")), "success");
    assert_string_equal(json_str(json_get(v, "chunk_status")), "continue");
    jw_init(&w, &out);
    jw_value(&w, json_get(v, "data"));
    assert_int_equal(jw_end(&w), 0);
    return buf_take(&out);
}

/* ask() and expect_*() in one, of the first peer. */
static inline char *ok(struct langbot_fixture *x, int seq, const char *action, const char *data,
                       const char *rest)
{
    ask(&x->a, seq, action, data, rest);
    return expect_ok(x, &x->a, seq);
}

static inline void done(struct langbot_fixture *x, int seq, const char *action, const char *data,
                        const char *rest)
{
    free(ok(x, seq, action, data, rest));
}

static inline void refused(struct langbot_fixture *x, int seq, const char *action, const char *data,
                           const char *rest, const char *message)
{
    ask(&x->a, seq, action, data, rest);
    expect_error(x, &x->a, seq, message);
}

/* The skill store, as the front sees it: what was asked for last, to be answered on demand. */
struct jobs {
    int calls;
    enum skills_op op;
    char workspace[NS_SIZE];
    char *root; /* owned */
    int zip_fd;
    char zip[32];
    char dir[256]; /* of hostdir_*() */
    jobs_done_fn *done;
    void *arg;
    struct submitted {
        const char *op;
        char dir[256];
        char *data; /* owned */
        jobs_done_fn *done;
        void *arg;
    } jobs[16]; /* of jobs_submit(), in order */
    size_t n_jobs;
};

void jobs_set_skills_root(struct jobs *s, const char *path)
{
    free(s->root);
    s->root = path != NULL ? xstrdup(path) : NULL;
}

void jobs_act_for(struct jobs *s, const uid_t *uid)
{
}

void jobs_add_place(struct jobs *s, const char *path)
{
}

/* NOLINTNEXTLINE(readability-function-size): as jobs/jobs.h has it. */
int jobs_skill(struct jobs *s, const char *workspace, enum skills_op op, const struct json *request,
               int zip_fd, jobs_done_fn *done_fn, void *arg, struct err *err)
{
    s->calls++;
    s->op = op;
    s->workspace[0] = '\0';
    if (workspace != NULL)
        assert_int_equal(str_copy(s->workspace, sizeof(s->workspace), workspace), 0);
    s->zip_fd = zip_fd;
    if (zip_fd >= 0)
        assert_true(read(zip_fd, s->zip, sizeof(s->zip) - 1) >= 0);
    s->done = done_fn;
    s->arg = arg;
    return 0;
}

int hostdir_ensure(struct jobs *s, const char *path, jobs_done_fn *done_fn, void *arg,
                   struct err *err)
{
    s->calls++;
    assert_int_equal(str_copy(s->dir, sizeof(s->dir), path), 0);
    s->done = done_fn;
    s->arg = arg;
    return 0;
}

int hostdir_measure(struct jobs *s, const char *path, const char *const *parts,
                    jobs_done_fn *done_fn, void *arg, struct err *err)
{
    return hostdir_ensure(s, path, done_fn, arg, err);
}

int hostdir_verify_marker(struct jobs *s, const char *path, const char *marker_name,
                          jobs_done_fn *done_fn, void *arg, struct err *err)
{
    return hostdir_ensure(s, path, done_fn, arg, err);
}

/* The queue behind session/artifacts.h: its jobs wait for job_answer(). */
static struct jobs *last_made;

int jobs_new(struct loop *loop, const struct jobs_options *options, struct jobs **ret,
             struct err *err)
{
    last_made = *ret = xnew(struct jobs);
    return 0;
}

void jobs_free(struct jobs *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->n_jobs; i++)
        free(s->jobs[i].data);
    free(s->root);
    free(s);
}

int jobs_submit(struct jobs *s, const struct job_request *request, jobs_done_fn *done_fn, void *arg,
                struct err *err)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;
    assert_true(s->n_jobs < ARRAY_SIZE(s->jobs));
    struct submitted *j = &s->jobs[s->n_jobs++];
    buf_init(&text, 65536);
    jw_init(&w, &text);
    jw_value(&w, request->data);
    assert_int_equal(jw_end(&w), 0);
    *j = (struct submitted){
        .op = request->kind->op, .data = buf_take(&text), .done = done_fn, .arg = arg};
    assert_int_equal(str_copy(j->dir, sizeof(j->dir), request->dir), 0);
    return 0;
}

/* `message` instead of a success, with its class. */
static inline void answer_with(jobs_done_fn *fn, void *arg, const char *json, const char *message)
{
    AUTO(json) struct json *data = NULL;
    struct err err = {0};
    if (json != NULL) {
        assert_int_equal(json_parse(json, strlen(json), &data, &err), 0);
        fn(arg, data, NULL);
        return;
    }
    const char *text = message != NULL ? strstr(message, ": ") : NULL;
    assert_non_null(text);
    AUTO_FREE char *class = xstrndup(message, (size_t)(text - message));
    fn(arg, NULL, &(struct job_failure){class, text + 2});
}

/* Answers the job that was submitted first, which must be this one. */
static inline void job_answer(struct jobs *s, const char *op, const char *message)
{
    assert_true(s->n_jobs > 0);
    struct submitted first = s->jobs[0];
    assert_string_equal(first.op, op);
    memmove(s->jobs, s->jobs + 1, --s->n_jobs * sizeof(first));
    free(first.data);
    answer_with(first.done, first.arg, message == NULL ? "{}" : NULL, message);
}

/* What the store says; `message` instead of a success, with its class. */
static inline void skills_answer(struct jobs *s, const char *json, const char *message)
{
    assert_non_null(s->done);
    jobs_done_fn *fn = s->done;
    s->done = NULL;
    answer_with(fn, s->arg, json, message);
}
