/* SPDX-License-Identifier: Apache-2.0 */

/* The steps of `box doctor --attack`: what is tried, in which session, and how its end is read. */

#include "cli/attack/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/io/app.h"

#define TRIED_MAX (1ULL << 30) /* bytes; a larger limit is not tried */
#define FILES_TRIED (1u << 20)

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
    int r = attack_run(a, p, (struct order){s->mode, 40, 0}, &result, err);

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
    AUTO(json) struct json *control = NULL;
    int r = attack_run(a, &a->usual, (struct order){"neighbour", 10, 0}, &result, err);

    /* Where it is, it can be seen: else nothing would be proved. */
    if (r >= 0)
        r = attack_run(a, &a->usual, (struct order){s->mode, 10, 0}, &control, err);
    if (r == -EINTR)
        return r;
    const char *seen = json_str(json_get(control, "stdout"));
    if (r < 0 || seen == NULL || strstr(seen, "M03.abstract FAIL") == NULL) {
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
    int r = attack_run(a, p, (struct order){s->mode, 12, limit}, &result, err);
    if (r == -EINTR)
        return r;
    if (r < 0)
        attack_add(&a->report, p->receipt, s->id, ATTACK_NA, err->msg);
    else if (ended_by_limit(p, s, result))
        attack_add(&a->report, p->receipt, s->id, ATTACK_OK, json_str(json_get(result, "outcome")));
    else
        (void)read_lines(a, p, s, result);
    if (r < 0 || ended_as(result, "session_lost"))
        attack_remove(a, p); /* the next step makes another */
    return 0;
}

/* The answer has what was asked for and no more, and says how much it was. */
static int step_flood(struct attack *a, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    int r = attack_run(a, &a->small, (struct order){s->mode, 12, 0}, &result, err);
    size_t shown = json_str_len(json_get(result, "stdout"));
    char text[100];

    if (r == -EINTR)
        return r;
    (void)snprintf(text, sizeof(text), "%lld bytes written, %zu kept",
                   (long long)json_int(json_get(result, "stdout_bytes")), shown);
    if (r >= 0 && ended_as(result, "exited"))
        attack_add(&a->report, a->small.receipt, s->id,
                   shown <= ATTACK_CAPTURE_BYTES ? ATTACK_OK : ATTACK_FAIL, text);
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
    int r = attack_run(a, &a->small, (struct order){s->mode, 5, 0}, &result, err);

    if (r != -EINTR)
        r = attack_run(a, &a->small, (struct order){"alive", 10, 0}, &after, err);
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
        attack_remove(a, &a->small);
    return 0;
}

static int step_stubborn(struct attack *a, const struct step *s, struct err *err)
{
    AUTO(json) struct json *result = NULL;
    int r = attack_run(a, &a->small, (struct order){s->mode, 1, 0}, &result, err);
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

    if (attack_left_ns(a) == 0) {
        attack_add(&a->report, NULL, s->id, ATTACK_NA, "the time for all attempts is over");
        return 0;
    }
    if (s->run != step_escape && a->small.program == NULL && attack_open_small(a, &why) < 0) {
        if (a->app->signo != 0)
            return err_set(err, ERR_STATE, "interrupted");
        attack_add(&a->report, NULL, s->id, ATTACK_NA, why.msg);
        return 0;
    }
    return s->run(a, s, err);
}

int attack_steps(struct attack *a, struct err *err)
{
    int r = 0;

    for (size_t i = 0; i < ARRAY_SIZE(steps) && r >= 0; i++)
        r = run_step(a, &steps[i], err);
    return r;
}
