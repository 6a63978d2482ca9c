/* SPDX-License-Identifier: Apache-2.0 */

/* box-priv: the only privileged code. Started by boxd with its bounds on the command line;
 * everything a request can refer to later (state, allow-list, images) is opened here, before the
 * first request is read. */

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <grp.h>
#include <linux/filter.h>
#include <poll.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/path.h"
#include "base/state_dir.h"
#include "base/str.h"
#include "base/user.h"
#include "inside/clone.h"
#include "loop/loop.h"
#include "loop/peer.h"
#include "priv/server.h"
#include "priv/wire.h"
#include "sandbox/host/hostcmd.h"
#include "sandbox/launch/launch.h"
#include "sandbox/seccomp/seccomp.h"
#include "sandbox/setup/hostetc.h"
#include "sandbox/setup/mount.h"
#include "sandbox/setup/userns.h"

/* A second id for the user namespace of an ordinary user: the last of the ranges that /etc/subuid
 * and /etc/subgid give, mapped by newuidmap and newgidmap. They must be run from outside of the
 * namespace, so a child that does so is made before the namespace is. */

struct subids {
    pid_t pid; /* of the child; <= 0: there is none */
    int go_fd; /* owned */
};

#define FILE_MAX 65536U
#define TOOL_TIMEOUT_MS 10000U

/* The last id of the first range that is the user's: containers of the same user begin at the other
 * end. 0: none. */
static uint32_t find_sub(const char *file, const char *name, const char *number)
{
    static char text[FILE_MAX];
    char *save = NULL;
    if (fd_read_file_at(AT_FDCWD, file, text, sizeof(text)) <= 0)
        return 0;
    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        char *rest = NULL, *who = strtok_r(line, ":", &rest);
        const char *first = strtok_r(NULL, ":", &rest), *count = strtok_r(NULL, ":", &rest);
        uint64_t from = 0, n = 0;
        if (who != NULL && (str_eq(who, name) || str_eq(who, number)) && first != NULL &&
            count != NULL && str_to_u64(first, &from) == 0 && str_to_u64(count, &n) == 0 &&
            from > 0 && n > 0 && from < UINT32_MAX && n < UINT32_MAX - from)
            return (uint32_t)(from + n - 1);
    }
    return 0;
}

static int run_tool(const char *tool, pid_t pid, uint32_t own, uint32_t second)
{
    char target[16], from[16], to[16];
    (void)snprintf(target, sizeof(target), "%d", pid);
    (void)snprintf(from, sizeof(from), "%u", own);
    (void)snprintf(to, sizeof(to), "%u", second);
    const char *const argv[] = {tool, target, "0", from, "1", "1", to, "1", NULL};
    return hostcmd_wait(argv, -1, TOOL_TIMEOUT_MS, NULL);
}

static _Noreturn void map_child(int go_fd)
{
    char byte, number[16];
    (void)snprintf(number, sizeof(number), "%u", getuid());
    if (fd_read_full(go_fd, &byte, 1) != 1)
        child_exit(1);
    const struct passwd *user = getpwuid(getuid());
    const char *name = user != NULL ? user->pw_name : number;
    uint32_t uid = find_sub("/etc/subuid", name, number);
    uint32_t gid = find_sub("/etc/subgid", name, number);
    bool done = uid > 0 && gid > 0 && run_tool("newuidmap", getppid(), getuid(), uid) >= 0 &&
                run_tool("newgidmap", getppid(), getgid(), gid) >= 0;
    child_exit(done ? 0 : 1);
}

/* Before the namespace is made. */
static void subids_start(struct subids *s)
{
    int ends[2];
    *s = (struct subids){.go_fd = -1};
    if (getuid() == 0 || getuid() != geteuid() || pipe2(ends, O_CLOEXEC) < 0)
        return;
    s->pid = clone_process(0, -1, NULL);
    if (s->pid == 0) {
        (void)close(ends[1]);
        map_child(ends[0]);
    }
    (void)close(ends[0]);
    s->go_fd = ends[1];
}

