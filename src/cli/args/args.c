/* SPDX-License-Identifier: Apache-2.0 */

/* The tables of verbs and options, and the parser that walks the arguments by them. */

#include "cli/args/args_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/model.h"
#include "spec/spec.h"

/* clang-format off */
const struct arg_verb arg_verbs[VERB_MAX] = {
    [VERB_RUN] = {"run", "[--] CMD [ARG...]",
     "Run a command in a sandbox. Its exit status is that of box.", .wants_command = true},
    [VERB_EXEC] = {"exec", "[--] CMD [ARG...]",
     "Run a command in a session that exists.", .wants_command = true, .min_names = 1, .max_names = 1,
     .name_word = "SESSION"},
    [VERB_AGENT] = {"agent", "[--] [ARG...]",
     "Run a coding agent in a sandbox, with the project around the current directory: claude, codex, gemini, opencode "
     "or a program of yours.",
     .wants_command = true, .maybe_command = true, .min_names = 1, .max_names = 1, .name_word = "NAME", .any_word = true,
     .words = "claude codex gemini opencode"},
    [VERB_CP] = {"cp", NULL,
     "Copy files into a session or out of it: SESSION:PATH is inside, - is a tar archive on standard input or output.",
     .min_names = 2, .max_names = 2, .name_word = "SRC DST", .any_word = true},
    [VERB_PORT] = {"port", NULL,
     "Show or change which ports of the host lead to servers in a session: box port SESSION [add|rm PORT...].",
     .min_names = 1, .max_names = 64, .name_word = "SESSION", .any_word = true},
    [VERB_LOGS] = {"logs", NULL,
     "Show what a detached command has written: box logs SESSION [PROCESS].", .min_names = 1, .max_names = 2,
     .name_word = "SESSION"},
    [VERB_ATTACH] = {"attach", NULL,
     "Be the terminal of a detached command again; Ctrl-P Ctrl-Q leaves it: box attach SESSION [PROCESS].",
     .min_names = 1, .max_names = 2, .name_word = "SESSION"},
    [VERB_WAIT] = {"wait", NULL,
     "Wait until a detached command ends, and print its exit status: box wait SESSION [PROCESS].", .min_names = 1,
     .max_names = 2, .name_word = "SESSION"},
    [VERB_KILL] = {"kill", NULL,
     "Send a detached command a signal: box kill SESSION [PROCESS].", .min_names = 1, .max_names = 2,
     .name_word = "SESSION"},
    [VERB_PS] = {"ps", NULL, "List the sessions.", .alias = "ls"},
    [VERB_RM] = {"rm", NULL,
     "Remove sessions: every process, file and trace of them.", .min_names = 1, .max_names = 4096,
     .name_word = "SESSION"},
    [VERB_STOP] = {"stop", NULL, "End everything that runs in sessions; their files stay.",
     .min_names = 1, .max_names = 4096, .name_word = "SESSION"},
    [VERB_START] = {"start", NULL, "Make stopped sessions run again, with their files.",
     .min_names = 1, .max_names = 4096, .name_word = "SESSION"},
    [VERB_PAUSE] = {"pause", NULL, "Freeze every process of sessions.",
     .min_names = 1, .max_names = 4096, .name_word = "SESSION"},
    [VERB_UNPAUSE] = {"unpause", NULL, "Let the processes of paused sessions go on.",
     .min_names = 1, .max_names = 4096, .name_word = "SESSION"},
    [VERB_RENAME] = {"rename", NULL, "Give a session another name: box rename OLD NEW.",
     .min_names = 2, .max_names = 2, .name_word = "OLD NEW"},
    [VERB_UPDATE] = {"update", NULL,
     "Change the limits of sessions: at once, and from the next start on where they are stopped. What is not given stays.",
     .min_names = 1, .max_names = 4096, .name_word = "SESSION"},
    [VERB_DIFF] = {"diff", NULL,
     "List the files of the image that a session has changed: A added, C changed, D deleted.", .min_names = 1,
     .max_names = 1, .name_word = "SESSION"},
    [VERB_INSPECT] = {"inspect", NULL,
     "Show all that is known of sessions, as JSON: limits, receipt, processes, last commands.", .min_names = 1,
     .max_names = 4096, .name_word = "SESSION"},
    [VERB_TOP] = {"top", NULL,
     "Show the processes in a session, and the command or managed process that each belongs to.", .min_names = 1,
     .max_names = 1, .name_word = "SESSION"},
    [VERB_STATS] = {"stats", NULL,
     "Show what sessions use, of processor, memory, disk and network: all that run, or those named.",
     .max_names = 64, .name_word = "SESSION"},
    [VERB_EVENTS] = {"events", NULL,
     "Show what happens to sessions as it happens; of one session, if it is named.", .max_names = 1,
     .name_word = "SESSION"},
    [VERB_DOCTOR] = {"doctor", NULL, "Tell what this host can and cannot enforce."},
    [VERB_INFO] = {"info", NULL, "Tell which boxd is used and why."},
    [VERB_CONFIG] = {"config", NULL, "Show how boxd would be configured here, or what is wrong with that."},
    [VERB_AUDIT] = {"audit", "verify [FILE...]", "Prove that an audit log is whole: box audit verify [FILE...].",
     .min_names = 1, .max_names = 4096, .name_word = "word: verify", .any_word = true, .words = "verify"},
    [VERB_MCP_SERVE] = {"mcp serve", NULL,
     "Be an MCP server on standard input and output: tools, files and processes of a sandbox.",
     .makes_session = true},
    [VERB_COMPLETION] = {"completion", NULL, "Print the completion of a shell: bash, zsh or fish.",
     .min_names = 1, .max_names = 1, .name_word = "SHELL", .any_word = true, .words = "bash zsh fish"},
    [VERB_MCP_RUN] = {"mcp run", "[--] COMMAND [ARG...]",
     "Run a stdio MCP server in a sandbox of its own, in place of the bare command.",
     .wants_command = true, .maybe_command = true},
    [VERB_MCP_LS] = {"mcp ls", NULL, "List the MCP servers that run in sandboxes."},
    [VERB_MCP_LOGS] = {"mcp logs", NULL, "Show what such a server has written to standard error.",
     .min_names = 1, .max_names = 1, .name_word = "NAME", .any_word = true},
    [VERB_HELP] = {"help", NULL, "Explain a verb.", .max_names = 2, .name_word = "VERB", .any_word = true},
};

