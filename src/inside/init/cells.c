/* SPDX-License-Identifier: Apache-2.0 */

/* Every exec runs in a cgroup2 group of its own, so that a time-out ends all of its processes and
 * nothing else. The groups are kept and used again: a warm exec makes no directory. Only one that
 * was killed is made anew: kernels up to at least 6.18 compare the kill counter of the parent's
 * group with that of the group a process is cloned into, and so kill every newcomer to it.
 *
 * Memory on v1: the first cell uses the session's own group, further cells get a child group, so
 * that the kernel's counter of kills tells whose process died. On v2 memory.oom.group lets the
 * kernel end the whole group itself. */

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/state.h"
#include "base/str.h"
#include "inside/clone.h"
#include "inside/init/init.h"

#define DEPTH_MAX 256
/* A process that is held up in the kernel dies or stops when it gets out of there, and on a busy
 * host when it gets its turn: no more than ROUNDS looks are spent on waiting for it. */
#define ROUNDS 2000
#define ROUND_NS 1000000L

static const unsigned moves[CELL_STATE_MAX] = {
    [CELL_FREE] = 1U << CELL_RUNNING,
    [CELL_RUNNING] = 1U << CELL_DONE,
    [CELL_DONE] = 1U << CELL_LINGER,
    [CELL_LINGER] = 1U << CELL_FREE,
};

void cell_move(struct cell *c, enum cell_state to)
{
    STATE_MOVE(c->state, moves, to);
}

unsigned cell_index(const struct init *in, const struct cell *c)
{
    return (unsigned)(c - in->cells);
}

/* "populated 0" in cgroup.events; a group that cannot be read counts as occupied. */
static bool group_is_empty(int cgroup_fd)
{
    char text[256];
    if (cgroup_fd < 0)
        return true;
    if (fd_read_file_at(cgroup_fd, "cgroup.events", text, sizeof(text)) < 0)
        return false;
    return strstr(text, "populated 0") != NULL;
}

/* Asks the v1 controller to signal an eventfd when the group runs out of memory. */
static int oom_watch(int memcg_fd)
{
    char line[64];
    int efd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (efd < 0)
        return -errno;
    int control = openat(memcg_fd, "memory.oom_control", O_RDONLY | O_CLOEXEC);
    if (control < 0) {
        (void)close(efd);
        return -ENOENT;
    }
    (void)snprintf(line, sizeof(line), "%d %d", efd, control);
    int r = fd_write_file_at(memcg_fd, "cgroup.event_control", line);
    (void)close(control);
    if (r < 0) {
        (void)close(efd);
        return r;
    }
    return efd;
}

static int open_group(int parent_fd, const char *name)
{
    if (mkdirat(parent_fd, name, 0755) < 0 && errno != EEXIST)
        return -errno;
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : fd;
}

static unsigned session_signal(const struct cell *c, int signo);

