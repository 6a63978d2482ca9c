/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* --format: objects of boxd as JSON lines, or as lines by a template with the simplest actions of
 * Go's templates, as Docker has them:
 *
 *   json                           each object on a line
 *   {{.session_id}} {{.Memory_MB}}  members; case and underscores do not matter
 *   {{.receipt.limits.pids.value}}  and members of members
 *   {{json .receipt}}               one as JSON; {{json .}} is all of it
 *   table {{.Name}}\t{{.State}}     in columns, with titles
 *
 * \t and \n are a tab and a newline. Docker's .ID, .Name, .Names and .Status are understood. */

#include <stdbool.h>

#include "base/cleanup.h"

struct err;
struct format;
struct json;

/* ERR_INVALID with what is wrong. `stream`: lines are printed as they come, so no table. */
int format_new(const char *text, bool stream, struct format **ret, struct err *err);
void format_free(struct format *f); /* NULL is fine */
DEFINE_CLEANUP(format)

/* Appends the line of an object. ERR_INVALID, with the members it has, for one that is missing. */
int format_add(struct format *f, const struct json *object, struct err *err);
/* Writes what was added since the last time to standard output. */
int format_print(struct format *f, struct err *err);

/* Whether the verb's own table was asked for: by `table`, or by no format. */
bool format_is_own_table(const char *text);