/* "inside outside count", the second line. */
static bool read_second(uid_t *ret)
{
    char map[256], *save = NULL;
    uint64_t outside = 0;
    if (fd_read_file_at(AT_FDCWD, "/proc/self/uid_map", map, sizeof(map)) <= 0 ||
        strtok_r(map, "\n", &save) == NULL)
        return false;
    char *line = strtok_r(NULL, "\n", &save), *rest = NULL;
    if (line == NULL || strtok_r(line, " ", &rest) == NULL)
        return false;
    const char *word = strtok_r(NULL, " ", &rest);
    if (word == NULL || str_to_u64(word, &outside) < 0)
        return false;
    *ret = (uid_t)outside;
    return true;
}

/* In it, with `made` false where it could not be made; nothing is mapped yet. True: both own and
 * second ids are mapped, and *ret is the second user id as the host sees it. False: the maps are as
 * they were, or have a second user id that must not be used. */
static bool subids_finish(struct subids *s, bool made, uid_t *ret)
{
    AUTO_CLOSE int go = TAKE_FD(s->go_fd);
    int status = -1;
    if (made && go >= 0)
        (void)fd_write_all(go, "", 1);
    fd_close_many(&go, 1);
    if (s->pid > 0)
        while (waitpid(s->pid, &status, 0) < 0 && errno == EINTR)
            ;
    return made && s->pid > 0 && status == 0 && read_second(ret);
}

#define INIT_SIZE_MAX (16U << 20)
#define PURGE_TRIES 200
#define TURN_TRIES 1500
#define TRY_INTERVAL_MS 10
#define LINGER_MAX (365ULL * 86400ULL)

struct options {
    int sock;
    const char *state, *tag, *init, *pool, *fetch, *runsc, *guest, *engine;
    const char *roots[LAUNCH_ROOTS_MAX];
    size_t n_roots;
    uint64_t uid, gid, linger;
    bool places;
};

static int parse_options(int argc, char **argv, struct options *o, struct err *err)
{
    /* clang-format off */
    static const struct option table[] = {
        {"sock", required_argument, NULL, 's'},
        {"state", required_argument, NULL, 'd'},
        {"tag", required_argument, NULL, 't'},
        {"init", required_argument, NULL, 'i'},
        {"pool", required_argument, NULL, 'p'},
        {"fetch", required_argument, NULL, 'f'},
        {"runsc", required_argument, NULL, 'R'},
        {"guest", required_argument, NULL, 'G'},
        {"engine", required_argument, NULL, 'E'},
        {"root", required_argument, NULL, 'r'},
        {"uid", required_argument, NULL, 'u'},
        {"gid", required_argument, NULL, 'g'},
        {"linger", required_argument, NULL, 'l'},
        {"places", no_argument, NULL, 'P'},
        {0},
    };
    /* clang-format on */
    uint64_t sock = 0;
    const char **const texts[128] = {
        ['d'] = &o->state, ['t'] = &o->tag,   ['i'] = &o->init,  ['p'] = &o->pool,
        ['f'] = &o->fetch, ['R'] = &o->runsc, ['G'] = &o->guest, ['E'] = &o->engine,
    };
    uint64_t *const numbers[128] = {
        ['s'] = &sock, ['u'] = &o->uid, ['g'] = &o->gid, ['l'] = &o->linger};
    int c;
    while ((c = getopt_long(argc, argv, "", table, NULL)) != -1) {
        int r = 0;
        if (texts[c] != NULL)
            *texts[c] = optarg;
        else if (numbers[c] != NULL)
            r = str_to_u64(optarg, numbers[c]);
        else if (c == 'P')
            o->places = true;
        else if (c == 'r' && o->n_roots < LAUNCH_ROOTS_MAX)
            o->roots[o->n_roots++] = optarg;
        else
            r = -EINVAL;
        if (r < 0)
            return err_set(err, ERR_INVALID, "box-priv is started by boxd, not by hand");
    }
    o->sock = (int)sock;
    o->linger = o->linger < LINGER_MAX ? o->linger : LINGER_MAX;
    if (o->state == NULL || o->tag == NULL || o->init == NULL || sock == 0 || !id_valid(o->tag))
        return err_set(err, ERR_INVALID, "box-priv is started by boxd, not by hand");
    return 0;
}

