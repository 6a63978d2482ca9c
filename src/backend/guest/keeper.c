/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/guest/guest.h"
#include "sandbox/clone.h"
#include "util/fd.h"
#include "util/str.h"

#define MSEC 1000000ULL
#define KILL_ROUNDS 4000 /* of a millisecond or more each */
#define LOOK_NS (100 * MSEC)

struct keeper {
    const struct guest *g;
    int ctl, signal_fd;
    struct tree tree;
    pid_t main; /* -1: ended */
    uint64_t started, deadline, ooms;
    uint64_t memory_max, look_at; /* 0: no limit of its own */
    struct child_report *report;  /* shared with the child */
    struct guest_exited result;
    bool told, failed, oom_seen;
};

uint64_t keeper_count_ooms(void)
{
    static const char *const files[] = {"/sys/fs/cgroup/memory.events",
                                        "/sys/fs/cgroup/memory/memory.oom_control"};
    char text[512];
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        ssize_t n = fd_read_file_at(AT_FDCWD, files[i], text, sizeof(text));
        char *at = n > 0 ? strstr(text, "oom_kill ") : NULL;
        uint64_t count = 0;
        if (at == NULL)
            continue;
        at += strlen("oom_kill ");
        at[strcspn(at, "\n")] = '\0';
        return str_to_u64(at, &count) == 0 ? count : 0;
    }
    return 0;
}

static bool disk_full(const struct keeper *k)
{
    struct statfs fs;
    return k->g->config.quota_path[0] != '\0' && statfs(k->g->config.quota_path, &fs) == 0 &&
           (fs.f_bavail == 0 || (fs.f_files > 0 && fs.f_ffree == 0));
}

static void judge(struct keeper *k, int status, const struct rusage *use)
{
    struct guest_exited *r = &k->result;
    bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    r->wait_status = status;
    r->duration_ns = guest_now() - k->started;
    r->cpu_ns = ((uint64_t)use->ru_utime.tv_sec + (uint64_t)use->ru_stime.tv_sec) * 1000 * MSEC +
                ((uint64_t)use->ru_utime.tv_usec + (uint64_t)use->ru_stime.tv_usec) * 1000;
    r->max_rss_kb = (uint64_t)use->ru_maxrss;
    r->stage = k->report->stage;
    r->error = k->report->error;
    k->failed = failed && r->stage == GUEST_STAGE_NONE;
    k->oom_seen = r->stage == GUEST_STAGE_NONE && keeper_count_ooms() > k->ooms;
    if (k->failed && !k->oom_seen && disk_full(k))
        r->flags |= GUEST_EXITED_DISK_FULL;
}

/* True while there are children. */
static bool reap(struct keeper *k)
{
    struct signalfd_siginfo ignored[8];
    while (read(k->signal_fd, ignored, sizeof(ignored)) > 0)
        ;
    for (;;) {
        int status;
        struct rusage use;
        pid_t pid = wait4(-1, &status, WNOHANG, &use);
        if (pid == 0)
            return true;
        if (pid < 0)
            return errno != ECHILD;
        if (pid == k->main) {
            k->main = -1;
            judge(k, status, &use);
        }
    }
}

/* True while anything of the tree is left. Orphans are our children, or have our brand: then they
 * are reaped by box-guest, which sends us the signal that we would have had. */
static bool any_left(struct keeper *k)
{
    return reap(k) || (k->tree.brand != 0 && tree_signal(&k->tree, 0) > 0);
}

/* Stopped first, so that none of them makes more while the others die. */
static void end_tree(struct keeper *k)
{
    (void)tree_signal(&k->tree, SIGSTOP);
    for (int i = 0; i < KILL_ROUNDS; i++) {
        (void)tree_signal(&k->tree, SIGKILL);
        if (!any_left(k))
            return;
        struct pollfd p = {.fd = k->signal_fd, .events = POLLIN};
        (void)poll(&p, 1, 1);
    }
}

static void tell(struct keeper *k)
{
    struct keeper_report report = {
        .result = k->result, .oom_seen = k->oom_seen, .failed = k->failed};
    if (k->told)
        return;
    k->told = true;
    report.result.remaining = tree_signal(&k->tree, 0);
    (void)send(k->ctl, &report, sizeof(report), MSG_NOSIGNAL);
}

static void end_with(struct keeper *k, uint32_t flag)
{
    if (k->main > 0)
        k->result.flags |= flag;
    end_tree(k);
}

