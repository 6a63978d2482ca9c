/* SPDX-License-Identifier: Apache-2.0 */

/* `box doctor --attack`: makes two throw-away sessions, brings box-attack in, lets it try
 * everything in a row of steps, has each judged, and removes the sessions whatever happens. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "cli/attack/report.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "config/config.h"
#include "spec/model.h"
#include "spec/spec.h"

#define PROGRAM_MAX (16u << 20)
#define CAPTURE_BYTES 65536
#define BUDGET_NS (45 * NSEC_PER_SEC) /* for all attempts; cleaning up comes after */
#define CLEAN_NS (30 * NSEC_PER_SEC)
#define SLACK_NS (10 * NSEC_PER_SEC) /* how much later than a command's timeout boxd may answer */
#define MOMENT_NS (5 * NSEC_PER_SEC)
#define ANSWER_MAX (2u << 20)
#define WALK_SEC 8
#define TRIED_MAX (1ULL << 30) /* bytes; a larger limit is not tried */
#define FILES_TRIED (1u << 20)
#define REPORT_MAX (4u << 20)

/* What the session for abuses asks for: little, so that its ends are reached soon. */
#define SMALL_MEMORY_MB 128
#define SMALL_PIDS 48
#define SMALL_CPUS 0.5
#define SMALL_DISK_MB 32

/* The host's side: the program that is brought in, what it is told of the host, and what it must
 * not be able to reach there. */

#define ATTACK_ADDRESSES 6

struct attack_host {
    struct buf program;  /* box-attack */
    char **options;      /* owned; what it is told: namespaces, the secret, port and addresses */
    int tcp_fd, unix_fd; /* owned; listen on the host, and never answer */
};

/* Namespaces, addresses and sockets are those of this machine: boxd has to be on it, too. */
static int check_local(const struct app *app, struct err *err)
{
    static const char *const here[] = {"unix://", "http://127.", "http://localhost",
                                       "http://[::1]"};

    for (size_t i = 0; i < ARRAY_SIZE(here); i++)
        if (str_starts(app->endpoint, here[i]))
            return 0;
    return err_set(err, ERR_INVALID,
                   "the attack is on the host of boxd: run it there, with BOX_HOST naming boxd's "
                   "socket or an address of the loopback");
}

static int read_program(struct attack_host *h, struct err *err)
{
    char path[PATH_MAX];
    int r = config_find_program("box-attack", path, err);

    if (r < 0)
        return r;
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    r = fd < 0 ? -errno : fd_read_to_buf(fd, &h->program);
    return r < 0 ? err_sys(err, -r, "read '%s'", path) : 0;
}

static void write_namespaces(struct attack_host *h)
{
    static const char *const names[] = {"cgroup", "ipc",  "mnt",  "net",
                                        "pid",    "time", "user", "uts"};
    AUTO_DONE(buf) struct buf text = BUF_INIT(1024);

    (void)buf_puts(&text, "--host-ns=");
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        char path[64];
        struct stat st;
        (void)str_fmt(path, sizeof(path), "/proc/self/ns/%s", names[i]);
        if (stat(path, &st) == 0)
            (void)buf_printf(&text, "%s%s=%llu", str_ends(buf_str(&text), "=") ? "" : ",", names[i],
                             (unsigned long long)st.st_ino);
    }
    strv_add(&h->options, buf_str(&text));
}

/* A name that only this process knows, and an abstract socket of that name. The program inside is
 * told it backwards, because its own arguments are one of the places where it looks. */
static int make_secret(struct attack_host *h, struct err *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char name[17], reversed[17];

    id_random(name);
    for (size_t i = 0; i < 16; i++)
        reversed[i] = name[15 - i];
    reversed[16] = '\0';
    strv_push(&h->options, xasprintf("--secret-reversed=%s", reversed));
    memcpy(at.sun_path + 1, name, 16);
    h->unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (h->unix_fd < 0 ||
        bind(h->unix_fd, (const struct sockaddr *)&at,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 17)) < 0 ||
        listen(h->unix_fd, 8) < 0)
        return err_sys(err, errno, "listen on an abstract socket");
    return 0;
}

