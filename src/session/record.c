/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of a record's fields, and writing and reading of records. */

#include "session/record.h"

#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "session/ports.h"
#include "session/process.h"
#include "spec/model.h"
#include "spec/process.h"
#include "spec/spec.h"
#include "store/store.h"

#define VERSION 1
#define BACKEND_MAX 32
#define LABELS_MAX 16
#define LABELS_BYTES_MAX 4096
#define UTF8_MAX 4 /* bytes of one code point */
#define OWNER_MAX 64
#define PROFILE_MAX 64

static bool is_name(const char *s)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    if (s[0] == '\0' || strchr(letters, s[0]) == NULL)
        return false;
    for (; *s != '\0'; s++)
        if (strchr(letters, *s) == NULL && strchr("._-", *s) == NULL)
            return false;
    return true;
}

/* clang-format off */
static const struct field session_fields[] = {
    {"backend", FIELD_STR, FIELD_REQUIRED, offsetof(struct session_record, backend),
     .max = BACKEND_MAX, .valid = is_name, .rule = "backend must be a name"},
    {"sandbox", FIELD_STR, FIELD_REQUIRED, offsetof(struct session_record, sandbox),
     .max = RECORD_NAME_MAX, .valid = is_name, .rule = "sandbox must be a name"},
    {"sandbox_id", FIELD_STR, FIELD_NULLABLE, offsetof(struct session_record, sandbox_id),
     .max = RECORD_NAME_MAX, .valid = is_name, .rule = "sandbox_id must be a name"},
    {"created_ns", FIELD_INT, FIELD_REQUIRED | FIELD_STRICT, offsetof(struct session_record, created_ns),
     .min = 0, .max = INT64_MAX, .rule = "created_ns must be a time", .strict_text = "created_ns must be a time"},
    {"numbers_end", FIELD_INT, FIELD_REQUIRED | FIELD_STRICT, offsetof(struct session_record, numbers_end),
     .min = 1, .max = UINT32_MAX, .rule = "numbers_end must be at least 1", .strict_text = "numbers_end must be a number"},
    {"labels", FIELD_ENV, 0, offsetof(struct session_record, labels), .max = LABELS_MAX, .max_bytes = LABELS_BYTES_MAX},
    {"owner", FIELD_STR, FIELD_NULLABLE, offsetof(struct session_record, owner),
     .max = OWNER_MAX, .valid = id_valid, .rule = "owner must be the name of a token"},
    {"expires_ns", FIELD_INT, FIELD_STRICT, offsetof(struct session_record, expires_ns),
     .min = 0, .max = INT64_MAX, .rule = "expires_ns must be a time", .strict_text = "expires_ns must be a time"},
    {"env_locked", FIELD_BOOL, 0, offsetof(struct session_record, env_locked)},
    {"durable", FIELD_BOOL, 0, offsetof(struct session_record, durable)},
    {"image_named", FIELD_BOOL, 0, offsetof(struct session_record, image_named)},
    {"best_effort", FIELD_BOOL, 0, offsetof(struct session_record, best_effort)},
    {"required", FIELD_INT, FIELD_STRICT, offsetof(struct session_record, required),
     .min = 0, .max = INT64_MAX, .rule = "required must be a set of fields", .strict_text = "required must be a number"},
    {"profile", FIELD_STR, FIELD_NULLABLE, offsetof(struct session_record, profile),
     .max = PROFILE_MAX, .valid = id_valid, .rule = "profile must be the name of a profile"},
    {"artifacts", FIELD_STR, FIELD_NULLABLE, offsetof(struct session_record, artifacts),
     .max = SPEC_PATH_MAX, .valid = path_is_clean_absolute, .rule = "artifacts must be a path"},
    {"artifact_digests", FIELD_STRV, 0, offsetof(struct session_record, artifact_digests),
     .max = SPEC_MOUNTS_MAX, .max_bytes = SPEC_MOUNTS_MAX * (SPEC_DIGEST_MAX + 1)},
    {"allow_hosts", FIELD_STRV, 0, offsetof(struct session_record, allow_hosts),
     .max = SPEC_HOSTS_MAX, .max_bytes = SPEC_HOSTS_MAX * SPEC_HOST_TEXT_MAX},
    {"ports", FIELD_STRV, 0, offsetof(struct session_record, ports),
     .max = PORT_MAPS_MAX, .max_bytes = PORT_MAPS_MAX * (PORT_ADDRESS_MAX + 16)},
    {"start_policy", FIELD_ENUM, 0, offsetof(struct session_record, start.policy), .names = start_policy_names},
    {"start_removes", FIELD_BOOL, 0, offsetof(struct session_record, start.removes)},
    {"start_wanted", FIELD_BOOL, 0, offsetof(struct session_record, start.wanted)},
    {"lease_sec", FIELD_INT, FIELD_STRICT, offsetof(struct session_record, lease_sec),
     .min = 0, .max = LEASE_SEC_MAX, .rule = "lease_sec must be a number of seconds",
     .strict_text = "lease_sec must be a number"},
    {"bound_uid", FIELD_INT, FIELD_STRICT, offsetof(struct session_record, bound_uid), .number = -1,
     .min = -1, .max = UINT32_MAX, .rule = "bound_uid must be one", .strict_text = "bound_uid must be a number"},
};

