/* SPDX-License-Identifier: Apache-2.0 */

/* The main function and poll loop of box-guest, and its connection to boxd: frames in both
 * directions, and the check of mounts. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/clone.h"
#include "inside/files/files.h"
#include "inside/guest/guest.h"

#define MSEC 1000000ULL
#define RETRY_MIN_NS (10 * MSEC)
#define RETRY_MAX_NS (500 * MSEC)
#define CELL_POLLS (GUEST_CELLS_MAX * GUEST_POLLS)
#define POLLS_MAX (2U + CELL_POLLS + 2U * GUEST_CONNS_MAX + 2U * GUEST_LISTENS_MAX)
#define OUT_HIGH_WATER (512U * 1024U)
#define READ_CHUNK (64U * 1024U)
#define FILTER_MAX 4096U
#define MOUNTINFO_MAX (256U * 1024U)

void serve_drop(struct guest *g)
{
    fd_close_many(&g->sock, 1);
    if (g->hello)
        g->alone_since = supervisor_now();
    g->hello = false;
    g->retry_at = supervisor_now();
    buf_done(&g->in);
    buf_done(&g->out);
    g->out_pos = 0;
}

bool serve_can_send(const struct guest *g)
{
    return g->hello && g->out.len - g->out_pos < OUT_HIGH_WATER;
}

void serve_send(struct guest *g, const struct guest_head *head, const void *a, size_t a_len,
                const void *b, size_t b_len)
{
    struct guest_head h = *head;
    if (!g->hello)
        return;
    h.len = (uint32_t)(a_len + b_len);
    if (buf_append(&g->out, &h, sizeof(h)) < 0 ||
        (a_len > 0 && buf_append(&g->out, a, a_len) < 0) ||
        (b_len > 0 && buf_append(&g->out, b, b_len) < 0))
        serve_drop(g);
}

static void serve_flush(struct guest *g)
{
    while (g->sock >= 0 && g->out_pos < g->out.len) {
        ssize_t n = send(g->sock, g->out.data + g->out_pos, g->out.len - g->out_pos,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            serve_drop(g);
            return;
        }
        g->out_pos += (size_t)n;
    }
    if (g->out_pos == g->out.len) {
        buf_done(&g->out);
        g->out_pos = 0;
    } else if (g->out_pos > g->out.len / 2) {
        buf_consume(&g->out, g->out_pos);
        g->out_pos = 0;
    }
}

static int64_t nanoseconds(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

/* Identifies a mount, for boxd to compare with the directory that it meant. */
static void check_mount(const char *path, struct guest_check *ret)
{
    struct stat st;
    struct statfs fs;
    if (lstat(path, &st) < 0 || statfs(path, &fs) < 0)
        return;
    *ret = (struct guest_check){.dev = st.st_dev,
                                .ino = st.st_ino,
                                .mode = st.st_mode,
                                .mount_flags = (uint32_t)fs.f_flags,
                                .uid = st.st_uid,
                                .gid = st.st_gid,
                                .size = (uint64_t)st.st_size,
                                .mtime_ns = nanoseconds(&st.st_mtim),
                                .ctime_ns = nanoseconds(&st.st_ctim)};
}

