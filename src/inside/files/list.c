/* SPDX-License-Identifier: Apache-2.0 */

/* Lists a page of a directory for box-files. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "inside/files/files_internal.h"

/* The first names behind a given one, of a directory of any size, in memory for twice as many. */
struct page {
    char **names; /* owned, each */
    size_t n, want;
    uint64_t total;
    bool more;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void page_sort(struct page *p)
{
    if (p->n > 0)
        qsort(p->names, p->n, sizeof(p->names[0]), by_name);
    while (p->n > p->want) {
        free(p->names[--p->n]);
        p->more = true;
    }
}

static void page_add(struct page *p, const char *name, const char *after)
{
    p->total++;
    if (strcmp(name, after) <= 0)
        return;
    if (p->n == 2 * p->want)
        page_sort(p);
    p->names[p->n++] = xstrdup(name);
}

static int read_names(int fd, struct page *p, const char *after)
{
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        int error = errno;
        (void)close(fd);
        return -error;
    }
    const struct dirent *e;
    while ((errno = 0, e = readdir(dir)) != NULL)
        if (!str_eq(e->d_name, ".") && !str_eq(e->d_name, ".."))
            page_add(p, e->d_name, after);
    int error = errno;
    (void)closedir(dir);
    page_sort(p);
    return -error;
}

static int send_entry(struct job *j, int dir, const char *name)
{
    char target[FILES_PATH_MAX];
    struct stat st;
    ssize_t n = 0;

    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno; /* it has gone meanwhile */
    if (S_ISLNK(st.st_mode))
        n = readlinkat(dir, name, target, sizeof(target));
    struct files_entry e = {.stat = stat_of(&st),
                            .name_len = (uint32_t)strlen(name),
                            .target_len = n > 0 ? (uint32_t)n : 0};
    return JOB_SEND(j, FILES_FRAME_ENTRY, {&e, sizeof(e)}, {name, e.name_len},
                    {target, e.target_len});
}

int op_list(struct job *j)
{
    struct place p;
    struct page page = {.want = j->req.length};
    int r = walk_to(j, j->path, 0, &p);

    if (r < 0)
        return r;
    AUTO_CLOSE int fd = place_open_dir(j, &p);
    place_done(&p);
    if (fd < 0)
        return fd;
    if (page.want == 0 || page.want > FILES_LIST_MAX)
        return -EINVAL;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0)
        return -errno;
    page.names = xcalloc(2 * page.want, sizeof(page.names[0]));
    r = read_names(own, &page, j->a);
    for (size_t i = 0; i < page.n; i++) {
        if (r == 0)
            r = send_entry(j, fd, page.names[i]);
        free(page.names[i]);
    }
    free(page.names);
    j->done.total = page.total;
    j->done.cut = page.more ? FILES_CUT_ENTRIES : FILES_CUT_NONE;
    return r;
}
