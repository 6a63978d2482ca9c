/* SPDX-License-Identifier: Apache-2.0 */

/* Table A: the identity of a process and its privileges. */

#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void capabilities(void)
{
    static const char *const sets[] = {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"};
    char id[32], value[64];
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        probe_status("/proc/self/status", sets[i], value, sizeof(value));
        (void)snprintf(id, sizeof(id), "A02.%s", sets[i]);
        CHECK(id, value[0] && strspn(value, "0") == strlen(value), "%s", value);
    }
}

static void *wait_for_end(void *gate)
{
    char byte;
    (void)!read(*(int *)gate, &byte, 1);
    return NULL;
}

/* Every thread that can be seen, but PID 1, which has its own posture. */
static void check_threads(const char *pid, unsigned *n, unsigned *bad)
{
    char path[600], nnp[16], mode[16];
    const struct dirent *e;
    DIR *d;
    (void)snprintf(path, sizeof(path), "/proc/%s/task", pid);
    d = opendir(path);
    while (d && (e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof(path), "/proc/%s/task/%s/status", pid, e->d_name);
        probe_status(path, "NoNewPrivs", nnp, sizeof(nnp));
        probe_status(path, "Seccomp", mode, sizeof(mode));
        (*n)++;
        *bad += strcmp(nnp, "1") != 0 || strcmp(mode, "2") != 0;
    }
    if (d)
        (void)closedir(d);
}

static void threads(void)
{
    unsigned n = 0, bad = 0;
    const struct dirent *e;
    int gate[2] = {-1, -1};
    pthread_t thread;
    DIR *d = opendir("/proc");
    if (!d || pipe2(gate, O_CLOEXEC) < 0 ||
        pthread_create(&thread, NULL, wait_for_end, &gate[0]) != 0) {
        probe_report("A04", PROBE_FAIL, "no thread");
        if (d)
            (void)closedir(d);
        return;
    }
    while ((e = readdir(d))) {
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && strcmp(e->d_name, "1") != 0)
            check_threads(e->d_name, &n, &bad);
    }
    (void)closedir(d);
    (void)close(gate[1]);
    (void)pthread_join(thread, NULL);
    (void)close(gate[0]);
    CHECK("A04", n >= 2 && bad == 0, "%u threads, %u without no_new_privs and filter", n, bad);
}

static void namespaces(const struct probe_options *opt)
{
    char id[32];
    for (size_t i = 0; i < NS_MAX; i++) {
        uint64_t own = probe_ns_inode(probe_ns_names[i]);
        enum probe_state state = own != 0 && own != opt->host_ns[i] ? PROBE_OK : PROBE_FAIL;
        (void)snprintf(id, sizeof(id), "A06.%s", probe_ns_names[i]);
        probe_report(id, opt->host_ns[i] == 0 ? PROBE_NA : state, "%llu", (unsigned long long)own);
    }
}

static long try_open(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    (void)close(fd);
    return 0;
}

static long seize(const void *arg)
{
    return ptrace(PTRACE_SEIZE, 1, NULL, NULL) < 0 ? -errno : 0;
}

static long read_memory(const void *arg)
{
    char byte;
    struct iovec local = {&byte, 1}, remote = {(void *)0x400000, 1};
    return process_vm_readv(1, &local, 1, &remote, 1, 0) < 0 ? -errno : 0;
}

static long steal_fd(const void *arg)
{
    long fd = syscall(SYS_pidfd_open, 1, 0);
    if (fd < 0)
        return -errno;
    return syscall(SYS_pidfd_getfd, fd, 0, 0) < 0 ? -errno : 0;
}

static void init_process(void)
{
    static const char *const files[] = {"mem", "environ", "maps", "auxv", "root", "cwd", "fd/0"};
    char id[32], path[64];
    EXPECT("A10.ptrace", probe_forked(seize, NULL), EPERM, ENOSYS, ESRCH);
    EXPECT("A10.process_vm_readv", probe_forked(read_memory, NULL), EPERM, ENOSYS, ESRCH);
    EXPECT("A10.pidfd_getfd", probe_forked(steal_fd, NULL), EPERM, ENOSYS, ESRCH);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        (void)snprintf(id, sizeof(id), "A10.%s", files[i]);
        (void)snprintf(path, sizeof(path), "/proc/1/%s", files[i]);
        EXPECT(id, try_open(path, O_RDONLY), EACCES, EPERM, ENOENT);
    }
}

void probe_identity(const struct probe_options *opt)
{
    capabilities();
    threads();
    namespaces(opt);
    EXPECT("A09.self", try_open("/proc/self/exe", O_WRONLY), EACCES, ETXTBSY, EROFS, EPERM);
    EXPECT("A09.pid1", try_open("/proc/1/exe", O_WRONLY), EACCES, EPERM, ENOENT);
    EXPECT("A09.pid1-read", try_open("/proc/1/exe", O_RDONLY), EACCES, EPERM, ENOENT);
    init_process();
}

const struct probe_mode probe_identity_modes[] = {
    {"identity", probe_identity, true},
    {0},
};