/* "\040" and the like, in place. */
static void unescape(char *s)
{
    char *to = s;
    for (; *s != '\0'; s++) {
        bool octal = s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
                     s[3] >= '0' && s[3] <= '7';
        *to++ = octal ? (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0')) : *s;
        s += octal ? 3 : 0;
    }
    *to = '\0';
}

static bool is_listed(const char *path, const char *paths, const char *end)
{
    for (; paths < end; paths += strlen(paths) + 1)
        if (strcmp(path, paths) == 0)
            return true;
    return false;
}

struct mounted {
    char target[4096]; /* "": longer than that */
    bool read_only;
};

/* One line of mountinfo: what follows it, or NULL when there is none. */
static const char *next_mounted(const char *line, struct mounted *ret)
{
    for (int field = 0; field < 4; field++) {
        line = strchr(line, ' ');
        if (line == NULL)
            return NULL;
        line++;
    }
    size_t len = strcspn(line, " \n");
    if (str_fmt(ret->target, sizeof(ret->target), "%.*s", (int)len, line) < 0)
        ret->target[0] = '\0';
    unescape(ret->target);
    line += len;
    ret->read_only = str_starts(line, " ro ") || str_starts(line, " ro,");
    return line + strcspn(line, "\n");
}

/* gVisor's statfs(2) does not tell; its list of mounts does. */
static bool is_read_only(const struct guest *g, const struct mounted *m)
{
    struct statfs fs;
    return g->gvisor ? m->read_only : statfs(m->target, &fs) == 0 && (fs.f_flags & ST_RDONLY);
}

/* Whether something is mounted below a path that boxd did not ask for, and can be written to. */
static bool writable_below(const struct guest *g, const char *mountinfo, const char *path,
                           const char *paths, const char *end)
{
    static struct mounted m;
    size_t len = strlen(path);
    for (const char *line = next_mounted(mountinfo, &m); line != NULL;
         line = next_mounted(line, &m)) {
        if (m.target[0] == '\0')
            return true;
        if (strncmp(m.target, path, len) == 0 && m.target[len] == '/' &&
            !is_listed(m.target, paths, end) && !is_read_only(g, &m))
            return true;
    }
    return false;
}

static bool listed_read_only(const char *mountinfo, const char *path)
{
    static struct mounted m;
    bool is = false;
    for (const char *line = next_mounted(mountinfo, &m); line != NULL;
         line = next_mounted(line, &m))
        if (str_eq(m.target, path))
            is = m.read_only;
    return is;
}

/* A mount is as read-only as what came along with it. */
static void check_below(const struct guest *g, const char *paths, const char *end,
                        struct guest_check *checks)
{
    static char mountinfo[MOUNTINFO_MAX];
    ssize_t got = fd_read_file_at(AT_FDCWD, "/proc/self/mountinfo", mountinfo, sizeof(mountinfo));
    bool whole = got >= 0 && (size_t)got < sizeof(mountinfo) - 1;
    const char *path = paths;
    for (uint32_t i = 0; i < g->config.n_checks && path < end; i++, path += strlen(path) + 1) {
        if (whole && g->gvisor && listed_read_only(mountinfo, path))
            checks[i].mount_flags |= (uint32_t)ST_RDONLY;
        if (!whole || writable_below(g, mountinfo, path, paths, end))
            checks[i].mount_flags &= ~(uint32_t)ST_RDONLY;
    }
}

static void welcome(struct guest *g, const char *paths, const char *end)
{
    static struct guest_check checks[GUEST_CHECKS_MAX];
    static struct guest_proc procs[GUEST_CELLS_MAX];
    struct guest_head head = {.type = GUEST_WELCOME};
    struct guest_welcome w = {.version = GUEST_WIRE_VERSION,
                              .pid = (uint32_t)getpid(),
                              .n_checks = g->config.n_checks,
                              .uid = geteuid(),
                              .gid = getegid(),
                              .flags = g->gvisor ? GUEST_WELCOME_GVISOR : 0};
    const char *path = paths;
    memset(checks, 0, sizeof(checks));
    for (uint32_t i = 0; i < w.n_checks && path < end; i++) {
        check_mount(path, &checks[i]);
        path += strlen(path) + 1;
    }
    if (w.n_checks > 0)
        check_below(g, paths, end, checks);
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        const struct guest_cell *c = &g->cells[i];
        if (c->state == CELL_FREE || !guest_is_proc(c))
            continue;
        procs[w.n_procs++] = (struct guest_proc){.number = c->id & ~GUEST_PROC_BIT,
                                                 .flags = (c->exited ? GUEST_PROC_EXITED : 0) |
                                                          (c->log ? GUEST_PROC_LOG : 0),
                                                 .begin = c->kept[0].begin,
                                                 .end = c->kept[0].end};
    }
    AUTO_DONE(buf) struct buf body;
    buf_init(&body, GUEST_ANSWER_MAX);
    (void)buf_append(&body, checks, w.n_checks * sizeof(checks[0]));
    (void)buf_append(&body, procs, w.n_procs * sizeof(procs[0]));
    serve_send(g, &head, &w, sizeof(w), body.data, body.len);
}

