/* SPDX-License-Identifier: Apache-2.0 */

/* Table C: files, and what they tell about the host. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "probe.h"

/* One line: id parent major:minor root target options [optional...] - type source super */
static bool parse_line(char *line, struct probe_mount *m)
{
    char *fields[6], *rest = line, *tail = strstr(line, " - ");
    if (!tail)
        return false;
    *tail = '\0';
    for (size_t i = 0; i < 6; i++) {
        fields[i] = strsep(&rest, " ");
        if (!fields[i])
            return false;
    }
    tail += 3;
    *m = (struct probe_mount){
        .root = fields[3],
        .target = fields[4],
        .options = fields[5],
        .propagation = rest ? rest : "",
        .type = strsep(&tail, " "),
        .source = strsep(&tail, " "),
        .super = tail,
    };
    return m->super != NULL;
}

int probe_mounts_each(void (*fn)(const struct probe_mount *m, void *arg), void *arg)
{
    static char text[1 << 16];
    char *rest = text, *line;
    ssize_t n = probe_read("/proc/self/mountinfo", text, sizeof(text));
    if (n < 0)
        return (int)n;
    while ((line = strsep(&rest, "\n"))) {
        struct probe_mount m;
        if (parse_line(line, &m))
            fn(&m, arg);
    }
    return 0;
}

/* Is it one of a,b,c? */
static bool probe_mount_has(const char *options, const char *word)
{
    size_t len = strlen(word);
    for (const char *p = options; (p = strstr(p, word)); p += len) {
        if ((p == options || p[-1] == ',') && (p[len] == ',' || p[len] == '\0'))
            return true;
    }
    return false;
}

struct findings {
    const struct probe_options *opt;
    unsigned cgroups, loose, roots;
    char cgroup[200], loose_at[200], root[400];
};

static bool below(const char *path, const char *dir)
{
    size_t len = strlen(dir);
    return strncmp(path, dir, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

/* A part of a filesystem that is mounted shows its path there. Public parts may. */
static bool root_is_public(const struct probe_mount *m, const struct probe_options *opt)
{
    static const char *const dirs[] = {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc"};
    if (strcmp(m->root, "/") == 0)
        return true;
    /* /dev/null over a file of /proc, and the like: by type or because the target says so. */
    if (strcmp(m->type, "devtmpfs") == 0 || strcmp(m->type, "proc") == 0 ||
        strncmp(m->target, "/dev/", 5) == 0 || strncmp(m->target, "/proc/", 6) == 0)
        return true;
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        if (below(m->root, dirs[i]))
            return true;
    }
    for (size_t i = 0; opt->root_prefix[i]; i++) {
        if (below(m->root, opt->root_prefix[i]))
            return true;
    }
    return false;
}

static void judge_mount(const struct probe_mount *m, void *arg)
{
    struct findings *f = arg;
    bool tight = probe_mount_has(m->options, "nosuid") && probe_mount_has(m->options, "nodev");
    if (strncmp(m->type, "cgroup", 6) == 0 && f->cgroups++ == 0)
        (void)snprintf(f->cgroup, sizeof(f->cgroup), "%s", m->target);
    /* A device that was bound in is of no use with nodev; what it may be is C05's affair. */
    if (probe_mount_has(m->options, "rw") && strncmp(m->target, "/dev/", 5) != 0 && !tight &&
        f->loose++ == 0)
        (void)snprintf(f->loose_at, sizeof(f->loose_at), "%s %s", m->target, m->options);
    if (!root_is_public(m, f->opt) && f->roots++ == 0)
        (void)snprintf(f->root, sizeof(f->root), "%s at %s", m->root, m->target);
}

static void probe_mounts(const struct probe_options *opt)
{
    struct findings f = {.opt = opt};
    if (probe_mounts_each(judge_mount, &f) < 0) {
        probe_report("C07", PROBE_FAIL, "no mountinfo");
        return;
    }
    CHECK("C04", f.cgroups == 0, "%u cgroup mounts %s", f.cgroups, f.cgroup);
    CHECK("C07.flags", f.loose == 0, "%u writable mounts without nosuid and nodev %s", f.loose,
          f.loose_at);
    CHECK("C07.root", f.roots == 0, "%u host paths %s", f.roots, f.root);
}

static bool contains(const char *path, const char *secret)
{
    static char text[1 << 16];
    ssize_t n = probe_read(path, text, sizeof(text));
    return n > 0 && memmem(text, (size_t)n, secret, strlen(secret));
}

static void search_processes(const char *secret)
{
    static const char *const files[] = {"environ", "cmdline", "mountinfo", "comm"};
    char path[300], where[300] = "";
    unsigned n = 0, hits = 0;
    const struct dirent *e;
    DIR *d = opendir("/proc");
    while (d && (e = readdir(d))) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        n++;
        for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
            (void)snprintf(path, sizeof(path), "/proc/%s/%s", e->d_name, files[i]);
            if (contains(path, secret) && hits++ == 0)
                (void)snprintf(where, sizeof(where), "%s", path);
        }
    }
    if (d)
        (void)closedir(d);
    CHECK("C08.secret", n > 0 && hits == 0, "%u processes, %u places %s", n, hits, where);
}

