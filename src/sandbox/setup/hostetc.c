/* SPDX-License-Identifier: Apache-2.0 */

/* Copies the listed files of the host's /etc, within a budget of files and bytes. */

#include "sandbox/setup/hostetc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "sandbox/setup/mount.h"
#include "sandbox/setup/userns.h"

#define DEPTH_MAX 6
#define FILES_MAX 8000U
#define FILE_BYTES_MAX (4U << 20)
#define TOTAL_BYTES_MAX (64U << 20)

/* World-readable configuration of programs. Nothing with accounts, keys, names of hosts or of
 * people. */
static const char *const copied[] = {
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ssl",
    "ca-certificates",
    "localtime",
    "timezone",
    "mime.types",
    "magic",
    "protocols",
    "services",
    "debian_version",
    "os-release",
    "lsb-release",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "perl",
    "java-17-openjdk",
    "java-21-openjdk",
    "fonts",
    "inputrc",
    "terminfo",
    "rpc",
    "gai.conf",
    "bash.bashrc",
    "xml",
    "emacs",
    "ImageMagick-6",
    "ghc",
    "php",
    "npm",
    "R",
    "maven",
};

static const struct {
    const char *name, *text;
} made[] = {
    {"passwd", "root:x:0:0:root:/root:/bin/sh\nbox:x:1000:1000:box:/home/box:/bin/sh\n"
               "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
    {"group", "root:x:0:\nbox:x:1000:\nnogroup:x:65534:\n"},
    {"hosts", "127.0.0.1 localhost box\n::1 localhost\n"},
    {"hostname", "box\n"},
    {"nsswitch.conf",
     "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"},
    {"shells", "/bin/sh\n/bin/bash\n"},
};

struct budget {
    unsigned files;
    size_t bytes;
};

static int copy_entry(int from, const char *name, int to, int depth, struct budget *left);

static int copy_file(int from, const char *name, int to, const struct stat *st, struct budget *left)
{
    char chunk[65536];
    if (!(st->st_mode & S_IROTH) || (size_t)st->st_size > FILE_BYTES_MAX ||
        (size_t)st->st_size > left->bytes)
        return 0; /* not for everybody's eyes, or not worth it */
    AUTO_CLOSE int in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    AUTO_CLOSE int out =
        openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (in < 0 || out < 0)
        return in < 0 ? 0 : -errno;
    ssize_t n;
    while ((n = read(in, chunk, sizeof(chunk))) > 0) {
        if ((size_t)n > left->bytes)
            return -EFBIG;
        left->bytes -= (size_t)n;
        int r = fd_write_all(out, chunk, (size_t)n);
        if (r < 0)
            return r;
    }
    return 0;
}

static int copy_link(int from, const char *name, int to)
{
    char target[4096];
    ssize_t n = readlinkat(from, name, target, sizeof(target) - 1);
    if (n < 0)
        return 0;
    target[n] = '\0';
    return symlinkat(target, to, name) < 0 ? -errno : 0;
}

static int copy_dir(int from, const char *name, int to, int depth, struct budget *left)
{
    int in = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (in < 0)
        return 0;
    DIR *dir = fdopendir(in);
    AUTO_CLOSE int out = path_make_dir_at(to, name, 0755);
    int r = dir == NULL ? -ENOMEM : out < 0 ? out : 0;
    struct dirent *e;
    while (r == 0 && (e = readdir(dir)) != NULL)
        if (!str_eq(e->d_name, ".") && !str_eq(e->d_name, ".."))
            r = copy_entry(dirfd(dir), e->d_name, out, depth + 1, left);
    if (dir != NULL)
        (void)closedir(dir);
    else
        (void)close(in);
    return r;
}

static int copy_entry(int from, const char *name, int to, int depth, struct budget *left)
{
    struct stat st;
    if (depth > DEPTH_MAX || left->files == 0 || str_eq(name, "private"))
        return 0;
    if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    left->files--;
    if (S_ISLNK(st.st_mode))
        return copy_link(from, name, to);
    if (S_ISREG(st.st_mode))
        return copy_file(from, name, to, &st, left);
    /* A directory that others may not enter protects files that they could read. */
    if (S_ISDIR(st.st_mode) && (st.st_mode & S_IROTH) && (st.st_mode & S_IXOTH))
        return copy_dir(from, name, to, depth, left);
    return 0;
}

static int write_text(int dirfd, const char *name, const char *text)
{
    AUTO_CLOSE int fd =
        openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    return fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
}

static int new_tmpfs(void)
{
    static const struct mount_option options[] = {
        {"size", "68M"}, {"nr_inodes", "8192"}, {"mode", "0755"}, {0}};
    return mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

/* From Linux 6.3 on. Found out by doing, with an instance that nobody will see. */
static bool tmpfs_takes_idmaps(void)
{
    struct err ignored = {0};
    AUTO_DONE(idmaps) struct idmaps maps = {0};
    AUTO_CLOSE int fs = new_tmpfs();
    int map = fs < 0 ? -1 : idmaps_get(&maps, &(struct idmap_key){.uid = 0, .gid = 0}, &ignored);
    return map >= 0 && mount_set(fs, 0, map, 0) == 0;
}

/* The mount table of a session names the directory that a mount shows, from the root of its file
 * system. With a file system of its own that is "/" and not where our state is. It is attached,
 * in our own mount namespace, because before Linux 6.15 only attached mounts can be copied. */
static int make_place(int state_fd, const char *name, bool idmapped)
{
    AUTO_CLOSE int dir = path_make_dir_at(state_fd, name, 0755);
    if (dir < 0 || (idmapped && !tmpfs_takes_idmaps()))
        return TAKE_FD(dir);
    AUTO_CLOSE int fs = new_tmpfs();
    if (fs < 0)
        return fs;
    int r = mount_attach(fs, dir);
    return r < 0 ? r : TAKE_FD(fs);
}

int hostetc_build(int state_fd, const char *name, const char *resolver, bool idmapped,
                  struct err *err)
{
    struct budget left = {FILES_MAX, TOTAL_BYTES_MAX};
    char resolv[128] = "# no network\n";
    mode_t mask = umask(022);
    int r = path_remove_tree_at(state_fd, name);
    AUTO_CLOSE int out = r < 0 ? r : make_place(state_fd, name, idmapped);
    AUTO_CLOSE int etc = open("/etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (out < 0 || etc < 0)
        r = err_sys(err, out < 0 ? -out : errno, "prepare /etc");
    for (size_t i = 0; i < ARRAY_SIZE(copied) && r == 0; i++)
        r = copy_entry(etc, copied[i], out, 0, &left);
    for (size_t i = 0; i < ARRAY_SIZE(made) && r == 0; i++)
        r = write_text(out, made[i].name, made[i].text);
    if (resolver != NULL)
        (void)snprintf(resolv, sizeof(resolv), "nameserver %s\noptions edns0\n", resolver);
    if (r == 0)
        r = write_text(out, "resolv.conf", resolv);
    (void)umask(mask);
    if (r < 0)
        return err->code != ERR_NONE ? r : err_sys(err, -r, "prepare /etc");
    return TAKE_FD(out);
}
