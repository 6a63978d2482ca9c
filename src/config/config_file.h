/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The settings of boxd, by name, and the YAML file that may hold them. */

#include <stddef.h>
#include <stdint.h>

struct err;
struct json;

enum config_name {
    CONFIG_HOST,
    CONFIG_PORT,
    CONFIG_BACKEND,
    CONFIG_STATE_DIR,
    CONFIG_TOKEN_FILE,
    CONFIG_MOUNT_ROOTS, /* a list, or text with commas */
    CONFIG_IMAGE_POLICY,
    CONFIG_REQUIRE_LIMITS,
    CONFIG_MAX_SESSIONS,
    CONFIG_MAX_KEPT,
    CONFIG_KEPT_DISK,
    CONFIG_SESSION_TTL,
    CONFIG_ENGINE_SOCKET,
    CONFIG_ENGINE_RUNTIME,
    CONFIG_ENGINE_TLS_CA,
    CONFIG_ENGINE_TLS_CERT,
    CONFIG_ENGINE_TLS_KEY,
    CONFIG_IMAGE_PULL,
    CONFIG_MAX_PROCESSES,
    CONFIG_MAX_EXITED,
    CONFIG_EXITED_SEC,
    CONFIG_REPORT_BACKEND,
    CONFIG_LEGACY,
    CONFIG_ALLOWED_USERS,
    CONFIG_ALLOWED_GROUPS,
    CONFIG_SOCKET_GROUP,
    CONFIG_LANGBOT_BASE,
    CONFIG_LINGER,
    CONFIG_TOKENS_FILE,
    CONFIG_LOG_LEVEL,
    CONFIG_LOG_FORMAT,
    CONFIG_ACCESS_LOG,
    CONFIG_ALIASES, /* a list, or text with commas */
    CONFIG_KEY_MAX,
};

enum config_kind {
    CONFIG_IS_OTHER, /* read by a function of its own */
    CONFIG_IS_TEXT,  /* a char *, owned; NULL where it is not given */
    CONFIG_IS_NUMBER,
    CONFIG_IS_CHOICE, /* a bool by two words */
};

struct config_key {
    const char *name, *env;
    const char *text; /* default, NULL: none */
    const char *doc;
    enum config_kind kind;
    size_t member; /* of struct config */
    uint64_t max;
    const char *no, *yes;
};

extern const struct config_key config_keys[CONFIG_KEY_MAX];

/* The command line of boxd. */
struct config_flag {
    const char *name;
    char letter; /* 0: none */
    int code;    /* of getopt_long(); above 255 a setting: 256 + enum config_name */
    const char *value, *doc;
};

extern const struct config_flag config_flags[];
extern const size_t config_n_flags;

/* Fills values[CONFIG_KEY_MAX] with owned strings for the keys the file has. Lists become text with
 * commas. *ret_sections is an object of the sections (box, profiles, audit, outputs, mcp, sandbox,
 * system) for policy/policy.h, owned. Unknown keys, anchors and anything else deeper than a list
 * are errors that name the line. */
int config_file_read(const char *path, char **values, struct json **ret_sections, struct err *err);

/* A whole YAML file as JSON, owned; an empty one is an empty object. What JSON lacks (anchors,
 * aliases, tags, keys that are no text) is refused, and everything has a cap. Errors name the line.
 */
int config_yaml_read(int fd, const char *path, struct json **ret, struct err *err);