static int listen_tcp(struct attack_host *h, struct err *err)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof(at);
    struct ifaddrs *all = NULL;

    h->tcp_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (h->tcp_fd < 0 || bind(h->tcp_fd, (const struct sockaddr *)&at, sizeof(at)) < 0 ||
        listen(h->tcp_fd, 8) < 0 || getsockname(h->tcp_fd, (struct sockaddr *)&at, &len) < 0)
        return err_sys(err, errno, "listen on this host");
    strv_push(&h->options, xasprintf("--port=%u", ntohs(at.sin_port)));
    size_t most = strv_len(h->options) + ATTACK_ADDRESSES;
    if (getifaddrs(&all) < 0)
        return err_sys(err, errno, "list the addresses of this host");
    for (const struct ifaddrs *i = all; i != NULL && strv_len(h->options) < most; i = i->ifa_next) {
        char text[INET_ADDRSTRLEN];
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET)
            continue;
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)i->ifa_addr;
        if (inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text)) != NULL)
            strv_push(&h->options, xasprintf("--host-address=%s", text));
    }
    freeifaddrs(all);
    return 0;
}

static int attack_host_init(struct attack_host *h, const struct app *app, struct err *err)
{
    memset(h, 0, sizeof(*h));
    h->tcp_fd = h->unix_fd = -1;
    buf_init(&h->program, PROGRAM_MAX);
    write_namespaces(h);
    int r = check_local(app, err);
    if (r >= 0)
        r = read_program(h, err);
    if (r >= 0)
        r = make_secret(h, err);
    if (r >= 0)
        r = listen_tcp(h, err);
    return r;
}

static void attack_host_done(struct attack_host *h)
{
    fd_close_many((int[]){h->tcp_fd, h->unix_fd}, 2);
    buf_done(&h->program);
    strv_free(h->options);
}

struct attack_place {
    char id[32];
    char *program;        /* owned; path of box-attack inside; NULL: there is no such session */
    struct json *session; /* owned; boxd's description of it */
    const struct json *receipt; /* of that */
};

struct attack {
    struct app *app;
    const struct args *args;
    struct attack_host host;
    struct attack_report report;
    struct attack_place usual; /* as sessions are here by default; the neighbour of the other */
    struct attack_place small; /* with small limits */
    uint64_t begin;
};

struct attack_order {
    const char *mode;
    unsigned timeout_sec;
    uint64_t limit; /* that an abuse is told */
};

static uint64_t time_left_ns(const struct attack *a)
{
    uint64_t used = clock_mono(&clock_system) - a->begin;
    return used < BUDGET_NS ? BUDGET_NS - used : 0;
}

/* A call whose answer is JSON; a body is JSON too unless `type` says otherwise. */
static int call_json(struct attack *a, struct app_request req, struct json **ret, struct err *err)
{
    AUTO_DONE(buf) struct buf body;

    if (req.body != NULL && req.type == NULL)
        req.type = "application/json";
    if (req.idle_ns == 0)
        req.idle_ns = time_left_ns(a) + SLACK_NS;
    buf_init(&body, ANSWER_MAX);
    int r = app_send(a->app, &req, &body, err);
    if (r >= 0 && body.len > 0)
        r = json_parse(buf_str(&body), body.len, ret, err);
    return r;
}

/* Sessions. */

/* How much of a small session is asked for: less where boxd does not allow it or cannot. */
enum smallness { USUAL, SMALL, SMALL_WITH_DISK };

static int create(struct attack *a, struct attack_place *p, enum smallness small, struct json **ret,
                  struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(4096);
    struct jw w = JW_INIT(&body);
    char random[17];

    id_random(random);
    (void)str_fmt(p->id, sizeof(p->id), "attack-%s", random);
    jw_object(&w);
    jw_kstr(&w, "session_id", p->id);
    if (args_given(a->args, SPEC_IMAGE))
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
    struct app_request req = {
        .method = "POST", .target = "/v1/sessions", .body = buf_str(&body), .body_len = body.len};
    return call_json(a, req, ret, err);
}

static int bring_in(struct attack *a, const struct attack_place *p, struct err *err)
{
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/files?path=%s&mode=755", p->id, p->program);
    AUTO(json) struct json *answer = NULL;

    struct app_request req = {.method = "PUT",
                              .target = target,
                              .type = "application/octet-stream",
                              .body = a->host.program.data,
                              .body_len = a->host.program.len};
    return call_json(a, req, &answer, err);
}

static void remove_place(struct attack *a, struct attack_place *p)
{
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s", p->id);
    AUTO(json) struct json *answer = NULL;
    struct err err = {0};

    if (p->id[0] == '\0' || a->app->signo != 0)
        return; /* after a signal clean_up() does it */
    struct app_request req = {.method = "DELETE", .target = target, .idle_ns = CLEAN_NS};
    int r = call_json(a, req, &answer, &err);
    if (r < 0 && err.code != ERR_NOT_FOUND) {
        text_say("the session '%s' could not be removed: %s; 'box rm %s' tries again", p->id,
                 err.msg, p->id);
        attack_add(&a->report, p->receipt, "E10.remove", ATTACK_FAIL, err.msg);
    }
    free(p->program);
    json_free(p->session);
    *p = (struct attack_place){0};
}

