/* SPDX-License-Identifier: Apache-2.0 */

/* Files below the root. Every name is resolved by the kernel beneath a descriptor, so that a
 * program that changes the tree meanwhile gains nothing; what is written appears by rename. */

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "fetch/fetch_internal.h"
#include "fetch/job.h"

int fetch_open(const struct fetch *f, const char *rel, int flags, mode_t mode)
{
    return path_open_beneath(f->root_fd, rel, flags, mode);
}

int fetch_open_list(const struct fetch *f, const char *rel)
{
    return fetch_open(f, rel, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0);
}

mode_t fetch_type(const struct fetch *f, const char *rel)
{
    struct stat st;
    AUTO_CLOSE int fd = fetch_open(f, rel, O_PATH | O_NOFOLLOW, 0);
    return fd >= 0 && fstat(fd, &st) == 0 ? st.st_mode & S_IFMT : 0;
}

bool fetch_is_dir(const struct fetch *f, const char *rel)
{
    return fetch_type(f, rel) == S_IFDIR;
}

static char *parent_of(const char *rel)
{
    const char *leaf = fetch_leaf(rel);
    return xstrndup(rel, leaf > rel ? (size_t)(leaf - rel - 1) : 0);
}

int fetch_open_names(const struct fetch *f, const char *rel, DIR **ret)
{
    AUTO_CLOSE int fd = fetch_open_list(f, rel);
    if (fd < 0)
        return fd;
    *ret = fdopendir(fd);
    if (*ret == NULL)
        return -errno;
    (void)TAKE_FD(fd);
    return 0;
}

const char *fetch_next_name(DIR *dir)
{
    const struct dirent *e;
    errno = 0;
    do
        e = readdir(dir);
    while (e != NULL && (str_eq(e->d_name, ".") || str_eq(e->d_name, "..")));
    return e != NULL ? e->d_name : NULL;
}

/* Opens `rel` below `fd` component by component, making what is missing. */
static int make_below(int fd, const char *rel)
{
    AUTO_CLOSE int at = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (at < 0)
        return -errno;
    for (const char *s = rel; *s != '\0';) {
        char name[NAME_MAX + 1];
        size_t n = strcspn(s, "/");
        if (n > NAME_MAX)
            return -ENAMETOOLONG;
        memcpy(name, s, n);
        name[n] = '\0';
        s += n + (s[n] == '/');
        if (n == 0 || str_eq(name, "."))
            continue;
        if (str_eq(name, ".."))
            return -EXDEV;
        int next = path_make_dir_at(at, name, 0755);
        if (next < 0)
            return next;
        (void)close(at);
        at = next;
    }
    return TAKE_FD(at);
}

int fetch_open_dir(int fd, const char *make, struct err *err)
{
    int dir = make_below(fd, make);
    return dir < 0 ? err_sys(err, -dir, "directory '%s'", make) : dir;
}

int fetch_make_dirs(struct fetch *f, const char *rel)
{
    AUTO_CLOSE int fd = make_below(f->root_fd, rel);
    return fd < 0 ? fetch_fail_sys(f, -fd, rel) : 0;
}

