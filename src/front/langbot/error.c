/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"

#define TEXT_CHARS_MAX 4096

/* clang-format off */
static const struct {
    const char *name, *code;
} classes[RPC_CLASS_MAX] = {
    [RPC_ERROR] = {"BoxError", "box_error"},
    [RPC_ADMISSION] = {"BoxAdmissionError", "admission"},
    [RPC_READINESS] = {"BoxReadinessError", "not_ready"},
    [RPC_CAPACITY] = {"BoxCapacityExceededError", "capacity_exceeded"},
    [RPC_VALIDATION] = {"BoxValidationError", "invalid"},
    [RPC_SESSION_NOT_FOUND] = {"BoxSessionNotFoundError", "session_not_found"},
    [RPC_SESSION_CONFLICT] = {"BoxSessionConflictError", "session_conflict"},
    [RPC_PROCESS_NOT_FOUND] = {"BoxManagedProcessNotFoundError", "process_not_found"},
    [RPC_PROCESS_CONFLICT] = {"BoxManagedProcessConflictError", "process_conflict"},
    [RPC_BACKEND_UNAVAILABLE] = {"BoxBackendUnavailableError", "backend_unavailable"},
    [RPC_RUNTIME_UNAVAILABLE] = {"BoxRuntimeUnavailableError", "runtime_unavailable"},
    [RPC_VALUE_ERROR] = {"ValueError", "bad_value"},
    [RPC_KEY_ERROR] = {"KeyError", "missing_key"},
    [RPC_PERMISSION_ERROR] = {"PermissionError", "denied"},
    [RPC_ENVELOPE_ERROR] = {"ValidationError", "bad_request"},
    [RPC_BASE64_ERROR] = {"Error", "bad_base64"},
    [RPC_NO_FILE_ERROR] = {"FileNotFoundError", "file_not_found"},
    [RPC_OS_ERROR] = {"OSError", "system"},
    [RPC_BUSY] = {"", "busy"},
};
/* clang-format on */

const char *rpc_class_name(enum rpc_class class)
{
    return classes[class].name;
}

const char *rpc_class_code(enum rpc_class class)
{
    return classes[class].code;
}

enum rpc_class rpc_class_of(const struct err *err)
{
    static const enum rpc_class by_code[ERR_CODE_MAX] = {
        [ERR_NONE] = RPC_ERROR,
        [ERR_INVALID] = RPC_VALIDATION,
        [ERR_NOT_FOUND] = RPC_SESSION_NOT_FOUND,
        [ERR_CONFLICT] = RPC_SESSION_CONFLICT,
        [ERR_STATE] = RPC_ERROR,
        [ERR_LIMIT] = RPC_CAPACITY,
        [ERR_DENIED] = RPC_VALIDATION,
        [ERR_UNSUPPORTED] = RPC_ERROR,
        [ERR_BACKEND] = RPC_ERROR,
        [ERR_UNAVAILABLE] = RPC_BACKEND_UNAVAILABLE,
        [ERR_SYSTEM] = RPC_ERROR,
    };
    return by_code[err->code];
}

enum rpc_class rpc_class_split(const char *message, const char **ret_rest)
{
    for (int i = 0; i < RPC_BUSY; i++) {
        size_t n = strlen(classes[i].name);
        if (strncmp(message, classes[i].name, n) == 0 && str_starts(message + n, ": ")) {
            *ret_rest = message + n + 2;
            return (enum rpc_class)i;
        }
    }
    *ret_rest = message;
    return RPC_ERROR;
}

/* Length of a class name with its colon at s, the part that clients search for; 0: none. */
static size_t marker_at(const char *s)
{
    if (s[0] != 'B')
        return 0;
    for (int i = RPC_ADMISSION; i <= RPC_BACKEND_UNAVAILABLE; i++) {
        size_t n = strlen(classes[i].name);
        if (strncmp(s, classes[i].name, n) == 0 && s[n] == ':')
            return n + 1;
    }
    return 0;
}

void rpc_error_text(enum rpc_class class, const char *text, struct buf *out)
{
    size_t left = strlen(text), chars = 0;
    if (class != RPC_BUSY)
        (void)buf_printf(out, "%s: ", classes[class].name);
    while (left > 0 && chars < TEXT_CHARS_MAX) {
        bool incomplete = false;
        size_t marker = marker_at(text);
        int n = marker > 0 ? (int)marker : utf8_next(text, left, &incomplete);
        size_t len = (size_t)(n < 0 ? -n : n);
        if (marker > 0)
            (void)buf_printf(out, "%.*s :", (int)marker - 1, text);
        else
            (void)buf_append(out, text, len);
        text += len;
        left -= len;
        chars += marker > 0 ? marker + 1 : 1;
    }
    if (left > 0)
        (void)buf_puts(out, "... [protocol error truncated]");
}