/* The session with box-attack in it and its receipt. Where it cannot be had, it is removed. */
static int open_place(struct attack *a, struct attack_place *p, enum smallness small,
                      struct err *err)
{
    AUTO(json) struct json *answer = NULL;
    int r = create(a, p, small, &answer, err);

    if (r < 0) {
        remove_place(a, p); /* boxd may have made it all the same */
        return r;
    }
    const char *mount = json_str(json_get(answer, "mount_path"));
    p->program = xasprintf("%s/box-attack", mount != NULL ? mount : "/workspace");
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s", p->id);
    struct app_request req = {.method = "GET", .target = target};
    r = call_json(a, req, &p->session, err);
    p->receipt = json_get(p->session, "receipt");
    if (r >= 0 && json_type(p->receipt) != JSON_OBJECT)
        r = err_set(err, ERR_BACKEND, "boxd gave no receipt of the session '%s'", p->id);
    if (r >= 0)
        r = bring_in(a, p, err);
    if (r < 0)
        remove_place(a, p);
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

static void put_argv(struct jw *w, const struct attack *a, const struct attack_place *p,
                     const char *mode, uint64_t limit)
{
    char text[64];

    jw_karray(w, "argv");
    jw_str(w, p->program);
    for (size_t i = 0; i < strv_len(a->host.options); i++)
        jw_str(w, a->host.options[i]);
    (void)str_fmt(text, sizeof(text), "--walk-sec=%d", WALK_SEC);
    jw_str(w, text);
    (void)str_fmt(text, sizeof(text), "--limit=%llu", (unsigned long long)limit);
    jw_str(w, text);
    jw_str(w, mode);
    jw_array_end(w);
}

static int run_mode(struct attack *a, const struct attack_place *p, struct attack_order o,
                    struct json **ret, struct err *err)
{
    AUTO_FREE char *target = xasprintf("/v1/sessions/%s/exec", p->id);
    AUTO_DONE(buf) struct buf body = BUF_INIT(65536);
    uint64_t most = time_left_ns(a), timeout_ns = o.timeout_sec * NSEC_PER_SEC;
    struct jw w = JW_INIT(&body);

    if (most < MOMENT_NS)
        most = MOMENT_NS; /* what was begun in time is brought to its end */
    if (timeout_ns > most)
        timeout_ns = most;
    jw_object(&w);
    put_argv(&w, a, p, o.mode, o.limit);
    jw_kreal(&w, "timeout_sec", (double)timeout_ns / (double)NSEC_PER_SEC);
    jw_kint(&w, "capture_bytes", CAPTURE_BYTES);
    jw_object_end(&w);
    (void)jw_end(&w);
    struct app_request req = {.method = "POST",
                              .target = target,
                              .body = buf_str(&body),
                              .body_len = body.len,
                              .idle_ns = timeout_ns + SLACK_NS};
    return call_json(a, req, ret, err);
}

/* Steps. */

static bool ended_as(const struct json *result, const char *outcome)
{
    return str_eq(json_str(json_get(result, "outcome")), outcome);
}

static void add_found(struct attack *a, const struct attack_place *p, const char *id,
                      enum attack_found found, const char *detail)
{
    attack_add(&a->report, p->receipt, id, found, detail);
}

/* Why there is no word on an attempt. */
static void add_silent(struct attack *a, const struct attack_place *p, const char *id,
                       const struct json *result)
{
    const char *outcome = json_str(json_get(result, "outcome"));
    const char *said = json_str(json_get(result, "stderr"));
    char text[200];

    (void)snprintf(text, sizeof(text), "box-attack did not come to its end: %s, exit code %lld %s",
                   outcome != NULL ? outcome : "-",
                   (long long)json_int(json_get(result, "exit_code")), said != NULL ? said : "");
    add_found(a, p, id, ATTACK_NA, text);
}

/* What a step finds after a signal does not matter: run_step() ends the whole then. */

struct step {
    const char *mode;
    const char *id;    /* of its one check, or of what is said when the program says nothing */
    const char *limit; /* abuse: the key of the receipt, NULL: none */
    void (*run)(struct attack *a, const struct step *s, struct err *err);
};

static int read_lines(struct attack *a, const struct attack_place *p, const struct step *s,
                      const struct json *result)
{
    const struct json *out = json_get(result, "stdout");
    const char *text = json_str(out);
    bool ended = text != NULL && attack_read(&a->report, p->receipt, text, json_str_len(out));

    if (!ended)
        add_silent(a, p, s->id, result);
    return ended;
}

static void step_escape_in(struct attack *a, struct attack_place *p, const struct step *s,
                           struct err *err)
{
    AUTO(json) struct json *result = NULL;
    int r = run_mode(a, p, (struct attack_order){s->mode, 40, 0}, &result, err);

