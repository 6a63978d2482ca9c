/* SPDX-License-Identifier: Apache-2.0 */

/* Mount sources under attack: while one process exchanges directories of a path for symbolic links
 * that lead out of the allowed directory, as fast as it can, another resolves that path.
 *
 *   swap_race swap ALLOWED            only the exchanges, until killed; says "ready"
 *   swap_race try ALLOWED TRIES       resolves ALLOWED/a/b/c with the code of box-priv meanwhile;
 *                                     says "tries=N mounted=N refused=N escapes=N"
 *
 * ALLOWED/a/b/c/marker says "inside". Beside each of a, b and c stands a link of the same name with
 * ".x" to a directory of the same shape elsewhere, whose marker says something else. */

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "sandbox/launch/launch.h"
#include "sandbox/plan/plan.h"

static const char *const names[][2] = {{"a", "a.x"}, {"b", "b.x"}, {"c", "c.x"}};

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "swap_race: %s: %s\n", what, err_errno_text(errno));
    _exit(2);
}

/* The directories are held open, so that each exchange happens in the real one, wherever its name
 * leads just now. */
static void open_levels(const char *allowed, int *dirs)
{
    dirs[0] = open(allowed, O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 1; i < ARRAY_SIZE(names); i++)
        dirs[i] = openat(dirs[i - 1], names[i - 1][0], O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dirs[ARRAY_SIZE(names) - 1] < 0)
        die("open the levels");
}

static _Noreturn void swap(const int *dirs)
{
    for (unsigned n = 0;; n++) {
        size_t i = n / 16 % ARRAY_SIZE(names); /* some turns at each depth */
        if (renameat2(dirs[i], names[i][0], dirs[i], names[i][1], RENAME_EXCHANGE) < 0)
            die("exchange");
    }
}

static void make_plan(struct plan *p)
{
    plan_init(p);
    struct plan_op *op = plan_add(p, PLAN_OP_BIND, "/workspace");
    op->source_class = PLAN_SRC_ALLOWED;
    op->source = plan_string(p, "a/b/c");
    p->payload_uid = p->payload_gid = 1000;
}

static bool is_inside(int mount_fd)
{
    char text[16];
    ssize_t n = fd_read_file_at(mount_fd, "marker", text, sizeof(text));
    return n > 0 && str_starts(text, "inside");
}

static int attack(struct launch_host *h, unsigned long wanted)
{
    static struct plan plan;
    static int fds[PLAN_OPS_MAX];
    unsigned long tries = 0, mounted = 0, refused = 0, escapes = 0;
    struct err last = {0};
    make_plan(&plan);
    for (; tries < wanted; tries++) {
        struct err err = {0};
        int workspace = -1;
        if (launch_sources(h, &plan, -1, fds, &workspace, &err) < 0) {
            if (refused++ == 0)
                last = err;
        } else {
            mounted++;
            escapes += !is_inside(fds[0]);
        }
        fd_close_many(fds, 1);
    }
    (void)printf("tries=%lu mounted=%lu refused=%lu escapes=%lu first refusal: %s\n", tries,
                 mounted, refused, escapes, last.msg);
    return escapes > 0;
}

int main(int argc, char **argv)
{
    int dirs[ARRAY_SIZE(names)];
    if (argc < 3)
        return 2;
    bool only_swap = str_eq(argv[1], "swap");
    /* Nothing that is mounted here shows anywhere else. */
    if (!only_swap && (argc < 4 || unshare(CLONE_NEWNS) < 0 ||
                       mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0))
        die("mount namespace");
    open_levels(argv[2], dirs);
    if (only_swap) {
        (void)puts("ready");
        (void)fflush(stdout);
        swap(dirs);
    }
    pid_t parent = getpid();
    pid_t swapper = fork();
    if (swapper == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != parent)
            _exit(2);
        swap(dirs);
    }
    struct launch_host h = {
        .rootful = true, .daemon_uid = 1, .daemon_gid = 1, .n_roots = 1, .outer_fd = -1};
    h.root_fds[0] = dirs[0];
    h.state_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* somewhere else */
    int r = swapper < 0 || h.state_fd < 0 ? 2 : attack(&h, strtoul(argv[3], NULL, 10));
    if (swapper > 0) {
        (void)kill(swapper, SIGKILL);
        (void)waitpid(swapper, NULL, 0);
    }
    return r;
}
