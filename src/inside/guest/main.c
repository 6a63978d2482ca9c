/* SPDX-License-Identifier: Apache-2.0 */

/* The main function and poll loop of box-guest. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "inside/clone.h"
#include "inside/files/files.h"
#include "inside/guest/guest.h"

#define MSEC 1000000ULL
#define RETRY_MIN_NS (10 * MSEC)
#define RETRY_MAX_NS (500 * MSEC)
#define OOM_NS (200 * MSEC)  /* there is no event for it that an ordinary process may have */
#define BLIND_NS (20 * MSEC) /* between looks at everything, where poll(2) fails */
#define POLLS_PER_CELL 3U
#define POLLS_MAX (2U + GUEST_CELLS_MAX * POLLS_PER_CELL)

/* Order of a cell's descriptors in the list for poll(2). */
enum watch { WATCH_OUT, WATCH_ERR, WATCH_IN };

uint64_t guest_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

pid_t guest_clone(void)
{
    long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    return pid < 0 ? -errno : (pid_t)pid;
}

int guest_close_from(unsigned first)
{
    return syscall(SYS_close_range, first, (unsigned)INT_MAX, 0U) < 0 ? -errno : 0;
}

static void try_connect(struct guest *g)
{
    struct sockaddr_un sun = {.sun_family = AF_UNIX, .sun_path = GUEST_DIR "/" GUEST_SOCKET_NAME};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&sun, sizeof(sun)) == 0) {
        g->sock = fd;
        g->retry_ns = RETRY_MIN_NS;
        return;
    }
    fd_close_many(&fd, 1);
    g->retry_at = guest_now() + g->retry_ns;
    g->retry_ns = g->retry_ns * 2 < RETRY_MAX_NS ? g->retry_ns * 2 : RETRY_MAX_NS;
}

static void reap(struct guest *g)
{
    struct signalfd_siginfo ignored[8];
    struct rusage use;
    int status;
    pid_t pid;
    while (read(g->signal_fd, ignored, sizeof(ignored)) > 0)
        ;
    while ((pid = wait4(-1, &status, WNOHANG | __WALL, &use)) > 0)
        tend_reaped(g, pid, status, &use);
}

static short wanted(const struct guest *g, const struct cell *c, enum watch w)
{
    switch (w) {
    case WATCH_OUT:
    case WATCH_ERR:
        return cell_wants_output(c, (int)w) && (serve_can_send(g) || (c->id & GUEST_PROC_BIT))
                   ? POLLIN
                   : 0;
    case WATCH_IN:
        return c->input.len > 0 ? POLLOUT : 0;
    }
    return 0;
}

static void watch_cell(const struct guest *g, const struct cell *c, struct pollfd *p)
{
    const int fds[POLLS_PER_CELL] = {c->out[0], c->out[1], c->in};
    for (unsigned w = 0; w < POLLS_PER_CELL; w++) {
        short events = c->state == CELL_FREE ? 0 : wanted(g, c, (enum watch)w);
        p[w] = (struct pollfd){.fd = events != 0 ? fds[w] : -1, .events = events};
    }
}

static void serve_cell(struct guest *g, struct cell *c, const struct pollfd *p)
{
    for (int stream = 0; stream < 2; stream++)
        if (p[stream].revents != 0 && c->out[stream] == p[stream].fd)
            cell_on_output(g, c, stream);
    if (p[WATCH_IN].revents != 0 && c->in == p[WATCH_IN].fd)
        cell_on_writable(g, c);
}

/* When all ends, if nobody comes before; UINT64_MAX: never. */
static uint64_t end_of_all(const struct guest *g)
{
    uint64_t linger = g->config.linger_ns;
    if (g->hello)
        return UINT64_MAX;
    if (g->deadline > 0)
        return g->deadline;
    return linger > 0 ? g->alone_since + linger : UINT64_MAX;
}

/* Milliseconds until something is due. */
static int patience(const struct guest *g)
{
    uint64_t now = guest_now(), due = end_of_all(g), tend = tend_due(g);
    if (tend < due)
        due = tend;
    if (g->sock < 0 && g->retry_at < due)
        due = g->retry_at;
    if (cell_any_exec(g) && now + OOM_NS < due)
        due = now + OOM_NS;
    if (due == UINT64_MAX)
        return -1;
    uint64_t ms = due > now ? (due - now + MSEC - 1) / MSEC : 0;
    return ms < 3600000 ? (int)ms : 3600000;
}