#define COMMAND (FOR(RUN) | FOR(EXEC))
#define SESSION (FOR(RUN) | FOR(AGENT) | FOR(MCP_RUN) | FOR(MCP_SERVE))
#define LIMITS (SESSION | FOR(UPDATE))

const struct arg_option arg_options[] = {
    {"session", "ID", ARG_SESSION, SPEC_SESSION_ID,
     "Use this session, made when it does not exist, and keep it until it is removed.", FOR(RUN) | FOR(AGENT) | FOR(MCP_SERVE)},
    {"temporary", NULL, ARG_FLAG, offsetof(struct args, temporary),
     "Remove the session when it is idle or boxd ends, instead of keeping it.", FOR(RUN)},
    {"name", "ID", ARG_SESSION, SPEC_SESSION_ID, "The same as --session.", FOR(RUN)},
    {"detach", NULL, ARG_FLAG, offsetof(struct args, detach),
     "Return at once and print the name of the session, or with exec the id of the process. The command goes on.",
     COMMAND, .letter = 'd'},
    {"restart", "no|on-failure|always", ARG_CHOICE, offsetof(struct args, restart),
     "With -d: whether the command runs again when it has ended, and after a restart of the host. Default no.", FOR(RUN)},
    {"rm", NULL, ARG_FLAG, offsetof(struct args, remove),
     "Remove the session when the command ends; without a name that is so anyway.", FOR(RUN)},
    {"rm", NULL, ARG_FLAG, offsetof(struct args, remove),
     "Remove the session when the agent ends, with all but the project.", FOR(AGENT)},
    {"settings", NULL, ARG_FLAG, offsetof(struct args, settings),
     "Mount the agent's own settings of your home (~/.claude, ~/.codex, ...), writable.", FOR(AGENT)},
    {"keys", "on|off", ARG_CHOICE, offsetof(struct args, keys),
     "Whether the agent gets its API keys of your environment. Default on.", FOR(AGENT)},
    {"cache", "own|shared", ARG_CHOICE, offsetof(struct args, cache),
     "Packages that were downloaded: kept in the session, or shared by your agents that say so. Default own.", FOR(AGENT)},
    {"cache", "own|off", ARG_CHOICE, offsetof(struct args, cache),
     "Whether packages that were downloaded are kept for the next start of this server. Default own.", FOR(MCP_RUN)},
    {"attack", NULL, ARG_FLAG, offsetof(struct args, attack),
     "Try to break out of throw-away sessions, and report which walls hold; takes up to a minute.", FOR(DOCTOR)},
    {"backend", "native|runsc|docker|podman", ARG_TEXT, offsetof(struct args, backend),
     "With --attack: sessions must be on this backend.", FOR(DOCTOR)},
    {"image", "IMAGE", ARG_FIELD, SPEC_IMAGE, "With --attack: root filesystem of the sessions.", FOR(DOCTOR)},
    {"format", "text|json|junit", ARG_CHOICE, offsetof(struct args, format),
     "With --attack: how the report is written. Default text.", FOR(DOCTOR)},
    {"output", "FILE", ARG_TEXT, offsetof(struct args, output),
     "With --attack: write the report there, and print one line.", FOR(DOCTOR)},
    {"image", "IMAGE", ARG_FIELD, SPEC_IMAGE, "Root filesystem.", SESSION},
    {"network", "on|off", ARG_FIELD, SPEC_NETWORK, "Whether the internet can be reached.", SESSION},
    {"memory", "SIZE", ARG_SIZE, SPEC_MEMORY_MB, "Memory of the session, such as 512m or 1.5g.", LIMITS, .letter = 'm'},
    {"memory-mb", "N", ARG_FIELD, SPEC_MEMORY_MB, "The same, in MiB.", LIMITS},
    {"cpus", "X", ARG_FIELD, SPEC_CPUS, "Processor share, such as 0.5.", LIMITS},
    {"pids", "N", ARG_FIELD, SPEC_PIDS_LIMIT, "Processes and threads of the session.", LIMITS},
    {"pids-limit", "N", ARG_FIELD, SPEC_PIDS_LIMIT, "The same as --pids.", LIMITS},
    {"quota", "SIZE", ARG_SIZE, SPEC_WORKSPACE_QUOTA_MB, "Disk space, such as 100m or 1g; 0: no limit.", SESSION},
    {"quota-mb", "N", ARG_FIELD, SPEC_WORKSPACE_QUOTA_MB, "The same, in MiB.", SESSION},
    {"read-only-root", "on|off", ARG_FIELD, SPEC_READ_ONLY_ROOTFS,
     "Whether only the workspace and /tmp are writable.", SESSION},
    {"mount", "HOST:BOX[:ro|rw]", ARG_MOUNT, SPEC_EXTRA_MOUNTS,
     "Show a path of the host inside, writable unless ro.", SESSION, .letter = 'v', .many = true},
    {"volume", "HOST:BOX[:ro|rw]", ARG_MOUNT, SPEC_EXTRA_MOUNTS, "The same as --mount.", SESSION, .many = true},
    {"publish", "[ADDR:][HOST_PORT:]PORT", ARG_LIST, offsetof(struct args, publish),
     "Listen on a port of the host (of 127.0.0.1; any free one) for a server in the session.", FOR(RUN) | FOR(AGENT), .letter = 'p',
     .many = true},
    {"allow-host", "ADDR:PORT[:INSIDE_PORT]", ARG_LIST, offsetof(struct args, allow_hosts),
     "Let the session reach this service of the host, at 127.0.0.1:PORT inside; --network need not be on.",
     FOR(RUN) | FOR(AGENT) | FOR(MCP_RUN), .many = true},
    {"best-effort", NULL, ARG_FLAG, offsetof(struct args, best_effort),
     "Take a session without a limit or an image that cannot be had here, instead of an error.",
     FOR(RUN) | FOR(AGENT) | FOR(MCP_RUN)},
    {"timeout", "TIME", ARG_TIME, SPEC_TIMEOUT_SEC,
     "Kill the command and all it started after that long: 30s, 5m, 1h30m; seconds without a unit.", COMMAND | FOR(AGENT)},
    {"env", "NAME[=VALUE]", ARG_SECRETS, offsetof(struct args, envs),
     "Variable of the command; a name alone takes the value it has here.", COMMAND | FOR(AGENT), .letter = 'e', .many = true},
    {"env-file", "FILE", ARG_LIST, offsetof(struct args, env_files),
     "File with a variable of the command on each line.", COMMAND | FOR(AGENT), .many = true},
    {"workdir", "DIR", ARG_FIELD, SPEC_WORKDIR, "Directory the command starts in.", COMMAND, .letter = 'w'},
    {"user", "USER", ARG_TEXT, offsetof(struct args, user),
     "The session's own user, by name or number: commands run as no other.", COMMAND, .letter = 'u'},
    {"entrypoint", "PROGRAM", ARG_TEXT, offsetof(struct args, entrypoint),
     "Run this program, with the words of the command as its arguments.", FOR(RUN)},
    {"tty", NULL, ARG_FLAG, offsetof(struct args, tty), "Give the command a terminal.", COMMAND, .letter = 't'},
    {"interactive", NULL, ARG_FLAG, offsetof(struct args, interactive),
     "Pass standard input on, even when it is a terminal.", COMMAND, .letter = 'i'},
    {"name", "NAME", ARG_TEXT, offsetof(struct args, name),
     "How it is called in 'box mcp ls'; with --config: which server of the file.", FOR(MCP_RUN)},
    {"host-path", "DIR", ARG_HOST_PATH, SPEC_HOST_PATH,
     "Directory of the host to show at /workspace; found from the command by default.", FOR(MCP_RUN)},
    {"host-path-mode", "ro|rw|none", ARG_FIELD, SPEC_HOST_PATH_MODE,
     "How it is shown.", FOR(MCP_RUN)},
    {"env", "NAME[=VALUE]", ARG_SECRETS, offsetof(struct args, envs),
     "Variable of the server; a name alone takes the value it has here.", FOR(MCP_RUN), .letter = 'e', .many = true},
    {"env-file", "FILE", ARG_LIST, offsetof(struct args, env_files),
     "File with a variable of the server on each line.", FOR(MCP_RUN), .many = true},
    {"workdir", "DIR", ARG_TEXT, offsetof(struct args, inside_dir),
     "Directory the server starts in, inside; /workspace by default.", FOR(MCP_RUN), .letter = 'w'},
    {"startup-timeout", "TIME", ARG_TIME, SPEC_TIMEOUT_SEC,
     "How long dependencies and the first answer may take.", FOR(MCP_RUN)},
    {"install", "auto|off", ARG_CHOICE, offsetof(struct args, install),
     "Whether dependencies of a project are installed before the start.", FOR(MCP_RUN)},
    {"profile", "NAME", ARG_TEXT, offsetof(struct args, profile),
     "Profile of boxd that its session is made with.", FOR(MCP_RUN)},
    {"fallback", "refuse|host", ARG_CHOICE, offsetof(struct args, fallback),
     "What to do if no box can be made; host runs the server WITHOUT ONE. Default refuse.", FOR(MCP_RUN)},
    {"retry-delays", "LIST", ARG_TEXT, offsetof(struct args, retry_delays),
     "Seconds before each new attempt, the last for ever. Default 2,4,8,60.", FOR(MCP_RUN)},
    {"follow", NULL, ARG_FLAG, offsetof(struct args, follow), "Go on until it ends.", FOR(LOGS) | FOR(MCP_LOGS),
     .letter = 'f'},
    {"since", "TIME", ARG_TEXT, offsetof(struct args, since),
     "Only what was written since then: 10m or 1h30m ago, seconds since 1970, or 2026-01-31T12:00:00Z.", FOR(LOGS)},
    {"tail", "N", ARG_TEXT, offsetof(struct args, tail), "Only the last lines; all is the default.", FOR(LOGS), .letter = 'n'},
    {"signal", "NAME", ARG_TEXT, offsetof(struct args, signal), "TERM, INT, HUP, USR1 and so on. Default KILL.",
     FOR(KILL), .letter = 's'},
    {"all", NULL, ARG_FLAG, offsetof(struct args, all), "Remove every session.", FOR(RM)},
    {"all", NULL, ARG_FLAG, offsetof(struct args, all), "Stopped sessions too, and the disk that they take.", FOR(PS),
     .letter = 'a'},
    {"force", NULL, ARG_FLAG, offsetof(struct args, force), "Also sessions in which something runs; that is so anyway.",
     FOR(RM), .letter = 'f'},
    {"recursive", NULL, ARG_FLAG, offsetof(struct args, recursive), "Copy a directory with all it holds.", FOR(CP),
     .letter = 'r'},
    {"quiet", NULL, ARG_FLAG, offsetof(struct args, quiet), "Names of sessions only.", FOR(PS), .letter = 'q'},
    {"quiet", NULL, ARG_FLAG, offsetof(struct args, quiet), "Do not tell what box waits for, nor how much is copied.", FOR(RUN) | FOR(AGENT) | FOR(CP),
     .letter = 'q'},
    {"format", "json|table|TEMPLATE", ARG_TEXT, offsetof(struct args, format),
     "A JSON object on each line, a table, or a template such as '{{.Name}} {{.State}}'.", FOR(PS) | FOR(TOP) | FOR(STATS)},
    {"no-stream", NULL, ARG_FLAG, offsetof(struct args, no_stream),
     "Once, instead of each second for as long as a terminal is there to show it.", FOR(STATS)},
    {"format", "json|TEMPLATE", ARG_TEXT, offsetof(struct args, format),
     "A JSON object on each line, or a template such as '{{.session_id}}'.", FOR(INSPECT) | FOR(EVENTS), .letter = 'f'},
    {"json", NULL, ARG_FLAG, offsetof(struct args, json), "JSON instead of a table.",
     FOR(PS) | FOR(PORT) | FOR(DIFF) | FOR(EVENTS) | FOR(DOCTOR) | FOR(INFO) | FOR(CONFIG) | FOR(AUDIT) | FOR(MCP_LS)},
    {"config", "FILE", ARG_TEXT, offsetof(struct args, config_file), "Configuration file of boxd.", FOR(CONFIG) | FOR(AUDIT)},
    {"config", "FILE", ARG_TEXT, offsetof(struct args, config_file),
     "File with mcpServers, as clients have it: one of them instead of a command.", FOR(MCP_RUN)},
    {"explain", NULL, ARG_FLAG, offsetof(struct args, explain), "Where each value comes from, too.", FOR(CONFIG)},
    {"head", "HASH", ARG_TEXT, offsetof(struct args, head),
     "Digest of a record noted earlier: it must still be there.", FOR(AUDIT)},
    {"help", NULL, ARG_FLAG, offsetof(struct args, help), "Show this text.", ~UINT64_C(0), .letter = 'h'},
    {"version", NULL, ARG_FLAG, offsetof(struct args, version), "Show the version.", FOR(HELP), .letter = 'V'},
};
/* clang-format on */
const size_t arg_n_options = ARRAY_SIZE(arg_options);

