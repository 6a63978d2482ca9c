/* SPDX-License-Identifier: Apache-2.0 */

/* Operations on directories of the host that are no skill store: make one, read a marker file in
 * it, and measure it. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "fetch/fetch_internal.h"

#define MARKER_PREFIX ".langbot-box-volume-probe-"
#define MARKER_DIGITS 32U
#define MARKER_MAX 1024

/* It was made, if need be, before we were confined to it. */
int op_make_dir(struct fetch *f)
{
    return 0;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static int check_marker_name(struct fetch *f, const char *name)
{
    size_t prefix = strlen(MARKER_PREFIX);
    if (!str_starts(name, MARKER_PREFIX) || strlen(name) != prefix + MARKER_DIGITS ||
        strspn(name + prefix, "0123456789abcdef") != MARKER_DIGITS)
        return fetch_fail(f, "Invalid Box shared Workspace probe basename");
    return 0;
}

static int unreadable(struct fetch *f)
{
    return fetch_fail(f, "Box Runtime cannot read the Core shared Workspace probe");
}

/* Reads at most `size` bytes and sees whether it was all of it, and still the same file. */
static int read_marker(struct fetch *f, int fd, unsigned char *data, size_t size, size_t *ret)
{
    struct stat before, after;
    if (fstat(fd, &before) < 0)
        return unreadable(f);
    if (!S_ISREG(before.st_mode))
        return fetch_fail(f, "Box shared Workspace probe is not a regular file");
    if (before.st_size < 1 || before.st_size > MARKER_MAX)
        return fetch_fail(f, "Box shared Workspace probe has an invalid size");
    ssize_t n = fd_read_full(fd, data, size);
    if (n < 0 || fstat(fd, &after) < 0)
        return unreadable(f);
    if (n > MARKER_MAX)
        return fetch_fail(f, "Box shared Workspace probe exceeds the size limit");
    if (n != before.st_size || !same_file(&before, &after))
        return fetch_fail(f, "Box shared Workspace probe changed while being verified");
    *ret = (size_t)n;
    return 0;
}

/* The content goes back as hexadecimal digits: boxd has the library that digests it. */
int op_read_marker(struct fetch *f)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char data[MARKER_MAX + 1];
    char hex[2 * MARKER_MAX + 1];
    AUTO_FREE char *name = NULL;
    size_t n = 0;
    int r = fetch_need(f, f->data, "marker_name", &name);
    if (r == 0)
        r = check_marker_name(f, name);
    if (r < 0)
        return r;
    if (faccessat(f->root_fd, ".", R_OK | W_OK | X_OK, 0) < 0)
        return fetch_fail(f, "Managed sandbox workspace path is not writable");
    AUTO_CLOSE int fd = fetch_open(f, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        return unreadable(f);
    r = read_marker(f, fd, data, sizeof(data), &n);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        hex[2 * i] = digits[data[i] >> 4];
        hex[2 * i + 1] = digits[data[i] & 15];
    }
    hex[2 * n] = '\0';
    jw_kstr(f->out, "content", hex);
    return 0;
}

/* Measuring: how much lies below a directory. The sizes of everything in it that is no directory,
 * as lstat(2) tells them. Links are not followed, other file systems not entered. Bounded in
 * entries and time; what was left out counts as an error. */

#define ENTRIES_MAX 1000000U
#define PENDING_MAX 65536U /* directories that wait for their turn */
#define SECONDS_MAX 10
#define PARTS_MAX 16U

struct amount {
    bool exists;
    uint64_t bytes, files, errors;
    uint64_t cost; /* path_cost() */
};

struct measure {
    struct fetch *f;
    struct amount *to;
    size_t entries; /* seen, over all */
    time_t until;
    char **pending; /* owned; below the root */
    size_t n_pending;
};

static time_t now(void)
{
    struct timespec ts = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec;
}

static void push_pending(struct measure *m, char *rel)
{
    if (m->n_pending == PENDING_MAX || strlen(rel) >= FETCH_PATH_MAX) {
        m->to->errors++;
        free(rel);
        return;
    }
    m->pending[m->n_pending++] = rel;
}

