/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of verbs and options, and the parser that walks the arguments by them. */

#include "cli/args/args.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/box_args_internal.h"
#include "spec/model.h"
#include "spec/spec.h"

/* clang-format off */
const struct arg_verb arg_verbs[VERB_MAX] = {
    [VERB_RUN] = {"run", "-- CMD [ARG...]",
     "Run a command in a sandbox. Its exit status is that of box.", .wants_command = true},
    [VERB_EXEC] = {"exec", "-- CMD [ARG...]",
     "Run a command in a session that exists.", .wants_command = true, .min_names = 1, .max_names = 1,
     .name_word = "SESSION"},
    [VERB_CP] = {"cp", NULL,
     "Copy a file into a session or out of it: SESSION:PATH is inside, - is standard input or output.",
     .min_names = 2, .max_names = 2, .name_word = "SRC DST", .any_word = true},
    [VERB_PS] = {"ps", NULL, "List the sessions."},
    [VERB_RM] = {"rm", NULL,
     "Remove sessions: every process, file and trace of them.", .min_names = 1, .max_names = 4096,
     .name_word = "SESSION"},
    [VERB_DOCTOR] = {"doctor", NULL, "Tell what this host can and cannot enforce."},
    [VERB_CONFIG] = {"config", NULL, "Tell what boxd would be configured to do here, or what is wrong."},
    [VERB_AUDIT] = {"audit", "verify [FILE...]", "Prove that an audit log is whole: box audit verify [FILE...].",
     .min_names = 1, .max_names = 4096, .name_word = "word: verify", .any_word = true, .words = "verify"},
    [VERB_MCP_SERVE] = {"mcp serve", NULL,
     "Be an MCP server on standard input and output: tools, files and processes of a sandbox.",
     .makes_session = true},
    [VERB_COMPLETION] = {"completion", NULL, "Print the completion of a shell: bash, zsh or fish.",
     .min_names = 1, .max_names = 1, .name_word = "SHELL", .any_word = true, .words = "bash zsh fish"},
    [VERB_MCP_RUN] = {"mcp run", "-- COMMAND [ARG...]",
     "Run a stdio MCP server in a sandbox of its own, in place of the bare command.",
     .wants_command = true, .maybe_command = true},
    [VERB_MCP_LS] = {"mcp ls", NULL, "List the MCP servers that run in sandboxes."},
    [VERB_MCP_LOGS] = {"mcp logs", NULL, "Show what such a server has written to standard error.",
     .min_names = 1, .max_names = 1, .name_word = "NAME", .any_word = true},
    [VERB_HELP] = {"help", NULL, "Explain a verb.", .max_names = 2, .name_word = "VERB", .any_word = true},
};

#define COMMAND (FOR(RUN) | FOR(EXEC))
#define SESSION (FOR(RUN) | FOR(MCP_RUN) | FOR(MCP_SERVE))