/* Walking the arguments. */

struct arg_cursor {
    int argc;
    char **argv;
    int next;
    bool ended; /* after "--" */
};

/* `value` is what stood behind '=', or NULL. */
static int apply_option(const struct arg_option *o, const char *value, struct arg_cursor *c,
                        struct args *a, struct err *err)
{
    if (o->value == NULL && value != NULL)
        return err_set(err, ERR_INVALID, "--%s takes no value", o->name);
    if (o->value != NULL && value == NULL) {
        /* A "--" here is the end of the options, not a value. */
        if (c->next >= c->argc || str_eq(c->argv[c->next], "--"))
            return err_set(err, ERR_INVALID, "--%s wants a value: %s", o->name, o->value);
        value = c->argv[c->next++];
    }
    return arg_setters[o->kind](o, value, a, err);
}

static int long_option(const char *text, struct arg_cursor *c, struct args *a, struct err *err)
{
    size_t len = strcspn(text, "=");
    const char *value = text[len] == '=' ? text + len + 1 : NULL;

    for (size_t i = 0; i < arg_n_options; i++) {
        const struct arg_option *o = &arg_options[i];
        if (arg_fits(o, a->verb) && strlen(o->name) == len && memcmp(o->name, text, len) == 0)
            return apply_option(o, value, c, a, err);
    }
    AUTO_FREE char *name = xstrndup(text - 2, len + 2);
    return args_unknown_option(a->verb, name, err);
}

