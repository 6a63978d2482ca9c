/* SPDX-License-Identifier: Apache-2.0 */

/* The table of LangBot's error classes, and the mapping of our errors to them. */

#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"

#define TEXT_CHARS_MAX 4096

/* clang-format off */
static const struct {
    const char *name, *code;
} classes[LANGBOT_CLASS_MAX] = {
    [LANGBOT_ERROR] = {"BoxError", "box_error"},
    [LANGBOT_ADMISSION] = {"BoxAdmissionError", "admission"},
    [LANGBOT_READINESS] = {"BoxReadinessError", "not_ready"},
    [LANGBOT_CAPACITY] = {"BoxCapacityExceededError", "capacity_exceeded"},
    [LANGBOT_VALIDATION] = {"BoxValidationError", "invalid"},
    [LANGBOT_SESSION_NOT_FOUND] = {"BoxSessionNotFoundError", "session_not_found"},
    [LANGBOT_SESSION_CONFLICT] = {"BoxSessionConflictError", "session_conflict"},
    [LANGBOT_PROCESS_NOT_FOUND] = {"BoxManagedProcessNotFoundError", "process_not_found"},
    [LANGBOT_PROCESS_CONFLICT] = {"BoxManagedProcessConflictError", "process_conflict"},
    [LANGBOT_BACKEND_UNAVAILABLE] = {"BoxBackendUnavailableError", "backend_unavailable"},
    [LANGBOT_RUNTIME_UNAVAILABLE] = {"BoxRuntimeUnavailableError", "runtime_unavailable"},
    [LANGBOT_VALUE_ERROR] = {"ValueError", "bad_value"},
    [LANGBOT_KEY_ERROR] = {"KeyError", "missing_key"},
    [LANGBOT_PERMISSION_ERROR] = {"PermissionError", "denied"},
    [LANGBOT_ENVELOPE_ERROR] = {"ValidationError", "bad_request"},
    [LANGBOT_BASE64_ERROR] = {"Error", "bad_base64"},
    [LANGBOT_NO_FILE_ERROR] = {"FileNotFoundError", "file_not_found"},
    [LANGBOT_OS_ERROR] = {"OSError", "system"},
    [LANGBOT_BUSY] = {"", "busy"},
};
/* clang-format on */

const char *langbot_class_name(enum langbot_class class)
{
    return classes[class].name;
}

const char *langbot_class_code(enum langbot_class class)
{
    return classes[class].code;
}

enum langbot_class langbot_class_of(const struct err *err)
{
    static const enum langbot_class by_code[ERR_CODE_MAX] = {
        [ERR_NONE] = LANGBOT_ERROR,
        [ERR_INVALID] = LANGBOT_VALIDATION,
        [ERR_NOT_FOUND] = LANGBOT_SESSION_NOT_FOUND,
        [ERR_CONFLICT] = LANGBOT_SESSION_CONFLICT,
        [ERR_STATE] = LANGBOT_ERROR,
        [ERR_LIMIT] = LANGBOT_CAPACITY,
        [ERR_DENIED] = LANGBOT_VALIDATION,
        [ERR_UNSUPPORTED] = LANGBOT_ERROR,
        [ERR_BACKEND] = LANGBOT_ERROR,
        [ERR_UNAVAILABLE] = LANGBOT_BACKEND_UNAVAILABLE,
        [ERR_SYSTEM] = LANGBOT_ERROR,
    };
    return by_code[err->code];
}

enum langbot_class langbot_class_split(const char *message, const char **ret_rest)
{
    for (int i = 0; i < LANGBOT_BUSY; i++) {
        size_t n = strlen(classes[i].name);
        if (strncmp(message, classes[i].name, n) == 0 && str_starts(message + n, ": ")) {
            *ret_rest = message + n + 2;
            return (enum langbot_class)i;
        }
    }
    *ret_rest = message;
    return LANGBOT_ERROR;
}

/* Length of a class name with its colon at s, the part that clients search for; 0: none. */
static size_t marker_at(const char *s)
{
    if (s[0] != 'B')
        return 0;
    for (int i = LANGBOT_ADMISSION; i <= LANGBOT_BACKEND_UNAVAILABLE; i++) {
        size_t n = strlen(classes[i].name);
        if (strncmp(s, classes[i].name, n) == 0 && s[n] == ':')
            return n + 1;
    }
    return 0;
}

void langbot_error_text(enum langbot_class class, const char *text, struct buf *out)
{
    size_t left = strlen(text), chars = 0;
    if (class != LANGBOT_BUSY)
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
