/* SPDX-License-Identifier: Apache-2.0 */

/* The session that a request describes: read, judged by the policy, found or made. */

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "front/common/front.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/policy.h"
#include "session/manager.h"
#include "spec/model.h"
#include "spec/profile.h"
#include "spec/spec.h"

#define PAYLOAD_MAX (80U << 20) /* a body, each byte of it escaped */
#define HOST_IMAGE "host"

static uint64_t given_fields(const struct json *object)
{
    uint64_t given = 0;
    for (size_t i = 0; i < spec_model.n_fields; i++)
        if (json_get(object, spec_model.fields[i].name) != NULL)
            given |= FIELD_BIT(i);
    return given;
}

int front_spec_parse(const struct json *object, bool id_required, struct spec **ret,
                     uint64_t *ret_given, struct err *err)
{
    struct report report = {0};
    const struct json *id = json_get(object, "session_id");
    AUTO(spec) struct spec *spec = spec_new();
    static const char *const ours[] = {"profile", NULL};
    const struct json *profile = json_get(object, "profile");
    int r = front_strict(&spec_model, object, ours, err);
    if (r == 0 && profile != NULL && json_type(profile) != JSON_STRING)
        r = err_set(err, ERR_INVALID, "profile must be a string");
    if (r == 0 && json_str(id) != NULL)
        r = spec_check_id(json_str(id), err);
    if (r < 0)
        return r;
    *ret_given = given_fields(object);
    bool has_id = (*ret_given & FIELD_BIT(SPEC_SESSION_ID)) != 0;
    if (!has_id && !id_required) {
        char random[17];
        id_random(random);
        spec->session_id = xasprintf("tmp-%s", random);
    }
    if (!(*ret_given & FIELD_BIT(SPEC_IMAGE))) {
        free(spec->image);
        spec->image = xstrdup("host");
    }
    uint64_t fixed = !has_id && !id_required ? FIELD_BIT(SPEC_SESSION_ID) : 0;
    if (model_parse(&spec_model, object, fixed, spec, &report) < 0)
        return report_fail_plain(&report, err);
    *ret = TAKE_PTR(spec);
    return 0;
}

/* The request as the policy reads it: what was given, a name, and the image of this API where
 * the request and the policy have none. */
static int write_payload(const struct policy *p, const struct json *object, const char *id,
                         struct json **ret, struct err *err)
{
    bool chosen = json_get(object, "profile") != NULL || policy_profile_chosen(p) ||
                  policy_settings(p)->image != NULL;
    AUTO_DONE(buf) struct buf text;
    struct jw w;

    buf_init(&text, PAYLOAD_MAX);
    jw_init(&w, &text);
    jw_object(&w);
    for (size_t i = 0; i < spec_model.n_fields; i++) {
        const char *name = spec_model.fields[i].name;
        const struct json *v = json_get(object, name);
        if (i == SPEC_SESSION_ID) {
            jw_kstr(&w, name, id);
        } else if (v != NULL) {
            jw_key(&w, name);
            jw_value(&w, v);
        } else if (i == SPEC_IMAGE && !chosen) {
            jw_kstr(&w, name, HOST_IMAGE);
        } else if (i == SPEC_CMD) {
            jw_kstr(&w, name, "");
        }
    }
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        return err_set(err, ERR_LIMIT, "the request is too large");
    return json_parse(text.data, text.len, ret, err);
}

/* The policy makes one path of many spellings; here a path means what it says. Slashes at the end
 * are forgiven. */
static int check_spelling(const char *path, struct err *err)
{
    AUTO_FREE char *copy = xstrdup(path);

    for (size_t n = strlen(copy); n > 1 && copy[n - 1] == '/'; n--)
        copy[n - 1] = '\0';
    if (path_is_clean_absolute(copy))
        return 0;
    return err_set(err, ERR_INVALID, "host_path %.200s must be absolute, without '.', '..' or '//'",
                   path);
}

static int check_spellings(const struct spec *s, struct err *err)
{
    int r = s->host_path != NULL ? check_spelling(s->host_path, err) : 0;

    for (size_t i = 0; r == 0 && i < s->n_extra_mounts; i++)
        r = check_spelling(s->extra_mounts[i].host_path, err);
    return r;
}

/* What was asked for, as it will be. `given` are the fields in which a session of that name has to
 * be the same. */
struct wish {
    struct spec *spec; /* owned */
    uint64_t given;
    struct policy_decision decision;
};