static void on_hello(struct guest *g, const char *body, size_t len)
{
    struct guest_hello h;
    if (len < sizeof(h)) {
        serve_drop(g);
        return;
    }
    memcpy(&h, body, sizeof(h));
    const char *at = body + sizeof(h), *end = body + len;
    if (h.version != GUEST_WIRE_VERSION || h.filter_len > (size_t)(end - at) ||
        h.filter_len % sizeof(struct sock_filter) != 0 ||
        h.filter_len / sizeof(struct sock_filter) > FILTER_MAX || h.n_checks > GUEST_CHECKS_MAX ||
        h.n_rlimits > INSIDE_RLIMITS_MAX || memchr(h.quota_path, 0, sizeof(h.quota_path)) == NULL ||
        (end > at && end[-1] != '\0' && h.n_checks > 0)) {
        serve_drop(g);
        return;
    }
    g->config = h;
    free(g->filter);
    g->filter = xcalloc(1, h.filter_len + 1);
    memcpy(g->filter, at, h.filter_len);
    g->hello = true;
    cell_new_connection(g);
    welcome(g, at + h.filter_len, end);
}

uint64_t guest_number(const struct guest_head *head, const char *body)
{
    uint64_t n = 0;
    if (head->len == sizeof(n))
        memcpy(&n, body, sizeof(n));
    return n;
}

static void on_list(struct guest *g, const struct guest_head *h)
{
    static struct inside_process rows[INSIDE_LIST_MAX];
    struct guest_head head = {.type = GUEST_LISTED, .id = h->id};
    int n = tend_list(g, h->flags, rows, INSIDE_LIST_MAX);
    head.flags = n < 0 ? (uint32_t)-n : 0;
    serve_send(g, &head, rows, n > 0 ? (size_t)n * sizeof(rows[0]) : 0, NULL, 0);
}

/* As the container's own files tell; what is not there stays unknown. Disk is the engine's. */
static void on_usage(struct guest *g, const struct guest_head *h)
{
    static const char *const cpu[] = {"/sys/fs/cgroup/cpuacct/cpuacct.usage",
                                      "/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage"};
    struct guest_head head = {.type = GUEST_USED, .id = h->id};
    struct inside_usage u;
    uint64_t usec = 0;
    usage_unknown(&u);
    for (size_t i = 0; i < ARRAY_SIZE(cpu); i++)
        usage_number(AT_FDCWD, cpu[i], &u.cpu_ns);
    if (fd_read_counter_at(AT_FDCWD, "/sys/fs/cgroup/cpu.stat", "usage_usec", &usec) == 0)
        u.cpu_ns = usec * 1000;
    const struct {
        const char *v1, *v2;
        uint64_t *ret;
    } files[] = {{"memory/memory.usage_in_bytes", "memory.current", &u.memory_bytes},
                 {"memory/memory.limit_in_bytes", "memory.max", &u.memory_max},
                 {"pids/pids.current", "pids.current", &u.pids},
                 {"pids/pids.max", "pids.max", &u.pids_max}};
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        char path[64];
        (void)str_fmt(path, sizeof(path), "/sys/fs/cgroup/%s", files[i].v1);
        usage_number(AT_FDCWD, path, files[i].ret);
        (void)str_fmt(path, sizeof(path), "/sys/fs/cgroup/%s", files[i].v2);
        usage_number(AT_FDCWD, path, files[i].ret);
    }
    usage_network(AT_FDCWD, "/proc/net/dev", &u);
    serve_send(g, &head, &u, sizeof(u), NULL, 0);
}

