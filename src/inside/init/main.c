/* SPDX-License-Identifier: Apache-2.0 */

/* The main function and poll loop of box-init: reaps, times out and handles out of memory. */

#include <elf.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "inside/caps.h"
#include "inside/clone.h"
#include "inside/init/init.h"
#include "inside/seccomp_install.h"

#define OOM_RECHECK_NS 5000000ULL /* between looks at the kill counter after an event */
#define OOM_CHECKS 40U
#define SETTLE_NS 5000000000ULL   /* what a killed tree gets to be gone before EXITED is sent */
#define SETTLE_STEP_NS 1000000ULL /* between looks, unless a child's end wakes us */

static void send_end(struct init *in, struct cell *c)
{
    if (cell_index(in, c) >= INIT_EXECS_MAX)
        procs_exited(in, c);
    else
        serve_tell(in, c);
}

static void cell_finish(struct init *in, struct cell *c, int status, const struct rusage *usage)
{
    const struct child_report *report = &in->reports[cell_index(in, c)];
    struct inside_exited *out = &c->result.end;
    supervisor_judge(report, c->started_ns, status, usage, out);
    if (cell_oom_check(in, c)) {
        out->flags |= INSIDE_EXITED_OOM;
        (void)cell_kill_tree(in, c);
    }
    if (supervisor_hit_quota(in->config.quota_path, status))
        out->flags |= INSIDE_EXITED_DISK_FULL;
    bool ended =
        (out->flags & (INSIDE_EXITED_TIMEOUT | INSIDE_EXITED_OOM | INSIDE_EXITED_KILLED)) != 0;
    c->settle_ns = ended ? supervisor_now() + SETTLE_NS : 0;
    c->deadline_ns = 0;
    c->oom_checks = 0;
    cell_move(c, CELL_DONE);
    if (cell_settled(in, c))
        send_end(in, c);
}

static void reap(struct init *in)
{
    struct signalfd_siginfo si[16];
    while (read(in->signal_fd, si, sizeof(si)) > 0)
        ;
    for (;;) {
        struct rusage usage;
        int status;
        pid_t pid = wait4(-1, &status, WNOHANG, &usage);
        if (pid <= 0)
            return;
        for (unsigned i = 0; i < INIT_CELLS_MAX; i++) {
            struct cell *c = &in->cells[i];
            if (c->state == CELL_RUNNING && c->pid == pid) {
                cell_finish(in, c, status, &usage);
                break;
            }
        }
    }
}

/* False: PID 1 still has to report the end of something. */
static bool tend_ended(struct init *in, struct cell *c)
{
    if (c->state == CELL_DONE && cell_settled(in, c))
        send_end(in, c);
    return !(c->state == CELL_DONE && c->settle_ns > 0) && procs_gone(in, c);
}

/* Kills what is over time or was hit by the out-of-memory killer. Returns the next moment to look.
 */
static uint64_t tend_cells(struct init *in, uint64_t now)
{
    uint64_t next = UINT64_MAX;
    for (unsigned i = 0; i < INIT_CELLS_MAX; i++) {
        struct cell *c = &in->cells[i];
        uint64_t due = UINT64_MAX;
        if (!tend_ended(in, c))
            next = now + SETTLE_STEP_NS < next ? now + SETTLE_STEP_NS : next;
        if (c->state != CELL_RUNNING)
            continue;
        if (c->deadline_ns > 0 && c->deadline_ns <= now) {
            c->result.end.flags |= INSIDE_EXITED_TIMEOUT;
            c->deadline_ns = 0;
            (void)cell_kill_tree(in, c);
        }
        if (c->oom_checks > 0 && cell_oom_check(in, c)) {
            c->result.end.flags |= INSIDE_EXITED_OOM;
            (void)cell_kill_tree(in, c);
        }
        if (c->deadline_ns > 0)
            due = c->deadline_ns;
        if (c->oom_checks > 0 && now + OOM_RECHECK_NS < due)
            due = now + OOM_RECHECK_NS;
        next = due < next ? due : next;
    }
    return next;
}

static void handle_oom_events(struct init *in, const struct pollfd *fds, const unsigned *cells,
                              nfds_t n)
{
    for (nfds_t i = 0; i < n; i++) {
        uint64_t count;
        if (fds[i].revents != 0 && read(fds[i].fd, &count, sizeof(count)) > 0)
            in->cells[cells[i]].oom_checks = OOM_CHECKS;
    }
}

/* Everything that can wake us: signals and boxd first, then memory, then output. */
struct wakers {
    struct pollfd fds[2 + INIT_CELLS_MAX + PROCS_POLL_MAX];
    unsigned cells[INIT_CELLS_MAX]; /* whose memory */
    nfds_t n_oom, n_procs;
};

static void gather(struct init *in, struct wakers *w, uint64_t now, uint64_t *next)
{
    w->n_oom = 0;
    for (unsigned i = 0; i < INIT_CELLS_MAX; i++) {
        if (in->cells[i].state != CELL_RUNNING || in->cells[i].oom_fd < 0)
            continue;
        w->cells[w->n_oom] = i;
        w->fds[2 + w->n_oom++] = (struct pollfd){.fd = in->cells[i].oom_fd, .events = POLLIN};
    }
    w->n_procs = procs_poll(in, w->fds + 2 + w->n_oom, now, next);
    w->fds[0] = (struct pollfd){.fd = in->signal_fd, .events = POLLIN};
    w->fds[1] =
        (struct pollfd){.fd = in->conn_fd, .events = in->blocked ? POLLIN | POLLOUT : POLLIN};
}

