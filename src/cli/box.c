/* SPDX-License-Identifier: Apache-2.0 */

/* The command line. Exit status: the command's own, or 125 when box itself fails. */

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/outcome.h"
#include "cli/io/text.h"

static int verb_help(struct app *app, const struct args *args, struct err *err)
{
    AUTO_DONE(buf) struct buf text;

    buf_init(&text, 65536);
    int r =
        args->version ? buf_puts(&text, "box " BOX_VERSION "\n") : args_help(args->topic, &text);
    return r < 0 ? err_sys(err, -r, "write the help") : text_print(&text, err);
}

/* clang-format off */
static int (*const verbs[VERB_MAX])(struct app *app, const struct args *args, struct err *err) = {
    [VERB_RUN] = verb_command,
    [VERB_EXEC] = verb_command,
    [VERB_CP] = verb_cp,
    [VERB_PS] = verb_ps,
    [VERB_RM] = verb_rm,
    [VERB_DOCTOR] = verb_doctor,
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
