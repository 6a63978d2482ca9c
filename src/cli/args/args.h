/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The arguments of `box`, by one table of verbs and one of options; help is written from the same
 * two. Values are checked here, by the rules of src/spec, before anything else happens. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct buf;
struct err;
struct spec;

enum verb {
    VERB_RUN,
    VERB_EXEC,
    VERB_CP,
    VERB_PS,
    VERB_RM,
    VERB_DOCTOR,
    VERB_CONFIG,
    VERB_AUDIT,
    VERB_MCP_RUN,
    VERB_MCP_LS,
    VERB_MCP_LOGS,
    VERB_MCP_SERVE,
    VERB_COMPLETION,
    VERB_HELP,
    VERB_MAX,
};

struct args {
    enum verb verb;
    enum verb topic;         /* VERB_HELP: of this verb; VERB_HELP itself is help on the whole */
    struct spec *spec;       /* owned; what was not given has its default */
    uint64_t given;          /* set of FIELD_BIT(enum spec_field) */
    char **names;            /* owned; sessions of `exec` and `rm`, words of others */
    char *const *command;    /* borrowed from argv; NULL-terminated, NULL for verbs without one */
    const char *config_file; /* borrowed from argv; NULL: none */
    const char *head;        /* borrowed from argv; NULL: none */
    const char *name;        /* these too, of `mcp run` */
    const char *profile;
    const char *fallback;
    const char *install;
    const char *retry_delays;
    const char *inside_dir;
    const char *backend; /* these too, of `doctor --attack` */
    const char *format;
    const char *output;
    char **envs, **env_files; /* owned; in the order given */
    bool attack;
    bool explain;
    bool tty;
    bool interactive;
    bool json;
    bool all;
    bool follow;
    bool help;
    bool version;
};

/* ERR_INVALID with one line that says what is wrong. args_done() is due either way. */
int args_parse(int argc, char *argv[], struct args *ret, struct err *err);
void args_done(struct args *a);
DEFINE_CLEANUP_DONE(args)

int args_help(enum verb topic, struct buf *out);
int args_man(struct buf *out); /* every verb and option, as mdoc(7) */
int man_text(struct buf *out, const char *text);

/* The pieces of "HOST:BOX[:ro|rw]". HOST is resolved with realpath(3); it must exist. Appends to
 * the spec's extra mounts. */
int args_parse_mount(const char *text, struct spec *spec, struct err *err);
/* "NAME=value"; a later one of the same name replaces an earlier one. */
int args_parse_env(const char *text, struct spec *spec, struct err *err);
