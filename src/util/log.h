/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One line per event on stderr: for people on a terminal, a JSON object otherwise. Control
 * characters in any argument are escaped, so that a peer can neither forge a record nor drive the
 * reader's terminal. */

#include <stdbool.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* `program` is a literal. Format is chosen by isatty(2), or forced by $BOX_LOG_FORMAT=json|text;
 * the level by $BOX_LOG_LEVEL=error|warn|info|debug (default info). */
void log_init(const char *program);
void log_at(enum log_level level, const char *context, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* `context` is a session id or NULL. */
#define log_error(context, ...) log_at(LOG_LEVEL_ERROR, context, __VA_ARGS__)
#define log_warn(context, ...) log_at(LOG_LEVEL_WARN, context, __VA_ARGS__)
#define log_info(context, ...) log_at(LOG_LEVEL_INFO, context, __VA_ARGS__)
#define log_debug(context, ...) log_at(LOG_LEVEL_DEBUG, context, __VA_ARGS__)
