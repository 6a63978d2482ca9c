/* SPDX-License-Identifier: Apache-2.0 */

/* The table of error codes, and the functions that fill an error's message. */

#include "base/err.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

/* What an analyzer is told of these functions holds for their callers. */
#undef err_set
#undef err_missing
#undef err_sys
#undef err_wrap

/* What a prefix keeps at least when prefix and cause do not both fit. */
#define PREFIX_MIN 80

static const struct {
    const char *name;
    int error;
} codes[ERR_CODE_MAX] = {
    [ERR_NONE] = {"none", EIO}, /* never set; an error still has to be an error */
    [ERR_INVALID] = {"invalid", EINVAL},
    [ERR_NOT_FOUND] = {"not_found", ENOENT},
    [ERR_CONFLICT] = {"conflict", EEXIST},
    [ERR_STATE] = {"state", EBUSY},
    [ERR_LIMIT] = {"limit", EDQUOT},
    [ERR_DENIED] = {"denied", EACCES},
    [ERR_UNSUPPORTED] = {"unsupported", EOPNOTSUPP},
    [ERR_BACKEND] = {"backend", EREMOTEIO},
    [ERR_UNAVAILABLE] = {"unavailable", EHOSTDOWN},
    [ERR_SYSTEM] = {"system", EIO},
};

const char *err_code_name(enum err_code code)
{
    return (unsigned)code < ERR_CODE_MAX ? codes[code].name : "unknown";
}

int err_code_errno(enum err_code code)
{
    return (unsigned)code < ERR_CODE_MAX ? -codes[code].error : -EIO;
}

const char *err_errno_text(int error)
{
    /* strerror() may use one static buffer, and translates. */
    const char *text = strerrordesc_np(error);

    return text ? text : "unknown error";
}

/* Cuts s (of `len` bytes, no longer all there) to its first `max`, never inside a character. */
static size_t cut(const char *s, size_t len, size_t max)
{
    return len <= max ? len : utf8_boundary(s, max);
}

/* msg = head, or "head: tail". The cause is at the end, so the head is what gives way. */
static void set_text(char *msg, size_t size, const char *head, const char *tail)
{
    char text[sizeof(((struct err *)NULL)->msg)];
    size_t head_len = strlen(head);
    size_t tail_len = tail ? strlen(tail) + 2 : 0;
    size_t room = size - 1;

    assert(size <= sizeof(text));
    if (head_len + tail_len > room) {
        size_t keep = tail_len < room - PREFIX_MIN ? room - tail_len : PREFIX_MIN;
        head_len = cut(head, head_len, tail ? keep : room);
    }
    memcpy(text, head, head_len);
    if (tail) {
        size_t left = room - head_len - 2;
        tail_len = cut(tail, tail_len - 2, left);
        memcpy(text + head_len, ": ", 2);
        memcpy(text + head_len + 2, tail, tail_len);
        head_len += 2 + tail_len;
    }
    memcpy(msg, text, head_len);
    msg[head_len] = '\0';
}

/* Twice the size of a message, so that a cut is made by us and not inside a character. */
#define HEAD_SIZE (2 * sizeof(((struct err *)NULL)->msg))

int err_set(struct err *err, enum err_code code, const char *fmt, ...)
{
    char head[HEAD_SIZE];
    va_list ap;

    assert(code > ERR_NONE && code < ERR_CODE_MAX);
    if (!err)
        return err_code_errno(code);
    va_start(ap, fmt);
    (void)vsnprintf(head, sizeof(head), fmt, ap);
    va_end(ap);
    err->code = code;
    err->sys = 0;
    err->thing = ERR_THING_ANY;
    set_text(err->msg, sizeof(err->msg), head, NULL);
    return err_code_errno(code);
}

int err_missing(struct err *err, enum err_thing thing, const char *fmt, ...)
{
    char head[HEAD_SIZE];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(head, sizeof(head), fmt, ap);
    va_end(ap);
    int r = err_set(err, ERR_NOT_FOUND, "%s", head);
    if (err)
        err->thing = thing;
    return r;
}

int err_sys(struct err *err, int error, const char *fmt, ...)
{
    char head[HEAD_SIZE];
    va_list ap;

    assert(error > 0);
    if (!err)
        return -error;
    va_start(ap, fmt);
    (void)vsnprintf(head, sizeof(head), fmt, ap);
    va_end(ap);
    err->code = ERR_SYSTEM;
    err->sys = error;
    err->thing = ERR_THING_ANY;
    set_text(err->msg, sizeof(err->msg), head, err_errno_text(error));
    return -error;
}

int err_wrap(struct err *err, const char *fmt, ...)
{
    char head[HEAD_SIZE];
    va_list ap;

    /* Without a struct the first value was not kept. */
    if (!err)
        return -EIO;
    va_start(ap, fmt);
    (void)vsnprintf(head, sizeof(head), fmt, ap);
    va_end(ap);
    set_text(err->msg, sizeof(err->msg), head, err->msg);
    return err->sys > 0 ? -err->sys : err_code_errno(err->code);
}