static void obey(struct keeper *k)
{
    struct keeper_order order;
    ssize_t n = recv(k->ctl, &order, sizeof(order), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n != (ssize_t)sizeof(order)) { /* box-guest is gone, and the container with it */
        end_tree(k);
        child_exit(0);
    }
    if (order.op == KEEPER_KILL || order.op == KEEPER_OOM) {
        end_with(k, order.op == KEEPER_KILL ? GUEST_EXITED_KILLED : GUEST_EXITED_OOM);
    } else if (k->main > 0 && order.signo > 0 && order.signo < NSIG) {
        /* The process leads its own group; what a terminal would reach, we reach. */
        if (kill(-k->main, order.signo) < 0)
            (void)kill(k->main, order.signo);
    }
}

static int patience(const struct keeper *k)
{
    uint64_t now = guest_now(), due = k->look_at;
    if (k->deadline > 0 && k->main > 0 && (due == 0 || k->deadline < due))
        due = k->deadline;
    if (due == 0)
        return -1;
    uint64_t ms = due > now ? (due - now + MSEC - 1) / MSEC : 0;
    return ms < 3600000 ? (int)ms : 3600000;
}

/* What the whole container uses: while that is below the limit, nobody has to be counted. */
static uint64_t container_memory(void)
{
    static const char *const files[] = {"/sys/fs/cgroup/memory.current",
                                        "/sys/fs/cgroup/memory/memory.usage_in_bytes"};
    uint64_t bytes;
    for (size_t i = 0; i < ARRAY_SIZE(files); i++)
        if (fd_read_u64_at(AT_FDCWD, files[i], &bytes) == 0)
            return bytes;
    return UINT64_MAX;
}

static void watch_memory(struct keeper *k)
{
    uint64_t now = guest_now();
    if (k->memory_max == 0 || now < k->look_at)
        return;
    k->look_at = now + LOOK_NS;
    if (container_memory() > k->memory_max && tree_above(&k->tree, k->memory_max))
        end_with(k, GUEST_EXITED_OOM);
}

static _Noreturn void watch(struct keeper *k)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = k->ctl, .events = POLLIN},
                              {.fd = k->signal_fd, .events = POLLIN}};
        (void)poll(p, 2, patience(k));
        if (k->main > 0 && k->deadline > 0 && guest_now() >= k->deadline)
            end_with(k, GUEST_EXITED_TIMEOUT);
        watch_memory(k);
        if (p[0].revents != 0)
            obey(k);
        bool left = any_left(k);
        if (k->main < 0) {
            if (!k->told && left && k->oom_seen && k->failed) {
                end_tree(k); /* out of memory ends the whole exec */
                left = false;
            }
            tell(k);
        }
        if (!left)
            child_exit(0);
    }
}

void keeper_run(struct guest *g, int ctl, uint64_t brand, const struct start_request *req,
                const struct child_stdio *io)
{
    static struct keeper k;
    sigset_t child;
    (void)prctl(PR_SET_NAME, "box-keeper", 0, 0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    k = (struct keeper){.g = g, .ctl = ctl, .main = -1, .started = guest_now()};
    k.tree = (struct tree){.root = getpid(), .brand = brand};
    k.deadline = req->head.timeout_ns > 0 ? k.started + req->head.timeout_ns : 0;
    k.memory_max = req->head.memory_bytes;
    k.look_at = k.memory_max > 0 ? k.started : 0;
    k.report =
        mmap(NULL, sizeof(*k.report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    k.signal_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    k.ooms = keeper_count_ooms();
    int r = -ENOMEM;
    if (k.report != MAP_FAILED && k.signal_fd >= 0 &&
        (brand != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0))
        r = guest_clone();
    if (r == 0)
        child_run(g, brand, req, io, k.report);
    /* The streams are the program's; while we held them they would never end. */
    int theirs[4] = {io->in, io->out, io->err, io->tty};
    fd_close_many(theirs, 4);
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        struct cell *c = &g->cells[i];
        if (c->ctl != ctl)
            fd_close_many(&c->ctl, 1);
        fd_close_many(c->out, 2);
        fd_close_many(&c->in, 1);
    }
    fd_close_many(&g->sock, 1);
    buf_done(&g->in); /* the request may have been large */
    buf_done(&g->out);
    if (r < 0) {
        k.result = (struct guest_exited){.stage = GUEST_STAGE_LIMIT, .error = -r};
        tell(&k);
        child_exit(0);
    }
    k.main = r;
    watch(&k);
}