static const struct arg_option *find_letter(char letter, enum verb verb)
{
    for (size_t i = 0; i < arg_n_options; i++)
        if (arg_options[i].letter == letter && arg_fits(&arg_options[i], verb))
            return &arg_options[i];
    return NULL;
}

/* "-ti": several letters in one argument. The value of a letter is the rest of the argument, behind
 * a '=' or not ("-m512m", "-e=A=1"), or the next one. */
static int short_options(const char *letters, struct arg_cursor *c, struct args *a, struct err *err)
{
    int r = 0;

    for (; r >= 0 && *letters != '\0'; letters++) {
        const struct arg_option *o = find_letter(*letters, a->verb);
        if (o == NULL) {
            const char name[] = {'-', *letters, '\0'};
            return args_unknown_option(a->verb, name, err);
        }
        if (o->value != NULL && letters[1] != '\0')
            return apply_option(o, letters + (letters[1] == '=' ? 2 : 1), c, a, err);
        r = apply_option(o, NULL, c, a, err);
    }
    return r;
}

/* A name, or the first word of the command. */
static int plain_argument(const char *text, struct arg_cursor *c, struct args *a, struct err *err)
{
    const struct arg_verb *v = &arg_verbs[a->verb];

    if (strv_len(a->names) < v->max_names) {
        strv_add(&a->names, text);
        return 0;
    }
    if (!v->wants_command)
        return err_set(err, ERR_INVALID, "unexpected '%s' after 'box %s'", text, v->name);
    c->next--;
    c->ended = true;
    return 0;
}