const struct arg_option arg_options[] = {
    {"session", "ID", arg_set_session, SPEC_SESSION_ID,
     "Use this session, made when it does not exist, and keep it.", FOR(RUN) | FOR(MCP_SERVE)},
    {"attack", NULL, arg_set_flag, offsetof(struct args, attack),
     "Try to break out of throw-away sessions, and tell which walls stand; takes up to a minute.", FOR(DOCTOR)},
    {"backend", "native|runsc|docker|podman", arg_set_text, offsetof(struct args, backend),
     "With --attack: sessions must be on this backend.", FOR(DOCTOR)},
    {"image", "IMAGE", arg_set_field, SPEC_IMAGE, "With --attack: root filesystem of the sessions.", FOR(DOCTOR)},
    {"format", "text|json|junit", arg_set_text, offsetof(struct args, format),
     "With --attack: how the report is written. Default text.", FOR(DOCTOR)},
    {"output", "FILE", arg_set_text, offsetof(struct args, output),
     "With --attack: write the report there, and print one line.", FOR(DOCTOR)},
    {"image", "IMAGE", arg_set_field, SPEC_IMAGE, "Root filesystem.", SESSION},
    {"network", "on|off", arg_set_field, SPEC_NETWORK, "Whether the internet can be reached.", SESSION},
    {"memory-mb", "N", arg_set_field, SPEC_MEMORY_MB, "Memory of the session, in MiB.", SESSION},
    {"cpus", "X", arg_set_field, SPEC_CPUS, "Processor share, such as 0.5.", SESSION},
    {"pids", "N", arg_set_field, SPEC_PIDS_LIMIT, "Processes and threads of the session.", SESSION},
    {"quota-mb", "N", arg_set_field, SPEC_WORKSPACE_QUOTA_MB, "Disk space, in MiB; 0: no limit.", SESSION},
    {"read-only-root", "on|off", arg_set_field, SPEC_READ_ONLY_ROOTFS,
     "Whether only the workspace and /tmp are writable.", SESSION},
    {"mount", "HOST:BOX[:ro|rw]", arg_set_mount, SPEC_EXTRA_MOUNTS,
     "Show a path of the host inside, writable unless ro.", SESSION, .many = true},
    {"timeout", "SEC", arg_set_field, SPEC_TIMEOUT_SEC,
     "Kill the command and all it started after that long.", COMMAND},
    {"env", "NAME=VALUE", arg_set_env, SPEC_ENV, "Environment variable of the command.", COMMAND, .many = true},
    {"workdir", "DIR", arg_set_field, SPEC_WORKDIR, "Directory the command starts in.", COMMAND},
    {"tty", NULL, arg_set_flag, offsetof(struct args, tty), "Give the command a terminal.", COMMAND, .letter = 't'},
    {"interactive", NULL, arg_set_flag, offsetof(struct args, interactive),
     "Pass standard input on, even when it is a terminal.", COMMAND, .letter = 'i'},
    {"name", "NAME", arg_set_text, offsetof(struct args, name),
     "How it is called in 'box mcp ls'; with --config: which server of the file.", FOR(MCP_RUN)},
    {"host-path", "DIR", arg_set_host_path, SPEC_HOST_PATH,
     "Directory of the host to show at /workspace; found from the command by default.", FOR(MCP_RUN)},
    {"host-path-mode", "ro|rw|none", arg_set_field, SPEC_HOST_PATH_MODE,
     "How it is shown: read-only unless told otherwise here.", FOR(MCP_RUN)},
    {"env", "NAME[=VALUE]", arg_add_secret, offsetof(struct args, envs),
     "Variable of the server; a name alone takes the value it has here.", FOR(MCP_RUN), .many = true},
    {"env-file", "FILE", arg_add_text, offsetof(struct args, env_files),
     "File with a variable of the server on each line.", FOR(MCP_RUN), .many = true},
    {"workdir", "DIR", arg_set_text, offsetof(struct args, inside_dir),
     "Directory the server starts in, inside; /workspace by default.", FOR(MCP_RUN)},
    {"startup-timeout", "SEC", arg_set_field, SPEC_TIMEOUT_SEC,
     "How long dependencies and the first answer may take. Default 120.", FOR(MCP_RUN)},
    {"install", "auto|off", arg_set_text, offsetof(struct args, install),
     "Whether dependencies of a project are installed before the start.", FOR(MCP_RUN)},
    {"profile", "NAME", arg_set_text, offsetof(struct args, profile),
     "Profile of boxd that its session is made with.", FOR(MCP_RUN)},
    {"fallback", "refuse|host", arg_set_text, offsetof(struct args, fallback),
     "What to do where no box can be had; host runs it WITHOUT ONE. Default refuse.", FOR(MCP_RUN)},
    {"retry-delays", "LIST", arg_set_text, offsetof(struct args, retry_delays),
     "Seconds before each new attempt, the last for ever. Default 2,4,8,60.", FOR(MCP_RUN)},
    {"follow", NULL, arg_set_flag, offsetof(struct args, follow), "Go on until the server ends.", FOR(MCP_LOGS), .letter = 'f'},
    {"all", NULL, arg_set_flag, offsetof(struct args, all), "Remove every session.", FOR(RM)},
    {"json", NULL, arg_set_flag, offsetof(struct args, json), "JSON instead of a table.",
     FOR(PS) | FOR(DOCTOR) | FOR(CONFIG) | FOR(AUDIT) | FOR(MCP_LS)},
    {"config", "FILE", arg_set_text, offsetof(struct args, config_file), "Configuration file of boxd.", FOR(CONFIG) | FOR(AUDIT)},
    {"config", "FILE", arg_set_text, offsetof(struct args, config_file),
     "File with mcpServers, as clients have it: one of them instead of a command.", FOR(MCP_RUN)},
    {"explain", NULL, arg_set_flag, offsetof(struct args, explain), "Where each value comes from, too.", FOR(CONFIG)},
    {"head", "HASH", arg_set_text, offsetof(struct args, head),
     "Digest of a record noted earlier: it must still be there.", FOR(AUDIT)},
    {"help", NULL, arg_set_flag, offsetof(struct args, help), "Show this text.", ~0u, .letter = 'h'},
    {"version", NULL, arg_set_flag, offsetof(struct args, version), "Show the version.", FOR(HELP), .letter = 'V'},
};
/* clang-format on */
const size_t arg_n_options = ARRAY_SIZE(arg_options);

