/* SPDX-License-Identifier: Apache-2.0 */

/* `box doctor --attack`: makes two throw-away sessions, brings box-attack in, lets it try
 * everything in a row of steps, has each judged, and removes the sessions whatever happens. */

#include "cli/attack/attack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/attack/host.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "spec/model.h"
#include "spec/spec.h"

#define BUDGET_NS (50 * NSEC_PER_SEC) /* for all attempts; cleaning up comes after */
#define CLEAN_NS (30 * NSEC_PER_SEC)
#define SLACK_NS (10 * NSEC_PER_SEC) /* how much later than a command's timeout boxd may answer */
#define MOMENT_NS (5 * NSEC_PER_SEC)
#define ANSWER_MAX (2u << 20)
#define CAPTURE_BYTES 65536
#define WALK_SEC 8
#define TRIED_MAX (1ULL << 30) /* bytes; a larger limit is not tried */
#define FILES_TRIED (1u << 20)
#define REPORT_MAX (4u << 20)

/* What the session for abuses asks for: little, so that its ends are reached soon. */
#define SMALL_MEMORY_MB 128
#define SMALL_PIDS 48
#define SMALL_CPUS 0.5
#define SMALL_DISK_MB 32

struct place {
    char id[32];
    char *program;        /* owned; path of box-attack inside; NULL: there is no such session */
    struct json *receipt; /* owned */
};

struct attack {
    struct app *app;
    const struct args *args;
    struct attack_host host;
    struct attack_report report;
    struct place usual; /* as sessions are here by default; the neighbour of the other */
    struct place small; /* with small limits */
    uint64_t begin;
};

static uint64_t left_ns(const struct attack *a)
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
    return post(a, "/v1/sessions", &body, left_ns(a) + SLACK_NS, ret, err);
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
                                           .idle_ns = left_ns(a) + SLACK_NS},
                     &answer, err);
}

static void remove_session(struct attack *a, struct place *p)
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
        remove_session(a, p); /* boxd may have made it all the same */
        return r;
    }
    const char *mount = json_str(json_get(answer, "mount_path"));
    p->program = xasprintf("%s/box-attack", mount != NULL ? mount : "/workspace");
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s", p->id);
    AUTO(json) struct json *session = NULL;
    r = call_json(
        a,
        &(struct app_request){.method = "GET", .target = target, .idle_ns = left_ns(a) + SLACK_NS},
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
        remove_session(a, p);
    return r;
}

static int open_small(struct attack *a, struct err *err)
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

struct order {
    const char *mode;
    unsigned timeout_sec;
    uint64_t limit; /* that an abuse is told */
};

/* Runs one mode of box-attack; *ret is what boxd says of its end. */
static int run_mode(struct attack *a, const struct place *p, struct order o, struct json **ret,
                    struct err *err)
{
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/exec", p->id);
    AUTO_DONE(buf) struct buf body;
    uint64_t most = left_ns(a), timeout_ns = o.timeout_sec * NSEC_PER_SEC;
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
    jw_kint(&w, "capture_bytes", CAPTURE_BYTES);
    jw_object_end(&w);
    (void)jw_end(&w);
    return post(a, target, &body, timeout_ns + SLACK_NS, ret, err);
}

static bool ended_as(const struct json *result, const char *outcome)
{
    return str_eq(json_str(json_get(result, "outcome")), outcome);
}

/* Why there is no word on an attempt. */
static void add_silent(struct attack *a, const struct place *p, const char *id,
                       const struct json *result)
{
    const char *outcome = json_str(json_get(result, "outcome"));
    const char *said = json_str(json_get(result, "stderr"));
    char text[200];

    (void)snprintf(text, sizeof(text), "box-attack did not come to its end: %s, exit code %lld %s",
                   outcome != NULL ? outcome : "-",
                   (long long)json_int(json_get(result, "exit_code")), said != NULL ? said : "");
    attack_add(&a->report, p->receipt, id, ATTACK_NA, text);
}

/* Steps. Each returns < 0 only where a signal ends the whole. */

struct step {
    const char *mode;
    const char *id;    /* of its one check, or of what is said when the program says nothing */
    const char *limit; /* abuse: the key of the receipt, NULL: none */
    int (*run)(struct attack *a, const struct step *s, struct err *err);
};

