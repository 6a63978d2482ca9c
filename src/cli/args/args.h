/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The arguments of `box`, by one table of verbs and one of options. Help, manuals and completions
 * are written from the same two. Values are checked here, by the rules of src/spec, before anything
 * else happens. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct buf;
struct err;
struct jw;
struct spec;

enum verb {
    VERB_RUN,
    VERB_EXEC,
    VERB_AGENT,
    VERB_CP,
    VERB_PORT,
    VERB_LOGS,
    VERB_ATTACH,
    VERB_WAIT,
    VERB_KILL,
    VERB_PS,
    VERB_RM,
    VERB_STOP,
    VERB_START,
    VERB_PAUSE,
    VERB_UNPAUSE,
    VERB_RENAME,
    VERB_UPDATE,
    VERB_DIFF,
    VERB_INSPECT,
    VERB_TOP,
    VERB_STATS,
    VERB_EVENTS,
    VERB_DOCTOR,
    VERB_INFO,
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

/* Defaults of `box mcp run` in place of those of the spec: servers download what they need and
 * install it, and a project is shown as it is. */
#define ARGS_MCP_NETWORK NETWORK_ON
#define ARGS_MCP_READ_ONLY_ROOT 0
#define ARGS_MCP_HOST_PATH_MODE MOUNT_RO
#define ARGS_MCP_STARTUP_SEC 120

/* The same of `box agent`: an agent talks to its model, compiles and runs tests. */
#define ARGS_AGENT_NETWORK NETWORK_ON
#define ARGS_AGENT_MEMORY_MB 4096
#define ARGS_AGENT_CPUS 2
#define ARGS_AGENT_PIDS 1024

struct args {
    enum verb verb;
    enum verb topic;         /* VERB_HELP: of this verb; VERB_HELP itself is help on the whole */
    struct spec *spec;       /* owned; what was not given has its default */
    uint64_t given;          /* set of FIELD_BIT(enum spec_field) */
    char **names;            /* owned; sessions of `exec` and `rm`, words of others */
    char *const *command;    /* borrowed; NULL-terminated, NULL for verbs without one */
    const char *config_file; /* borrowed from argv; NULL: none */
    const char *head;        /* borrowed from argv; NULL: none */
    const char *name;        /* these too, of `mcp run` */
    const char *profile;
    const char *fallback;
    const char *install;
    const char *retry_delays;
    const char *inside_dir;
    const char *cache;   /* of `agent`, too */
    const char *keys;    /* of `agent` */
    const char *backend; /* these too, of `doctor --attack` */
    const char *format;
    const char *output;
    const char *restart; /* of `run -d` */
    const char *since;   /* these two of `logs` */
    const char *tail;
    const char *signal;     /* of `kill` */
    const char *entrypoint; /* borrowed from argv; the program, with the command as its arguments */
    const char *user;       /* this too; whom the command must find itself to be; NULL: anybody */
    char **as_user;         /* owned; the command with that check before it, or NULL */
    char **envs, **env_files; /* owned; in the order given */
    char **publish;           /* this too; ports, as cli/port.h reads them */
    char **allow_hosts;       /* this too; services of the host */
    bool best_effort;
    bool attack;
    bool explain;
    bool tty;
    bool interactive;
    bool json;
    bool all;
    bool temporary;
    bool quiet;
    bool recursive;
    bool force;
    bool remove; /* the session ends with its command, though it has a name */
    bool follow;
    bool settings; /* of a coding agent: its own directories in the home are mounted */
    bool no_stream;
    bool detach;
    bool help;
    bool version;
};

/* ERR_INVALID with one line that says what is wrong. args_done() is due either way. */
int args_parse(int argc, char *argv[], struct args *ret, struct err *err);
void args_done(struct args *a);
DEFINE_CLEANUP_DONE(args)

/* Whether that enum spec_field was given. */
static inline bool args_given(const struct args *a, unsigned field)
{
    return ((a->given >> field) & 1U) != 0;
}

/* session, ephemeral, create: the part of a request about the session, as members. Only what was
 * given: the rest is for boxd and its profile to decide. */
void args_put_session(const struct args *a, struct jw *w);

/* The member allow_hosts of a session; nothing when none was given. */
void args_put_hosts(const struct args *a, struct jw *w);
/* The members of the session alone, session_id among them, given or not. */
void args_put_fields(const struct args *a, struct jw *w);

/* "NAME=value" into the vector; a later one of a name replaces an earlier one. The text may be a
 * secret: no message repeats it. */
int args_set_variable(char ***env, const char *text, struct err *err);

/* The tables. */

struct arg_verb {
    const char *name;
    const char *synopsis; /* what follows the options */
    const char *doc;
    bool wants_command;    /* "[--] CMD [ARG...]" */
    bool makes_session;    /* takes the options of one, without a command */
    unsigned min_names;    /* unless --all */
    unsigned max_names;    /* 0: none are taken */
    const char *name_word; /* what a name is, for messages */
    bool any_word;         /* names need not be those of sessions */
    const char *words;     /* what the first name can be, for shells; NULL: anything */
    bool maybe_command;    /* with wants_command: it may be missing */
    const char *alias;     /* another name; NULL: none */
};

/* How the value of an option is read, and what `where` is: the offset of a member of struct args,
 * or an enum spec_field. */
enum arg_kind {
    ARG_FLAG,    /* a bool of args; takes no value */
    ARG_TEXT,    /* a text of args */
    ARG_CHOICE,  /* the same; one of the words of `value`, with | between them */
    ARG_LIST,    /* a vector of args */
    ARG_SECRETS, /* the same; the argument is overwritten, so that no list of processes shows it */
    ARG_FIELD,   /* a field of the spec, from here on */
    ARG_SESSION,
    ARG_SIZE, /* a field in MiB: 512m, 1.5g */
    ARG_TIME, /* a field in seconds: 30, 30s, 1h30m */
    ARG_HOST_PATH,
    ARG_MOUNT,
    ARG_KIND_MAX,
};

struct arg_option {
    const char *name;  /* without the dashes */
    const char *value; /* how help calls the value; NULL: a flag */
    enum arg_kind kind;
    size_t where;
    const char *doc;
    uint64_t verbs; /* set of FOR() */
    char letter;    /* 0: none */
    bool many;      /* may be given several times */
};

#define FOR(verb) (UINT64_C(1) << VERB_##verb)
_Static_assert(VERB_MAX <= 64, "a set of verbs has 64 bits");

extern const struct arg_verb arg_verbs[VERB_MAX];
extern const struct arg_option arg_options[];
extern const size_t arg_n_options;

static inline bool arg_fits(const struct arg_option *o, enum verb verb)
{
    return ((o->verbs >> verb) & 1U) != 0;
}

void args_help(enum verb topic, struct buf *out);