static int read_wish(const struct front *f, const struct authz_scope *scope,
                     const struct json *object, bool id_required, struct wish *ret, struct err *err)
{
    AUTO(spec) struct spec *plain = NULL;
    AUTO(json) struct json *payload = NULL;
    const struct policy_request request = {.profile = json_str(json_get(object, "profile")),
                                           .scope = scope};
    uint64_t given = 0;

    /* First as a request to this API, which forgives less; then as the policy makes it. */
    int r = front_spec_parse(object, id_required, &plain, &given, err);
    if (r < 0)
        return r;
    assert(plain != NULL);
    r = check_spellings(plain, err);
    if (r == 0)
        r = write_payload(f->service->policy, object, plain->session_id, &payload, err);
    if (r == 0)
        r = policy_payload_spec(f->service->policy, &request, payload, &ret->spec, &ret->decision,
                                err);
    if (r == 0)
        ret->given = given | ret->decision.profile->locked;
    /* An image that is named here was typed by a person. LangBot's clients send their default with
     * every request, whatever serves them: there image_policy decides. */
    if (r == 0)
        ret->spec->own.image_named =
            (given & ~ret->decision.profile->locked & FIELD_BIT(SPEC_IMAGE)) != 0;
    return r;
}

static const char *via_of(const struct front_asker *asker)
{
    return asker->via != NULL ? asker->via : "http";
}

/* Somebody who waits for a session, and who it is. */
struct getting {
    const struct front *front;
    const char *via;
    char *who, *id; /* owned */
    struct policy_decision decision;
    bool made; /* there was none of that name */
    session_ready_fn *ready;
    void *arg;
};

static void getting_free(struct getting *g)
{
    free(g->who);
    free(g->id);
    free(g);
}

static void on_ready(void *arg, struct session *s, const struct err *err)
{
    struct getting *g = arg;
    const struct policy_service *service = g->front->service;
    struct audit_record record = {.event = AUDIT_SESSION_CREATE,
                                  .who = g->who,
                                  .via = g->via,
                                  .session = g->id,
                                  .decision = &g->decision};

    if (s == NULL) {
        policy_service_failed(service, err, NULL, &record);
    } else if (g->made && service->audit != NULL) {
        record.outcome = "ready";
        (void)audit_write(service->audit, &record, NULL); /* it is there; losses are counted */
    }
    g->ready(g->arg, s, err);
    getting_free(g);
}

/* Whether one may be had at all, and recorded. */
static int check(const struct front *f, const struct front_asker *asker, struct err *err)
{
    int r = authz_check_tool(asker->scope, asker->tool != NULL ? asker->tool : "session", err);

    if (r == 0)
        r = policy_service_guard(f->service, err);
    return r == 0 && f->service->audit != NULL ? audit_ready(f->service->audit, err) : r;
}

static void refused(const struct front *f, const struct front_asker *asker,
                    const struct json *object, const struct err *err)
{
    struct audit_record record = {.event = AUDIT_DENIED,
                                  .who = asker->who,
                                  .via = via_of(asker),
                                  .session = json_str(json_get(object, "session_id"))};

    policy_service_failed(f->service, err, NULL, &record);
}

int front_session_get(const struct front *f, const struct front_asker *asker,
                      const struct front_want *want, session_ready_fn *ready, void *arg,
                      struct err *err)
{
    struct wish wish = {0};
    struct getting *g = xnew(struct getting);
    int r = check(f, asker, err);

    if (r == 0)
        r = read_wish(f, asker->scope, want->object, want->id_required, &wish, err);
    if (r == 0) {
        g->front = f;
        g->via = via_of(asker);
        g->who = xstrdup(asker->who);
        g->id = xstrdup(wish.spec->session_id);
        g->made = manager_find(f->manager, g->id) == NULL;
        g->decision = wish.decision;
        g->ready = ready;
        g->arg = arg;
        r = manager_acquire(f->manager, &wish.spec, wish.given, 0, on_ready, g, err);
    }
    spec_free(wish.spec);
    if (r < 0) {
        refused(f, asker, want->object, err);
        getting_free(g);
    } else if (want->ret_id != NULL) {
        *want->ret_id = xstrdup(g->id);
    }
    return r;
}

void front_write_settings(struct jw *w, const struct spec *spec)
{
    jw_kstr(w, "image", spec->image);
    jw_kstr(w, "network", network_names[spec->network]);
    jw_kstr(w, "host_path", spec->host_path);
    jw_kstr(w, "host_path_mode", mount_mode_names[spec->host_path_mode]);
    jw_kstr(w, "mount_path", spec->mount_path);
    jw_kbool(w, "persistent", spec->persistent);
    jw_kreal(w, "cpus", spec->cpus);
    jw_kint(w, "memory_mb", spec->memory_mb);
    jw_kint(w, "pids_limit", spec->pids_limit);
    jw_kbool(w, "read_only_rootfs", spec->read_only_rootfs);
    jw_kint(w, "workspace_quota_mb", spec->workspace_quota_mb);
}
