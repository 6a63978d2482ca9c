/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the arguments share: the readers of values, the variables of a command,
 * and suggestions for unknown words. */

#include "cli/args/args.h"

/* values.c: reads the value of an option into `a`. `value` is NULL for a flag. */
typedef int arg_set_fn(const struct arg_option *o, const char *value, struct args *a,
                       struct err *err);
extern arg_set_fn *const arg_setters[ARG_KIND_MAX];

/* env.c: the variables of --env-file, then those of --env, become those of the spec. */
int args_resolve_env(struct args *a, struct err *err);

/* suggest.c: ERR_INVALID, with the word that was probably meant, or with what Box has in place of a
 * word of Docker. `option` has its dashes. */
int args_unknown_verb(const char *name, struct err *err);
int args_unknown_option(enum verb verb, const char *option, struct err *err);
