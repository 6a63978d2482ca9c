/* SPDX-License-Identifier: Apache-2.0 */

/* `box doctor --attack`: makes two throw-away sessions, brings box-attack in, lets it try
 * everything in a row of steps, has each judged, and removes the sessions whatever happens. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/attack/internal.h"
#include "cli/io/app.h"
#include "cli/io/text.h"

#define REPORT_MAX (4u << 20)

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
    int r = attack_open_usual(a, err);

    if (r < 0)
        return err_wrap(err, "no session could be made to be attacked");
    const char *backend = json_str(json_get(a->usual.receipt, "backend"));
    const char *kernel = json_str(json_get(a->usual.receipt, "kernel"));
    (void)str_copy(a->report.backend, sizeof(a->report.backend), backend != NULL ? backend : "-");
    (void)str_copy(a->report.kernel, sizeof(a->report.kernel), kernel != NULL ? kernel : "host");
    r = check_backend(a, err);
    return r < 0 ? r : attack_steps(a, err);
}

/* Also after Ctrl-C, which ended a wait and must not end these. */
static void clean_up(struct attack *a)
{
    int signo = a->app->signo;

    a->app->signo = 0;
    bool had = a->small.program != NULL;
    attack_remove(a, &a->small);
    attack_remove(a, &a->usual);
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