static int walk_arguments(struct arg_cursor *c, struct args *a, struct err *err)
{
    int r = 0;

    while (r >= 0 && !c->ended && c->next < c->argc) {
        const char *text = c->argv[c->next++];
        if (str_eq(text, "--"))
            c->ended = true;
        else if (str_starts(text, "--"))
            r = long_option(text + 2, c, a, err);
        else if (text[0] == '-' && text[1] != '\0')
            r = short_options(text + 1, c, a, err);
        else
            r = plain_argument(text, c, a, err);
    }
    return r;
}

static int find_verb(const char *name, enum verb *ret, struct err *err)
{
    for (size_t i = 0; i < VERB_MAX; i++) {
        if (!str_eq(arg_verbs[i].name, name) && !str_eq(arg_verbs[i].alias, name))
            continue;
        *ret = (enum verb)i;
        return 0;
    }
    return args_unknown_verb(name, err);
}

/* Whether a verb has two words of which that is the first. */
static bool is_group(const char *word)
{
    size_t len = strlen(word);

    for (size_t i = 0; i < VERB_MAX; i++)
        if (str_starts(arg_verbs[i].name, word) && arg_verbs[i].name[len] == ' ')
            return true;
    return false;
}

/* The second word is NULL where there is none. */
static char *verb_name(const char *first, const char *second)
{
    if (second == NULL || !is_group(first))
        return xstrdup(first);
    return xasprintf("%s %s", first, second);
}