/* What vanished meanwhile was not there. */
static void count_error(struct measure *m, int error)
{
    m->to->errors += error != ENOENT && error != ENOTDIR;
}

static void count_entry(struct measure *m, int dir_fd, const char *dir, const char *name)
{
    struct stat st;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        count_error(m, errno);
    } else if (S_ISDIR(st.st_mode)) {
        push_pending(m, fetch_join(dir, name));
    } else {
        m->to->bytes += (uint64_t)st.st_size;
        m->to->cost += path_cost(&st);
        m->to->files++;
    }
}

/* False: enough has been seen. */
static bool scan_dir(struct measure *m, const char *rel)
{
    DIR *dir = NULL;
    bool more = true;
    int r = fetch_open_names(m->f, rel, &dir);
    if (r < 0) {
        count_error(m, -r);
        return true;
    }
    for (const char *name; more && (name = fetch_next_name(dir)) != NULL;) {
        count_entry(m, dirfd(dir), rel, name);
        more = ++m->entries < ENTRIES_MAX && (m->entries % 1024 != 0 || now() < m->until);
    }
    (void)closedir(dir);
    return more;
}

/* `rel` and what lies below it. */
static void measure(struct measure *m, const char *rel, struct amount *to)
{
    bool more = m->entries < ENTRIES_MAX && now() < m->until;
    m->to = to;
    to->exists = true;
    if (more)
        push_pending(m, xstrdup(rel));
    while (more && m->n_pending > 0) {
        AUTO_FREE char *next = m->pending[--m->n_pending];
        more = scan_dir(m, next);
    }
    to->errors += !more;
    while (m->n_pending > 0)
        free(m->pending[--m->n_pending]);
}

/* Something directly below the root. */
static void measure_part(struct measure *m, const char *name, struct amount *to)
{
    struct stat st;
    if (fstatat(m->f->root_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        to->errors = errno != ENOENT;
    } else if (S_ISDIR(st.st_mode)) {
        measure(m, name, to);
    } else {
        *to = (struct amount){
            .exists = true, .bytes = (uint64_t)st.st_size, .files = 1, .cost = path_cost(&st)};
    }
}

static void write_amount(struct jw *w, const char *key, const struct amount *a)
{
    jw_kobject(w, key);
    jw_kbool(w, "exists", a->exists);
    jw_ku64(w, "size_bytes", a->bytes);
    jw_ku64(w, "disk_bytes", a->cost);
    jw_ku64(w, "file_count", a->files);
    jw_ku64(w, "error_count", a->errors);
    jw_object_end(w);
}

static int check_parts(struct fetch *f, const struct json *parts)
{
    if (json_len(parts) > PARTS_MAX)
        return fetch_fail(f, "too many parts");
    for (size_t i = 0; i < json_len(parts); i++) {
        const char *name = json_str(json_at(parts, i));
        if (name == NULL || name[0] == '\0' || strchr(name, '/') != NULL || str_eq(name, ".") ||
            str_eq(name, ".."))
            return fetch_fail(f, "a part is the name of something in the directory");
    }
    return 0;
}

int fetch_tree_bytes(struct fetch *f, const char *rel, uint64_t *ret)
{
    struct amount all = {0};
    struct measure m = {.f = f, .until = now() + SECONDS_MAX};
    m.pending = xnew_n(char *, PENDING_MAX);
    measure(&m, rel, &all);
    free(m.pending);
    *ret = all.bytes;
    return all.errors > 0 ? -E2BIG : 0;
}

/* {"parts": [name…]}: the whole as "", and each of the parts. */
int op_measure(struct fetch *f)
{
    const struct json *parts = json_get(f->data, "parts");
    struct amount all = {0};
    struct measure m = {.f = f, .until = now() + SECONDS_MAX};
    int r = check_parts(f, parts);
    if (r < 0)
        return r;
    m.pending = xnew_n(char *, PENDING_MAX);
    measure(&m, "", &all);
    write_amount(f->out, "", &all);
    for (size_t i = 0; i < json_len(parts); i++) {
        struct amount part = {0};
        const char *name = json_str(json_at(parts, i));
        measure_part(&m, name, &part);
        write_amount(f->out, name, &part);
    }
    free(m.pending);
    return 0;
}
