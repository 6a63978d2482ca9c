/* SPDX-License-Identifier: Apache-2.0 */

/* Mirrors the host's /etc, within a budget of files and bytes, and follows its changes.
 *
 * The directory holds "off" and "on", for sessions without and with a network. They have every file
 * in common, as hard links, but resolv.conf. A file is written in "new" and put into both by
 * rename: a program that has the old one open or mapped keeps it whole.
 *
 * The owner of a directory in /etc may change it while we look: names are opened beneath
 * descriptors, links are copied as links, and what counts is the mode of what was opened. */

#include "sandbox/setup/hostetc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/host_path.h"
#include "base/path.h"
#include "base/str.h"
#include "sandbox/setup/hostetc_rules.h"
#include "sandbox/setup/mount.h"
#include "sandbox/setup/userns.h"

#define DEPTH_MAX 8
#define FILES_MAX 8000U
#define FILE_BYTES_MAX (4U << 20)
#define SHARE_FILES_MAX 2000U /* of one entry of /etc, with all that is below */
#define SHARE_BYTES_MAX (16U << 20)
#define SHARES 1024U
#define TOTAL_BYTES_MAX (64U << 20)
#define WATCHES_MAX 2048U
#define BATCHES_MAX 512        /* of events, in one refresh; the kernel's queue has fewer */
#define LAST_MAX 4096U         /* names of a batch that are told from each other */
#define WORK_MAX (64U << 20)   /* bytes to read for the events of one refresh */
#define LOOK_COST 4096U        /* of one name, in bytes that could be read instead */
#define BLIND_NS 2000000000ULL /* between two looks at everything, after the first */
#define NOBODY 65534U
#define SIDES 2

#define WATCHED                                                                                    \
    (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_CLOSE_WRITE | IN_ATTRIB |            \
     IN_ONLYDIR | IN_EXCL_UNLINK)

static const char *const sides[SIDES] = {"off", "on"};

/* What programs cannot do without is copied while there is room. */
static const char *const first[] = {"ld.so.cache",  "ld.so.conf", "ld.so.conf.d",
                                    "alternatives", "ssl",        "ca-certificates",
                                    "localtime"};

/* All of these are hidden by hostetc_rules.c, so that the host's never take their place. */
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

struct etc_watch {
    int wd;
    char *path;    /* owned; relative to /etc, "" is /etc itself */
    unsigned look; /* at everything, in which it was seen last */
};

/* What the entries of /etc use whose names have one hash. */
struct etc_share {
    unsigned files;
    size_t bytes;
};

struct hostetc {
    bool rootful;
    bool whole;                /* everything is looked at, and counted anew */
    bool stale;                /* everything has to be looked at */
    bool blind;                /* not every directory is watched */
    uint64_t due_ns;           /* when everything may be looked at again */
    size_t spent;              /* of WORK_MAX */
    int etc_fd;                /* owned; the host's */
    int place_fd, new_fd;      /* owned */
    int side_fds[SIDES];       /* owned */
    int inotify_fd;            /* owned; -1: none */
    struct etc_watch *watches; /* owned */
    size_t n_watches;
    unsigned looks; /* at everything */
    unsigned files;
    size_t bytes, left_out;
    struct etc_share shares[SHARES];
    struct buf content, before; /* of the file that is being copied, and of its last copy */
};

/* Directories that belong together while one of them is walked. */
struct etc_walk {
    int from;      /* borrowed */
    int to[SIDES]; /* borrowed */
    char path[4096];
    int depth;
};

static void sync_entry(struct hostetc *h, const struct etc_walk *w, const char *name);

/* What is mounted on a name is not there for us: it may be a network's or a user's file system that
 * makes us wait, or a secret that was put there for one service. */
static int look(int dir, const char *name, struct stat *ret)
{
    AUTO_CLOSE int fd = path_open_beneath(dir, name, O_PATH | O_NOFOLLOW, 0);
    if (fd < 0)
        return fd;
    return fstat(fd, ret) < 0 ? -errno : 0;
}

