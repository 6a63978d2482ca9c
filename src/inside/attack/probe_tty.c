/* SPDX-License-Identifier: Apache-2.0 */

/* B08: typing into a terminal. Uses the terminal of a tty exec, else a pty of its own. The raw call
 * matters: the kernel looks at 32 bits of the request, and so must the filter. */

#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct request {
    int fd;
    bool own; /* a pty of our own, not the terminal we were started on */
    unsigned long cmd;
};

static long do_ioctl(const void *arg)
{
    const struct request *r = arg;
    char byte = '\n';

    /* The pty must be the controlling terminal, or TIOCSTI is refused for that reason alone. */
    if (r->own) {
        (void)setsid();
        (void)ioctl(r->fd, TIOCSCTTY, 0);
    }
    return syscall(SYS_ioctl, r->fd, r->cmd, &byte) < 0 ? -errno : 0;
}

static int open_pty(int *master)
{
    int zero = 0;

    *master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (*master < 0 || ioctl(*master, TIOCSPTLCK, &zero) < 0)
        return -1;
    return ioctl(*master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
}

void probe_tty(const struct probe_options *opt)
{
    static const struct {
        const char *id;
        unsigned long cmd;
    } requests[] = {
        {"B08.tiocsti", TIOCSTI},     {"B08.tiocsti-high", TIOCSTI | 1UL << 32},
        {"B08.tioclinux", TIOCLINUX}, {"B08.tioclinux-high", TIOCLINUX | 1UL << 32},
        {"B08.tiocsetd", TIOCSETD},
    };
    int master = -1, fd = isatty(STDIN_FILENO) ? STDIN_FILENO : open_pty(&master);

    /* Without any terminal the filter can still be asked: it does not look at the descriptor. */
    if (fd < 0)
        fd = STDIN_FILENO;
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        struct request r = {fd, master >= 0, requests[i].cmd};
        EXPECT(requests[i].id, probe_forked(do_ioctl, &r), EPERM);
    }
    if (master >= 0) {
        (void)close(master);
        (void)close(fd);
    }
}
