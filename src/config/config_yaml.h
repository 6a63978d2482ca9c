/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A piece of YAML as JSON: events in, one value out. What JSON lacks (anchors, aliases, tags, keys
 * that are no text) is refused, and everything has a cap. */

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/json.h"

struct err;
struct yaml_event_s;

#define CONFIG_YAML_BYTES_MAX (4U << 20) /* of JSON */
#define CONFIG_YAML_DEPTH_MAX 16U

struct config_yaml {
    struct buf text;
    struct jw w;
    unsigned depth;
    bool wants_key[CONFIG_YAML_DEPTH_MAX]; /* by depth: in a mapping, and a key comes next */
    bool in_mapping[CONFIG_YAML_DEPTH_MAX];
    bool done; /* the value is complete */
};

void config_yaml_init(struct config_yaml *y);
void config_yaml_done(struct config_yaml *y);
DEFINE_CLEANUP_DONE(config_yaml)

/* One event that belongs to the value: scalars, and beginnings and ends of lists and mappings.
 * NULL, or what is wrong with it. */
const char *config_yaml_feed(struct config_yaml *y, const struct yaml_event_s *e);
/* The value, owned, once `done`. */
int config_yaml_take(struct config_yaml *y, struct json **ret, struct err *err);

/* A whole file; an empty one is an empty object. Errors name the line. */
int config_yaml_read(int fd, const char *path, struct json **ret, struct err *err);