struct cursor {
    int argc;
    char **argv;
    int next;
    bool ended; /* after "--" */
};

static int unknown(const struct args *a, const char *option, struct err *err)
{
    if (a->verb == VERB_HELP)
        return err_set(err, ERR_INVALID, "unknown option '%s', see 'box --help'", option);
    const char *verb = arg_verbs[a->verb].name;
    return err_set(err, ERR_INVALID, "unknown option '%s' of '%s', see 'box help %s'", option, verb,
                   verb);
}

/* `value` is what stood behind '=', or NULL. */
static int apply(const struct arg_option *o, const char *value, struct cursor *c, struct args *a,
                 struct err *err)
{
    if (o->value == NULL && value != NULL)
        return err_set(err, ERR_INVALID, "--%s takes no value", o->name);
    if (o->value != NULL && value == NULL) {
        /* A "--" here is the end of the options, not a value. */
        if (c->next >= c->argc || str_eq(c->argv[c->next], "--"))
            return err_set(err, ERR_INVALID, "--%s wants a value: %s", o->name, o->value);
        value = c->argv[c->next++];
    }
    return o->set(o, value, a, err);
}

static int long_option(const char *text, struct cursor *c, struct args *a, struct err *err)
{
    size_t len = strcspn(text, "=");
    const char *value = text[len] == '=' ? text + len + 1 : NULL;

    for (size_t i = 0; i < arg_n_options; i++) {
        const struct arg_option *o = &arg_options[i];
        if ((o->verbs & (1u << a->verb)) != 0 && strlen(o->name) == len &&
            memcmp(o->name, text, len) == 0)
            return apply(o, value, c, a, err);
    }
    AUTO_FREE char *name = xstrndup(text - 2, len + 2);
    return unknown(a, name, err);
}

/* "-ti": several letters in one argument; none of them takes a value. */
static int short_options(const char *letters, struct cursor *c, struct args *a, struct err *err)
{
    for (; *letters != '\0'; letters++) {
        const struct arg_option *o = NULL;
        for (size_t i = 0; i < arg_n_options && o == NULL; i++)
            if ((arg_options[i].verbs & (1u << a->verb)) != 0 && arg_options[i].letter == *letters)
                o = &arg_options[i];
        if (o == NULL) {
            const char name[] = {'-', *letters, '\0'};
            return unknown(a, name, err);
        }
        int r = apply(o, NULL, c, a, err);
        if (r < 0)
            return r;
    }
    return 0;
}

static int plain_argument(const char *text, struct args *a, struct err *err)
{
    const struct arg_verb *v = &arg_verbs[a->verb];

    if (strv_len(a->names) < v->max_names) {
        strv_add(&a->names, text);
        return 0;
    }
    if (v->wants_command)
        return err_set(err, ERR_INVALID, "unexpected '%s': put '--' before the command", text);
    return err_set(err, ERR_INVALID, "unexpected '%s' after 'box %s'", text, v->name);
}

static int walk(struct cursor *c, struct args *a, struct err *err)
{
    int r = 0;

    while (r >= 0 && c->next < c->argc) {
        const char *text = c->argv[c->next++];
        if (str_eq(text, "--")) {
            c->ended = true;
            return 0;
        }
        if (str_starts(text, "--"))
            r = long_option(text + 2, c, a, err);
        else if (text[0] == '-' && text[1] != '\0')
            r = short_options(text + 1, c, a, err);
        else
            r = plain_argument(text, a, err);
    }
    return r;
}

static int find_verb(const char *name, enum verb *ret, struct err *err)
{
    for (size_t i = 0; i < VERB_MAX; i++) {
        if (!str_eq(arg_verbs[i].name, name))
            continue;
        *ret = (enum verb)i;
        return 0;
    }
    return err_set(err, ERR_INVALID, "unknown verb '%s', see 'box --help'", name);
}

