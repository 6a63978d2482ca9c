/* SPDX-License-Identifier: Apache-2.0 */

/* `box agent`: a coding agent in a session that is named after the project. It is `box run` with
 * the project, the agent's program and the agent's keys filled in from a table of agents. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/host_path.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "cli/mcp/path.h"
#include "inside/clone.h"
#include "spec/model.h"
#include "spec/spec.h"

#define HOME_INSIDE "/home/box"
#define SHARED_CACHE "agents"
#define GIT_SEC 5 /* for a file that is no file, such as a pipe in place of .git/config */
#define NAME_PART 20

/* The agents that are known by name. A session has no user namespaces for an agent's own sandbox
 * around each command, so what switches that off is a part of the row: the box is the sandbox. */
/* clang-format off */
static const struct agent {
    const char *name;        /* of the program, too */
    const char *package;     /* of npm, installed inside where the host has no such program */
    const char *keys[8];     /* variables that it reads secrets from */
    const char *settings[4]; /* below the home: what --settings mounts */
    const char *words[4];    /* first arguments */
    const char *env[2];
} agents[] = {
    {"claude", "@anthropic-ai/claude-code",
     {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_BASE_URL"},
     {".claude", ".claude.json"},
     {"--settings", "{\"sandbox\":{\"enabled\":false}}"}, {"IS_SANDBOX=1"}},
    {"codex", "@openai/codex", {"OPENAI_API_KEY", "CODEX_API_KEY", "OPENAI_BASE_URL"}, {".codex"},
     {"-c", "sandbox_mode=\"danger-full-access\""}, {NULL}},
    {"gemini", "@google/gemini-cli",
     {"GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "GOOGLE_GENAI_USE_VERTEXAI"},
     {".gemini"}, {NULL}, {"GEMINI_SANDBOX=false"}},
    {"opencode", "opencode-ai",
     {"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"},
     {".config/opencode", ".local/share/opencode"}, {NULL}, {NULL}},
};
/* clang-format on */

/* $1: the user's own tool chain, $2: package to install, $3 and $4: name and address for git, $5:
 * the program; then its arguments. Commands of the agent find bash where the image has it, and
 * `npm install --global` the home, because the root is read-only. */
static const char launch[] = "PATH=$HOME/.local/bin:${1:+$1:}$PATH npm_config_prefix=$HOME/.local\n"
                             "export PATH npm_config_prefix\n"
                             "[ ! -x /bin/bash ] || export SHELL=/bin/bash\n"
                             "[ -z \"$3\" ] || git config --global user.name \"$3\" 2>/dev/null\n"
                             "[ -z \"$4\" ] || git config --global user.email \"$4\" 2>/dev/null\n"
                             "[ -z \"$2\" ] || command -v -- \"$5\" >/dev/null ||\n"
                             "  npm install --global --no-audit --no-fund -- \"$2\" >&2 || exit\n"
                             "program=$5; shift 5; exec \"$program\" \"$@\"\n";

struct agent_plan {
    const struct agent *agent;  /* NULL: one that is not in the table */
    const char *name;           /* borrowed */
    char *home;                 /* owned; real, or NULL */
    char *dir, *project;        /* owned; real: where we are, and what is mounted */
    const char *inside;         /* how the project is called inside */
    struct mcp_roots tools;     /* owned; mounted read-only */
    struct mcp_roots writable;  /* owned; settings and caches */
    char *program, *tools_path; /* owned; inside */
    const char *package;        /* of npm, to be installed inside; NULL: none */
    char **gets;                /* owned; names of the variables it gets */
    char *git[2];               /* owned; name and address; NULL: none */
};

static void agent_plan_done(struct agent_plan *p)
{
    free(p->home);
    free(p->dir);
    free(p->project);
    mcp_roots_done(&p->tools);
    mcp_roots_done(&p->writable);
    free(p->program);
    free(p->tools_path);
    strv_free(p->gets);
    free(p->git[0]);
    free(p->git[1]);
}
DEFINE_CLEANUP_DONE(agent_plan)

/* The project. */

/* The nearest directory with a .git, so that git works inside; else the directory itself. */
static char *find_project(const struct agent_plan *p)
{
    AUTO_FREE char *at = xstrdup(p->dir);

    while (strchr(at + 1, '/') != NULL && (p->home == NULL || !path_at_or_below(p->home, at))) {
        AUTO_FREE char *git = xasprintf("%s/.git", at);
        if (mcp_fs_host.kind(git) != MCP_MISSING)
            return TAKE_PTR(at);
        *strrchr(at, '/') = '\0';
    }
    return xstrdup(p->dir);
}

static int choose_project(struct agent_plan *p, struct err *err)
{
    const char *home = getenv("HOME");

    p->home = home != NULL ? realpath(home, NULL) : NULL;
    p->dir = realpath(".", NULL);
    if (p->dir == NULL)
        return err_sys(err, errno, "find the current directory");
    p->project = find_project(p);
    if (str_eq(p->project, "/") || (p->home != NULL && path_at_or_below(p->home, p->project)))
        return err_set(err, ERR_INVALID,
                       "'%s' holds your whole home directory, and an agent gets one project; go to "
                       "the project's directory first",
                       p->project);
    /* Inside, /var/tmp is a link to memory. */
    p->inside = path_at_or_below(p->project, "/var/tmp") ? SPEC_DEFAULT_MOUNT : p->project;
    if (p->inside != p->project)
        text_say("'%s' is %s inside, because no project can be in /var/tmp there", p->project,
                 p->inside);
    AUTO_FREE char *git = xasprintf("%s/.git", p->project);
    if (mcp_fs_host.kind(git) == MCP_FILE)
        text_say("'%s' is a worktree: for git in the box, mount the repository that it belongs to "
                 "(--mount DIR:DIR)",
                 p->project);
    return 0;
}

/* What `git config --global` says of a key, with the includes that hold for the project; NULL:
 * nothing. Configuration of the project itself is there inside, and is not read here. */
static char *ask_git(const char *project, const char *key)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(1024);
    int fds[2], status;
    sigset_t none;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return NULL;
    AUTO_CLOSE int in = fds[0];
    pid_t pid = clone_plain();
    if (pid == 0) {
        int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        (void)sigemptyset(&none);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
        (void)alarm(GIT_SEC);
        if (null_fd >= 0 && dup3(null_fd, STDIN_FILENO, 0) >= 0 &&
            dup3(null_fd, STDERR_FILENO, 0) >= 0 && dup3(fds[1], STDOUT_FILENO, 0) >= 0)
            (void)execlp("git", "git", "-C", project, "config", "--global", "--get", key, NULL);
        child_exit(127);
    }
    (void)close(fds[1]);
    int r = pid > 0 ? fd_read_to_buf(in, &text) : pid;
    if (pid > 0)
        (void)waitpid(pid, &status, 0);
    if (r < 0 || text.len == 0 || !utf8_valid(buf_str(&text), text.len))
        return NULL;
    return str_strip(buf_str(&text));
}

/* The program. */

static int choose_program(struct agent_plan *p, const struct args *args, struct err *err)
{
    const char *package = p->agent != NULL ? p->agent->package : NULL;
    bool of_host = !args_given(args, SPEC_IMAGE) || str_eq(args->spec->image, "host");
    const char *path = getenv("PATH");

    if (of_host)
        p->program =
            mcp_agent_find(&mcp_fs_host, p->name, path, p->home, &p->tools, &p->tools_path);
    if (p->program != NULL)
        return 0;
    p->program = xstrdup(p->name);
    if (of_host)
        p->tools_path = mcp_chain_find(&mcp_fs_host, "npm", path, p->home, &p->tools);
    if (p->tools_path == NULL)
        p->tools_path = xstrdup("");
    p->package = package;
    if (package == NULL && of_host)
        return err_set(err, ERR_NOT_FOUND,
                       "there is no program '%s' on PATH; install it, or choose claude, codex, "
                       "gemini or opencode, which Box can install in the session",
                       p->name);
    if (package != NULL)
        text_say("'%s' is not on this host: npm installs %s in the session, once", p->name,
                 package);
    return 0;
}

/* What the session is asked for. */

static void add_mount(struct spec *spec, const struct mcp_root *root, enum mount_mode mode)
{
    spec->extra_mounts =
        xreallocarray(spec->extra_mounts, spec->n_extra_mounts + 1, sizeof(*spec->extra_mounts));
    spec->extra_mounts[spec->n_extra_mounts++] = (struct mount_spec){
        .host_path = xstrdup(root->host), .mount_path = xstrdup(root->inside), .mode = mode};
}

static void choose_settings(struct agent_plan *p)
{
    size_t before = p->writable.n;

    for (size_t i = 0; p->agent != NULL && p->home != NULL && i < ARRAY_SIZE(p->agent->settings) &&
                       p->agent->settings[i] != NULL;
         i++) {
        AUTO_FREE char *host = xasprintf("%s/%s", p->home, p->agent->settings[i]);
        AUTO_FREE char *real = realpath(host, NULL);
        AUTO_FREE char *inside = xasprintf(HOME_INSIDE "/%s", p->agent->settings[i]);
        if (real == NULL)
            continue;
        mcp_roots_add(&p->writable, real, inside);
        text_say("%s gets %s, writable: what it writes there, the '%s' that you run outside obeys",
                 p->name, host, p->name);
    }
    if (p->writable.n == before)
        text_say("--settings: there are no settings of '%s' in your home", p->name);
}

/* Unless --env says something of that name: the user wins. */
static int set_variable(struct spec *spec, const char *text, struct err *err)
{
    size_t len = strcspn(text, "=") + 1;

    for (char *const *v = spec->env; v != NULL && *v != NULL; v++)
        if (strncmp(*v, text, len) == 0)
            return 0;
    int r = args_set_variable(&spec->env, text, err);
    return r < 0 ? r : 1;
}

static int choose_variables(struct agent_plan *p, const struct args *args, struct err *err)
{
    struct spec *spec = args->spec;
    int r = 0;

    if (p->agent == NULL)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(p->agent->env) && p->agent->env[i] != NULL; i++)
        r = set_variable(spec, p->agent->env[i], err);
    for (size_t i = 0; r >= 0 && i < ARRAY_SIZE(p->agent->keys); i++) {
        const char *name = p->agent->keys[i], *value = name != NULL ? getenv(name) : NULL;
        if (value == NULL || str_eq(args->keys, "off"))
            continue;
        AUTO_FREE char *text = xasprintf("%s=%s", name, value);
        if (!utf8_valid(value, strlen(value)))
            return err_set(err, ERR_INVALID, "the value of %s is not valid UTF-8", name);
        r = set_variable(spec, text, err);
        if (r > 0)
            strv_add(&p->gets, name);
    }
    return r;
}