static void watch_memory(struct guest *g)
{
    static uint64_t looked;
    uint64_t now = guest_now();
    if (now - looked < OOM_NS || !cell_any_exec(g))
        return;
    looked = now;
    uint64_t n = tend_count_ooms();
    if (n > g->ooms)
        cell_on_oom(g);
    g->ooms = n;
}

/* poll(2) refuses to look at more descriptors than we may open, and that limit can be lowered
 * behind our back. None of ours blocks: after a pause all of them are tried. */
static bool look(struct pollfd *polls, int ms)
{
    int blind = (int)(BLIND_NS / MSEC);
    if (poll(polls, POLLS_MAX, ms) >= 0)
        return true;
    if (errno == EINTR)
        return false;
    (void)poll(NULL, 0, ms >= 0 && ms < blind ? ms : blind);
    for (unsigned i = 0; i < POLLS_MAX; i++)
        polls[i].revents = polls[i].fd >= 0 ? polls[i].events : 0;
    return true;
}

static void turn(struct guest *g)
{
    static struct pollfd polls[POLLS_MAX];
    bool sending = g->out.len > g->out_pos;
    polls[0] = (struct pollfd){.fd = g->signal_fd, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = g->sock, .events = (short)(POLLIN | (sending ? POLLOUT : 0))};
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        watch_cell(g, &g->cells[i], &polls[2 + i * POLLS_PER_CELL]);
    if (!look(polls, patience(g)))
        return;
    if (guest_now() >= end_of_all(g))
        child_exit(0); /* the container ends with us */
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        if (g->cells[i].state != CELL_FREE)
            serve_cell(g, &g->cells[i], &polls[2 + i * POLLS_PER_CELL]);
    if (polls[0].revents != 0)
        reap(g);
    if (polls[1].revents & (POLLIN | POLLHUP | POLLERR) && g->sock == polls[1].fd)
        serve_input(g);
    tend_cells(g);
    if (g->sock < 0 && guest_now() >= g->retry_at)
        try_connect(g);
    watch_memory(g);
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        if (g->cells[i].state != CELL_FREE)
            cell_settle(g, &g->cells[i]);
    serve_flush(g);
}

/* An image may have put links where we are mounted: then we lie over a program of its own, and who
 * runs that would run us; or nobody can be met. */
static bool is_in_place(void)
{
    char exe[sizeof(GUEST_PROGRAM) + 1];
    struct stat st;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe));
    return n == (ssize_t)strlen(GUEST_PROGRAM) && memcmp(exe, GUEST_PROGRAM, (size_t)n) == 0 &&
           lstat(GUEST_DIR, &st) == 0 && S_ISDIR(st.st_mode);
}

int main(int argc, char **argv)
{
    static struct guest g = {.sock = -1, .retry_ns = RETRY_MIN_NS};
    sigset_t all, child;
    if (!is_in_place())
        child_exit(125);
    /* Mounted read-only, so no program inside can take its place. */
    if (argc == 2 && str_eq(argv[1], GUEST_FILES))
        return files_serve(STDIN_FILENO, STDOUT_FILENO);
    /* What runs beside us under the same id must neither look into us nor take our descriptors. */
    if (prctl(PR_SET_NAME, "box-guest", 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ||
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        child_exit(125);
    /* Where it is ignored there is nothing to reap. */
    (void)sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    g.signal_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (g.signal_fd < 0 || guest_close_from((unsigned)g.signal_fd + 1) < 0)
        child_exit(125);
    (void)umask(022);
    buf_init(&g.in, GUEST_FRAME_MAX + (1U << 20));
    buf_init(&g.out, SIZE_MAX / 2); /* bounded by serve_can_send() and by what boxd asks for */
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        g.cells[i].in = g.cells[i].out[0] = g.cells[i].out[1] = -1;
    g.reports = mmap(NULL, GUEST_CELLS_MAX * sizeof(*g.reports), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (g.reports == MAP_FAILED)
        child_exit(125);
    g.ooms = tend_count_ooms();
    g.gvisor = guest_is_gvisor();
    within_make(&g);
    try_connect(&g);
    for (;;)
        turn(&g);
}