/* Some verbs have two words. The second is NULL where there is none. */
static char *verb_name(const char *first, const char *second)
{
    if (second == NULL || !str_eq(first, "mcp"))
        return xstrdup(first);
    return xasprintf("%s %s", first, second);
}

/* JSON carries text: other bytes would arrive changed, and that silently. */
static int check_command(const struct args *a, const struct cursor *c, struct err *err)
{
    if (!c->ended && arg_verbs[a->verb].maybe_command)
        return 0;
    if (!c->ended || a->command[0] == NULL)
        return err_set(err, ERR_INVALID, "no command: box %s %s[OPTION...] -- CMD [ARG...]",
                       arg_verbs[a->verb].name, a->verb == VERB_EXEC ? "SESSION " : "");
    for (size_t i = 0; a->command[i] != NULL; i++)
        if (!utf8_valid(a->command[i], strlen(a->command[i])))
            return err_set(err, ERR_INVALID, "argument %zu of the command is not valid UTF-8", i);
    return 0;
}

static int check_names(const struct args *a, struct err *err)
{
    const struct arg_verb *v = &arg_verbs[a->verb];
    size_t n = strv_len(a->names);

    if (a->all && n > 0)
        return err_set(err, ERR_INVALID, "--all and names of sessions exclude each other");
    if (n < v->min_names && !a->all)
        return err_set(err, ERR_INVALID, "'box %s' wants a %s", v->name, v->name_word);
    for (size_t i = 0; i < n && !v->any_word; i++)
        if (spec_check_id(a->names[i], err) < 0)
            return err_wrap(err, "session '%s'", a->names[i]);
    return 0;
}

/* The rules of the spec hold for what was given; the id is that of a session to be named later. */
static int check_spec(struct args *a, struct err *err)
{
    if ((a->given & FIELD_BIT(SPEC_SESSION_ID)) == 0) {
        free(a->spec->session_id);
        a->spec->session_id = xstrdup(a->names != NULL ? a->names[0] : "unnamed");
    }
    return spec_validate(a->spec, err);
}

static int check(struct args *a, const struct cursor *c, struct err *err)
{
    const struct arg_verb *v = &arg_verbs[a->verb];
    int r = check_names(a, err);

    if (r >= 0 && !a->attack && (a->backend || a->format || a->output || a->given) &&
        a->verb == VERB_DOCTOR)
        r = err_set(err, ERR_INVALID, "--backend, --format, --output and --image want --attack");
    if (r >= 0 && c->ended && !v->wants_command)
        r = err_set(err, ERR_INVALID, "'box %s' takes no command", v->name);
    if (r >= 0 && v->wants_command)
        r = check_command(a, c, err);
    if (r >= 0 && (v->wants_command || v->makes_session))
        r = check_spec(a, err);
    if (r >= 0 && a->verb == VERB_HELP && a->names != NULL) {
        AUTO_FREE char *name = verb_name(a->names[0], a->names[1]);
        r = find_verb(name, &a->topic, err);
    }
    return r;
}

int args_parse(int argc, char *argv[], struct args *ret, struct err *err)
{
    struct cursor c = {.argc = argc, .argv = argv, .next = 1};

    memset(ret, 0, sizeof(*ret));
    ret->spec = spec_new();
    ret->verb = VERB_HELP;
    ret->topic = VERB_HELP;
    if (argc < 2)
        return err_set(err, ERR_INVALID, "no verb, see 'box --help'");
    if (argv[1][0] != '-') {
        AUTO_FREE char *name = verb_name(argv[1], argv[2]);
        int r = find_verb(name, &ret->verb, err);
        if (r < 0)
            return r;
        c.next = str_eq(name, argv[1]) ? 2 : 3;
    }
    int r = walk(&c, ret, err);
    if (r < 0)
        return r;
    if (ret->help) {
        ret->topic = ret->verb;
        ret->verb = VERB_HELP;
        return 0;
    }
    ret->command = c.ended ? argv + c.next : NULL;
    return check(ret, &c, err);
}

void args_done(struct args *a)
{
    spec_free(a->spec);
    a->spec = NULL;
    strv_free(a->names);
    a->names = NULL;
    strv_free(a->envs);
    strv_free(a->env_files);
    a->envs = a->env_files = NULL;
}