/* agent-claude-shop-1f2e3d4c5b6a: the same for each start in the project. What an agent has kept
 * while it could see the user's settings, or write a cache of others, is for another session than
 * what it has kept alone. */
static char *session_name(const struct agent_plan *p, const struct args *args)
{
    const char *base = strrchr(p->project, '/') + 1;
    AUTO_FREE char *what = xasprintf("%s%s%s", p->project, args->settings ? "//settings" : "",
                                     str_eq(args->cache, "shared") ? "//shared" : "");
    char *id = xasprintf("agent-%.*s-%.*s-%012llx", NAME_PART, p->name, NAME_PART, base,
                         (unsigned long long)str_hash(what) & 0xffffffffffffULL);

    for (char *c = id; *c != '\0'; c++)
        if (strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", *c) == NULL)
            *c = '-';
    return id;
}

static void set_text(char **member, const char *text)
{
    free(*member);
    *member = xstrdup(text);
}

/* Limits that the user did not ask for are no reason to refuse: what is not enforced is told. */
static void set_limits(struct args *run)
{
    const uint64_t limits = FIELD_BIT(SPEC_IMAGE) | FIELD_BIT(SPEC_MEMORY_MB) |
                            FIELD_BIT(SPEC_CPUS) | FIELD_BIT(SPEC_PIDS_LIMIT) |
                            FIELD_BIT(SPEC_WORKSPACE_QUOTA_MB);

    run->best_effort = run->best_effort || (run->given & limits) == 0;
    if (!args_given(run, SPEC_MEMORY_MB))
        run->spec->memory_mb = ARGS_AGENT_MEMORY_MB;
    if (!args_given(run, SPEC_CPUS))
        run->spec->cpus = ARGS_AGENT_CPUS;
    if (!args_given(run, SPEC_PIDS_LIMIT))
        run->spec->pids_limit = ARGS_AGENT_PIDS;
    if (!args_given(run, SPEC_NETWORK))
        run->spec->network = ARGS_AGENT_NETWORK;
    run->given |= FIELD_BIT(SPEC_MEMORY_MB) | FIELD_BIT(SPEC_CPUS) | FIELD_BIT(SPEC_PIDS_LIMIT) |
                  FIELD_BIT(SPEC_NETWORK);
}

static int fill_session(const struct agent_plan *p, struct args *run, struct err *err)
{
    struct spec *spec = run->spec;

    if (!args_given(run, SPEC_SESSION_ID)) {
        free(spec->session_id);
        spec->session_id = session_name(p, run);
    }
    set_text(&spec->host_path, p->project);
    set_text(&spec->mount_path, p->inside);
    free(spec->workdir);
    spec->workdir = xasprintf("%s%s", p->inside, p->dir + strlen(p->project));
    spec->host_path_mode = MOUNT_RW;
    for (size_t i = 0; i < p->tools.n; i++)
        add_mount(spec, &p->tools.list[i], MOUNT_RO);
    for (size_t i = 0; i < p->writable.n; i++)
        add_mount(spec, &p->writable.list[i], MOUNT_RW);
    set_limits(run);
    run->given |= FIELD_BIT(SPEC_SESSION_ID) | FIELD_BIT(SPEC_HOST_PATH) |
                  FIELD_BIT(SPEC_HOST_PATH_MODE) | FIELD_BIT(SPEC_MOUNT_PATH) |
                  FIELD_BIT(SPEC_WORKDIR);
    if (spec->n_extra_mounts > 0)
        run->given |= FIELD_BIT(SPEC_EXTRA_MOUNTS);
    if (spec->env != NULL)
        run->given |= FIELD_BIT(SPEC_ENV);
    return spec_validate(spec, err);
}

static char **write_command(const struct agent_plan *p, const struct args *args)
{
    const char *const head[] = {"/bin/sh",
                                "-c",
                                launch,
                                "sh",
                                p->tools_path,
                                p->package != NULL ? p->package : "",
                                p->git[0] != NULL ? p->git[0] : "",
                                p->git[1] != NULL ? p->git[1] : "",
                                p->program};
    char **words = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(head); i++)
        strv_add(&words, head[i]);
    for (size_t i = 0;
         p->agent != NULL && i < ARRAY_SIZE(p->agent->words) && p->agent->words[i] != NULL; i++)
        strv_add(&words, p->agent->words[i]);
    for (char *const *word = args->command; word != NULL && *word != NULL; word++)
        strv_add(&words, *word);
    return words;
}

