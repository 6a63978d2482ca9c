/* SPDX-License-Identifier: Apache-2.0 */

/* Recognises a state directory by its mark or its content, and marks a new one. */

#include "base/state_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"

#define DATABASE "state.db"

/* What may stand in a directory that is not used yet: of the file system, and of `box`, which opens
 * the log of the boxd that it starts. */
static const char *const neutral[] = {"lost+found", "boxd.log"};

/* What versions without the mark made. Nothing is to be added here. */
static const char *const early[] = {"audit",    "boxd.sock", "engine",    "etc-off",   "etc-on",
                                    "lock",     "network",   "outputs",   "priv.lock", "priv.sock",
                                    "sessions", "spool",     "templates", "trash"};

static bool is_among(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq(name, names[i]))
            return true;
    return false;
}

static int open_file(int dir_fd, const char *name)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    return S_ISREG(st.st_mode) ? TAKE_FD(fd) : -EINVAL;
}

static bool has_file(int dir_fd, const char *name)
{
    AUTO_CLOSE int fd = open_file(dir_fd, name);

    return fd >= 0;
}

static bool has_database(int dir_fd)
{
    static const char magic[16] = "SQLite format 3";
    char head[sizeof(magic)];
    AUTO_CLOSE int fd = open_file(dir_fd, DATABASE);

    return fd >= 0 && pread(fd, head, sizeof(head), 0) == (ssize_t)sizeof(head) &&
           memcmp(head, magic, sizeof(head)) == 0;
}

/* Whether it is empty; *ret_early: whether it holds what an early version made, and nothing else.
 */
static int look_through(int dir_fd, bool *ret_empty, bool *ret_early)
{
    DIR *dir = fd_opendir(dir_fd);
    bool empty = true, known = true;

    if (dir == NULL)
        return -errno;
    for (const struct dirent *d = readdir(dir); d != NULL; d = readdir(dir)) {
        if (str_eq(d->d_name, ".") || str_eq(d->d_name, "..") ||
            is_among(d->d_name, neutral, ARRAY_SIZE(neutral)))
            continue;
        empty = false;
        known = known &&
                (is_among(d->d_name, early, ARRAY_SIZE(early)) || str_starts(d->d_name, DATABASE));
    }
    (void)closedir(dir);
    *ret_empty = empty;
    *ret_early = known && has_file(dir_fd, "lock") && has_database(dir_fd);
    return 0;
}

static int put_mark(int dir_fd)
{
    static const char text[] = "Box keeps its state here and removes what it does not need any "
                               "more. Keep nothing else in this directory.\n";
    AUTO_CLOSE int fd =
        openat(dir_fd, STATE_DIR_MARK, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);

    if (fd < 0)
        return errno == EEXIST && has_file(dir_fd, STATE_DIR_MARK) ? 0 : -errno;
    (void)fd_write_all(fd, text, sizeof(text) - 1); /* that it is there is what counts */
    return 0;
}

int state_dir_claim(int fd, const char *path, struct err *err)
{
    bool empty = false, is_early = false;

    if (has_file(fd, STATE_DIR_MARK))
        return 0;
    int r = look_through(fd, &empty, &is_early);
    if (r < 0)
        return err_sys(err, -r, "read directory '%s'", path);
    if (!empty && !is_early)
        return err_set(err, ERR_INVALID,
                       "'%s' is neither empty nor a state directory of Box, and nothing in it was "
                       "changed; choose another --state-dir. If an earlier Box did make it, put an "
                       "empty file '" STATE_DIR_MARK "' there",
                       path);
    r = put_mark(fd);
    return r < 0 ? err_sys(err, -r, "mark '%s' as a state directory", path) : 0;
}