    if (r < 0)
        add_found(a, p, s->id, ATTACK_NA, err->msg);
    else if (read_lines(a, p, s, result) && str_eq(s->mode, "all"))
        a->report.has_escapes = true;
}

static void step_escape(struct attack *a, const struct step *s, struct err *err)
{
    step_escape_in(a, &a->usual, s, err);
}

/* One session has something, the other one looks for it. */
static void step_neighbours(struct attack *a, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    AUTO(json) struct json *control = NULL;
    int r = run_mode(a, &a->usual, (struct attack_order){"neighbour", 10, 0}, &result, err);

    /* Where it is, it can be seen: else nothing would be proved. */
    if (r >= 0)
        r = run_mode(a, &a->usual, (struct attack_order){s->mode, 10, 0}, &control, err);
    const char *seen = json_str(json_get(control, "stdout"));
    if (r < 0 || seen == NULL || strstr(seen, "M03.abstract FAIL") == NULL) {
        add_found(a, &a->usual, s->id, ATTACK_NA, "no neighbour could be had");
        return;
    }
    step_escape_in(a, &a->small, s, err);
}

/* What the session has, as the receipt says it, else what was asked for. */
static uint64_t limit_of(const struct attack_place *p, const char *key)
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
static bool ended_by_limit(const struct attack_place *p, const struct step *s,
                           const struct json *result)
{
    const char *ends = json_str(json_get(p->receipt, "out_of_memory_ends"));

    return ended_as(result, "oom_killed") || ended_as(result, "quota_exceeded") ||
           (ended_as(result, "session_lost") && str_eq(s->limit, "memory_bytes") && ends != NULL &&
            strstr(ends, "session") != NULL);
}

static void step_abuse(struct attack *a, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    struct attack_place *p = &a->small;
    uint64_t limit = limit_of(p, s->limit);
    char text[64];

    if (limit > TRIED_MAX) {
        (void)snprintf(text, sizeof(text), "the limit is %llu MiB, more than what is tried",
                       (unsigned long long)limit >> 20);
        add_found(a, p, s->id, ATTACK_NA, text);
        return;
    }
    int r = run_mode(a, p, (struct attack_order){s->mode, 12, limit}, &result, err);
    if (r < 0)
        add_found(a, p, s->id, ATTACK_NA, err->msg);
    else if (ended_by_limit(p, s, result))
        add_found(a, p, s->id, ATTACK_OK, json_str(json_get(result, "outcome")));
    else
        (void)read_lines(a, p, s, result);
    if (r < 0 || ended_as(result, "session_lost"))
        remove_place(a, p); /* the next step makes another */
}

/* The answer has what was asked for and no more, and says how much it was. */
static void step_flood(struct attack *a, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    int r = run_mode(a, &a->small, (struct attack_order){s->mode, 12, 0}, &result, err);
    size_t shown = json_str_len(json_get(result, "stdout"));
    char text[100];

    (void)snprintf(text, sizeof(text), "%lld bytes written, %zu kept",
                   (long long)json_int(json_get(result, "stdout_bytes")), shown);
    if (r >= 0 && ended_as(result, "exited"))
        add_found(a, &a->small, s->id, shown <= CAPTURE_BYTES ? ATTACK_OK : ATTACK_FAIL, text);
    else if (r >= 0)
        add_silent(a, &a->small, s->id, result);
    else
        add_found(a, &a->small, s->id, ATTACK_FAIL, err->msg);
}

/* A program may end its own session, but boxd has to know. */
static void step_wedge(struct attack *a, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    AUTO(json) struct json *after = NULL;

    (void)run_mode(a, &a->small, (struct attack_order){s->mode, 5, 0}, &result, err);
    int r = run_mode(a, &a->small, (struct attack_order){"alive", 10, 0}, &after, err);
    bool lost = r >= 0 ? ended_as(after, "session_lost") : err->code == ERR_NOT_FOUND;
    if (r >= 0 && ended_as(after, "exited"))
        add_found(a, &a->small, s->id, ATTACK_OK, "the session answers");
    else if (lost)
        add_found(a, &a->small, s->id, ATTACK_OK, "the session ended");
    else
        add_found(a, &a->small, s->id, ATTACK_FAIL,
                  r >= 0 ? "the session does not answer any more" : err->msg);
    if (r < 0 || !ended_as(after, "exited"))
        remove_place(a, &a->small);
}

static void step_stubborn(struct attack *a, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    int r = run_mode(a, &a->small, (struct attack_order){s->mode, 1, 0}, &result, err);
    int64_t remaining = json_int(json_get(result, "remaining"));
    const char *outcome = json_str(json_get(result, "outcome"));
    char text[100];

    (void)snprintf(text, sizeof(text), "%s, %lld processes left", outcome != NULL ? outcome : "-",
                   (long long)remaining);
    bool ended = ended_as(result, "timed_out") || ended_as(result, "session_lost");
    add_found(a, &a->small, s->id, r >= 0 && ended && remaining <= 0 ? ATTACK_OK : ATTACK_FAIL,
              r >= 0 ? text : err->msg);
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

    if (time_left_ns(a) == 0) {
        attack_add(&a->report, NULL, s->id, ATTACK_NA, "the time for all attempts is over");
        return 0;
    }
    if (s->run != step_escape && a->small.program == NULL && open_small(a, &why) < 0) {
        if (a->app->signo != 0)
            return err_set(err, ERR_STATE, "interrupted");
        attack_add(&a->report, NULL, s->id, ATTACK_NA, why.msg);
        return 0;
    }
    s->run(a, s, err);
    return a->app->signo != 0 ? err_set(err, ERR_STATE, "interrupted") : 0;
}

/* The whole. */

static int attempt_all(struct attack *a, struct err *err)
{
    int r = open_place(a, &a->usual, USUAL, err);

    if (r < 0)
        return err_wrap(err, "no session could be made to be attacked");
    const char *backend = json_str(json_get(a->usual.receipt, "backend"));
    const char *kernel = json_str(json_get(a->usual.receipt, "kernel"));
    (void)str_copy(a->report.backend, sizeof(a->report.backend), backend != NULL ? backend : "-");
    (void)str_copy(a->report.kernel, sizeof(a->report.kernel), kernel != NULL ? kernel : "host");
    const char *wanted = a->args->backend;
    if (wanted != NULL && !str_eq(a->report.backend, wanted))
        return err_set(err, ERR_CONFLICT,
                       "the boxd at %s makes sessions on %s, not on %s; start one with '--backend "
                       "%s' and name "
                       "it in BOX_HOST",
                       a->app->endpoint, a->report.backend, wanted, wanted);
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
    remove_place(a, &a->small);
    remove_place(a, &a->usual);
    if (had)
        attack_add(&a->report, NULL, "E10.remove", ATTACK_OK, "both sessions are gone");
    if (signo != 0)
        a->app->signo = signo;
}

/* The report. */

static int deliver(const struct attack *a, int fd, struct err *err)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(REPORT_MAX);
    const char *format = a->args->format != NULL ? a->args->format
                         : a->args->json         ? "json"
                                                 : "text";