static const struct field process_fields[] = {
    {"number", FIELD_INT, FIELD_REQUIRED | FIELD_STRICT, offsetof(struct process_record, number),
     .min = 1, .max = UINT32_MAX, .rule = "number must be at least 1", .strict_text = "number must be a number"},
    {"started_ns", FIELD_INT, FIELD_REQUIRED | FIELD_STRICT, offsetof(struct process_record, started_ns),
     .min = 0, .max = INT64_MAX, .rule = "started_ns must be a time", .strict_text = "started_ns must be a time"},
    {"exited", FIELD_BOOL, 0, offsetof(struct process_record, exited)},
    {"exited_ns", FIELD_INT, FIELD_STRICT, offsetof(struct process_record, exited_ns),
     .min = 0, .max = INT64_MAX, .rule = "exited_ns must be a time", .strict_text = "exited_ns must be a time"},
    {"exit_code", FIELD_INT, FIELD_STRICT, offsetof(struct process_record, exit_code),
     .min = -NSIG, .max = 255, .rule = "exit_code must be one", .strict_text = "exit_code must be a number"},
    {"stderr", FIELD_STR, 0, offsetof(struct process_record, stderr_text),
     .text = "", .max = PROCESS_STDERR_CHARS * UTF8_MAX},
    {"log", FIELD_STR, 0, offsetof(struct process_record, log_hex), .text = "", .max = PROCESS_SAVED_MAX * 2},
    {"owner", FIELD_STR, FIELD_NULLABLE, offsetof(struct process_record, owner),
     .max = OWNER_MAX, .valid = id_valid, .rule = "owner must be the name of a token"},
};
/* clang-format on */

static const struct model session_model = {
    .name = "session record",
    .fields = session_fields,
    .n_fields = ARRAY_SIZE(session_fields),
    .size = sizeof(struct session_record),
    .closed = true,
};

static const struct model process_model = {
    .name = "process record",
    .fields = process_fields,
    .n_fields = ARRAY_SIZE(process_fields),
    .size = sizeof(struct process_record),
    .closed = true,
};

struct part {
    const char *name;
    const struct model *model;
    const void *object; /* NULL: there is none */
};

/* {"version": 1, "spec": {...}, "state": {...}, ...} */
static int write_parts(const struct part *parts, size_t n, struct buf *out)
{
    struct jw w = JW_INIT(out);
    jw_object(&w);
    jw_kint(&w, "version", VERSION);
    for (size_t i = 0; i < n; i++) {
        if (parts[i].object == NULL)
            continue;
        jw_key(&w, parts[i].name);
        model_write_json(parts[i].model, parts[i].object, &w);
    }
    jw_object_end(&w);
    return jw_end(&w);
}

int session_record_write(const struct session_record *record, struct buf *out)
{
    char nothing[] = "";
    struct spec spec = *record->spec; /* what it owns stays theirs */
    struct session_record state = *record;
    spec.cmd = nothing;
    state.labels = spec.own.labels;
    state.owner = spec.own.owner;
    state.bound_uid = spec.own.bound ? (int64_t)spec.own.uid : -1;
    state.expires_ns = (int64_t)spec.own.expires_ns;
    state.env_locked = spec.own.env_locked;
    state.durable = spec.own.durable;
    state.image_named = spec.own.image_named;
    state.best_effort = spec.own.best_effort;
    state.required = (int64_t)spec.own.required;
    state.profile = spec.own.profile;
    state.artifacts = spec.own.artifacts;
    state.artifact_digests = spec.own.artifact_digests;
    state.allow_hosts = spec.own.allow_hosts;
    const struct part parts[] = {{"spec", &spec_model, &spec},
                                 {"state", &session_model, &state},
                                 {"start", &process_request_model, record->start.spec}};
    return write_parts(parts, ARRAY_SIZE(parts), out);
}

static const char digits[] = "0123456789abcdef";

static char *write_hex(const struct buf *b)
{
    char *text = xcalloc(1, b->len * 2 + 1);
    for (size_t i = 0; i < b->len; i++) {
        text[2 * i] = digits[(unsigned char)b->data[i] >> 4];
        text[2 * i + 1] = digits[(unsigned char)b->data[i] & 15];
    }
    return text;
}

