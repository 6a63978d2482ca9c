/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The part of the configuration that policy/policy.h reads. */

struct config;
struct err;
struct json;

/* What a setting of boxd is, and why. */
struct config_source {
    char *value; /* owned */
    char *where; /* owned */
};

void config_source_set(struct config_source *s, const char *value); /* keeps `where` */

/* `sections` is NULL without a file. After the rest of the configuration, which it builds on. */
int config_read_policy(struct config *c, const struct json *sections, const char *path,
                       struct err *err);
void config_policy_done(struct config *c);
