/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/backend.h"

#include <stdio.h>

#include "http/crypto.h"
#include "spec/spec.h"
#include "util/buf.h"
#include "util/str.h"

const char *outcome_name(enum outcome_kind kind)
{
    static const char *const names[OUTCOME_KIND_MAX] = {
        [OUTCOME_EXITED] = "exited",
        [OUTCOME_SIGNALED] = "signaled",
        [OUTCOME_TIMED_OUT] = "timed_out",
        [OUTCOME_OOM_KILLED] = "oom_killed",
        [OUTCOME_QUOTA_EXCEEDED] = "quota_exceeded",
        [OUTCOME_SESSION_LOST] = "session_lost",
    };
    return kind < OUTCOME_KIND_MAX ? names[kind] : "unknown";
}

struct backend *backend_find(struct backend *b, const char *name)
{
    if (b->ops->find != NULL)
        return b->ops->find(b, name);
    return str_eq(b->ops->name, name) ? b : NULL;
}

bool backend_limit(struct backend *b, const char *name)
{
    if (b->ops->limit != NULL)
        return b->ops->limit(b, name);
    return name[0] == '\0' || str_eq(b->ops->name, name);
}

int backend_available(const struct backend *b, struct err *err)
{
    return b->ops->available != NULL ? b->ops->available(b, err) : 0;
}

void backend_note(struct backend *b, const struct err *err)
{
    if (b->ops->note != NULL)
        b->ops->note(b, err);
}

void backend_config_hash(const struct spec *spec, char ret[BACKEND_CONFIG_HASH_LEN + 1])
{
    AUTO_DONE(buf) struct buf text;
    char digest[65] = "";
    buf_init(&text, SPEC_CONFIG_TEXT_MAX);
    spec_config_text(spec, &text);
    (void)http_sha256_hex(text.data, text.len, digest);
    (void)snprintf(ret, BACKEND_CONFIG_HASH_LEN + 1, "%s", digest);
}