/* Root looks for what is to be mounted where boxd was started: a volume that is mounted later is
 * there, whether or not it is passed on to us. A box-priv that cannot enter that namespace (which
 * takes CAP_SYS_CHROOT, too) has to do with what is passed on. */
static void open_roots(struct launch_host *h, const struct options *o)
{
    int home = h->outer_fd >= 0 ? mount_ns_enter(h->outer_fd) : -1;
    if (home < 0)
        fd_close_many(&h->outer_fd, 1);
    h->root_paths = o->roots;
    h->n_named = o->n_roots;
    for (size_t i = 0; i < o->n_roots; i++) {
        int fd = open(o->roots[i], O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            log_debug(NULL, "allowed mount root '%s': %s", o->roots[i], err_errno_text(errno));
        h->root_fds[h->n_roots++] = fd; /* keeps the numbering; -1 refuses */
    }
    if (home >= 0)
        mount_ns_return(home);
}

/* Maps what is not mapped yet: our own ids alone. */
static int map_own_ids(uid_t uid, gid_t gid, struct err *err)
{
    char text[64];
    (void)snprintf(text, sizeof(text), "%u %u 1", SUBIDS_OWN, uid);
    int r = fd_write_file_at(AT_FDCWD, "/proc/self/uid_map", text);
    if (r == -EPERM && geteuid() == SUBIDS_OWN) /* newuidmap has done that, newgidmap failed */
        r = 0;
    (void)snprintf(text, sizeof(text), "%u %u 1", SUBIDS_OWN, gid);
    if (r >= 0)
        r = fd_write_file_at(AT_FDCWD, "/proc/self/gid_map", text);
    return r < 0 ? err_sys(err, -r, "map our own id") : 0;
}

/* A mount namespace of our own: what we attach for a moment never shows on the host, while the
 * host's later mounts still arrive. An ordinary user gets the right to do so from a user namespace
 * with its own id in it, and one more for PID 1 of the sessions where the host gives one. */
static int enter_namespaces(struct launch_host *h, const struct options *o, struct err *err)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    struct subids subids = {.go_fd = -1};
    h->rootful = user_is_host_root();
    h->host_uid = h->init_uid = user_outer_id();
    h->mnt_ns = peer_mnt_ns();
    h->outer_fd = h->rootful ? open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC) : -1;
    if (!h->rootful)
        subids_start(&subids);
    int r = unshare(h->rootful ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) < 0 ? -errno : 0;
    if (r == 0 && !h->rootful)
        (void)fd_write_file_at(AT_FDCWD, "/proc/self/setgroups", "deny");
    bool second = subids_finish(&subids, r == 0, &h->init_uid);
    if (r < 0)
        return err_sys(
            err, -r,
            h->rootful ? "mount namespace"
                       : "user namespace (on Debian: sysctl kernel.unprivileged_userns_clone=1; "
                         "under AppArmor: kernel.apparmor_restrict_unprivileged_userns=0)");
    if (!h->rootful && !second && (r = map_own_ids(uid, gid, err)) < 0)
        return r;
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
        return err_sys(err, errno, "own mount namespace");
    open_roots(h, o);
    return 0;
}

static int open_dirs(struct launch_host *h, const struct options *o, struct err *err)
{
    h->sessions_fd = path_make_dir_at(h->state_fd, "sessions", 0700);
    h->trash_fd = path_make_dir_at(h->state_fd, "trash", 0700);
    h->kept_fd = path_make_dir_at(h->state_fd, "kept", 0700);
    if (h->sessions_fd < 0 || h->trash_fd < 0 || h->kept_fd < 0)
        return err_sys(err, EIO, "make directories in '%s'", o->state);
    /* boxd looks for a session's socket here. */
    if (h->rootful && fchown(h->sessions_fd, h->daemon_uid, h->daemon_gid) < 0)
        return err_sys(err, errno, "own sessions directory");
    return 0;
}

