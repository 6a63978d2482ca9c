/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What went wrong, in a form that can be sent, shown and tested.
 *
 * Every fallible function returns >= 0 or a negative errno. Above base/ it also takes `struct err
 * *`, filled once, on failure only, by the function that first knows what the failure means. The
 * struct owns nothing and has a fixed size: it lives on the stack, and a dying child sends it to
 * its parent in one datagram.
 */

enum err_code {
    ERR_NONE,
    ERR_INVALID,     /* the request is wrong; the same request will fail again */
    ERR_NOT_FOUND,   /* no such session, command, path */
    ERR_CONFLICT,    /* exists already, or was made with other parameters */
    ERR_STATE,       /* right request at the wrong time */
    ERR_LIMIT,       /* a cap was reached */
    ERR_DENIED,      /* policy or permission says no */
    ERR_UNSUPPORTED, /* this host cannot enforce what was asked for */
    ERR_BACKEND,     /* the backend failed or is gone */
    ERR_UNAVAILABLE, /* there is no backend to ask; the same request may work later */
    ERR_SYSTEM,      /* a system call failed */
    ERR_CODE_MAX,
};

/* Of which kind the thing is that was not found: what to do about it differs. */
enum err_thing {
    ERR_THING_ANY,
    ERR_THING_SESSION,
    ERR_THING_EXEC,
    ERR_THING_PROCESS,
    ERR_THING_IMAGE,
    ERR_THING_MOUNT, /* its source, or the place for it */
    ERR_THING_OUTPUT,
    ERR_THING_TOOL,
    ERR_THING_MAX,
};

struct err {
    enum err_code code;
    int sys; /* errno, 0 when there is none */
    char msg[356];
    enum err_thing thing; /* of ERR_NOT_FOUND */
};

/* Fills *err (NULL is fine) and returns the negative errno that stands for `code`. */
int err_set(struct err *err, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* err_set() with ERR_NOT_FOUND. */
int err_missing(struct err *err, enum err_thing thing, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Like err_set() for a failed system call: appends ": <strerror>", returns -error. `error` is
 * positive. */
int err_sys(struct err *err, int error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Prefixes the text with "<fmt>: ", keeps the code, returns what the first err_*() call returned.
 */
int err_wrap(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Stable lower-case name of a code ("not_found"), for JSON. Never NULL. */
const char *err_code_name(enum err_code code);

/* The negative errno that err_set() returns for a code. */
int err_code_errno(enum err_code code);

/* Text of an errno; thread-safe, never NULL. */
const char *err_errno_text(int error);

/* clang-tidy and gcc -fanalyzer look at one source at a time, so they do not know the promise above
 * that an error is negative, and walk on as if nothing had failed. Only they see this. */
#if defined(__clang_analyzer__) || defined(BOX_ANALYZER)
static inline int err_negative(int r)
{
    if (r >= 0)
        __builtin_unreachable();
    return r;
}
#define err_set(...) err_negative((err_set)(__VA_ARGS__))
#define err_missing(...) err_negative((err_missing)(__VA_ARGS__))
#define err_sys(...) err_negative((err_sys)(__VA_ARGS__))
#define err_wrap(...) err_negative((err_wrap)(__VA_ARGS__))
#endif