/* JSON carries text: other bytes would arrive changed, and that silently. */
static int check_command(const struct args *a, const struct arg_cursor *c, struct err *err)
{
    const struct arg_verb *v = &arg_verbs[a->verb];
    bool missing = a->command == NULL || a->command[0] == NULL;

    if (missing && v->maybe_command && (!c->ended || a->verb == VERB_AGENT))
        return 0;
    if (missing)
        return err_set(err, ERR_INVALID, "no command: box %s %s%s[OPTION...] %s", v->name,
                       v->max_names > 0 ? v->name_word : "", v->max_names > 0 ? " " : "",
                       v->synopsis);
    for (size_t i = 0; a->command[i] != NULL; i++)
        if (!utf8_valid(a->command[i], strlen(a->command[i])))
            return err_set(err, ERR_INVALID, "argument %zu of the command is not valid UTF-8", i);
    return 0;
}

/* No command can be given another user than its session has, and only the session knows who that
 * is: what `id` says inside decides. The command then takes the place of the shell. */
static int check_user(struct args *a, struct err *err)
{
    static const char script[] =
        "want=$1; shift; uid=$(id -u); name=$(id -un 2>/dev/null || echo \"$uid\")\n"
        "case $want in\n"
        "\"$uid\"|\"$name\"|\"$uid:$(id -g)\"|\"$name:$(id -gn 2>/dev/null)\") exec \"$@\";;\n"
        "esac\n"
        "echo \"box: -u $want: every command of this session runs as its own user, $name ($uid), "
        "\"\\\n"
        "\"and no other can be chosen; leave out -u. With --read-only-root off that user is root, "
        "\"\\\n"
        "\"without privileges\" >&2; exit 125";

    if (a->user == NULL)
        return 0;
    if (a->user[0] == '\0' || !utf8_valid(a->user, strlen(a->user)))
        return err_set(err, ERR_INVALID, "--user wants the name or the number of a user");
    const char *const before[] = {"sh", "-c", script, "box", a->user};
    for (size_t i = 0; i < ARRAY_SIZE(before); i++)
        strv_add(&a->as_user, before[i]);
    for (size_t i = 0; a->command[i] != NULL; i++)
        strv_add(&a->as_user, a->command[i]);
    a->command = a->as_user;
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
        a->spec->session_id = xstrdup(a->verb == VERB_EXEC ? a->names[0] : "unnamed");
    }
    return spec_validate(a->spec, err);
}

