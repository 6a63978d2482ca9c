/* SPDX-License-Identifier: Apache-2.0 */

/* Runs an MCP server without a box. Only for a user who asked for it by --fallback host: the
 * program then has every right that its user has, which is what a box is there to prevent. */

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "cli/io/text.h"
#include "cli/mcp.h"

static void set_environment(const struct mcp_run *m)
{
    for (size_t i = 0; i < strv_len(m->server.env); i++) {
        AUTO_FREE char *name = xstrndup(m->server.env[i], strcspn(m->server.env[i], "="));
        (void)setenv(name, m->server.env[i] + strlen(name) + 1, 1);
    }
}

int mcp_run_on_host(struct mcp_run *m, const char *why, struct err *err)
{
    const struct sigaction by_default = {.sa_handler = SIG_DFL};
    AUTO_STRV char **argv = NULL;
    sigset_t none;

    if (!str_eq(m->args->fallback, "host"))
        return err_set(err, ERR_BACKEND,
                       "%s; not started: --fallback host would run it without a box", why);
    mcp_say(m, "WARNING: NO BOX: %s", why);
    mcp_say(m, "WARNING: '%s' runs on this host with all of your rights (--fallback host)",
            m->server.command);
    strv_add(&argv, m->server.command);
    for (size_t i = 0; i < strv_len(m->server.args); i++)
        strv_add(&argv, m->server.args[i]);
    set_environment(m);
    (void)sigaction(SIGPIPE, &by_default, NULL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)execvp(argv[0], argv);
    return err_sys(err, errno, "run '%s'", argv[0]);
}
