/* SPDX-License-Identifier: Apache-2.0 */

/* Table C: files, and what they tell about the host. */

#include "probe.h"
#include "probe_mounts.h"

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
#include <time.h>
#include <unistd.h>

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
        probe_report(id, found.n == 0 ? PROBE_OK : PROBE_FAIL, "%u found %s", found.n, found.first);
}

static bool is_null_device(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3);
}

/* Opening alone changes nothing. A file that is covered by /dev/null is as good as absent. */
static long open_for_write(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    long r;

    if (fd < 0)
        return -errno;
    r = is_null_device(fd) ? -ENOENT : 0;
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
        probe_report(id, entries == 0 ? PROBE_OK : PROBE_FAIL, "%u entries", entries);
        return;
    }
    probe_report(id, n <= 0 ? PROBE_OK : PROBE_FAIL, "%s",
                 n > 0    ? "has content"
                 : n == 0 ? "empty"
                          : probe_result_name(n));
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

    probe_report("C06.abstract", at ? PROBE_FAIL : PROBE_OK, "%.*s",
                 at ? (int)strcspn(at + 1, "\n") : 4, at ? at + 1 : "none");
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