static int read_lines(struct attack *a, const struct place *p, const struct step *s,
                      const struct json *result)
{
    const struct json *out = json_get(result, "stdout");
    const char *text = json_str(out);
    bool ended = text != NULL && attack_read(&a->report, p->receipt, text, json_str_len(out));

    if (!ended)
        add_silent(a, p, s->id, result);
    return ended;
}

static int step_escape_in(struct attack *a, struct place *p, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    int r = run_mode(a, p, (struct order){s->mode, 40, 0}, &result, err);

    if (r == -EINTR)
        return r;
    if (r < 0)
        attack_add(&a->report, p->receipt, s->id, ATTACK_NA, err->msg);
    else if (read_lines(a, p, s, result) && str_eq(s->mode, "all"))
        a->report.has_escapes = true;
    return 0;
}

static int step_escape(struct attack *a, const struct step *s, struct err *err)
{
    return step_escape_in(a, &a->usual, s, err);
}

/* One session has something, the other one looks for it. */
static int step_neighbours(struct attack *a, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    int r = run_mode(a, &a->usual, (struct order){"neighbour", 10, 0}, &result, err);

    if (r == -EINTR)
        return r;
    if (r < 0 || json_int(json_get(result, "remaining")) == 0) {
        attack_add(&a->report, a->usual.receipt, s->id, ATTACK_NA, "no neighbour could be had");
        return 0;
    }
    return step_escape_in(a, &a->small, s, err);
}

/* What the session has, as the receipt says it, else what was asked for. */
static uint64_t limit_of(const struct place *p, const char *key)
{
    static const struct {
        const char *key;
        uint64_t asked;
    } small[] = {{"memory_bytes", (uint64_t)SMALL_MEMORY_MB << 20},
                 {"pids", SMALL_PIDS},
                 {"cpu_quota_us_per_100ms", (uint64_t)(SMALL_CPUS * 100000)},
                 {"disk_bytes", (uint64_t)SMALL_DISK_MB << 20}};
    const struct json *limit = json_get(json_get(p->receipt, "limits"), key);
    int64_t outer = json_int(json_get(limit, "host_bytes"));

    if (json_bool(json_get(limit, "enforced")))
        return (uint64_t)(outer > 0 ? outer : json_int(json_get(limit, "value")));
    for (size_t i = 0; i < ARRAY_SIZE(small); i++)
        if (str_eq(small[i].key, key))
            return small[i].asked;
    return FILES_TRIED;
}

/* A limit that ended the command, or the session where the receipt says that it may. */
static bool ended_by_limit(const struct place *p, const struct step *s, const struct json *result)
{
    const char *ends = json_str(json_get(p->receipt, "out_of_memory_ends"));

    return ended_as(result, "oom_killed") || ended_as(result, "quota_exceeded") ||
           (ended_as(result, "session_lost") && str_eq(s->limit, "memory_bytes") && ends != NULL &&
            strstr(ends, "session") != NULL);
}

static int step_abuse(struct attack *a, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    struct place *p = &a->small;
    uint64_t limit = limit_of(p, s->limit);
    char text[64];

    if (limit > TRIED_MAX) {
        (void)snprintf(text, sizeof(text), "the limit is %llu MiB, more than what is tried",
                       (unsigned long long)limit >> 20);
        attack_add(&a->report, p->receipt, s->id, ATTACK_NA, text);
        return 0;
    }
    int r = run_mode(a, p, (struct order){s->mode, 12, limit}, &result, err);
    if (r == -EINTR)
        return r;
    if (r < 0)
        attack_add(&a->report, p->receipt, s->id, ATTACK_NA, err->msg);
    else if (ended_by_limit(p, s, result))
        attack_add(&a->report, p->receipt, s->id, ATTACK_OK, json_str(json_get(result, "outcome")));
    else
        (void)read_lines(a, p, s, result);
    if (r < 0 || ended_as(result, "session_lost"))
        remove_session(a, p); /* the next step makes another */
    return 0;
}

/* The answer has what was asked for and no more, and says how much it was. */
static int step_flood(struct attack *a, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    int r = run_mode(a, &a->small, (struct order){s->mode, 12, 0}, &result, err);
    size_t shown = json_str_len(json_get(result, "stdout"));
    char text[100];

    if (r == -EINTR)
        return r;
    (void)snprintf(text, sizeof(text), "%lld bytes written, %zu kept",
                   (long long)json_int(json_get(result, "stdout_bytes")), shown);
    if (r >= 0 && ended_as(result, "exited"))
        attack_add(&a->report, a->small.receipt, s->id,
                   shown <= CAPTURE_BYTES ? ATTACK_OK : ATTACK_FAIL, text);
    else if (r >= 0)
        add_silent(a, &a->small, s->id, result);
    else
        attack_add(&a->report, a->small.receipt, s->id, ATTACK_FAIL, err->msg);
    return 0;
}

