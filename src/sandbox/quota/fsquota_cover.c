/* SPDX-License-Identifier: Apache-2.0 */

/* Brings what lies in a directory under a limit of the kernel's. The tree is hostile: sessions have
 * written to it, and its owner may be writing now. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/path.h"
#include "base/usage.h"
#include "sandbox/quota/fsquota.h"

#define ENTRIES_MAX 200000U
#define CPU_SECONDS 4 /* a busy machine is no reason to give up */
#define PASSES 3

struct cover {
    const struct fsquota *quota;
    const uid_t *owner; /* NULL: anybody */
    dev_t dev;
    const char *why; /* it cannot be covered */
};

static int refuse(struct cover *c, const char *why)
{
    c->why = why;
    return -EUSERS;
}

static int judge(struct cover *c, int fd, const struct stat *st)
{
    if (st->st_dev != c->dev)
        return refuse(c, "it holds further subvolumes");
    if (c->owner != NULL && st->st_uid != *c->owner)
        return refuse(c, "it holds files of other users");
    if (c->quota->kind != FSQUOTA_PROJECT)
        return 0;
    int r = fsquota_put(fd, c->quota);
    return r == -EUSERS ? refuse(c, "it holds files of another project, or another session's limit")
                        : r;
}

/* Links, pipes, sockets and devices cannot be opened for this; they take no room worth counting. A
 * name may have come to mean something else since it was read: no link is followed, no device
 * opened, and no pipe waited for. */
static int visit(void *arg, int dir_fd, const char *name, const struct stat *st)
{
    struct cover *c = arg;
    struct stat now;
    if (name != NULL && !S_ISREG(st->st_mode))
        return 0;
    if (name == NULL)
        return fstat(dir_fd, &now) < 0 ? -errno : judge(c, dir_fd, &now);
    AUTO_CLOSE int fd = path_open_beneath(dir_fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
    if (fd == -ENOENT || fd == -ELOOP || fd == -ENXIO)
        return 0;
    if (fd < 0 || fstat(fd, &now) < 0)
        return fd < 0 ? fd : -errno;
    return S_ISREG(now.st_mode) ? judge(c, fd, &now) : 0;
}

static bool out_of_time(void)
{
    struct timespec used = {0};
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0 && used.tv_sec >= CPU_SECONDS;
}

/* 0: everything was met; 1: some of it was moved meanwhile. */
static int pass(struct cover *c, int fd, struct err *err)
{
    AUTO(usage_walk) struct usage_walk *w = usage_walk_new(fd, ENTRIES_MAX);
    int r;
    usage_walk_visit(w, visit, c);
    while ((r = usage_walk_step(w, USAGE_STEP)) > 0)
        if (out_of_time())
            return err_set(err, ERR_LIMIT, "looking at all of its files takes too long");
    const struct usage *found = usage_walk_result(w);
    if (c->why != NULL)
        return err_set(err, ERR_CONFLICT, "%s", c->why);
    if (r < 0)
        return err_sys(err, -r, "look at all of its files");
    if (found->too_many)
        return err_set(err, ERR_LIMIT, "it holds more than %u files", ENTRIES_MAX);
    if (found->unreadable > 0)
        return err_set(err, ERR_DENIED, "some of its directories cannot be read");
    return found->gone > 0;
}

/* A directory is in the project before it is read, and the kernel lets nothing of another project
 * be moved or linked into it: what was not met yet can only be moved to where it will be. But a
 * directory that was met may be moved with what it holds, so that is looked for again. */
int fsquota_cover(int fd, const struct fsquota *q, const uid_t *owner, struct err *err)
{
    struct cover c = {.quota = q, .owner = owner};
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "look at it");
    c.dev = st.st_dev;
    int r = 1;
    for (int i = 0; i < PASSES && r > 0; i++)
        r = pass(&c, fd, err);
    return r > 0 ? err_set(err, ERR_CONFLICT, "its directories are being moved about") : r;
}
