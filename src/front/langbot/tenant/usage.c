/* SPDX-License-Identifier: Apache-2.0 */

/* Runs the measuring script in a few sessions at once and adds up what they report. */

#include "front/langbot/tenant/usage.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "loop/loop.h"
#include "session/manager.h"
#include "session/process.h"
#include "session/run.h"
#include "spec/spec.h"

#define AT_ONCE 4U
#define ONE_NS (10 * NSEC_PER_SEC)
#define ALL_NS (30 * NSEC_PER_SEC)
#define OUTPUT_MAX 4096U

/* A line for each place: its number, KiB and files, or "-" when it is not there. What lies below as
 * another mount on the same file system counts, as nobody inside can tell. */
static const char script[] =
    "look() {\n"
    "  [ -n \"$2\" ] && [ -d \"$2\" ] || { echo \"$1 -\"; return; }\n"
    "  kib=$(du -skx \"$2\" 2>/dev/null)\n"
    "  echo \"$1 ${kib%%[!0-9]*} $(find \"$2\" -xdev -type f 2>/dev/null | wc -l)\"\n"
    "}\n"
    "look 0 \"$BOX_USAGE_WORKSPACE\"; look 1 \"$HOME/.cache\"; look 2 /tmp\n";

struct probe {
    struct usage *usage;
    struct run *run;         /* owned; NULL: this one is free */
    struct session *session; /* held */
};

struct usage {
    struct manager *m;
    const char *command;
    usage_fn *done;
    void *arg;
    struct session **sessions; /* owned, each held; those from `next` on are still to come */
    size_t n, next;
    struct probe probes[AT_ONCE];
    size_t busy;
    struct usage_report report;
    struct loop_timer timer;
    struct loop_defer defer;
};

static bool has_own_workspace(const struct spec *spec)
{
    return spec->host_path == NULL || spec->host_path_mode == MOUNT_NONE;
}

static size_t count_processes(struct session *s)
{
    size_t n = 0;
    for (struct process *p = process_next(s, NULL); p != NULL; p = process_next(s, p))
        n++;
    return n;
}

static void add(struct usage_amount *to, const struct usage_amount *one)
{
    to->exists |= one->exists;
    to->bytes += one->bytes;
    to->files += one->files;
}

/* "1 104 7": whoever wrote it is not to be trusted. */
static void read_line(const char *line, size_t len, struct usage_amount at[static USAGE_PLACE_MAX])
{
    char text[64], *save = NULL;
    uint64_t place, kib, files;
    if (len >= sizeof(text))
        return;
    memcpy(text, line, len);
    text[len] = '\0';
    const char *first = strtok_r(text, " ", &save), *second = strtok_r(NULL, " ", &save),
               *third = strtok_r(NULL, " ", &save);
    if (first == NULL || second == NULL || third == NULL || str_to_u64(first, &place) < 0 ||
        place >= USAGE_PLACE_MAX || str_to_u64(second, &kib) < 0 || kib > UINT32_MAX ||
        str_to_u64(third, &files) < 0 || files > UINT32_MAX)
        return;
    at[place] = (struct usage_amount){.exists = true, .bytes = kib * 1024, .files = files};
}

static void take_result(struct usage_report *r, struct session *s, const struct run_result *result)
{
    struct usage_amount at[USAGE_PLACE_MAX] = {{0}};
    bool own = has_own_workspace(session_spec(s));
    if (result->outcome.kind != OUTCOME_EXITED || result->outcome.exit_code != 0)
        return;
    const char *text = buf_str(&result->kept[EXEC_STDOUT]);
    for (const char *end; (end = strchr(text, '\n')) != NULL; text = end + 1)
        read_line(text, (size_t)(end - text), at);
    if (!own)
        at[USAGE_WORKSPACE] = (struct usage_amount){0};
    r->measured++;
    for (int i = 0; i < USAGE_PLACE_MAX; i++)
        add(&r->at[i], &at[i]);
    if (own && count_processes(s) > 0) {
        r->managed++;
        add(&r->managed_workspaces, &at[USAGE_WORKSPACE]);
    }
}

static void finish(struct loop_defer *d)
{
    struct usage *u = container_of(d, struct usage, defer);
    loop_timer_stop(&u->timer);
    u->done(u->arg, &u->report); /* may free us */
}

static void start_some(struct usage *u);

static void end_probe(struct probe *p)
{
    run_free(TAKE_PTR(p->run));
    session_release(TAKE_PTR(p->session));
    p->usage->busy--;
}

static void on_finished(void *arg, const struct run_result *result)
{
    struct probe *p = arg;
    take_result(&p->usage->report, p->session, result);
    end_probe(p);
    start_some(p->usage);
}

/* False: it has nothing to tell. */
static bool start(struct usage *u, struct session *s)
{
    static const struct run_events events = {.finished = on_finished};
    const struct spec *spec = session_spec(s);
    struct probe *p = u->probes;
    struct err err = {0};
    AUTO_FREE char *where =
        xasprintf("BOX_USAGE_WORKSPACE=%s", has_own_workspace(spec) ? spec->mount_path : "");
    char *env[] = {where, NULL};
    const struct run_options options = {
        .exec = {.cmd = u->command, .env = env, .cwd = "/", .timeout_ns = ONE_NS},
        .capture = OUTPUT_MAX,
        .quiet = true};
    while (p->run != NULL)
        p++;
    if (run_start(s, &options, &events, p, &p->run, &err) < 0) {
        log_debug(session_id(s), "measure its storage: %s; ignoring", err.msg);
        return false;
    }
    p->session = s;
    u->busy++;
    return true;
}

static void start_some(struct usage *u)
{
    while (u->busy < AT_ONCE && u->next < u->n) {
        struct session *s = u->sessions[u->next++];
        if (!start(u, s))
            session_release(s);
    }
    if (u->busy == 0)
        loop_defer_start(manager_loop(u->m), &u->defer, finish);
}

static void drop_rest(struct usage *u)
{
    while (u->next < u->n)
        session_release(u->sessions[u->next++]);
    for (size_t i = 0; i < AT_ONCE; i++) {
        if (u->probes[i].run == NULL)
            continue;
        run_kill(u->probes[i].run);
        end_probe(&u->probes[i]);
    }
}

static void on_late(struct loop_timer *t)
{
    struct usage *u = container_of(t, struct usage, timer);
    drop_rest(u);
    loop_defer_start(manager_loop(u->m), &u->defer, finish);
}

struct usage *usage_new(const struct usage_options *options, usage_fn *done, void *arg)
{
    struct manager *m = options->manager;
    struct usage *u = xnew(struct usage);
    u->m = m;
    u->command = options->command != NULL ? options->command : script;
    u->done = done;
    u->arg = arg;
    u->sessions = xnew_n(struct session *, manager_count(m) + 1);
    for (struct session *s = manager_next(m, NULL); s != NULL; s = manager_next(m, s)) {
        if (session_sandbox(s) == NULL || !str_starts(session_id(s), options->prefix))
            continue;
        session_hold(s);
        u->sessions[u->n++] = s;
        u->report.processes += count_processes(s);
    }
    u->report.sessions = u->n;
    for (size_t i = 0; i < AT_ONCE; i++)
        u->probes[i].usage = u;
    loop_timer_start(manager_loop(m), &u->timer, ALL_NS, on_late);
    start_some(u);
    return u;
}

void usage_free(struct usage *u)
{
    if (u == NULL)
        return;
    drop_rest(u);
    loop_timer_stop(&u->timer);
    loop_defer_stop(&u->defer);
    free(u->sessions);
    free(u);
}