/* PID 1's program as bytes that no process can change any more, whatever happens to the file. */
static int load_init(const char *path, struct err *err)
{
    int fd = fd_sealed_program("box-init", path, INIT_SIZE_MAX);
    return fd < 0 ? err_sys(err, -fd, "load '%s'", path) : fd;
}

static int load_filter(struct err *err)
{
    AUTO_FREE struct sock_filter *prog = NULL;
    size_t n = 0;
    int r = seccomp_compile(SECCOMP_INIT, &prog, &n, err);
    if (r < 0)
        return r;
    int fd = fd_sealed_memfd("box-seccomp", prog, n * sizeof(*prog));
    return fd < 0 ? err_sys(err, -fd, "seal the system call filter") : fd;
}

/* An earlier box-priv goes on for a moment after its boxd has died: it ends the sandboxes, and then
 * removes by name what we are about to make. A record lock, because children do not inherit it.
 * Returns the descriptor that holds it. */
static int take_turn(const struct launch_host *h, struct err *err)
{
    struct pollfd none;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    AUTO_CLOSE int fd =
        openat(h->state_fd, "priv.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_sys(err, errno, "lock file in the state directory");
    for (int i = 0; fcntl(fd, F_SETLK, &lock) < 0; i++) {
        if (errno != EAGAIN && errno != EACCES)
            return err_sys(err, errno, "lock the state directory");
        if (i == TURN_TRIES)
            return err_set(err, ERR_BACKEND, "the box-priv of an earlier boxd does not end");
        (void)poll(&none, 0, TRY_INTERVAL_MS);
    }
    return TAKE_FD(fd);
}

/* What an earlier run under this state directory left behind is ours and dead: its daemon is gone,
 * or its lock on the directory would have kept us out. */
static int purge(struct launch_host *h, struct err *err)
{
    struct pollfd none;
    struct err ignored = {0};
    for (int i = 0; cgroup_host_purge(&h->cgroups) > 0; i++) {
        if (i == PURGE_TRIES)
            return err_set(err, ERR_BACKEND, "processes of an earlier run do not end");
        (void)poll(&none, 0,
                   TRY_INTERVAL_MS); /* killed processes leave when the kernel gets to them */
    }
    /* Not before its processes are gone: the rules hold them to the end. */
    if (launch_net_end(h, &ignored) < 0)
        log_warn(NULL, "network of an earlier run: %s; ignoring", ignored.msg);
    int r = path_remove_tree_at(h->state_fd, "sessions");
    if (r == 0)
        r = path_remove_tree_at(h->state_fd, "trash");
    /* Only a cache: something else in its place goes too. */
    struct stat st;
    if (r == 0 && fstatat(h->state_fd, "templates", &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        !S_ISDIR(st.st_mode))
        r = path_remove_tree_at(h->state_fd, "templates");
    return r < 0 ? err_sys(err, -r, "remove what an earlier run left") : 0;
}

static int open_program(const char *path, int *ret, struct err *err)
{
    *ret = path != NULL ? open(path, O_PATH | O_CLOEXEC) : -1;
    return path != NULL && *ret < 0 ? err_sys(err, errno, "open '%s'", path) : 0;
}

static int make_etc(struct launch_host *h, struct err *err)
{
    const struct hostetc_options options = {.state_fd = h->state_fd,
                                            .name = "etc",
                                            .resolver = NET_GUEST_RESOLVER_TEXT,
                                            .rootful = h->rootful};
    /* Versions before had two copies, by these names. */
    (void)path_remove_tree_at(h->state_fd, "etc-off");
    (void)path_remove_tree_at(h->state_fd, "etc-on");
    return hostetc_new(&options, &h->etc, err);
}

static int prepare(struct launch_host *h, const struct options *o, int *ret_turn, struct err *err)
{
    h->daemon_uid = h->rootful ? (uid_t)o->uid : geteuid();
    h->daemon_gid = h->rootful ? (gid_t)o->gid : getegid();
    h->self_fd = pidfd_open(getpid(), 0);
    h->state_fd = open(o->state, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (h->self_fd < 0 || h->state_fd < 0)
        return err_sys(err, errno, "open state directory '%s'", o->state);
    int r = str_copy(h->tag, sizeof(h->tag), o->tag);
    if (r == 0) /* boxd has claimed it; this is what removes things there */
        r = state_dir_claim(h->state_fd, o->state, err);
    if (r == 0)
        r = *ret_turn = take_turn(h, err);
    if (r >= 0)
        r = cgroup_host_init(&h->cgroups, o->tag, err);
    if (r >= 0)
        r = launch_net_init(&h->net, o->tag + strlen(o->tag) - NET_TAG_MAX, o->pool, err);
    if (r >= 0)
        r = purge(h, err);
    if (r >= 0)
        r = open_dirs(h, o, err);
    if (r < 0)
        return r;
    r = make_etc(h, err);
    if (r < 0)
        return r;
    h->seccomp_fd = load_filter(err);
    if (h->seccomp_fd < 0)
        return h->seccomp_fd;
    h->init_exe_fd = load_init(o->init, err);
    if (h->init_exe_fd < 0)
        return h->init_exe_fd;
    /* Opened now, like everything else: what stands at its path later does not matter. */
    r = open_program(o->fetch, &h->fetch_exe_fd, err);
    if (r == 0)
        r = open_program(o->runsc, &h->runsc_fd, err);
    if (r == 0)
        r = open_program(o->guest, &h->guest_fd, err);
    if (r < 0)
        return r;
    h->own_view = launch_image_is_plain();
    h->bare_fd = h->rootful ? bare_make() : -1;
    launch_refill_storage(h, LAUNCH_SPARES_MAX);
    prewarm_init(&h->ahead, h->rootful, &h->cgroups);
    h->cgroups.reuse = h->ahead.on;
    prewarm_refill(&h->ahead, 0, 0, h->daemon_uid, h->daemon_gid);
    return 0;
}

/* Two descriptors per sandbox, three with a disk of its own; there may be thousands. */
static void raise_nofile(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int run(int argc, char **argv, struct err *err)
{
    static struct launch_host host;
    static struct options o;
    struct err ignored = {0};
    AUTO(loop) struct loop *loop = NULL;
    AUTO_CLOSE int turn = -1;

    int r = parse_options(argc, argv, &o, err);
    if (r < 0)
        return r;
    (void)clearenv();
    (void)umask(077);
    raise_nofile();
    (void)setgroups(0, NULL); /* refused to ordinary users, who have nothing to gain */
    r = enter_namespaces(&host, &o, err);
    if (host.rootful) /* an ordinary user needs it to write the id maps of its own children */
        (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (r == 0)
        r = prepare(&host, &o, &turn, err);
    if (r == 0)
        r = loop_new(&clock_system, &loop, err);
    if (r < 0)
        return r;
    const struct priv_serve_options serve = {.sock = o.sock,
                                             .linger_sec = o.linger,
                                             .roots = o.roots,
                                             .n_roots = o.n_roots,
                                             .state = o.state,
                                             .engine = o.engine,
                                             .places = o.places};
    r = priv_serve(loop, &host, &serve, err);
    if (launch_net_end(&host, &ignored) < 0)
        log_warn(NULL, "remove network rules: %s; ignoring", ignored.msg);
    prewarm_done(&host.ahead);
    hostetc_free(host.etc);
    cgroup_spare_remove(&host.cgroups);
    cgroup_host_remove(&host.cgroups, host.tag);
    cgroup_host_done(&host.cgroups);
    return r;
}

int main(int argc, char **argv)
{
    struct err err = {0};
    log_init("box-priv");
    /* The reader of our messages may end before us. */
    (void)sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    int r = run(argc, argv, &err);
    if (r < 0)
        log_error(NULL, "%s", err.msg);
    return r < 0 ? 1 : 0;
}