/* C04, C07 and C08: what the mounts, the environment and the descriptors give away. */
static void probe_leaks(const struct probe_options *opt)
{
    char secret[128] = "";
    size_t len = opt->secret_reversed ? strlen(opt->secret_reversed) : 0;
    CHECK("C08.fds", opt->first_fds == 0, "set of descriptors above 2: %#x", opt->first_fds);
    if (len < 8 || len >= sizeof(secret)) {
        probe_report("C08.secret", PROBE_NA, "none given");
        return;
    }
    for (size_t i = 0; i < len; i++)
        secret[i] = opt->secret_reversed[len - 1 - i];
    search_processes(secret);
}

#define DEVPTS_MAGIC 0x1cd1
#define PTS_MAJOR 136

struct masks {
    unsigned files, dirs, wrong;
    char first[200];
};

static bool is_null_device(const struct stat *st)
{
    return S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3);
}

static bool is_empty_dir(const char *path)
{
    unsigned n = 0;
    DIR *d = opendir(path);
    if (!d)
        return false;
    while (readdir(d))
        n++;
    (void)closedir(d);
    return n == 2;
}

static void look_at_mount(const struct probe_mount *m, void *arg)
{
    struct masks *found = arg;
    struct stat st = {0};
    bool right = false;
    if (strncmp(m->target, "/proc/", 6) != 0)
        return;
    if (lstat(m->target, &st) == 0 && S_ISDIR(st.st_mode)) {
        right = is_empty_dir(m->target);
        found->dirs++;
    } else {
        right = is_null_device(&st);
        found->files++;
    }
    if (!right && found->wrong++ == 0)
        (void)snprintf(found->first, sizeof(found->first), "%s", m->target);
}

static void terminal(void)
{
    struct stat st;
    struct statfs fs;
    if (!isatty(STDIN_FILENO)) {
        probe_report("C10.tty", PROBE_NA, "no terminal");
        return;
    }
    if (fstat(STDIN_FILENO, &st) < 0 || fstatfs(STDIN_FILENO, &fs) < 0 ||
        fs.f_type != DEVPTS_MAGIC || !S_ISCHR(st.st_mode) || major(st.st_rdev) != PTS_MAJOR)
        probe_report("C10.tty", PROBE_FAIL, "not a pts");
    else
        probe_report("C10.tty", PROBE_OK, "pts %u", minor(st.st_rdev));
}

static void probe_masks(const struct probe_options *opt)
{
    struct masks found = {0};
    struct stat st = {0};
    char cwd[4096] = "";
    bool null_is_right = lstat("/dev/null", &st) == 0 && is_null_device(&st);
    (void)probe_mounts_each(look_at_mount, &found);
    CHECK("C10.masks", found.wrong == 0 && found.files >= 10,
          "%u files, %u directories, %u wrong %s", found.files, found.dirs, found.wrong,
          found.first);
    CHECK("C10.null", null_is_right, "mode %o rdev %u:%u", st.st_mode, major(st.st_rdev),
          minor(st.st_rdev));
    terminal();
    if (!getcwd(cwd, sizeof(cwd)))
        probe_report("C10.cwd", PROBE_FAIL, "%s", strerrorname_np(errno));
    else
        CHECK("C10.cwd", cwd[0] == '/' && strncmp(cwd, "/proc", 5) != 0, "%s", cwd);
}

/* What a walk found; nftw() has no argument to hand it through. */
static struct {
    unsigned n, seen;
    time_t until; /* 0: for as long as it takes */
    char first[200];
} found;

static void note(const char *path)
{
    if (found.n++ == 0)
        (void)snprintf(found.first, sizeof(found.first), "%s", path);
}

static time_t seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