static void on_end_left(struct guest *g, const struct guest_head *h, const char *body)
{
    char label[INSIDE_LABEL_SIZE];
    if (str_fmt(label, sizeof(label), "%.*s", (int)h->len, body) == 0)
        tend_end_left(g, label);
}

static void on_frame(struct guest *g, const struct guest_head *h, const char *body)
{
    if (h->type == GUEST_HELLO) {
        on_hello(g, body, h->len);
    } else if (!g->hello) {
        serve_drop(g);
    } else if (h->type == GUEST_DEADLINE) {
        uint64_t left = guest_number(h, body);
        g->deadline = left > 0 ? supervisor_now() + left : 0;
    } else if (h->type == GUEST_CONNECT) {
        conn_order(g, h, body);
    } else if (h->type == GUEST_LISTEN) {
        listener_order(g, h, body);
    } else if (h->type == GUEST_LIST) {
        on_list(g, h);
    } else if (h->type == GUEST_USAGE) {
        on_usage(g, h);
    } else if (h->type == GUEST_END_LEFT) {
        on_end_left(g, h, body);
    } else {
        cell_order(g, h, body);
    }
}

static void take_frames(struct guest *g)
{
    size_t pos = 0;
    while (g->sock >= 0 && g->in.len - pos >= sizeof(struct guest_head)) {
        struct guest_head h;
        memcpy(&h, g->in.data + pos, sizeof(h));
        if (h.len > GUEST_FRAME_MAX) {
            serve_drop(g);
            return;
        }
        if (g->in.len - pos - sizeof(h) < h.len)
            break;
        on_frame(g, &h, g->in.data + pos + sizeof(h));
        pos += sizeof(h) + h.len;
    }
    if (g->sock < 0)
        return; /* dropped, and the buffer with it */
    buf_consume(&g->in, pos);
    if (g->in.len == 0)
        buf_done(&g->in);
}

static void serve_input(struct guest *g)
{
    if (buf_reserve(&g->in, READ_CHUNK) < 0) {
        serve_drop(g);
        return;
    }
    ssize_t n = recv(g->sock, g->in.data + g->in.len, READ_CHUNK, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        serve_drop(g);
        return;
    }
    g->in.len += (size_t)n;
    take_frames(g);
}

/* The loop. */

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
    g->retry_at = supervisor_now() + g->retry_ns;
    g->retry_ns = g->retry_ns * 2 < RETRY_MAX_NS ? g->retry_ns * 2 : RETRY_MAX_NS;
}

/* When the container ends unless a boxd connects before; UINT64_MAX: never. */
static uint64_t end_of_all(const struct guest *g)
{
    uint64_t linger = g->config.linger_ns;
    if (g->hello)
        return UINT64_MAX;
    if (g->deadline > 0)
        return g->deadline;
    return linger > 0 ? g->alone_since + linger : UINT64_MAX;
}

/* How long until something is due; false: nothing is. */
static bool patience(const struct guest *g, struct timespec *ret)
{
    uint64_t now = supervisor_now(), due = end_of_all(g), tend = tend_due(g);
    if (tend < due)
        due = tend;
    if (g->sock < 0 && g->retry_at < due)
        due = g->retry_at;
    if (due == UINT64_MAX)
        return false;
    uint64_t ns = due > now ? due - now : 0;
    *ret = (struct timespec){.tv_sec = (time_t)(ns / (1000 * MSEC)),
                             .tv_nsec = (long)(ns % (1000 * MSEC))};
    return true;
}