/* -EBUSY while a process that was killed has not left yet. */
static int cell_drop_killed(struct init *in, struct cell *c)
{
    char name[16];
    if (!c->killed || c->cgroup_fd < 0)
        return 0;
    (void)snprintf(name, sizeof(name), "s%u", cell_index(in, c));
    if (unlinkat(in->cgroup_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return -errno;
    fd_close_many(&c->cgroup_fd, 1);
    c->killed = false;
    return 0;
}

static int cell_make_groups(struct init *in, struct cell *c)
{
    char name[16];
    if (in->config.cgroup_mode == INIT_CGROUP_NONE)
        return 0;
    if (c->cgroup_fd < 0) {
        (void)snprintf(name, sizeof(name), "s%u", cell_index(in, c));
        int fd = open_group(in->cgroup_fd, name);
        if (fd < 0)
            return fd;
        c->cgroup_fd = fd;
        if (in->config.cgroup_mode == INIT_CGROUP_V2)
            (void)fd_write_file_at(fd, "memory.oom.group", "1");
    }
    if (in->config.cgroup_mode != INIT_CGROUP_HYBRID || in->memcg_fd < 0 || c->oom_fd >= 0)
        return 0;
    int memcg = in->memcg_fd;
    if (cell_index(in, c) > 0) {
        (void)snprintf(name, sizeof(name), "s%u", cell_index(in, c));
        /* It may be there already, from a time when it could not be watched. */
        int fd = c->memcg_fd >= 0 ? c->memcg_fd : open_group(in->memcg_fd, name);
        if (fd < 0)
            return fd;
        memcg = c->memcg_fd = fd;
    }
    int efd = oom_watch(memcg);
    if (efd < 0)
        return efd;
    c->oom_fd = efd;
    return 0;
}

static uint64_t cell_oom_count(const struct init *in, const struct cell *c)
{
    uint64_t n = 0;
    int memcg = c->memcg_fd >= 0 ? c->memcg_fd : in->memcg_fd;
    if (in->config.cgroup_mode == INIT_CGROUP_V2 && c->cgroup_fd >= 0)
        (void)supervisor_oom_kills(c->cgroup_fd, "memory.events", &n);
    else if (in->config.cgroup_mode == INIT_CGROUP_HYBRID && memcg >= 0)
        (void)supervisor_oom_kills(memcg, "memory.oom_control", &n);
    return n;
}

static void cell_touch(struct cell *c)
{
    if (!c->touched)
        c->cgroup_fd = c->memcg_fd = c->oom_fd = -1;
    c->touched = true;
}

void cell_prepare(struct init *in)
{
    cell_touch(&in->cells[0]);
    (void)cell_make_groups(in, &in->cells[0]); /* the first exec tries again, and tells */
}

int cell_acquire_at(struct init *in, unsigned at, struct cell **ret)
{
    struct cell *c = &in->cells[at];
    if (c->state == CELL_LINGER && group_is_empty(c->cgroup_fd) &&
        (c->cgroup_fd >= 0 || c->result.end.remaining == 0 || session_signal(c, 0) == 0))
        cell_move(c, CELL_FREE);
    if (c->state != CELL_FREE || c->forgotten != 0)
        return -EAGAIN;
    cell_touch(c);
    if (cell_drop_killed(in, c) < 0)
        return -EAGAIN;
    int r = cell_make_groups(in, c);
    if (r < 0)
        return r == -EAGAIN ? -EBUSY : r;
    c->oom_seen = cell_oom_count(in, c);
    c->oom_checks = 0;
    c->orphan = false;
    in->reports[at] = (struct child_report){0};
    *ret = c;
    return 0;
}

int cell_acquire(struct init *in, struct cell **ret)
{
    int r = -EAGAIN;
    for (unsigned i = 0; i < INIT_EXECS_MAX && r == -EAGAIN; i++)
        r = cell_acquire_at(in, i, ret);
    return r;
}

static int limit_v1(int memcg_fd, const char *text)
{
    /* Memory with swap may never be less than memory alone, so first both are opened. */
    (void)fd_write_file_at(memcg_fd, "memory.memsw.limit_in_bytes", "-1");
    int r = fd_write_file_at(memcg_fd, "memory.limit_in_bytes", text);
    int swap = r < 0 ? -ENOENT : fd_write_file_at(memcg_fd, "memory.memsw.limit_in_bytes", text);
    return r < 0 ? r : swap < 0 && swap != -ENOENT ? swap : 0;
}

/* The group is kept from one process to the next, and with it its limit: it is always set. */
int cell_limit_memory(const struct init *in, const struct cell *c, uint64_t bytes)
{
    char text[32];
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
    if (in->config.cgroup_mode == INIT_CGROUP_V2) {
        int r = fd_write_file_at(c->cgroup_fd, "memory.max", bytes > 0 ? text : "max");
        if (r >= 0 && bytes > 0)
            (void)fd_write_file_at(c->cgroup_fd, "memory.swap.max", "0");
        return r < 0 ? r : 0;
    }
    if (in->config.cgroup_mode != INIT_CGROUP_HYBRID || c->memcg_fd < 0)
        return -EOPNOTSUPP;
    return limit_v1(c->memcg_fd, bytes > 0 ? text : "-1");
}

/* Kills without a kill group: all that do not provably belong to another managed process. None can
 * slip through, because all of them are stopped meanwhile; what a managed process has detached from
 * itself (its session and its parents) is not spared. */

static bool leads_process(const struct init *in, const struct cell *except, pid_t pid)
{
    for (unsigned i = 0; i < in->procs_top; i++) {
        const struct cell *c = &in->cells[INIT_EXECS_MAX + i];
        if (in->procs[i].number != 0 && c != except && c->state == CELL_RUNNING && c->pid == pid)
            return true;
    }
    return false;
}

static bool spared(const struct init *in, const struct cell *except, pid_t pid)
{
    struct inside_process seen;
    for (int i = 0; i < DEPTH_MAX && pid > 1; i++, pid = (pid_t)seen.parent) {
        if (leads_process(in, except, pid))
            return true;
        if (!supervisor_process(pid, &seen))
            return false;
        if (leads_process(in, except, (pid_t)seen.session))
            return true;
    }
    return false;
}

/* Neither dead nor stopped. */
static bool is_active(pid_t pid)
{
    struct inside_process seen;
    return supervisor_process(pid, &seen) && strchr("TtZXx", (int)seen.state) == NULL;
}

/* Returns how many processes are neither dead nor stopped; of these, *ret_alive are to die. */
static unsigned kill_listed(const struct init *in, const struct cell *except, int proc_fd,
                            uint32_t *ret_alive)
{
    struct supervisor_walk w = {.fd = proc_fd};
    unsigned active = 0;
    *ret_alive = 0;
    (void)lseek(proc_fd, 0, SEEK_SET);
    for (pid_t pid = supervisor_next_pid(&w); pid > 0; pid = supervisor_next_pid(&w)) {
        bool dies = !spared(in, except, pid);
        if (dies)
            (void)kill(pid, SIGKILL);
        if (is_active(pid)) {
            active++;
            *ret_alive += dies;
        }
    }
    return active;
}

/* The numbers in /proc are those of our own namespace, and we are its first process. */
static bool proc_is_ours(void)
{
    char self[16];
    return readlink("/proc/self", self, sizeof(self)) == 1 && self[0] == '1';
}

/* Without a kill group a command's processes are those of its session: a background process stays
 * in it unless it detaches itself, and the kernel gives no number to a new process that is the one
 * of a session. All that are not dead get the signal, 0: none. How many there are. */
static unsigned session_signal(const struct cell *c, int signo)
{
    struct supervisor_walk w = {.fd = -1};
    struct inside_process p;
    unsigned n = 0;
    if (c->pid <= 1 || !proc_is_ours())
        return 0;
    w.fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (pid_t pid = w.fd < 0 ? 0 : supervisor_next_pid(&w); pid > 0;
         pid = supervisor_next_pid(&w)) {
        if (!supervisor_process(pid, &p) || p.session != (uint32_t)c->pid ||
            strchr("ZXx", (int)p.state) != NULL)
            continue;
        n++;
        if (signo > 0)
            (void)kill(pid, signo);
    }
    fd_close_many(&w.fd, 1);
    return n;
}

/* Kills everything in the namespace but ourselves and the managed processes of other cells (`all`:
 * there are none), and waits a while for it to die; false when it cannot look at them. */
static bool walk_kill(const struct init *in, struct cell *except, bool all)
{
    int proc_fd = proc_is_ours() ? open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (proc_fd < 0)
        return false;
    (void)kill(-1, all ? SIGKILL : SIGSTOP);
    /* A process that is stopped inside of clone still makes its child, which begins stopped. A
     * SIGCONT that comes before it is there does not reach it: it would stay so for ever. */
    const struct timespec nap = {.tv_nsec = ROUND_NS};
    for (int i = 0; kill_listed(in, except, proc_fd, &except->unkilled) > 0 && i < ROUNDS; i++)
        (void)ppoll(NULL, 0, &nap, NULL);
    if (!all)
        (void)kill(-1, SIGCONT);
    (void)close(proc_fd);
    return true;
}

int cell_kill_tree(struct init *in, struct cell *c)
{
    if (in->config.cgroup_mode != INIT_CGROUP_NONE) {
        c->killed = true;
        if (fd_write_file_at(c->cgroup_fd, "cgroup.kill", "1") >= 0)
            return 0;
    }
    /* Without a group, or a descriptor to reach it by, the only kill that nothing can slip through
     * is the whole namespace, ourselves and other managed processes excepted. */
    bool all = true;
    for (unsigned i = 0; i < in->procs_top && all; i++) {
        const struct cell *other = &in->cells[INIT_EXECS_MAX + i];
        all = other == c || other->state != CELL_RUNNING || in->procs[i].number == 0;
    }
    if (walk_kill(in, c, all))
        return 0;
    return kill(-1, SIGKILL) < 0 && errno != ESRCH ? -errno : 0;
}

static uint32_t cell_remaining(struct init *in, const struct cell *c)
{
    const uint32_t ended = INSIDE_EXITED_TIMEOUT | INSIDE_EXITED_OOM | INSIDE_EXITED_KILLED;
    char text[4096];
    if (in->config.cgroup_mode == INIT_CGROUP_NONE)
        return (c->result.end.flags & ended) != 0 ? c->unkilled : session_signal(c, 0);
    if (group_is_empty(c->cgroup_fd))
        return 0;
    int fd = openat(c->cgroup_fd, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    uint32_t n = 0;
    ssize_t got;
    while ((got = read(fd, text, sizeof(text))) > 0)
        for (ssize_t i = 0; i < got; i++)
            n += text[i] == '\n';
    (void)close(fd);
    return n;
}

bool cell_empty(const struct cell *c)
{
    return (c->state == CELL_FREE || c->state == CELL_LINGER) && group_is_empty(c->cgroup_fd);
}

/* A process of that cell. */
static void own_row(const struct init *in, const struct cell *c, struct inside_process *row)
{
    row->owner = cell_index(in, c) >= INIT_EXECS_MAX ? INSIDE_OWNER_PROC : INSIDE_OWNER_EXEC;
    row->left = c->state != CELL_RUNNING;
    memcpy(row->label, c->label, sizeof(row->label));
}

/* The kernel lists the group by the numbers of our namespace, of which /proc is, too. */
static void own_group(const struct init *in, const struct cell *c, struct init_listed *l)
{
    char text[4096];
    uint64_t pid = 0;
    AUTO_CLOSE int fd = openat(c->cgroup_fd, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    ssize_t got = 0;
    while (fd >= 0 && (got = read(fd, text, sizeof(text))) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                pid = pid * 10 + (uint64_t)(text[i] - '0');
                continue;
            }
            for (uint32_t k = 0; k < l->n; k++)
                if (l->rows[k].pid == pid)
                    own_row(in, c, &l->rows[k]);
            pid = 0;
        }
    }
}

/* A child that has only just begun is not in its session yet. */
static void own_session(const struct init *in, const struct cell *c, struct init_listed *l)
{
    for (uint32_t k = 0; k < l->n && c->pid > 1; k++)
        if (l->rows[k].session == (uint32_t)c->pid ||
            (c->state == CELL_RUNNING && l->rows[k].pid == (uint32_t)c->pid))
            own_row(in, c, &l->rows[k]);
}

/* Without a kill group: one that left its session and still has its parent. */
static void own_children(struct init_listed *l)
{
    for (uint32_t k = 0; k < l->n; k++) {
        struct inside_process *row = &l->rows[k];
        for (uint32_t i = 0; i < l->n && row->owner == INSIDE_OWNER_NONE; i++) {
            if (l->rows[i].pid != row->parent)
                continue;
            row->owner = l->rows[i].owner;
            row->left = l->rows[i].left;
            memcpy(row->label, l->rows[i].label, sizeof(row->label));
        }
    }
}

void cells_list(struct init *in, uint32_t after, struct init_listed *ret)
{
    int n = proc_is_ours() ? supervisor_list(after, ret->rows, INSIDE_LIST_MAX) : -ENOENT;
    ret->error = n < 0 ? -n : 0;
    ret->n = n < 0 ? 0 : (uint32_t)n;
    for (unsigned i = 0; i < INIT_CELLS_MAX; i++) {
        const struct cell *c = &in->cells[i];
        if (c->state == CELL_FREE)
            continue;
        if (c->cgroup_fd >= 0)
            own_group(in, c, ret);
        else
            own_session(in, c, ret);
    }
    if (in->config.cgroup_mode == INIT_CGROUP_NONE)
        own_children(ret);
}

void cells_end_left(struct init *in, const char *label)
{
    for (unsigned i = 0; i < INIT_EXECS_MAX; i++) {
        struct cell *c = &in->cells[i];
        if (c->state == CELL_FREE || c->state == CELL_RUNNING || !str_eq(c->label, label))
            continue;
        if (c->cgroup_fd >= 0) { /* and nothing else, should that fail */
            c->killed = true;
            (void)fd_write_file_at(c->cgroup_fd, "cgroup.kill", "1");
            continue;
        }
        (void)session_signal(c, SIGSTOP); /* so that none of them makes more while others die */
        (void)session_signal(c, SIGKILL);
    }
}

bool cell_settled(struct init *in, struct cell *c)
{
    if (c->settle_ns > supervisor_now() && !group_is_empty(c->cgroup_fd))
        return false;
    c->settle_ns = 0;
    c->result.end.remaining = cell_remaining(in, c);
    return true;
}

bool cell_oom_check(struct init *in, struct cell *c)
{
    uint64_t n = cell_oom_count(in, c);
    if (n > c->oom_seen) {
        c->oom_seen = n;
        c->oom_checks = 0;
        return true;
    }
    if (c->oom_checks > 0)
        c->oom_checks--;
    return false;
}

/* Starting. */

/* We end with box-priv. A change of fsuid makes the kernel forget that; and a box-priv that died
 * before the kernel knows it again sends no signal. */
static void stay_mortal(void)
{
    struct pollfd parent = {.fd = INIT_FD_PARENT, .events = POLLIN};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || poll(&parent, 1, 0) != 0)
        child_exit(125);
}

/* The inodes belong to the payload, so that it may open /dev/stdout and /dev/tty by name. */
int cell_open_streams(const struct init *in, const struct init_exec *head, struct streams *ret)
{
    const struct streams_request req = {.tty = (head->flags & INIT_EXEC_TTY) != 0,
                                        .with_stdin = (head->flags & INIT_EXEC_STDIN) != 0,
                                        .rows = head->rows,
                                        .cols = head->cols};
    if (!in->config.switch_uid)
        return streams_open(&req, ret);
    (void)setfsuid(in->config.payload_uid);
    (void)setfsgid(in->config.payload_gid);
    int r = streams_open(&req, ret);
    (void)setfsuid(geteuid());
    (void)setfsgid(getegid());
    stay_mortal();
    return r;
}

/* The filter that PID 1 has is the command's already. What it has for itself hides its flags behind
 * a pointer: a new namespace would hand out every capability again. */
static const struct sock_filter no_clone3[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

static _Noreturn void run_child(const struct init *in, const struct cell *c,
                                const struct init_request *req, const struct child_stdio *io)
{
    struct init_config copy = in->config;
    const struct init_config *config = &copy;
    for (uint32_t i = 0; i < copy.n_rlimits && req->head.nproc > 0; i++)
        if (copy.rlimits[i].resource == RLIMIT_NPROC)
            copy.rlimits[i].soft = copy.rlimits[i].hard = req->head.nproc;
    child_run(&(struct child){.report = &in->reports[cell_index(in, c)],
                              .argc = req->head.argc,
                              .envc = req->head.envc,
                              .strings = req->strings,
                              .strings_len = req->head.strings_len,
                              .strings_fd = req->memfd,
                              .program = req->program,
                              .script = (req->head.flags & INIT_EXEC_SCRIPT) != 0,
                              .bash = (req->head.flags & INIT_EXEC_BASH) != 0,
                              .posture = (req->head.flags & INIT_EXEC_POSTURE) != 0,
                              .io = *io,
                              .memory_group = c->memcg_fd,
                              .rlimits = config->rlimits,
                              .n_rlimits = config->n_rlimits,
                              .switch_ids = config->switch_uid != 0,
                              .uid = config->payload_uid,
                              .gid = config->payload_gid,
                              .drop_caps = true,
                              .landlock = config->landlock > 0 ? in->landlock_fd : -1,
                              .filters = {{no_clone3, ARRAY_SIZE(no_clone3)}}});
}

pid_t cell_start(struct init *in, struct cell *c, const struct init_request *req,
                 const struct child_stdio *io)
{
    const struct init_exec *head = &req->head;
    uint64_t now = supervisor_now();
    pid_t pid = clone_process(0, c->cgroup_fd, NULL);
    if (pid == 0)
        run_child(in, c, req, io);
    if (pid < 0)
        return pid;
    /* An earlier one had the number, and has it no more: nothing of its session can be left. */
    for (unsigned i = 0; i < INIT_CELLS_MAX; i++)
        if (in->cells[i].pid == pid)
            in->cells[i].pid = 0;
    cell_move(c, CELL_RUNNING);
    c->id = head->id;
    memcpy(c->label, head->label, sizeof(c->label));
    c->label[sizeof(c->label) - 1] = '\0';
    c->pid = pid;
    c->started_ns = now;
    c->unkilled = 0;
    c->deadline_ns = head->timeout_ns > 0 ? now + head->timeout_ns : 0;
    c->result = (struct init_exited){.type = INIT_MSG_EXITED, .id = head->id};
    return pid;
}