static bool is_over(void)
{
    found.seen++;
    return found.until != 0 && seconds() > found.until;
}

static void walk(const char *id, const char *root, unsigned sec,
                 int (*fn)(const char *, const struct stat *, int, struct FTW *))
{
    int r;
    found.n = found.seen = 0;
    found.first[0] = '\0';
    found.until = sec > 0 ? seconds() + sec : 0;
    r = nftw(root, fn, 64, FTW_PHYS | FTW_ACTIONRETVAL);
    if (r < 0 && errno != ENOENT)
        probe_report(id, PROBE_FAIL, "cannot walk %s: %s", root, strerrorname_np(errno));
    else if (r > 0 && found.n == 0)
        probe_report(id, PROBE_NA, "none among the first %u files, in %u s", found.seen, sec);
    else
        CHECK(id, found.n == 0, "%u found %s", found.n, found.first);
}

/* Opening alone changes nothing. A file that is covered by /dev/null is as good as absent. */
static long open_for_write(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (fd < 0)
        return -errno;
    long r = fstat(fd, &st) == 0 && is_null_device(&st) ? -ENOENT : 0;
    (void)close(fd);
    return r;
}

static int visit_sysctl(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    if (type == FTW_F && open_for_write(path) == 0)
        note(path);
    return FTW_CONTINUE;
}

static void kernel_settings(void)
{
    static const char *const files[] = {
        "sys/kernel/core_pattern",      "sys/kernel/modprobe",     "sys/vm/panic_on_oom",
        "sys/fs/binfmt_misc/register",  "sysrq-trigger",           "sys/kernel/sysrq",
        "sys/kernel/core_pipe_limit",   "sys/kernel/hotplug",      "sys/vm/drop_caches",
        "sys/kernel/yama/ptrace_scope", "sys/net/ipv4/ip_forward",
    };
    char id[64], path[64];
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        const char *name = strrchr(files[i], '/');
        (void)snprintf(id, sizeof(id), "C01.%s", name ? name + 1 : files[i]);
        (void)snprintf(path, sizeof(path), "/proc/%s", files[i]);
        EXPECT(id, open_for_write(path), ENOENT, EROFS, EACCES, EPERM);
    }
    walk("C01.all", "/proc/sys", 0, visit_sysctl);
}

/* Absent, unreadable, empty, or covered by /dev/null; for a directory: without entries. */
static void check_hidden(const char *id, const char *path)
{
    char text[64];
    ssize_t n = probe_read(path, text, sizeof(text));
    unsigned entries = 0;
    DIR *d;
    if (n == -EISDIR && (d = opendir(path))) {
        for (const struct dirent *e; (e = readdir(d));)
            entries += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
        (void)closedir(d);
        CHECK(id, entries == 0, "%u entries", entries);
        return;
    }
    CHECK(id, n <= 0, "%s", n > 0 ? "has content" : n == 0 ? "empty" : probe_result_name(n));
}

/* An engine leaves empty directories there, and the session's own control group. */
static int visit_sys(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    if (type == FTW_D && strcmp(path, "/sys/fs/cgroup") == 0)
        return FTW_SKIP_SUBTREE;
    if (type == FTW_F || type == FTW_SL)
        note(path);
    return FTW_CONTINUE;
}

static void host_information(void)
{
    static const char *const files[] = {
        "keys",     "key-users",  "timer_list", "kallsyms",     "kcore",         "kmsg",
        "iomem",    "ioports",    "slabinfo",   "pagetypeinfo", "vmallocinfo",   "interrupts",
        "softirqs", "zoneinfo",   "buddyinfo",  "vmstat",       "cmdline",       "config.gz",
        "modules",  "locks",      "schedstat",  "sched_debug",  "latency_stats", "diskstats",
        "swaps",    "partitions", "consoles",   "misc",         "devices",       "crypto",
        "acpi",     "kpagecount", "kpageflags", "kpagecgroup",  "scsi",          "irq",
        "bus",      "fs",         "driver",     "sysvipc",      "tty",
    };
    char id[64], path[64];
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        (void)snprintf(id, sizeof(id), "C02.%s", files[i]);
        (void)snprintf(path, sizeof(path), "/proc/%s", files[i]);
        check_hidden(id, path);
    }
    walk("C02.sys", "/sys", 0, visit_sys);
}

