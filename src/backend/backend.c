/* SPDX-License-Identifier: Apache-2.0 */

/* Calls that a backend may leave out, and values that all backends compute alike. */

#include "backend/backend.h"

#include <stdio.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "http/codec/crypto.h"
#include "spec/model.h"
#include "spec/spec.h"

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

int backend_unended(struct err *err, const char *what)
{
    return err_set(err, ERR_BACKEND,
                   "the %s does not end; its session is removed, with all that runs in it", what);
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

const unsigned backend_asked[BACKEND_ASKED] = {SPEC_IMAGE, SPEC_MEMORY_MB, SPEC_CPUS,
                                               SPEC_PIDS_LIMIT, SPEC_WORKSPACE_QUOTA_MB};

const char *backend_unenforced(const struct backend *b, const struct spec *spec, unsigned field)
{
    return b->ops->unenforced != NULL ? b->ops->unenforced(b, spec, field) : NULL;
}

int backend_require(const struct backend *b, const struct spec *spec, struct err *err)
{
    for (size_t i = 0; i < BACKEND_ASKED; i++) {
        unsigned field = backend_asked[i];
        const char *why =
            spec->own.required & FIELD_BIT(field) ? backend_unenforced(b, spec, field) : NULL;
        if (why != NULL)
            return err_set(err, ERR_UNSUPPORTED,
                           "%s cannot be enforced here: %.120s; leave it out, or take a session "
                           "without it (--best-effort, \"best_effort\": true)",
                           spec_model.fields[field].name, why);
    }
    if (spec->own.allow_hosts != NULL && b->ops->listen == NULL)
        return err_set(
            err, ERR_UNSUPPORTED,
            "the %s backend cannot let a session reach a service of the host "
            "(--allow-host, \"allow_hosts\"): leave it out, or start boxd with --backend "
            "native",
            b->ops->name);
    return 0;
}

void backend_config_hash(const struct spec *spec, char ret[BACKEND_CONFIG_HASH_LEN + 1])
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(SPEC_CONFIG_TEXT_MAX);
    char digest[65] = "";
    spec_config_text(spec, &text);
    (void)http_sha256_hex(text.data, text.len, digest);
    (void)snprintf(ret, BACKEND_CONFIG_HASH_LEN + 1, "%s", digest);
}

uint64_t backend_counted_bytes(const struct spec *spec)
{
    bool counted = spec->host_path != NULL && spec->host_path_mode == MOUNT_RW;
    return counted ? (uint64_t)spec->workspace_quota_mb << 20 : 0;
}

void backend_write_counted(struct jw *w, uint64_t bytes, const char *why)
{
    char reason[512];
    if (bytes == 0)
        return;
    (void)snprintf(reason, sizeof(reason),
                   "a directory of the host is counted and its programs are ended; the kernel does "
                   "not stop the first byte too many: %s",
                   why);
    jw_kobject(w, "workspace_bytes");
    jw_kbool(w, "enforced", false);
    jw_ku64(w, "counted", bytes);
    jw_kstr(w, "reason", reason);
    jw_object_end(w);
}