/* A program may end its own session, but boxd has to know. */
static int step_wedge(struct attack *a, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    AUTO(json) struct json *after = NULL;
    int r = run_mode(a, &a->small, (struct order){s->mode, 5, 0}, &result, err);

    if (r != -EINTR)
        r = run_mode(a, &a->small, (struct order){"alive", 10, 0}, &after, err);
    if (r == -EINTR)
        return r;
    bool lost = r >= 0 ? ended_as(after, "session_lost") : err->code == ERR_NOT_FOUND;
    if (r >= 0 && ended_as(after, "exited"))
        attack_add(&a->report, a->small.receipt, s->id, ATTACK_OK, "the session answers");
    else if (lost)
        attack_add(&a->report, a->small.receipt, s->id, ATTACK_OK, "the session ended");
    else
        attack_add(&a->report, a->small.receipt, s->id, ATTACK_FAIL,
                   r >= 0 ? "the session does not answer any more" : err->msg);
    if (r < 0 || !ended_as(after, "exited"))
        remove_session(a, &a->small);
    return 0;
}

static int step_stubborn(struct attack *a, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    int r = run_mode(a, &a->small, (struct order){s->mode, 1, 0}, &result, err);
    int64_t remaining = json_int(json_get(result, "remaining"));
    const char *outcome = json_str(json_get(result, "outcome"));
    char text[100];

    if (r == -EINTR)
        return r;
    (void)snprintf(text, sizeof(text), "%s, %lld processes left", outcome != NULL ? outcome : "-",
                   (long long)remaining);
    bool ended = ended_as(result, "timed_out") || ended_as(result, "session_lost");
    attack_add(&a->report, a->small.receipt, s->id,
               r >= 0 && ended && remaining <= 0 ? ATTACK_OK : ATTACK_FAIL,
               r >= 0 ? text : err->msg);
    return 0;
}

/* clang-format off */
static const struct step steps[] = {
    {"all", "A02", NULL, step_escape},
    {"uring", "B04b", NULL, step_escape},
    {"network", "D02", NULL, step_escape},
    {"neighbours", "M03", NULL, step_neighbours},
    {"forks", "E01", "pids", step_abuse},
    {"hog-anon", "E02", "memory_bytes", step_abuse},
    {"hog-memfd", "E03.memfd", "memory_bytes", step_abuse},
    {"hog-shm", "E03.shm", "memory_bytes", step_abuse},
    {"hog-pipe", "E03.pipe", "memory_bytes", step_abuse},
    {"hog-unix", "E03.unix", "memory_bytes", step_abuse},
    {"hog-tcp", "E03.tcp", "memory_bytes", step_abuse},
    {"hog-udp", "E03.udp", "memory_bytes", step_abuse},
    {"spin", "E05", "cpu_quota_us_per_100ms", step_abuse},
    {"flood", "E06", NULL, step_flood},
    {"files-open", "E08", "files", step_abuse},
    {"wedge", "E10.wedge", NULL, step_wedge},
    {"stubborn", "E11", NULL, step_stubborn},
    {"disk-write", "F01.write", "disk_bytes", step_abuse},
    {"disk-fallocate", "F01.fallocate", "disk_bytes", step_abuse},
    {"disk-unlinked", "F01.unlinked", "disk_bytes", step_abuse},
};
/* clang-format on */

static int run_step(struct attack *a, const struct step *s, struct err *err)
{
    struct err why = {0};

    if (left_ns(a) == 0) {
        attack_add(&a->report, NULL, s->id, ATTACK_NA, "the time for all attempts is over");
        return 0;
    }
    if (s->run != step_escape && a->small.program == NULL && open_small(a, &why) < 0) {
        if (a->app->signo != 0)
            return err_set(err, ERR_STATE, "interrupted");
        attack_add(&a->report, NULL, s->id, ATTACK_NA, why.msg);
        return 0;
    }
    return s->run(a, s, err);
}

static int check_backend(const struct attack *a, struct err *err)
{
    const char *wanted = a->args->backend;

    if (wanted == NULL || str_eq(a->report.backend, wanted))
        return 0;
    return err_set(err, ERR_CONFLICT,
                   "the boxd at %s makes sessions on %s, not on %s; start one with '--backend %s' "
                   "and name it in BOX_HOST",
                   a->app->endpoint, a->report.backend, wanted, wanted);
}

