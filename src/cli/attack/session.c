/* SPDX-License-Identifier: Apache-2.0 */

/* The throw-away sessions of `box doctor --attack`, and commands in them. */

#include "cli/attack/internal.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "spec/model.h"
#include "spec/spec.h"

#define BUDGET_NS (45 * NSEC_PER_SEC) /* for all attempts; cleaning up comes after */
#define CLEAN_NS (30 * NSEC_PER_SEC)
#define SLACK_NS (10 * NSEC_PER_SEC) /* how much later than a command's timeout boxd may answer */
#define MOMENT_NS (5 * NSEC_PER_SEC)
#define ANSWER_MAX (2u << 20)
#define WALK_SEC 8

uint64_t attack_left_ns(const struct attack *a)
{
    uint64_t used = clock_mono(&clock_system) - a->begin;
    return used < BUDGET_NS ? BUDGET_NS - used : 0;
}

static void place_done(struct place *p)
{
    free(p->program);
    json_free(p->receipt);
    memset(p, 0, sizeof(*p));
}

/* A call whose answer is JSON. */
static int call_json(struct attack *a, const struct app_request *req, struct json **ret,
                     struct err *err)
{
    AUTO_DONE(buf) struct buf body;

    buf_init(&body, ANSWER_MAX);
    int r = app_send(a->app, req, &body, err);
    if (r >= 0 && body.len > 0)
        r = json_parse(buf_str(&body), body.len, ret, err);
    return r;
}

static int post(struct attack *a, const char *target, const struct buf *body, uint64_t idle_ns,
                struct json **ret, struct err *err)
{
    return call_json(a,
                     &(struct app_request){.method = "POST",
                                           .target = target,
                                           .type = "application/json",
                                           .body = buf_str(body),
                                           .body_len = body->len,
                                           .idle_ns = idle_ns},
                     ret, err);
}

/* Sessions. */

/* How much of a small session is asked for: less where boxd does not allow it or cannot. */
enum smallness { USUAL, SMALL, SMALL_WITH_DISK };

static int create(struct attack *a, struct place *p, enum smallness small, struct json **ret,
                  struct err *err)
{
    AUTO_DONE(buf) struct buf body;
    struct jw w;
    char random[17];

    id_random(random);
    (void)str_fmt(p->id, sizeof(p->id), "attack-%s", random);
    buf_init(&body, 4096);
    jw_init(&w, &body);
    jw_object(&w);
    jw_kstr(&w, "session_id", p->id);
    if ((a->args->given & FIELD_BIT(SPEC_IMAGE)) != 0)
        jw_kstr(&w, "image", a->args->spec->image);
    if (small != USUAL) {
        jw_kint(&w, "memory_mb", SMALL_MEMORY_MB);
        jw_kint(&w, "pids_limit", SMALL_PIDS);
        jw_kreal(&w, "cpus", SMALL_CPUS);
    }
    if (small == SMALL_WITH_DISK)
        jw_kint(&w, "workspace_quota_mb", SMALL_DISK_MB);
    jw_object_end(&w);
    (void)jw_end(&w);
    return post(a, "/v1/sessions", &body, attack_left_ns(a) + SLACK_NS, ret, err);
}

static int bring_in(struct attack *a, const struct place *p, struct err *err)
{
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/files?path=%s&mode=755", p->id, p->program);
    AUTO(json) struct json *answer = NULL;

    return call_json(a,
                     &(struct app_request){.method = "PUT",
                                           .target = target,
                                           .type = "application/octet-stream",
                                           .body = a->host.program.data,
                                           .body_len = a->host.program.len,
                                           .idle_ns = attack_left_ns(a) + SLACK_NS},
                     &answer, err);
}

