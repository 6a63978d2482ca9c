/* SPDX-License-Identifier: Apache-2.0 */

/* Makes the pipes or the terminal of a command, and clones its child. */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/fd.h"
#include "inside/clone.h"
#include "inside/init/init.h"

void wires_close(struct wires *w)
{
    int child[4] = {w->child.in, w->child.out, w->child.err, w->child.tty};
    fd_close_many(child, 4);
    fd_close_many(w->ours, 3);
}

static int open_tty(const struct init_exec *head, struct wires *w)
{
    int unlock = 0;
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0)
        return -errno;
    w->ours[w->n_ours++] = master;
    if (ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return -errno;
    /* By descriptor, never by the name of the slave. */
    w->child.tty = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (w->child.tty < 0)
        return -errno;
    struct winsize size = {.ws_row = head->rows, .ws_col = head->cols};
    if (size.ws_row > 0 && size.ws_col > 0)
        (void)ioctl(master, TIOCSWINSZ, &size);
    return 0;
}

static int open_pipe(struct wires *w, int *child_end, bool child_reads)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    *child_end = ends[child_reads ? 0 : 1];
    w->ours[w->n_ours++] = ends[child_reads ? 1 : 0];
    return 0;
}

/* We end with box-priv. A change of fsuid makes the kernel forget that; and a box-priv that died
 * before it is told again sends nothing. */
static void stay_mortal(void)
{
    struct pollfd parent = {.fd = INIT_FD_PARENT, .events = POLLIN};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || poll(&parent, 1, 0) != 0)
        child_exit(125);
}

/* The inodes belong to the payload, so that it may open /dev/stdout and /dev/tty by name. */
int wires_open(const struct init *in, const struct init_exec *head, struct wires *w)
{
    *w = (struct wires){.child = {-1, -1, -1, -1}, .ours = {-1, -1, -1}};
    if (in->config.switch_uid) {
        (void)setfsuid(in->config.payload_uid);
        (void)setfsgid(in->config.payload_gid);
    }
    int r;
    if (head->flags & INIT_EXEC_TTY) {
        r = open_tty(head, w);
    } else {
        r = open_pipe(w, &w->child.out, false);
        if (r == 0)
            r = open_pipe(w, &w->child.err, false);
        if (r == 0 && (head->flags & INIT_EXEC_STDIN))
            r = open_pipe(w, &w->child.in, true);
    }
    if (in->config.switch_uid) {
        (void)setfsuid(geteuid());
        (void)setfsgid(getegid());
        stay_mortal();
    }
    if (r < 0)
        wires_close(w);
    return r;
}

pid_t wires_start(struct init *in, struct cell *c, const struct exec_request *req,
                  const struct wires *w)
{
    const struct init_exec *head = &req->head;
    uint64_t now = init_now();
    pid_t pid = clone_process(0, c->cgroup_fd, NULL);
    if (pid == 0)
        exec_child(in, c, req, &w->child);
    if (pid < 0)
        return pid;
    cell_move(c, CELL_RUNNING);
    c->id = head->id;
    c->pid = pid;
    c->started_ns = now;
    c->deadline_ns = head->timeout_ns > 0 ? now + head->timeout_ns : 0;
    c->result = (struct init_exited){.type = INIT_MSG_EXITED, .id = head->id};
    return pid;
}