/* The kernel then refuses what the mode alone would not: an access list, a mandatory policy. */
static int open_as_nobody(const struct hostetc *h, int dir, const char *name, int flags)
{
    if (h->rootful) {
        (void)setfsgid(NOBODY);
        (void)setfsuid(NOBODY);
    }
    int fd = path_open_beneath(dir, name, flags | O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (h->rootful) {
        (void)setfsuid(0);
        (void)setfsgid(0);
    }
    return fd;
}

/* A directory that others may not enter protects files that they could read. */
static int open_shown_dir(const struct hostetc *h, int dir, const char *name)
{
    struct stat st;
    AUTO_CLOSE int fd = open_as_nobody(h, dir, name, O_DIRECTORY);
    if (fd < 0)
        return fd;
    if (fstat(fd, &st) < 0)
        return -errno;
    return (st.st_mode & 0005) == 0005 ? TAKE_FD(fd) : -EACCES;
}

/* One directory after the other, as they are now: the event that tells may be still to come. */
static int open_shown(const struct hostetc *h, const char *path)
{
    char name[NAME_MAX + 1];
    AUTO_CLOSE int fd = path_open_beneath(h->etc_fd, "", O_RDONLY | O_DIRECTORY, 0);
    for (size_t n; fd >= 0 && *path != '\0'; path += n + (path[n] == '/')) {
        n = strcspn(path, "/");
        if (str_fmt(name, sizeof(name), "%.*s", (int)n, path) < 0)
            return -ENAMETOOLONG;
        int next = open_shown_dir(h, fd, name);
        (void)close(fd);
        fd = next;
    }
    return TAKE_FD(fd);
}

/* The owner of a directory in /etc can make work without end: what is too much is looked at with
 * everything else, which has bounds of its own. */
static bool has_time(struct hostetc *h)
{
    if (h->spent <= (h->whole ? 2 * WORK_MAX : WORK_MAX))
        return true;
    h->stale = true;
    return false;
}

/* What says nothing about the file. */
static bool is_shortage(int r)
{
    return r == -EMFILE || r == -ENFILE || r == -ENOMEM || r == -ENOSPC;
}

/* Something is short: the entry stays as it was, and is looked at again with everything else. A
 * session that keeps replaced files open can use up the memory of the copy. */
static bool failed(struct hostetc *h)
{
    h->left_out++;
    h->stale = true;
    return true;
}

static void drop(struct hostetc *h, const struct etc_walk *w, const char *name)
{
    for (int i = 0; i < SIDES; i++)
        if (is_shortage(path_remove_tree_at(w->to[i], name)))
            (void)failed(h);
}

/* Both names in "new" become the entry. What has another type goes first. The side that is compared
 * later on comes last. */
static int put(struct hostetc *h, const struct etc_walk *w, const char *name)
{
    struct stat st;
    if (fstatat(w->to[0], name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
        drop(h, w, name);
    for (int i = SIDES - 1; i >= 0; i--)
        if (renameat(h->new_fd, sides[i], w->to[i], name) < 0)
            return -errno;
    return 0;
}

static bool same_file(struct hostetc *h, const struct etc_walk *w, const char *name, mode_t mode)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(w->to[0], name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    buf_reset(&h->before);
    return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 07777) == mode &&
           (size_t)st.st_size == h->content.len && fd_read_to_buf(fd, &h->before) == 0 &&
           h->before.len == h->content.len &&
           (h->content.len == 0 || memcmp(h->before.data, h->content.data, h->content.len) == 0);
}

static int write_new(const struct hostetc *h, mode_t mode, const struct timespec *changed)
{
    const struct timespec times[2] = {*changed, *changed};
    for (int i = 0; i < SIDES; i++)
        (void)unlinkat(h->new_fd, sides[i], 0);
    AUTO_CLOSE int fd =
        openat(h->new_fd, sides[0], O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return -errno;
    int r = h->content.len > 0 ? fd_write_all(fd, h->content.data, h->content.len) : 0;
    if (r == 0 && fchmod(fd, mode) < 0)
        r = -errno;
    (void)futimens(fd, times); /* only for those who look */
    if (r == 0 && linkat(h->new_fd, sides[0], h->new_fd, sides[1], 0) < 0)
        r = -errno;
    if (r < 0)
        (void)unlinkat(h->new_fd, sides[0], 0);
    return r;
}

static struct etc_share *share_of(struct hostetc *h, const char *path)
{
    uint64_t hash = 5381;
    for (; *path != '\0' && *path != '/'; path++)
        hash = hash * 33 + (unsigned char)*path;
    return &h->shares[hash % SHARES];
}

/* Charges an entry of `bytes`. What a replaced file had is given back when everything is counted
 * again, which is the next thing to be done when there is no room; the entry stays until then. */
static bool has_room(struct hostetc *h, const char *path, size_t bytes)
{
    struct etc_share *s = share_of(h, path);
    s->files++;
    if (s->files <= SHARE_FILES_MAX && bytes <= SHARE_BYTES_MAX - s->bytes &&
        h->files < FILES_MAX && bytes <= TOTAL_BYTES_MAX - h->bytes) {
        h->files++;
        h->bytes += bytes;
        s->bytes += bytes;
        return true;
    }
    h->stale = h->stale || !h->whole;
    h->left_out += h->whole;
    return false;
}

/* Returns whether the file is there, as the host has it. No more than `room` is read, whatever
 * takes its place or is added meanwhile. */
static bool sync_file(struct hostetc *h, const struct etc_walk *w, const char *name,
                      const char *path, size_t room)
{
    struct stat st;
    AUTO_CLOSE int fd = open_as_nobody(h, w->from, name, 0);
    buf_reset(&h->content);
    if (fd < 0)
        return is_shortage(fd) && failed(h);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || !(st.st_mode & S_IROTH) ||
        st.st_size > (off_t)FILE_BYTES_MAX)
        return false;
    if ((size_t)st.st_size > room)
        return failed(h);
    h->content.max = (size_t)st.st_size;
    int r = fd_read_to_buf(fd, &h->content);
    h->spent += h->content.len;
    if (r < 0)
        return (r == -ENOBUFS || is_shortage(r)) && failed(h);
    if (h->content.len > 0 && hostetc_is_secret(h->content.data, h->content.len))
        return false;
    mode_t mode = st.st_mode & S_IXOTH ? 0755 : 0644;
    bool same = same_file(h, w, name, mode);
    if (same || (!h->whole && !has_room(h, path, h->content.len)))
        return true;
    return (write_new(h, mode, &st.st_mtim) == 0 && put(h, w, name) == 0) || failed(h);
}

static bool sync_link(struct hostetc *h, const struct etc_walk *w, const char *name,
                      const char *path)
{
    char target[4096], before[4096];
    AUTO_CLOSE int link = path_open_beneath(w->from, name, O_PATH | O_NOFOLLOW, 0);
    ssize_t n = link < 0 ? link : readlinkat(link, "", target, sizeof(target) - 1);
    if (n <= 0)
        return is_shortage(link) && failed(h);
    target[n] = '\0';
    if (!hostetc_link_fits(path, target))
        return false;
    bool same = readlinkat(w->to[0], name, before, sizeof(before)) == n &&
                memcmp(before, target, (size_t)n) == 0;
    if (same || (!h->whole && !has_room(h, path, 0)))
        return true;
    for (int i = 0; i < SIDES; i++) {
        (void)unlinkat(h->new_fd, sides[i], 0);
        if (symlinkat(target, h->new_fd, sides[i]) < 0)
            return failed(h);
    }
    return put(h, w, name) == 0 || failed(h);
}

static void forget(struct hostetc *h, size_t at)
{
    free(h->watches[at].path);
    h->watches[at] = h->watches[--h->n_watches];
}

/* Before its entries are read: what changes while they are is told. */
static void watch_dir(struct hostetc *h, int dir, const char *path)
{
    char proc[64];
    if (h->inotify_fd < 0)
        return;
    (void)snprintf(proc, sizeof(proc), "/proc/self/fd/%d", dir);
    int wd = inotify_add_watch(h->inotify_fd, proc, WATCHED);
    for (size_t i = 0; i < h->n_watches && wd >= 0; i++) {
        if (h->watches[i].wd != wd)
            continue;
        free(h->watches[i].path); /* it may have been renamed */
        h->watches[i].path = xstrdup(path);
        h->watches[i].look = h->looks;
        return;
    }
    if (wd >= 0 && h->n_watches == WATCHES_MAX)
        (void)inotify_rm_watch(h->inotify_fd, wd);
    if (wd < 0 || h->n_watches == WATCHES_MAX) {
        h->blind = true;
        return;
    }
    h->watches[h->n_watches++] = (struct etc_watch){wd, xstrdup(path), h->looks};
}

static void unwatch_at(struct hostetc *h, size_t at)
{
    (void)inotify_rm_watch(h->inotify_fd, h->watches[at].wd);
    forget(h, at);
}

static void unwatch(struct hostetc *h, const char *path)
{
    size_t len = strlen(path);
    for (size_t i = h->n_watches; i-- > 0;) {
        const char *at = h->watches[i].path;
        if (strncmp(at, path, len) == 0 && (at[len] == '\0' || at[len] == '/'))
            unwatch_at(h, i);
    }
}

/* Directories that went while events were lost. */
static void unwatch_unseen(struct hostetc *h)
{
    for (size_t i = h->n_watches; i-- > 0;)
        if (h->watches[i].look != h->looks)
            unwatch_at(h, i);
}

static bool is_dots(const char *name)
{
    return str_eq(name, ".") || str_eq(name, "..");
}

static bool is_first(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(first); i++)
        if (str_eq(name, first[i]))
            return true;
    return false;
}

static DIR *open_entries(struct hostetc *h, int fd)
{
    DIR *dir = fd_opendir(fd);
    if (dir == NULL)
        (void)failed(h);
    return dir;
}

/* Whether the host has a name no more, or something is mounted on it now. */
static bool is_gone(int dir, const char *name)
{
    struct stat st;
    int r = look(dir, name, &st);
    return r < 0 && !is_shortage(r);
}

/* The owner of a directory can put names without end into it. */
static bool is_too_much(struct hostetc *h, const struct etc_walk *w)
{
    return w->depth > 0 &&
           (!has_time(h) || (h->whole && share_of(h, w->path)->files > SHARE_FILES_MAX));
}

/* Copies what the host has, then removes what it has not any more. A directory that has too much
 * shows nothing: some of what was copied before may be closed by now. */
static void sync_entries(struct hostetc *h, const struct etc_walk *w)
{
    char path[4096];
    bool cut = false;
    DIR *dir = open_entries(h, w->from);
    for (const struct dirent *e = dir != NULL ? readdir(dir) : NULL; e != NULL && !cut;
         e = readdir(dir)) {
        if (!is_dots(e->d_name) && !(w->depth == 0 && is_first(e->d_name)))
            sync_entry(h, w, e->d_name);
        cut = is_too_much(h, w);
    }
    cut = cut && h->whole;
    h->left_out += cut;
    if (dir != NULL)
        (void)closedir(dir);
    dir = open_entries(h, w->to[0]);
    for (const struct dirent *e = dir != NULL ? readdir(dir) : NULL; e != NULL; e = readdir(dir))
        if (!is_dots(e->d_name) && (cut || is_gone(w->from, e->d_name)) &&
            str_fmt(path, sizeof(path), "%s%s", w->path, e->d_name) >= 0 && !hostetc_hides(path))
            drop(h, w, e->d_name);
    if (dir != NULL)
        (void)closedir(dir);
}

static bool sync_dir(struct hostetc *h, const struct etc_walk *w, const char *name,
                     const char *path)
{
    struct stat st;
    struct etc_walk below = {.depth = w->depth + 1, .to = {-1, -1}};
    AUTO_CLOSE int from = open_shown_dir(h, w->from, name);
    if (from < 0)
        return is_shortage(from) && failed(h);
    if (below.depth > DEPTH_MAX || str_fmt(below.path, sizeof(below.path), "%s/", path) < 0)
        return false;
    if (!h->whole && !has_room(h, path, 0))
        return true;
    if (fstatat(w->to[0], name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode))
        drop(h, w, name);
    AUTO_CLOSE int off = path_make_dir_at(w->to[0], name, 0755);
    AUTO_CLOSE int on = path_make_dir_at(w->to[1], name, 0755);
    if (off < 0 || on < 0)
        return failed(h);
    below.from = from;
    below.to[0] = off;
    below.to[1] = on;
    watch_dir(h, from, path);
    sync_entries(h, &below);
    return true;
}

/* That will be read, whether or not it is shown. */
static size_t size_of(const struct stat *st)
{
    bool is_read = S_ISREG(st->st_mode) && st->st_size <= (off_t)FILE_BYTES_MAX;
    return is_read ? (size_t)st->st_size : 0;
}

/* Makes one entry what it is to be now, or nothing. */
static void sync_entry(struct hostetc *h, const struct etc_walk *w, const char *name)
{
    struct stat st;
    char path[4096];
    bool shown = false;
    int r;
    if (str_fmt(path, sizeof(path), "%s%s", w->path, name) < 0)
        return;
    if (hostetc_hides(path)) {
        share_of(h, path)->files += h->whole && w->depth > 0; /* to look at its name is work, too */
        return; /* such a name was never copied, or is ours */
    }
    h->spent += LOOK_COST;
    if (!has_time(h)) {
        shown = !h->whole;
        h->left_out += h->whole;
    } else if ((r = look(w->from, name, &st)) < 0) {
        shown = is_shortage(r) && failed(h);
    } else if (!h->whole || has_room(h, path, size_of(&st))) {
        shown = S_ISREG(st.st_mode)
                    ? sync_file(h, w, name, path, h->whole ? size_of(&st) : FILE_BYTES_MAX)
                : S_ISLNK(st.st_mode) ? sync_link(h, w, name, path)
                : S_ISDIR(st.st_mode) ? sync_dir(h, w, name, path)
                                      : false;
    }
    if (!shown) {
        drop(h, w, name);
        unwatch(h, path);
    }
}

static void sync_all(struct hostetc *h)
{
    struct etc_walk top = {.from = h->etc_fd, .to = {h->side_fds[0], h->side_fds[1]}};
    h->stale = h->blind = false;
    h->whole = true;
    h->looks++;
    h->files = 0;
    h->bytes = h->left_out = h->spent = 0;
    memset(h->shares, 0, sizeof(h->shares));
    watch_dir(h, h->etc_fd, "");
    for (size_t i = 0; i < ARRAY_SIZE(first); i++)
        sync_entry(h, &top, first[i]);
    sync_entries(h, &top);
    unwatch_unseen(h);
    h->whole = false;
    buf_done(&h->content);
    buf_done(&h->before);
}

/* One name in one directory. When a directory on the way is not what it was, an event of its own
 * tells so. */
static void sync_name(struct hostetc *h, const char *dir, const char *name)
{
    struct etc_walk w = {.depth = 0};
    if (*dir != '\0' && str_fmt(w.path, sizeof(w.path), "%s/", dir) < 0)
        return;
    for (const char *c = w.path; *c != '\0'; c++)
        w.depth += *c == '/';
    AUTO_CLOSE int from = open_shown(h, dir);
    AUTO_CLOSE int off = path_open_beneath(h->side_fds[0], dir, O_RDONLY | O_DIRECTORY, 0);
    AUTO_CLOSE int on = path_open_beneath(h->side_fds[1], dir, O_RDONLY | O_DIRECTORY, 0);
    if (is_shortage(from) || is_shortage(off) || is_shortage(on))
        (void)failed(h);
    if (from < 0 || off < 0 || on < 0)
        return;
    w.from = from;
    w.to[0] = off;
    w.to[1] = on;
    sync_entry(h, &w, name);
}

static void on_event(struct hostetc *h, const struct inotify_event *e)
{
    if (e->mask & (IN_Q_OVERFLOW | IN_UNMOUNT)) {
        h->stale = true;
        return;
    }
    for (size_t i = 0; i < h->n_watches; i++) {
        if (h->watches[i].wd != e->wd)
            continue;
        if (e->mask & IN_IGNORED) {
            forget(h, i);
        } else if (e->len > 0) {
            AUTO_FREE char *dir = xstrdup(h->watches[i].path); /* it may go meanwhile */
            sync_name(h, dir, e->name);
        }
        return;
    }
}

static size_t slot_of(const struct inotify_event *e)
{
    return (size_t)(str_hash(e->name) + (uint64_t)e->wd) % LAST_MAX;
}

/* All events of a batch came before it was read: of several about one name the last is enough. Two
 * names in one slot cost work, no more. */
static void on_events(struct hostetc *h, const char *data, size_t len)
{
    static const struct inotify_event *last[LAST_MAX];
    const struct inotify_event *e;
    for (size_t at = 0; at + sizeof(*e) <= len; at += sizeof(*e) + e->len) {
        e = (const struct inotify_event *)(const void *)(data + at);
        if (e->len > 0)
            last[slot_of(e)] = e;
    }
    for (size_t at = 0; at + sizeof(*e) <= len && has_time(h); at += sizeof(*e) + e->len) {
        e = (const struct inotify_event *)(const void *)(data + at);
        const struct inotify_event *later = e->len > 0 ? last[slot_of(e)] : e;
        if (later == e || later->wd != e->wd || !str_eq(later->name, e->name))
            on_event(h, e);
    }
}

void hostetc_refresh(struct hostetc *h)
{
    static char batch[65536] __attribute__((aligned(__alignof__(struct inotify_event))));
    mode_t mask = umask(022);
    int batches = 0;
    h->spent = 0;
    for (; batches < BATCHES_MAX && h->inotify_fd >= 0; batches++) {
        ssize_t n = read(h->inotify_fd, batch, sizeof(batch));
        if (n <= 0)
            break;
        on_events(h, batch, (size_t)n);
    }
    /* What was left out may have room now. */
    h->stale = h->stale || batches == BATCHES_MAX || (batches > 0 && h->left_out > 0);
    if ((h->stale || h->blind || h->inotify_fd < 0) && clock_mono(&clock_system) >= h->due_ns) {
        sync_all(h);
        h->due_ns = clock_mono(&clock_system) + BLIND_NS;
    }
    (void)umask(mask);
}

static int new_tmpfs(void)
{
    static const struct mount_option options[] = {
        {"size", "80M"}, {"nr_inodes", "20000"}, {"mode", "0755"}, {0}};
    return mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

/* Since Linux 6.3. Found out by trying it on a tmpfs that is never attached. */
static bool tmpfs_takes_idmaps(void)
{
    struct err ignored = {0};
    AUTO_DONE(idmaps) struct idmaps maps = {0};
    AUTO_CLOSE int fs = new_tmpfs();
    int map = fs < 0 ? -1 : idmaps_get(&maps, &(struct idmap_key){.uid = 0, .gid = 0}, &ignored);
    return map >= 0 && mount_set(fs, 0, map, 0) == 0;
}

/* The mount table of a session names the directory that a mount shows, from the root of its file
 * system. With a file system of its own that is "/off" and not where our state is. It is attached,
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

static int write_text(int dirfd, const char *name, const char *text)
{
    AUTO_CLOSE int fd =
        openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    return fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
}

static int make_side(struct hostetc *h, int side, const char *resolver)
{
    char resolv[128] = "# no network\n";
    int fd = h->side_fds[side] = path_make_dir_at(h->place_fd, sides[side], 0755);
    int r = fd < 0 ? fd : 0;
    for (size_t i = 0; i < ARRAY_SIZE(made) && r == 0; i++)
        r = write_text(fd, made[i].name, made[i].text);
    if (resolver != NULL)
        (void)snprintf(resolv, sizeof(resolv), "nameserver %s\noptions edns0\n", resolver);
    return r < 0 ? r : write_text(fd, "resolv.conf", resolv);
}

static int build(struct hostetc *h, const struct hostetc_options *o)
{
    int r = path_remove_tree_at(o->state_fd, o->name);
    if (r < 0)
        return r;
    h->place_fd = make_place(o->state_fd, o->name, o->rootful);
    if (h->place_fd < 0)
        return h->place_fd;
    h->etc_fd = open("/etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (h->etc_fd < 0)
        return -errno;
    h->new_fd = path_make_dir_at(h->place_fd, "new", 0700);
    if (h->new_fd < 0)
        return h->new_fd;
    r = make_side(h, 0, NULL);
    if (r == 0)
        r = make_side(h, 1, o->resolver);
    if (r == 0)
        sync_all(h);
    return r;
}

int hostetc_new(const struct hostetc_options *options, struct hostetc **ret, struct err *err)
{
    AUTO(hostetc) struct hostetc *h = xnew(struct hostetc);
    mode_t mask = umask(022);
    h->rootful = options->rootful;
    h->etc_fd = h->place_fd = h->new_fd = h->side_fds[0] = h->side_fds[1] = -1;
    h->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    h->watches = xnew_n(struct etc_watch, WATCHES_MAX);
    buf_init(&h->content, FILE_BYTES_MAX);
    buf_init(&h->before, FILE_BYTES_MAX + 1);
    int r = build(h, options);
    (void)umask(mask);
    if (r < 0)
        return err_sys(err, -r, "prepare /etc");
    *ret = TAKE_PTR(h);
    return 0;
}

void hostetc_free(struct hostetc *h)
{
    if (h == NULL)
        return;
    int fds[] = {h->etc_fd, h->place_fd, h->new_fd, h->side_fds[0], h->side_fds[1], h->inotify_fd};
    fd_close_many(fds, ARRAY_SIZE(fds));
    while (h->n_watches > 0)
        forget(h, h->n_watches - 1);
    free(h->watches);
    buf_done(&h->content);
    buf_done(&h->before);
    free(h);
}

int hostetc_dir(const struct hostetc *h, bool network)
{
    return h->side_fds[network];
}

int hostetc_watch_fd(const struct hostetc *h)
{
    return h->inotify_fd;
}

size_t hostetc_left_out(const struct hostetc *h)
{
    return h->left_out;
}

bool hostetc_is_stale(const struct hostetc *h)
{
    return h->stale;
}
