/* SPDX-License-Identifier: Apache-2.0 */

/* Writes one audit record as a line of JSON. */

#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "http/codec/crypto.h"
#include "policy/audit/audit_internal.h"
#include "policy/policy.h"
#include "spec/model.h"
#include "spec/profile.h"
#include "spec/spec.h"

#define TEXT_MAX 512U /* bytes of any other text */

static const char *const event_names[AUDIT_EVENT_MAX] = {
    [AUDIT_LOG_BEGIN] = "log_begin",
    [AUDIT_LOG_RECOVERED] = "log_recovered",
    [AUDIT_EXEC_START] = "exec_start",
    [AUDIT_EXEC_END] = "exec_end",
    [AUDIT_DENIED] = "denied",
    [AUDIT_SESSION_CREATE] = "session_create",
    [AUDIT_SESSION_DELETE] = "session_delete",
    [AUDIT_SESSION_END] = "session_end",
    [AUDIT_PROCESS_START] = "process_start",
    [AUDIT_PROCESS_END] = "process_end",
    [AUDIT_FILE_WRITE] = "file_write",
};

static void put_text(struct jw *w, const char *key, const char *text)
{
    if (text == NULL)
        return;
    size_t len = strlen(text);
    jw_key(w, key);
    jw_strn(w, text, len > TEXT_MAX ? utf8_boundary(text, TEXT_MAX) : len);
}

/* Its beginning for people, and length and digest so that the whole can be proved later. */
static int put_command(struct jw *w, const struct audit_record *r)
{
    char digest[AUDIT_HASH_LEN + 1];
    size_t kept = r->command_len;

    if (r->command == NULL)
        return 0;
    int e = http_sha256_hex(r->command, r->command_len, digest);
    if (e < 0)
        return e;
    if (kept > AUDIT_COMMAND_MAX)
        kept = utf8_boundary(r->command, AUDIT_COMMAND_MAX);
    jw_key(w, "command");
    jw_strn(w, r->command, kept);
    jw_ku64(w, "command_bytes", r->command_len);
    jw_kstr(w, "command_sha256", digest);
    return 0;
}

static void put_decision(struct jw *w, const struct policy_decision *d)
{
    if (d == NULL)
        return;
    jw_key(w, "policy");
    jw_object(w);
    jw_kstr(w, "profile", d->profile != NULL ? d->profile->name : NULL);
    jw_key(w, "overridden");
    jw_array(w);
    for (size_t i = 0; i < SPEC_FIELD_MAX; i++)
        if ((d->overridden & FIELD_BIT(i)) != 0)
            jw_str(w, spec_model.fields[i].name);
    jw_array_end(w);
    jw_kbool(w, "clamped", d->clamped);
    jw_object_end(w);
}

int audit_format(const struct audit *a, const struct audit_record *r, uint64_t seq, struct buf *out)
{
    char when[40];
    struct jw w;

    clock_format(clock_real(a->options.clock), when, sizeof(when));
    jw_init(&w, out);
    jw_object(&w);
    jw_ku64(&w, "seq", seq);
    jw_kstr(&w, "time", when);
    jw_kstr(&w, "prev", a->head);
    jw_kstr(&w, "event", event_names[r->event]);
    put_text(&w, "who", r->who);
    put_text(&w, "via", r->via);
    put_text(&w, "session", r->session);
    put_text(&w, "query", r->query);
    put_text(&w, "process", r->process);
    put_text(&w, "path", r->path);
    int e = put_command(&w, r);
    put_text(&w, "outcome", r->outcome);
    put_text(&w, "reason", r->reason);
    if (r->exit_code != NULL)
        jw_kint(&w, "exit_code", *r->exit_code);
    if (r->duration_ms != NULL)
        jw_ku64(&w, "duration_ms", *r->duration_ms);
    if (r->bytes != NULL) {
        jw_ku64(&w, "stdout_bytes", r->bytes[0]);
        jw_ku64(&w, "stderr_bytes", r->bytes[1]);
    }
    put_decision(&w, r->decision);
    if (a->lost_untold > 0)
        jw_ku64(&w, "lost", a->lost_untold);
    jw_object_end(&w);
    return e < 0 ? e : jw_end(&w);
}