void attack_remove(struct attack *a, struct place *p)
{
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s", p->id);
    AUTO(json) struct json *answer = NULL;
    struct err err = {0};

    if (p->id[0] == '\0' || a->app->signo != 0)
        return; /* after a signal clean_up() does it */
    int r = call_json(
        a, &(struct app_request){.method = "DELETE", .target = target, .idle_ns = CLEAN_NS},
        &answer, &err);
    if (r < 0 && err.code != ERR_NOT_FOUND) {
        text_say("the session '%s' could not be removed: %s; 'box rm %s' tries again", p->id,
                 err.msg, p->id);
        attack_add(&a->report, p->receipt, "E10.remove", ATTACK_FAIL, err.msg);
    }
    place_done(p);
}

/* The session with box-attack in it and its receipt. Where it cannot be had, it is removed. */
static int open_place(struct attack *a, struct place *p, enum smallness small, struct err *err)
{
    AUTO(json) struct json *answer = NULL;
    int r = create(a, p, small, &answer, err);

    if (r < 0) {
        attack_remove(a, p); /* boxd may have made it all the same */
        return r;
    }
    const char *mount = json_str(json_get(answer, "mount_path"));
    p->program = xasprintf("%s/box-attack", mount != NULL ? mount : "/workspace");
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s", p->id);
    AUTO(json) struct json *session = NULL;
    r = call_json(a,
                  &(struct app_request){
                      .method = "GET", .target = target, .idle_ns = attack_left_ns(a) + SLACK_NS},
                  &session, err);
    const struct json *receipt = json_get(session, "receipt");
    if (r >= 0 && json_type(receipt) != JSON_OBJECT)
        r = err_set(err, ERR_BACKEND, "boxd gave no receipt of the session '%s'", p->id);
    if (r >= 0) {
        AUTO_DONE(buf) struct buf text;
        struct jw w;
        buf_init(&text, ANSWER_MAX);
        jw_init(&w, &text);
        jw_value(&w, receipt);
        r = json_parse(buf_str(&text), text.len, &p->receipt, err);
    }
    if (r >= 0)
        r = bring_in(a, p, err);
    if (r < 0)
        attack_remove(a, p);
    return r;
}

int attack_open_usual(struct attack *a, struct err *err)
{
    return open_place(a, &a->usual, USUAL, err);
}

int attack_open_small(struct attack *a, struct err *err)
{
    int r = -1;

    for (int small = SMALL_WITH_DISK; r < 0 && r != -EINTR && small >= USUAL; small--)
        r = open_place(a, &a->small, (enum smallness)small, err);
    return r;
}

/* Commands. */

static void put_argv(struct jw *w, const struct attack *a, const struct place *p, const char *mode,
                     uint64_t limit)
{
    char text[64];

    jw_key(w, "argv");
    jw_array(w);
    jw_str(w, p->program);
    jw_str(w, a->host.ns_option);
    jw_str(w, a->host.secret_option);
    for (size_t i = 0; i < a->host.n_addresses; i++)
        jw_str(w, a->host.address_options[i]);
    (void)str_fmt(text, sizeof(text), "--walk-sec=%d", WALK_SEC);
    jw_str(w, text);
    (void)str_fmt(text, sizeof(text), "--limit=%llu", (unsigned long long)limit);
    jw_str(w, text);
    jw_str(w, mode);
    jw_array_end(w);
}

int attack_run(struct attack *a, const struct place *p, struct order o, struct json **ret,
               struct err *err)
{
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/exec", p->id);
    AUTO_DONE(buf) struct buf body;
    uint64_t most = attack_left_ns(a), timeout_ns = o.timeout_sec * NSEC_PER_SEC;
    struct jw w;

    if (most < MOMENT_NS)
        most = MOMENT_NS; /* what was begun in time is brought to its end */
    if (timeout_ns > most)
        timeout_ns = most;
    buf_init(&body, 65536);
    jw_init(&w, &body);
    jw_object(&w);
    put_argv(&w, a, p, o.mode, o.limit);
    jw_kreal(&w, "timeout_sec", (double)timeout_ns / (double)NSEC_PER_SEC);
    jw_kint(&w, "capture_bytes", ATTACK_CAPTURE_BYTES);
    jw_object_end(&w);
    (void)jw_end(&w);
    return post(a, target, &body, timeout_ns + SLACK_NS, ret, err);
}