static _Noreturn void run(struct init *in)
{
    static struct wakers w;
    for (;;) {
        uint64_t now = supervisor_now(), next = tend_cells(in, now);
        struct timespec wait = {0};
        if (!in->blocked)
            serve_flush(in);
        gather(in, &w, now, &next);
        if (next != UINT64_MAX && next > now) {
            wait.tv_sec = (time_t)((next - now) / 1000000000ULL);
            wait.tv_nsec = (long)((next - now) % 1000000000ULL);
        }
        nfds_t n = 2 + w.n_oom + w.n_procs;
        if (!supervisor_poll(w.fds, n, next == UINT64_MAX ? NULL : &wait))
            continue;
        handle_oom_events(in, w.fds + 2, w.cells, w.n_oom);
        procs_ready(in, w.fds + 2 + w.n_oom, w.n_procs);
        if (w.fds[0].revents)
            reap(in);
        if (w.fds[1].revents & POLLOUT)
            in->blocked = false;
        if (w.fds[1].revents & ~POLLOUT)
            serve_message(in);
    }
}

/* For us and all that we start; child_run() adds what is for commands alone. */
static bool install_filter(void)
{
    struct stat st;
    const size_t one = sizeof(struct sock_filter);
    if (fstat(INIT_FD_SECCOMP, &st) < 0 || st.st_size <= 0 || (size_t)st.st_size % one != 0 ||
        (size_t)st.st_size / one > 4096)
        return false;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, INIT_FD_SECCOMP, 0);
    if (p == MAP_FAILED || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        seccomp_install(p, (unsigned short)((size_t)st.st_size / one)) < 0)
        return false;
    (void)munmap(p, (size_t)st.st_size);
    (void)close(INIT_FD_SECCOMP);
    return true;
}

/* A descriptor that is missing has /dev/null in its place. */
static bool is_directory(int fd)
{
    int dot = openat(fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dot >= 0)
        (void)close(dot);
    return dot >= 0;
}

static bool start_state(struct init *in)
{
    if (fd_read_full(INIT_FD_CONFIG, &in->config, sizeof(in->config)) !=
            (ssize_t)sizeof(in->config) ||
        in->config.version != INIT_CONFIG_VERSION || in->config.n_rlimits > INSIDE_RLIMITS_MAX ||
        memchr(in->config.quota_path, 0, sizeof(in->config.quota_path)) == NULL)
        return false;
    (void)close(INIT_FD_CONFIG);
    in->landlock_fd = INIT_FD_LANDLOCK;
    in->cgroup_fd = in->config.cgroup_mode != INIT_CGROUP_NONE ? INIT_FD_CGROUP : -1;
    in->memcg_fd = in->config.cgroup_mode == INIT_CGROUP_HYBRID && is_directory(INIT_FD_MEMCG1)
                       ? INIT_FD_MEMCG1
                       : -1;
    in->conn_fd = INIT_FD_CONTROL;
    if (!install_filter())
        return false;
    for (int fd = INIT_FD_CONTROL; fd < INIT_FD_MAX; fd++)
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    in->reports = mmap(NULL, INIT_CELLS_MAX * sizeof(*in->reports), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    in->signal_fd = supervisor_take_signals();
    /* We sit in a leaf, so the groups of execs can have memory accounting of their own. */
    if (in->config.cgroup_mode == INIT_CGROUP_V2)
        (void)fd_write_file_at(in->cgroup_fd, "cgroup.subtree_control", "+memory");
    if (in->reports == MAP_FAILED || in->signal_fd < 0)
        return false;
    cell_prepare(in); /* while boxd does not know yet that we are there */
    return true;
}

/* What was only written to be relocated is constant from here on: musl leaves that to its loader,
 * which a static program does not have. */
static bool protect_constants(void)
{
    extern const char __ehdr_start[] __attribute__((visibility("hidden")));
    const Elf64_Ehdr *file = (const Elf64_Ehdr *)(const void *)__ehdr_start;
    const Elf64_Phdr *part = (const Elf64_Phdr *)(const void *)(__ehdr_start + file->e_phoff);
    const uintptr_t page = 4096; /* the smallest there is; of a larger one a part stays writable */
    for (unsigned i = 0; i < file->e_phnum; i++) {
        uintptr_t from = ((uintptr_t)__ehdr_start + part[i].p_vaddr) & -page;
        uintptr_t to = ((uintptr_t)__ehdr_start + part[i].p_vaddr + part[i].p_memsz) & -page;
        if (part[i].p_type == PT_GNU_RELRO && to > from &&
            mprotect((void *)from, to - from, PROT_READ) < 0)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct init in;
    (void)prctl(PR_SET_NAME, "box-init", 0, 0,
                0); /* started from a descriptor, we have a number for a name */
    /* execve made us dumpable again: the payload must not look into us, whatever its uid. What came
     * through execve by the ambient set stays with us alone. */
    if (!protect_constants() || getpid() != 1 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ||
        caps_keep(~0ULL) < 0 || !start_state(&in))
        child_exit(125);
    run(&in);
}
