/* SPDX-License-Identifier: Apache-2.0 */

/* run_filtered [--debug] [--keep-caps] CMD [ARG...]: runs a command under the payload's system call
 * filter and without capabilities, and with no other wall. For finding out whether a program bears
 * the filter; tests/escape/filtered_programs.sh does so for the usual ones. */

#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
#include "inside/caps.h"
#include "inside/seccomp_install.h"
#include "sandbox/seccomp/seccomp.h"

#include <errno.h>
#include <linux/filter.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/prctl.h>

static int run(char *argv[], struct err *err)
{
    enum seccomp_profile profile = SECCOMP_DEFAULT;
    bool keep_caps = false;
    AUTO_FREE struct sock_filter *prog = NULL;
    size_t n;
    int r;

    for (argv++; *argv && str_starts(*argv, "--"); argv++) {
        if (str_eq(*argv, "--debug"))
            profile = SECCOMP_DEBUG;
        else if (str_eq(*argv, "--keep-caps"))
            keep_caps = true;
        else
            return err_set(err, ERR_INVALID, "unknown option '%s'", *argv);
    }
    if (!*argv)
        return err_set(err, ERR_INVALID, "no command");
    r = seccomp_compile(profile, &prog, &n, err);
    if (r < 0)
        return r;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_sys(err, errno, "no_new_privs");
    /* Someone who is not root has nothing to drop and may not shrink the bounding set. */
    r = keep_caps || geteuid() != 0 ? 0 : caps_drop_all();
    if (r < 0)
        return err_sys(err, -r, "capabilities");
    r = seccomp_install(prog, (unsigned short)n);
    if (r < 0)
        return err_sys(err, -r, "seccomp");
    (void)execvp(*argv, argv);
    return err_sys(err, errno, "exec '%s'", *argv);
}

int main(int argc, char *argv[])
{
    struct err err = {0};

    if (run(argv, &err) < 0)
        fprintf(stderr, "run_filtered: %s\n", err.msg);
    return 125;
}