static int check_args(struct args *a, const struct arg_cursor *c, struct err *err)
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
    if (r >= 0 && v->wants_command && a->verb != VERB_MCP_RUN)
        r = args_resolve_env(a, err);
    if (r >= 0)
        r = check_user(a, err);
    if (r >= 0 && a->verb == VERB_UPDATE && a->given == 0)
        r = err_set(err, ERR_INVALID, "'box update' wants --memory, --cpus or --pids");
    if (r >= 0 && (v->wants_command || v->makes_session || a->given != 0))
        r = check_spec(a, err);
    if (r >= 0 && a->verb == VERB_HELP && a->names != NULL) {
        AUTO_FREE char *name = verb_name(a->names[0], a->names[1]);
        r = find_verb(name, &a->topic, err);
    }
    return r;
}

int args_parse(int argc, char *argv[], struct args *ret, struct err *err)
{
    struct arg_cursor c = {.argc = argc, .argv = argv, .next = 1};

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
    int r = walk_arguments(&c, ret, err);
    if (r < 0)
        return r;
    if (ret->help) {
        ret->topic = ret->verb;
        ret->verb = VERB_HELP;
        return 0;
    }
    ret->command = c.ended ? argv + c.next : NULL;
    if (ret->entrypoint != NULL) {
        /* It takes the place of the word before the command, which was read already. */
        argv[c.next - 1] = (char *)(uintptr_t)ret->entrypoint;
        ret->command = argv + c.next - 1;
    }
    return check_args(ret, &c, err);
}

void args_done(struct args *a)
{
    spec_free(a->spec);
    a->spec = NULL;
    strv_free(a->names);
    a->names = NULL;
    strv_free(a->envs);
    strv_free(a->env_files);
    strv_free(a->publish);
    strv_free(a->as_user);
    strv_free(a->allow_hosts);
    a->envs = a->env_files = a->publish = a->as_user = a->allow_hosts = NULL;
}

/* Of one command rather than of the session it runs in: these stand beside the session. */
#define OF_COMMAND (FIELD_BIT(SPEC_ENV) | FIELD_BIT(SPEC_WORKDIR) | FIELD_BIT(SPEC_TIMEOUT_SEC))

void args_put_hosts(const struct args *a, struct jw *w)
{
    if (a->allow_hosts == NULL)
        return;
    jw_karray(w, SPEC_ALLOW_HOSTS_NAME);
    for (size_t i = 0; a->allow_hosts[i] != NULL; i++)
        jw_str(w, a->allow_hosts[i]);
    jw_array_end(w);
}

static void put_members(const struct args *a, uint64_t fields, struct jw *w)
{
    for (size_t i = 0; i < SPEC_FIELD_MAX; i++)
        if ((fields & FIELD_BIT(i)) != 0)
            model_write_field(&spec_model.fields[i], a->spec, w);
    if (a->best_effort)
        jw_kbool(w, "best_effort", true);
    args_put_hosts(a, w);
}

void args_put_fields(const struct args *a, struct jw *w)
{
    put_members(a, (a->given & ~OF_COMMAND) | FIELD_BIT(SPEC_SESSION_ID), w);
}

void args_put_session(const struct args *a, struct jw *w)
{
    uint64_t fields = a->verb == VERB_EXEC ? FIELD_BIT(SPEC_SESSION_ID) : a->given & ~OF_COMMAND;

    jw_kobject(w, "session");
    put_members(a, fields, w);
    /* A person who names a session comes back to it. */
    if (a->verb == VERB_RUN && (fields & FIELD_BIT(SPEC_SESSION_ID)) != 0 && !a->temporary &&
        !a->remove)
        jw_kbool(w, "durable", true);
    jw_object_end(w);
    jw_kbool(w, "ephemeral", a->remove || (fields & FIELD_BIT(SPEC_SESSION_ID)) == 0);
    jw_kbool(w, "create", a->verb != VERB_EXEC);
}
