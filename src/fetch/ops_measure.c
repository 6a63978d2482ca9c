/* SPDX-License-Identifier: Apache-2.0 */

/* How much lies below a directory: the sizes of everything in it that is no directory, as lstat(2)
 * tells them. Links are not followed, other file systems not entered. Bounded in entries and time;
 * what was left out counts as an error. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "fetch/fetch_internal.h"

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

static void push(struct measure *m, char *rel)
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

static void count(struct measure *m, int dir_fd, const char *dir, const char *name)
{
    struct stat st;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        count_error(m, errno);
    } else if (S_ISDIR(st.st_mode)) {
        push(m, fetch_join(dir, name));
    } else {
        m->to->bytes += (uint64_t)st.st_size;
        m->to->cost += path_cost(&st);
        m->to->files++;
    }
}

/* False: enough has been seen. */
static bool scan(struct measure *m, const char *rel)
{
    int fd = fetch_open_list(m->f, rel);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        count_error(m, fd < 0 ? -fd : errno);
        if (fd >= 0)
            (void)close(fd);
        return true;
    }
    bool more = true;
    for (const struct dirent *e; more && (e = readdir(dir)) != NULL;) {
        if (str_eq(e->d_name, ".") || str_eq(e->d_name, ".."))
            continue;
        count(m, dirfd(dir), rel, e->d_name);
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
        push(m, xstrdup(rel));
    while (more && m->n_pending > 0) {
        AUTO_FREE char *next = m->pending[--m->n_pending];
        more = scan(m, next);
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
    jw_key(w, key);
    jw_object(w);
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
    jw_object(f->out);
    write_amount(f->out, "", &all);
    for (size_t i = 0; i < json_len(parts); i++) {
        struct amount part = {0};
        const char *name = json_str(json_at(parts, i));
        measure_part(&m, name, &part);
        write_amount(f->out, name, &part);
    }
    jw_object_end(f->out);
    free(m.pending);
    return 0;
}
