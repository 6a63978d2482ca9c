/* SPDX-License-Identifier: Apache-2.0 */

/* The doctor's report of a choice: which backend serves, why the others do not, then its own
 * report. */

#include <stdio.h>
#include <stdlib.h>

#include "backend/choice_internal.h"
#include "backend/common.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "sandbox/host/hostcmd.h"

#define REPORT_MAX (128U * 1024U)

struct choice_report {
    struct choice *choice;
    backend_text_fn *done;
    void *arg;
};

static void check_candidate(struct jw *w, const struct choice *c, const struct choice_member *k)
{
    char id[64], detail[sizeof(k->why.msg) + 64];
    const char *status = "ok";
    (void)snprintf(id, sizeof(id), "backend-%s", k->def->name);
    if (k == c->serving && k->state == CANDIDATE_UP) {
        (void)snprintf(detail, sizeof(detail), "serves: it has made a sandbox and run a command");
    } else if (!choice_eligible(c, k)) {
        (void)snprintf(detail, sizeof(detail), "not used: the host asked for '%.40s'", c->only);
    } else if (k->state == CANDIDATE_DOWN) {
        status = c->serving != NULL ? "warn" : "missing";
        (void)snprintf(detail, sizeof(detail), "%s", k->why.msg);
    } else if (k->state == CANDIDATE_UP) {
        (void)snprintf(detail, sizeof(detail), "works; %s comes first", c->ops.name);
    } else {
        (void)snprintf(detail, sizeof(detail), "not tried: %s serves", c->ops.name);
    }
    doctor_check(w, id, status, detail, k->def->remedy);
}

/* Never chosen by itself, so that it is there is worth knowing. */
static void check_gvisor(struct jw *w)
{
    char found[200], detail[300];
    struct err err = {0};
    bool there = hostcmd_find("runsc", found, sizeof(found), &err) == 0;
    (void)snprintf(detail, sizeof(detail), "%.180s%s", there ? found : "runsc is not installed",
                   there ? ": for --backend runsc, and for docker and podman with "
                           "engine_runtime: runsc"
                         : "; where it is, there is --backend runsc, and docker and podman can use "
                           "it");
    doctor_check(w, "gvisor", "ok", detail, NULL);
}

static void write_report(const struct choice *c, const struct json *theirs, struct jw *w)
{
    const struct json *checks = json_get(theirs, "checks");
    jw_object(w);
    if (json_get(theirs, "version") == NULL)
        jw_kstr(w, "version", BOX_VERSION);
    for (void *it = json_iter(theirs); it != NULL; it = json_iter_next(theirs, it)) {
        const char *key = json_iter_key(it);
        if (str_eq(key, "checks") || str_eq(key, "backend"))
            continue;
        jw_kvalue(w, key, json_iter_value(it));
    }
    jw_kstr(w, "backend", c->serving != NULL ? c->serving->def->name : NULL);
    jw_karray(w, "checks");
    for (size_t i = 0; i < c->n; i++)
        check_candidate(w, c, &c->list[i]);
    check_gvisor(w);
    for (size_t i = 0; i < json_len(checks); i++)
        jw_value(w, json_at(checks, i));
    jw_array_end(w);
    jw_object_end(w);
}

static void report_tell(struct choice_report *r, const struct json *theirs, const struct err *err)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(REPORT_MAX);
    struct err large = {0};
    struct jw w = JW_INIT(&out);
    if (err == NULL)
        write_report(r->choice, theirs, &w);
    if (err == NULL && jw_end(&w) < 0) {
        (void)err_set(&large, ERR_LIMIT, "the report is too large");
        err = &large;
    }
    r->done(r->arg, err == NULL ? out.data : NULL, err == NULL ? out.len : 0, err);
    free(r);
}

static void on_theirs(void *arg, const char *json, size_t len, const struct err *err)
{
    AUTO(json) struct json *theirs = NULL;
    struct err bad = {0};
    if (err == NULL && json_parse(json, len, &theirs, &bad) < 0)
        err = &bad;
    report_tell(arg, theirs, err);
}

static void on_probed(void *arg, const struct err *err)
{
    struct choice_report *r = arg;
    struct backend *b = r->choice->serving != NULL ? r->choice->serving->backend : NULL;
    struct err why = {0};
    (void)err; /* what is wrong with each is told for each */
    for (size_t i = 0; i < r->choice->n && b == NULL; i++)
        b = r->choice->list[i].backend;
    if (b == NULL)
        report_tell(r, NULL, NULL);
    else if (b->ops->doctor(b, on_theirs, r, &why) < 0)
        report_tell(r, NULL, NULL);
}

int choice_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err)
{
    struct choice_report *r = xnew(struct choice_report);
    *r = (struct choice_report){
        .choice = container_of(b, struct choice, base), .done = done, .arg = arg};
    choice_demand_proof(r->choice); /* a session may have been made without a command ever run */
    b->ops->probe(b, on_probed, r);
    return 0;
}
