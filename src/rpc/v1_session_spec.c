/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "core/policy.h"
#include "core/policy_service.h"
#include "rpc/v1_internal.h"
#include "spec/model.h"
#include "spec/profile.h"
#include "spec/spec.h"
#include "util/alloc.h"
#include "util/buf.h"
#include "util/err.h"
#include "util/json.h"
#include "util/path.h"

#define PAYLOAD_MAX (80U << 20) /* a body, each byte of it escaped */
#define HOST_IMAGE "host"

/* The request as the policy reads it: what was given, a name, and the image of this API where
 * nobody has chosen one. */
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

int v1_session_spec(const struct v1 *v, const struct authz_scope *scope, const struct json *object,
                    bool id_required, struct v1_wish *ret, struct err *err)
{
    AUTO(spec) struct spec *plain = NULL;
    AUTO(json) struct json *payload = NULL;
    const struct policy_request request = {.profile = json_str(json_get(object, "profile")),
                                           .scope = scope};
    uint64_t given = 0;

    /* First as a request to this API, which forgives less; then as the policy makes it. */
    int r = v1_spec_parse(object, id_required, &plain, &given, err);
    if (r == 0)
        r = check_spellings(plain, err);
    if (r == 0)
        r = write_payload(v->service->policy, object, plain->session_id, &payload, err);
    if (r == 0)
        r = policy_payload_spec(v->service->policy, &request, payload, &ret->spec, &ret->decision,
                                err);
    if (r == 0)
        ret->given = given | ret->decision.profile->locked;
    return r;
}