static void say_what_it_gets(const struct agent_plan *p, const struct args *run)
{
    AUTO_DONE(buf) struct buf keys = BUF_INIT(1024);

    for (size_t i = 0; i < strv_len(p->gets); i++)
        (void)buf_printf(&keys, "%s%s", i > 0 ? ", " : "", p->gets[i]);
    text_say("%s runs in session '%s' with %s, writable, and the network %s", p->name,
             run->spec->session_id, p->project, network_names[run->spec->network]);
    if (keys.len > 0)
        text_say("%s gets %s of your environment (--keys off: none)", p->name, buf_str(&keys));
}

int verb_agent(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(agent_plan) struct agent_plan p = {.name = args->names[0]};
    struct args run = *args; /* borrows all from `args`, as what is filled in belongs to its spec */

    for (size_t i = 0; i < ARRAY_SIZE(agents); i++)
        if (str_eq(agents[i].name, p.name))
            p.agent = &agents[i];
    if (strchr(p.name, '/') != NULL)
        return err_set(err, ERR_INVALID,
                       "'%s' is a path; name a program that PATH leads to, such as claude", p.name);
    int r = choose_project(&p, err);
    if (r >= 0)
        r = choose_program(&p, args, err);
    if (r >= 0 && str_eq(args->cache, "shared"))
        r = mcp_cache_open(SHARED_CACHE, &p.writable, err);
    if (r >= 0 && args->settings)
        choose_settings(&p);
    if (r >= 0)
        r = choose_variables(&p, args, err);
    if (r >= 0)
        r = fill_session(&p, &run, err);
    if (r < 0)
        return r;
    p.git[0] = ask_git(p.project, "user.name");
    p.git[1] = ask_git(p.project, "user.email");
    AUTO_STRV char **command = write_command(&p, args);
    run.verb = VERB_RUN;
    run.command = command;
    run.tty = run.interactive = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    say_what_it_gets(&p, &run);
    return verb_command(app, &run, err);
}