static int attempt_all(struct attack *a, struct err *err)
{
    int r = open_place(a, &a->usual, USUAL, err);

    if (r < 0)
        return err_wrap(err, "no session could be made to be attacked");
    const char *backend = json_str(json_get(a->usual.receipt, "backend"));
    const char *kernel = json_str(json_get(a->usual.receipt, "kernel"));
    (void)str_copy(a->report.backend, sizeof(a->report.backend), backend != NULL ? backend : "-");
    (void)str_copy(a->report.kernel, sizeof(a->report.kernel), kernel != NULL ? kernel : "host");
    r = check_backend(a, err);
    for (size_t i = 0; i < ARRAY_SIZE(steps) && r >= 0; i++)
        r = run_step(a, &steps[i], err);
    return r;
}

/* Also after Ctrl-C, which ended a wait and must not end these. */
static void clean_up(struct attack *a)
{
    int signo = a->app->signo;

    a->app->signo = 0;
    bool had = a->small.program != NULL;
    remove_session(a, &a->small);
    remove_session(a, &a->usual);
    if (had)
        attack_add(&a->report, NULL, "E10.remove", ATTACK_OK, "both sessions are gone");
    if (signo != 0)
        a->app->signo = signo;
}

/* The report. */

typedef int write_fn(const struct attack_report *r, struct buf *out);

static int find_writer(const struct args *args, write_fn **ret, struct err *err)
{
    static const struct {
        const char *name;
        write_fn *write;
    } formats[] = {
        {"text", attack_write_text}, {"json", attack_write_json}, {"junit", attack_write_junit}};
    const char *name = args->format != NULL ? args->format : args->json ? "json" : "text";

    for (size_t i = 0; i < ARRAY_SIZE(formats); i++) {
        if (!str_eq(formats[i].name, name))
            continue;
        *ret = formats[i].write;
        return 0;
    }
    return err_set(err, ERR_INVALID, "--format: '%s' is not one of text, json, junit", name);
}

static int deliver(const struct attack *a, int fd, write_fn *write_report, struct err *err)
{
    AUTO_DONE(buf) struct buf out;

    buf_init(&out, REPORT_MAX);
    int r = write_report(&a->report, &out);
    if (r < 0)
        return err_sys(err, -r, "write the report");
    if (fd < 0)
        return text_print(&out, err);
    /* What an earlier attack has left there stayed until now; a pipe has no length to cut. */
    if (ftruncate(fd, 0) < 0 && errno != EINVAL)
        return err_sys(err, errno, "'%s'", a->args->output);
    r = fd_write_all(fd, out.data, out.len);
    if (r < 0)
        return err_sys(err, -r, "'%s'", a->args->output);
    buf_reset(&out);
    r = attack_write_summary(&a->report, &out);
    return r < 0 ? err_sys(err, -r, "write the summary") : text_print(&out, err);
}

int verb_attack(struct app *app, const struct args *args, struct err *err)
{
    struct attack a = {.app = app,
                       .args = args,
                       .begin = clock_mono(&clock_system),
                       .host = {.tcp_fd = -1, .unix_fd = -1}};
    AUTO_CLOSE int fd = -1;
    write_fn *write_report = NULL;
    int r = find_writer(args, &write_report, err);

    /* Before a minute is spent on a report that has nowhere to go. */
    if (r >= 0 && args->output != NULL) {
        fd = open(args->output, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
        r = fd < 0 ? err_sys(err, errno, "'%s'", args->output) : 0;
    }
    if (r >= 0 && args->backend != NULL && setenv("BOX_BACKEND", args->backend, 1) < 0)
        r = err_sys(err, errno, "set BOX_BACKEND");
    if (r >= 0)
        r = app_connect(app, APP_ANY, err);
    if (r >= 0)
        r = attack_host_init(&a.host, app, err);
    if (r >= 0) {
        r = attempt_all(&a, err);
        clean_up(&a);
        a.report.duration_ms = (clock_mono(&clock_system) - a.begin) / NSEC_PER_MSEC;
    }
    if (r >= 0)
        r = deliver(&a, fd, write_report, err);
    if (r >= 0)
        r = attack_status(&a.report);
    attack_host_done(&a.host);
    attack_report_done(&a.report);
    return r;
}
