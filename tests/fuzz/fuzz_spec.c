/* SPDX-License-Identifier: Apache-2.0 */

/* Every model reads the same text. What one accepts it writes out, and what was written it must
 * accept again and write the same; what it refuses it explains within the bounds it promises. */

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "fuzz.h"
#include "spec/admission.h"
#include "spec/model.h"
#include "spec/process.h"
#include "spec/profile.h"

static void write_object(const struct model *m, const void *object, struct buf *out)
{
    struct jw w;

    buf_init(out, 64 << 20);
    jw_init(&w, out);
    model_write_json(m, object, &w);
    int r = jw_end(&w);
    assert(r == 0);
}

static void check_refusal(const struct model *m, const struct report *report)
{
    struct err err = {0};
    AUTO_DONE(buf) struct buf text;

    assert(report->n > 0 && report->n <= REPORT_ISSUES_MAX && report->n <= report->n_total);
    for (size_t i = 0; i < report->n; i++) {
        assert(report->issues[i].text[0] != '\0');
        assert(!memchr(report->issues[i].where, ':', strlen(report->issues[i].where)));
    }
    int r = report_fail(report, &err);
    assert(r < 0 && err.code == ERR_INVALID && err.msg[0] != '\0');
    buf_init(&text, 4096);
    r = report_write(report, m->name, &text);
    assert(r == 0);
}

static void try_model(const struct model *m, const struct json *v)
{
    AUTO_FREE void *object = xcalloc(1, m->size);
    AUTO_FREE void *again = xcalloc(1, m->size);
    struct report report;

    model_init(m, object);
    model_init(m, again);
    if (model_parse(m, v, 0, object, &report) < 0) {
        check_refusal(m, &report);
    } else {
        AUTO_DONE(buf) struct buf first;
        AUTO_DONE(buf) struct buf second;
        AUTO(json) struct json *written = NULL;

        write_object(m, object, &first);
        int r = json_parse(first.data, first.len, &written, NULL);
        assert(r == 0);
        r = model_parse(m, written, 0, again, &report);
        assert(r == 0);
        write_object(m, again, &second);
        assert(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
        r = model_check(m, object, &report);
        assert(r == 0);
    }
    model_done(m, object);
    model_done(m, again);
}

static void try_build(const struct json *v)
{
    for (size_t i = 0; i < n_profiles; i++) {
        const struct profile *p = &profiles[i];
        const struct spec_policy policy = {
            .profile = p, .default_workspace = i % 2 ? "/srv" : NULL, .has_quota = i > 1};
        AUTO(spec) struct spec *s = NULL;

        if (spec_build(v, &policy, &s, NULL, NULL) < 0)
            continue;
        assert(s->timeout_sec > 0 && s->timeout_sec <= p->max_timeout_sec);
        assert(!profile_locks(p, SPEC_NETWORK) || s->network == p->network);
        assert(!profile_locks(p, SPEC_HOST_PATH_MODE) || s->host_path_mode == p->host_path_mode);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct model *const models[] = {
        &spec_model,
        &process_spec_model,
        &mount_spec_model,
        &admission_grant_model,
        &admission_revocation_model,
        &admission_policy_model,
    };
    AUTO(json) struct json *root = NULL;

    if (json_parse((const char *)data, size, &root, NULL) < 0)
        return 0;
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        try_model(models[i], root);
    try_build(root);
    return 0;
}