/* Up to the first that is no digit. */
static void read_hex(const char *text, struct buf *ret)
{
    buf_init(ret, PROCESS_SAVED_MAX);
    for (; text[0] != '\0' && text[1] != '\0'; text += 2) {
        const char *high = strchr(digits, text[0]), *low = strchr(digits, text[1]);
        if (high == NULL || low == NULL ||
            buf_putc(ret, (char)((high - digits) << 4 | (low - digits))) < 0)
            return;
    }
}

int process_record_write(const struct process_record *record, struct buf *out)
{
    AUTO_STRV char **names = NULL;
    struct process_spec spec = *record->spec;
    for (size_t i = 0; spec.env != NULL && spec.env[i] != NULL; i++)
        strv_push(&names, xstrndup(spec.env[i], strcspn(spec.env[i], "=") + 1));
    spec.env = names;
    AUTO_FREE char *log = write_hex(&record->log);
    struct process_record state = *record;
    state.owner = spec.owner;
    state.log_hex = log;
    const struct part parts[] = {{"spec", &process_request_model, &spec},
                                 {"state", &process_model, &state}};
    return write_parts(parts, ARRAY_SIZE(parts), out);
}

/* The root is the caller's, also on failure. */
static int read_root(const char *text, size_t len, struct json **ret, struct err *err)
{
    if (len > STORE_RECORD_MAX)
        return err_set(err, ERR_LIMIT, "the record is larger than %u bytes", STORE_RECORD_MAX);
    int r = json_parse(text, len, ret, err);
    if (r < 0)
        return r;
    const struct json *version = json_get(*ret, "version");
    if (json_type(version) != JSON_INT || json_int(version) != VERSION)
        return err_set(err, ERR_INVALID, "the record is not of version %d", VERSION);
    return 0;
}

static int read_state(const struct json *root, const struct model *m, void *object, struct err *err)
{
    struct report report;
    model_init(m, object);
    if (model_parse(m, json_get(root, "state"), 0, object, &report) < 0)
        return report_fail_plain(&report, err);
    return 0;
}

int session_record_read(const char *text, size_t len, struct session_record *ret, struct err *err)
{
    AUTO(json) struct json *root = NULL;
    AUTO_DONE(session_record) struct session_record record = {0};
    int r = read_root(text, len, &root, err);
    if (r == 0)
        r = read_state(root, &session_model, &record, err);
    if (r == 0)
        r = spec_parse(json_get(root, "spec"), &record.spec, err);
    if (r == 0 && json_get(root, "start") != NULL)
        r = process_spec_parse(json_get(root, "start"), &record.start.spec, err);
    if (r == 0 && record.start.spec != NULL &&
        (!record.start.spec->log || !str_eq(record.start.spec->process_id, PROCESS_START_ID)))
        r = err_set(err, ERR_INVALID, "start must be the process " PROCESS_START_ID ", with a log");
    if (r < 0)
        return r;
    if (record.start.spec != NULL && record.owner != NULL)
        record.start.spec->owner = xstrdup(record.owner);
    record.spec->own.labels = TAKE_PTR(record.labels);
    record.spec->own.owner = TAKE_PTR(record.owner);
    record.spec->own.bound = record.bound_uid >= 0;
    record.spec->own.uid = record.bound_uid >= 0 ? (uid_t)record.bound_uid : 0;
    record.spec->own.expires_ns = (uint64_t)record.expires_ns;
    record.spec->own.env_locked = record.env_locked;
    record.spec->own.durable = record.durable;
    record.spec->own.image_named = record.image_named;
    record.spec->own.best_effort = record.best_effort;
    record.spec->own.required = (uint64_t)record.required;
    record.spec->own.profile = TAKE_PTR(record.profile);
    record.spec->own.artifacts = TAKE_PTR(record.artifacts);
    record.spec->own.artifact_digests = TAKE_PTR(record.artifact_digests);
    record.spec->own.allow_hosts = TAKE_PTR(record.allow_hosts);
    *ret = record;
    record = (struct session_record){0};
    return 0;
}

int process_record_read(const char *text, size_t len, struct process_record *ret, struct err *err)
{
    AUTO(json) struct json *root = NULL;
    AUTO_DONE(process_record) struct process_record record = {0};
    int r = read_root(text, len, &root, err);
    if (r == 0)
        r = read_state(root, &process_model, &record, err);
    if (r == 0)
        r = process_spec_parse(json_get(root, "spec"), &record.spec, err);
    if (r < 0)
        return r;
    record.spec->owner = TAKE_PTR(record.owner);
    read_hex(record.log_hex, &record.log);
    *ret = record;
    record = (struct process_record){0};
    return 0;
}

void session_record_done(struct session_record *record)
{
    model_done(&session_model, record);
    process_spec_free(record->start.spec);
    spec_free(record->spec);
    *record = (struct session_record){0};
}

void process_record_done(struct process_record *record)
{
    model_done(&process_model, record);
    process_spec_free(record->spec);
    buf_done(&record->log);
    *record = (struct process_record){0};
}