static void read_only_directories(void)
{
    static const char *const dirs[] = {"/", "/usr", "/etc", "/bin", "/lib", "/proc", "/dev"};
    char id[64], path[64];
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        int fd;
        (void)snprintf(id, sizeof(id), "%s.%s", strcmp(dirs[i], "/dev") == 0 ? "C05" : "C03",
                       dirs[i]);
        (void)snprintf(path, sizeof(path), "%s/probe-file", dirs[i]);
        fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
        if (fd >= 0) {
            probe_report(id, PROBE_FAIL, "created %s", path);
            (void)close(fd);
            (void)unlink(path);
        } else if (errno == ENOENT && strcmp(dirs[i], "/proc") != 0) {
            probe_report(id, PROBE_NA, "no such directory");
        } else {
            EXPECT(id, -errno, EROFS, ENOENT);
        }
    }
}

static int visit_device(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    static const char *const known[] = {"null",    "zero", "full", "random",
                                        "urandom", "tty",  "ptmx", "console"};
    const char *name = path + strlen("/dev/");
    if (type != FTW_F || (!S_ISCHR(st->st_mode) && !S_ISBLK(st->st_mode)))
        return FTW_CONTINUE;
    if (strncmp(name, "pts/", 4) == 0 && S_ISCHR(st->st_mode))
        return FTW_CONTINUE;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(known[i], name) == 0 && S_ISCHR(st->st_mode))
            return FTW_CONTINUE;
    }
    note(path);
    return FTW_CONTINUE;
}

static int visit_socket(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    if (is_over())
        return FTW_STOP;
    if (type == FTW_D && strcmp(path, "/proc") == 0)
        return FTW_SKIP_SUBTREE;
    if (type == FTW_F && S_ISSOCK(st->st_mode))
        note(path);
    return FTW_CONTINUE;
}

/* Abstract sockets are the lines whose last word begins with @. */
static void abstract_sockets(void)
{
    static char text[1 << 16];
    ssize_t n = probe_read("/proc/net/unix", text, sizeof(text));
    const char *at = n > 0 ? strstr(text, " @") : NULL;
    CHECK("C06.abstract", !at, "%.*s", at ? (int)strcspn(at + 1, "\n") : 4, at ? at + 1 : "none");
}

static void times_and_names(void)
{
    struct timespec boot = {0};
    struct utsname uts;
    char text[256];
    (void)clock_gettime(CLOCK_BOOTTIME, &boot);
    if (uname(&uts) == 0) {
        probe_report("C12.hostname", PROBE_NA, "%s", uts.nodename);
        probe_report("C12.kernel", PROBE_NA, "%s", uts.release);
    }
    probe_report("C12.boottime", PROBE_NA, "%lld", (long long)boot.tv_sec);
    check_hidden("C12.version", "/proc/version"); /* who built the kernel, and where */
    check_hidden("C12.machine-id", "/etc/machine-id");
    check_hidden("C12.dbus-machine-id", "/var/lib/dbus/machine-id");
    check_hidden("C12.dmi", "/sys/class/dmi/id/product_uuid");
    /* The id of this boot of the host: not namespaced, the same for every tenant. */
    probe_report("C12.boot_id", PROBE_NA, "%s",
                 probe_read("/proc/sys/kernel/random/boot_id", text, sizeof(text)) > 0 ? text
                                                                                       : "absent");
}

static void capacities(void)
{
    static const char *const dirs[] = {"/tmp", "/dev/shm", ".", "/"};
    struct statvfs st;
    char id[32];
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        (void)snprintf(id, sizeof(id), "C14.%s", strcmp(dirs[i], ".") == 0 ? "cwd" : dirs[i]);
        if (statvfs(dirs[i], &st) < 0)
            probe_report(id, PROBE_NA, "%s", strerrorname_np(errno));
        else
            probe_report(id, PROBE_NA, "bytes=%llu inodes=%llu%s",
                         (unsigned long long)st.f_blocks * st.f_frsize,
                         (unsigned long long)st.f_files, st.f_flag & ST_RDONLY ? " ro" : "");
    }
}

void probe_files(const struct probe_options *opt)
{
    kernel_settings();
    host_information();
    read_only_directories();
    walk("C05", "/dev", 0, visit_device);
    walk("C06", "/", opt->walk_sec, visit_socket);
    abstract_sockets();
    probe_mounts(opt);
    probe_leaks(opt);
    times_and_names();
    capacities();
}

const struct probe_mode probe_files_modes[] = {
    {"files", probe_files, true},
    {"masks", probe_masks, true},
    {0},
};
