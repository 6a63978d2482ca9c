/* SPDX-License-Identifier: Apache-2.0 */

/* Removes, creates and moves files and directories for box-files. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/path.h"
#include "inside/files/files_internal.h"

static int remove_at(struct job *j, const struct place *p)
{
    struct stat st;
    int r = place_stat(p, &st);

    if (r == -ENOENT && (job_has(j, FILES_MUST_EXIST) || job_has(j, FILES_MUST_MATCH)))
        return job_fail(j, FILES_WHY_CHANGED, ENOENT);
    if (r < 0)
        return r;
    struct files_tag tag = tag_of(&st);
    if (job_has(j, FILES_MUST_MATCH) && !tag_eq(&tag, &j->req.expect))
        return job_fail(j, FILES_WHY_CHANGED, 0);
    if (S_ISDIR(st.st_mode) && job_has(j, FILES_RECURSIVE))
        return path_remove_tree_at(p->dir, p->name);
    return unlinkat(p->dir, p->name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0) < 0 ? -errno : 0;
}

int op_remove(struct job *j)
{
    struct place p;
    int r = walk_to(j, j->path, FILES_NOFOLLOW, &p);

    if (r < 0)
        return r;
    r = p.name[0] == '\0' ? -EBUSY : remove_at(j, &p);
    place_done(&p);
    return r;
}

int op_mkdir(struct job *j)
{
    struct place p;
    struct stat st;
    int r = walk_to(j, j->path, j->req.flags & FILES_PARENTS, &p);

    if (r < 0)
        return r;
    bool there = p.name[0] == '\0';
    if (!there && mkdirat(p.dir, p.name, (j->req.mode != 0 ? j->req.mode : 0755U) & 0777U) < 0)
        r = -errno;
    /* As `mkdir -p`: one that is there is fine. */
    if ((there && !job_has(j, FILES_PARENTS)) ||
        (r == -EEXIST &&
         (!job_has(j, FILES_PARENTS) || place_stat(&p, &st) < 0 || !S_ISDIR(st.st_mode))))
        r = -EEXIST;
    else if (r == -EEXIST)
        there = true, r = 0;
    j->done.created = r == 0 && !there;
    if (r == 0)
        r = place_stat(&p, &st);
    if (r == 0) {
        struct files_stat s = stat_of(&st);
        r = job_send_stat(j, &s);
    }
    place_done(&p);
    return r;
}

int op_move(struct job *j)
{
    struct place from = {.dir = -1}, to = {.dir = -1};
    struct stat st;

    if (strlen(j->a) != j->req.a_len || j->req.a_len >= FILES_PATH_MAX)
        return -EINVAL;
    int r = walk_to(j, j->path, FILES_NOFOLLOW, &from);
    if (r == 0)
        r = walk_to(j, j->a, (j->req.flags & FILES_PARENTS) | FILES_NOFOLLOW, &to);
    if (r == 0 && (from.name[0] == '\0' || to.name[0] == '\0'))
        r = -EBUSY;
    unsigned how = job_has(j, FILES_MUST_NOT_EXIST) ? RENAME_NOREPLACE : 0;
    if (r == 0 && renameat2(from.dir, from.name, to.dir, to.name, how) < 0)
        r = errno == EEXIST && how != 0 ? job_fail(j, FILES_WHY_CHANGED, EEXIST) : -errno;
    if (r == 0)
        r = place_stat(&to, &st);
    if (r == 0) {
        struct files_stat s = stat_of(&st);
        r = job_send_stat(j, &s);
    }
    place_done(&from);
    place_done(&to);
    return r;
}