    int r = attack_write(&a->report, format, &out);
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
    r = attack_write(&a->report, "summary", &out);
    return r < 0 ? err_sys(err, -r, "write the summary") : text_print(&out, err);
}

int verb_attack(struct app *app, const struct args *args, struct err *err)
{
    struct attack a = {.app = app,
                       .args = args,
                       .begin = clock_mono(&clock_system),
                       .host = {.tcp_fd = -1, .unix_fd = -1}};
    AUTO_CLOSE int fd = -1;
    int r = 0;

    /* Before a minute is spent on a report that has nowhere to go. */
    if (args->output != NULL) {
        fd = open(args->output, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
        r = fd < 0 ? err_sys(err, errno, "'%s'", args->output) : 0;
    }
    if (r >= 0 && args->backend != NULL && setenv("BOX_BACKEND", args->backend, 1) < 0)
        r = err_sys(err, errno, "set BOX_BACKEND");
    if (r >= 0)
        r = app_connect(app, DAEMON_ANY, err);
    if (r >= 0)
        r = attack_host_init(&a.host, app, err);
    if (r >= 0) {
        r = attempt_all(&a, err);
        clean_up(&a);
        a.report.duration_ms = (clock_mono(&clock_system) - a.begin) / NSEC_PER_MSEC;
    }
    if (r >= 0)
        r = deliver(&a, fd, err);
    if (r >= 0)
        r = attack_status(&a.report);
    attack_host_done(&a.host);
    attack_report_done(&a.report);
    return r;
}