int fetch_make_parents(struct fetch *f, const char *rel)
{
    AUTO_FREE char *parent = parent_of(rel);
    return fetch_make_dirs(f, parent);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int fetch_names(const struct fetch *f, const char *rel, size_t max, char ***ret)
{
    AUTO_STRV char **names = NULL;
    size_t n = 0, cap = 0;
    const char *name = NULL;
    DIR *dir = NULL;
    int r = fetch_open_names(f, rel, &dir);
    if (r < 0)
        return r;
    assert(dir != NULL);
    while ((name = fetch_next_name(dir)) != NULL && n < max) {
        if (n + 1 >= cap) {
            cap = cap > 0 ? 2 * cap : 64;
            names = xreallocarray(names, cap, sizeof(*names));
        }
        names[n++] = xstrdup(name);
        names[n] = NULL;
    }
    r = name != NULL ? -E2BIG : -errno;
    (void)closedir(dir);
    if (r < 0)
        return r;
    if (n > 0)
        qsort(names, n, sizeof(*names), by_name);
    *ret = TAKE_PTR(names);
    return 0;
}

int fetch_read_text(const struct fetch *f, const char *rel, struct buf *ret, struct timespec *ctime,
                    struct timespec *mtime)
{
    struct stat st;
    /* It may be a fifo, whose other end must not make us wait. */
    AUTO_CLOSE int fd = fetch_open(f, rel, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0)
        return fd == -ENXIO || fd == -ENOTDIR ? -ENOENT : fd;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -ENOENT;
    int r = fd_read_to_buf(fd, ret);
    if (r == -ENOBUFS)
        return -EFBIG;
    if (r < 0)
        return r;
    if (ctime != NULL)
        *ctime = st.st_ctim;
    if (mtime != NULL)
        *mtime = st.st_mtim;
    return utf8_valid(buf_str(ret), ret->len) ? 0 : -EILSEQ;
}

int fetch_tmp(struct fetch *f)
{
    char digits[17];
    if (f->tmp[0] != '\0')
        return 0;
    id_random(digits);
    char name[FETCH_TMP_LEN + 1];
    (void)str_fmt(name, sizeof(name), FETCH_TMP_PREFIX "%s", digits);
    if (mkdirat(f->root_fd, name, 0700) < 0)
        return fetch_fail_sys(f, errno, name);
    memcpy(f->tmp, name, sizeof(name));
    return 0;
}

void fetch_tmp_done(struct fetch *f)
{
    if (f->tmp[0] != '\0')
        (void)path_remove_tree_at(f->root_fd, f->tmp);
    f->tmp[0] = '\0';
}

/* The directory of `rel`, O_PATH; *ret_leaf points into rel. */
static int open_parent(const struct fetch *f, const char *rel, const char **ret_leaf)
{
    AUTO_FREE char *dir = parent_of(rel);
    *ret_leaf = fetch_leaf(rel);
    return fetch_open(f, dir, O_PATH | O_DIRECTORY, 0);
}

static int put_file(const struct fetch *f, const char *rel, mode_t mode, const void *data,
                    size_t len)
{
    AUTO_CLOSE int fd = fetch_open(f, rel, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fd;
    int r = fd_write_all(fd, data, len);
    return r == 0 && fchmod(fd, mode) < 0 ? -errno : r;
}

int fetch_write_file(struct fetch *f, const char *rel, const void *data, size_t len)
{
    struct stat st;
    const char *leaf = NULL;
    int r = fetch_tmp(f);
    if (r < 0)
        return r;
    AUTO_FREE char *part = fetch_join(f->tmp, "part");
    AUTO_CLOSE int dir = open_parent(f, rel, &leaf);
    if (dir < 0)
        return fetch_fail_sys(f, -dir, rel);
    mode_t mode = 0644;
    if (fstatat(dir, leaf, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        if (S_ISDIR(st.st_mode))
            return fetch_fail_sys(f, EISDIR, rel);
        if (S_ISREG(st.st_mode))
            mode = st.st_mode & 0777;
    }
    r = put_file(f, part, mode, data, len);
    if (r == 0 && renameat(f->root_fd, part, dir, leaf) < 0)
        r = -errno;
    if (r < 0) {
        (void)unlinkat(f->root_fd, part, 0);
        return fetch_fail_sys(f, -r, rel);
    }
    return 0;
}

int fetch_move(struct fetch *f, const char *from, const char *to)
{
    const char *from_leaf = NULL, *to_leaf = NULL;
    AUTO_CLOSE int source = open_parent(f, from, &from_leaf);
    AUTO_CLOSE int target = open_parent(f, to, &to_leaf);
    if (source < 0 || target < 0)
        return fetch_fail_sys(f, source < 0 ? -source : -target, source < 0 ? from : to);
    if (renameat2(source, from_leaf, target, to_leaf, RENAME_NOREPLACE) < 0)
        return fetch_fail_sys(f, errno, to);
    return 0;
}

/* It vanishes at once, and then its files at leisure: a job that is killed meanwhile leaves nothing
 * that the next one would take for a skill, and what resists is tried again by that one. A
 * directory that cannot be moved (a read-only one has no right to change its own "..") goes where
 * it stands. */
int fetch_remove_tree(struct fetch *f, const char *rel)
{
    char going[FETCH_TMP_LEN + 24];
    const char *leaf = NULL;
    int r = fetch_tmp(f);
    if (r < 0)
        return r;
    (void)str_fmt(going, sizeof(going), "%s/going-%u", f->tmp, f->serial++);
    r = fetch_move(f, rel, going);
    const char *place = r == 0 ? going : rel;
    AUTO_CLOSE int dir = open_parent(f, place, &leaf);
    int removed = dir < 0 ? dir : path_remove_tree_at(dir, leaf);
    if (r < 0 && removed < 0)
        return fetch_fail_sys(f, -removed, rel);
    fetch_forget(f);
    return 0;
}
