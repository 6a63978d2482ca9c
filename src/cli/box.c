/* SPDX-License-Identifier: Apache-2.0 */

/* The command line. Exit status: the command's own, or 125 when box itself fails. */

#include <fcntl.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "config/config.h"

static int verb_help(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(65536);

    if (args->version)
        (void)buf_printf(&text, "box %s\n", config_version);
    else
        args_help(args->topic, &text);
    return text_print(&text, err);
}

/* Of completion/; the build makes these from the files. */
extern const unsigned char completion_bash[], completion_zsh[], completion_fish[];
extern const size_t completion_bash_len, completion_zsh_len, completion_fish_len;

static int verb_completion(struct app *app, const struct args *args, struct err *err)
{
    const struct {
        const char *shell;
        const unsigned char *text;
        size_t len;
    } scripts[] = {{"bash", completion_bash, completion_bash_len},
                   {"zsh", completion_zsh, completion_zsh_len},
                   {"fish", completion_fish, completion_fish_len}};
    AUTO_DONE(buf) struct buf out = BUF_INIT(1U << 20);

    for (size_t i = 0; i < ARRAY_SIZE(scripts); i++) {
        if (!str_eq(args->names[0], scripts[i].shell))
            continue;
        int r = buf_append(&out, scripts[i].text, scripts[i].len);
        return r < 0 ? err_sys(err, -r, "write the script") : text_print(&out, err);
    }
    return err_set(err, ERR_INVALID, "no completion for '%.40s'; there is one for bash, zsh, fish",
                   args->names[0]);
}

/* clang-format off */
static int (*const verbs[VERB_MAX])(struct app *app, const struct args *args, struct err *err) = {
    [VERB_RUN] = verb_command,
    [VERB_EXEC] = verb_command,
    [VERB_AGENT] = verb_agent,
    [VERB_CP] = verb_cp,
    [VERB_PORT] = verb_port,
    [VERB_LOGS] = verb_follow,
    [VERB_ATTACH] = verb_follow,
    [VERB_WAIT] = verb_follow,
    [VERB_KILL] = verb_kill,
    [VERB_PS] = verb_ps,
    [VERB_RM] = verb_rm,
    [VERB_STOP] = verb_state,
    [VERB_START] = verb_state,
    [VERB_PAUSE] = verb_state,
    [VERB_UNPAUSE] = verb_state,
    [VERB_RENAME] = verb_rename,
    [VERB_UPDATE] = verb_state,
    [VERB_DIFF] = verb_diff,
    [VERB_INSPECT] = verb_inspect,
    [VERB_TOP] = verb_top,
    [VERB_STATS] = verb_stats,
    [VERB_EVENTS] = verb_events,
    [VERB_DOCTOR] = verb_doctor,
    [VERB_INFO] = verb_info,
    [VERB_CONFIG] = verb_config,
    [VERB_AUDIT] = verb_audit,
    [VERB_COMPLETION] = verb_completion,
    [VERB_MCP_RUN] = verb_mcp_run,
    [VERB_MCP_LS] = verb_mcp_ls,
    [VERB_MCP_LOGS] = verb_mcp_logs,
    [VERB_MCP_SERVE] = verb_mcp_serve,
    [VERB_HELP] = verb_help,
};
/* clang-format on */

static int run(int argc, char *argv[], struct err *err)
{
    AUTO_DONE(args) struct args args = {0};
    AUTO_DONE(app) struct app app = {.daemon = {.pidfd = -1}};

    int r = args_parse(argc, argv, &args, err);
    if (r >= 0)
        r = app_init(&app, err);
    if (args.quiet)
        text_wait_never();
    if (r >= 0)
        r = verbs[args.verb](&app, &args, err);
    if (app.signo != 0)
        return STATUS_SIGNAL + app.signo;
    return r;
}

/* A descriptor that is missing would be taken by the next file we open, and written to. */
static void fill_standard_fds(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        (void)close(fd);
}

int main(int argc, char *argv[])
{
    struct err err = {0};

    fill_standard_fds();
    int r = run(argc, argv, &err);
    if (r >= 0)
        return r;
    text_say_err(&err);
    return STATUS_FAILED;
}
