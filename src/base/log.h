/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One line per event on stderr: for people on a terminal, a JSON object otherwise. Control
 * characters in any argument are escaped, so that a peer can neither forge a record nor drive the
 * reader's terminal. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level {
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARN,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG,
    LOG_LEVEL_OFF, /* never written */
};

/* `program` is a literal. Format is chosen by isatty(2), or forced by $BOX_LOG_FORMAT=json|human;
 * the level by $BOX_LOG_LEVEL=error|warn|info|debug (default info). */
void log_init(const char *program);
/* Format: auto, human (or text), json. -EINVAL, and nothing is changed, for any other name. */
int log_set_format(const char *name);
bool log_format_known(const char *name);
int log_set_level(const char *name);
/* -EINVAL, or the level of that name. */
int log_level_find(const char *name);
/* The level of one record per request: error, warn, info, debug (default), or off. */
int log_set_access(const char *name);
enum log_level log_access_level(void);
void log_at(enum log_level level, const char *context, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A record with members of its own, in the order given. */
struct log_field {
    const char *key;
    const char *text; /* NULL: `number` is the value */
    int64_t number;
};
void log_event(enum log_level level, const char *context, const struct log_field *fields, size_t n,
               const char *text);

/* The request that we work for: while it is set, every record carries its id. It is copied, so the
 * request may be gone before the scope is left. "" and NULL: none. */
#define LOG_REQUEST_SIZE 65
struct log_scope {
    char id[LOG_REQUEST_SIZE];
};
struct log_scope log_scope_enter(const char *id); /* returns what was before */
void log_scope_leave(const struct log_scope *before);
struct log_scope log_scope_now(void); /* to be entered again when an answer comes */

/* Until the end of the block. */
#define LOG_REQUEST(id)                                                                            \
    __attribute__((cleanup(log_scope_leave), unused)) const struct log_scope log_scope_before =    \
        log_scope_enter(id)

/* An id that may stand in a header and a record: [A-Za-z0-9._-]{1,64}. */
bool log_request_valid(const char *id);
/* 16 hex digits, never the same twice in one process and hardly in two. */
void log_request_make(char ret[LOG_REQUEST_SIZE]);

/* `context` is a session id or NULL. */
#define log_error(context, ...) log_at(LOG_LEVEL_ERROR, context, __VA_ARGS__)
#define log_warn(context, ...) log_at(LOG_LEVEL_WARN, context, __VA_ARGS__)
#define log_info(context, ...) log_at(LOG_LEVEL_INFO, context, __VA_ARGS__)
#define log_debug(context, ...) log_at(LOG_LEVEL_DEBUG, context, __VA_ARGS__)