static void turn(struct guest *g)
{
    static struct pollfd polls[POLLS_MAX];
    bool sending = g->out.len > g->out_pos;
    struct timespec wait;
    polls[0] = (struct pollfd){.fd = g->signal_fd, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = g->sock, .events = (short)(POLLIN | (sending ? POLLOUT : 0))};
    cells_watch(g, &polls[2]);
    size_t n_conns = conns_watch(g, &polls[2 + CELL_POLLS]);
    struct pollfd *listeners = &polls[2 + CELL_POLLS + n_conns];
    size_t n_listeners = listeners_watch(g, listeners);
    (void)supervisor_poll(polls, 2 + CELL_POLLS + n_conns + n_listeners,
                          patience(g, &wait) ? &wait : NULL);
    if (supervisor_now() >= end_of_all(g))
        child_exit(0); /* the container ends with us */
    cells_serve(g, &polls[2]);
    conns_serve(g, &polls[2 + CELL_POLLS], n_conns);
    listeners_serve(g, listeners, n_listeners);
    if (polls[0].revents != 0)
        tend_reap(g);
    if (polls[1].revents & (POLLIN | POLLHUP | POLLERR) && g->sock == polls[1].fd)
        serve_input(g);
    tend_cells(g);
    if (g->sock < 0 && supervisor_now() >= g->retry_at)
        try_connect(g);
    cells_settle(g);
    serve_flush(g);
}

/* An image may have put links where we are mounted: then our file hides a
 * program of the image, and starting that would start us; or boxd's socket is not where we look. */
static bool is_in_place(void)
{
    char exe[sizeof(GUEST_PROGRAM) + 1];
    struct stat st;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe));
    return n == (ssize_t)strlen(GUEST_PROGRAM) && memcmp(exe, GUEST_PROGRAM, (size_t)n) == 0 &&
           lstat(GUEST_DIR, &st) == 0 && S_ISDIR(st.st_mode);
}

/* While we are dumpable; kept open, because we shall not be. Not needed where we are as expendable
 * as programs are. */
static void open_oom_score(struct guest *g)
{
    uint64_t own = 0;
    g->oom_fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    ssize_t n = g->oom_fd < 0 ? -1 : read(g->oom_fd, g->oom_own, sizeof(g->oom_own) - 1);
    if (n > 0)
        g->oom_own[strcspn(g->oom_own, "\n")] = '\0';
    if (n <= 0 || (str_to_u64(g->oom_own, &own) == 0 && own >= GUEST_OOM_SCORE))
        fd_close_many(&g->oom_fd, 1);
}

/* The environment of programs, unless the image or a request says otherwise. The image's
 * environment is ours, since we are the container's own program. */
static void gather_env(struct guest *g)
{
    static const char *const defaults[] = {
        "TERM=xterm-256color", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/tmp", "LANG=C.UTF-8"};
    size_t n_own = 0;
    while (environ[n_own] != NULL)
        n_own++;
    g->env = xcalloc(ARRAY_SIZE(defaults) + n_own, sizeof(*g->env));
    for (size_t i = 0; i < ARRAY_SIZE(defaults); i++)
        g->env[g->n_env++] = (char *)(uintptr_t)defaults[i];
    for (size_t i = 0; i < n_own; i++)
        g->env[g->n_env++] = environ[i];
}

int main(int argc, char **argv)
{
    static struct guest g = {.sock = -1, .retry_ns = RETRY_MIN_NS};
    if (!is_in_place())
        child_exit(125);
    /* Mounted read-only, so no program inside can take its place. */
    if (argc == 2 && str_eq(argv[1], GUEST_FILES))
        return files_serve(STDIN_FILENO, STDOUT_FILENO);
    open_oom_score(&g);
    /* Programs beside us under the same id must neither look into us nor take our descriptors. */
    if (prctl(PR_SET_NAME, "box-guest", 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ||
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        child_exit(125);
    g.signal_fd = supervisor_take_signals();
    if (g.signal_fd < 0 ||
        syscall(SYS_close_range, (unsigned)g.signal_fd + 1, (unsigned)INT_MAX, 0U) < 0)
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
    gather_env(&g);
    g.gvisor = guest_is_gvisor();
    within_make(&g);
    try_connect(&g);
    for (;;)
        turn(&g);
}
