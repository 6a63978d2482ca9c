/* SPDX-License-Identifier: Apache-2.0 */
#include "core/policy_count.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "core/manager.h"
#include "core/policy.h"
#include "core/policy_service.h"
#include "io/loop.h"
#include "util/alloc.h"
#include "util/err.h"
#include "util/fd.h"
#include "util/path.h"

struct quota_count {
    const struct policy_service *service; /* borrowed */
    char *path;                           /* owned */
    quota_count_fn *done;
    void *arg;
    int dir_fd;              /* owned; -1: we may not look into it */
    struct usage_walk *walk; /* owned */
    struct loop_defer defer;
};

void quota_count_free(struct quota_count *c)
{
    if (c == NULL)
        return;
    loop_defer_stop(&c->defer);
    usage_walk_free(c->walk);
    fd_close_many(&c->dir_fd, 1);
    free(c->path);
    free(c);
}

/* A step at a time, so that others have their turn. */
static void step(struct loop_defer *d)
{
    struct quota_count *c = container_of(d, struct quota_count, defer);
    const struct usage unseen = {.unreadable = 1};
    struct err err = {0};
    int r = c->walk != NULL ? usage_walk_step(c->walk, USAGE_STEP) : 0;

    if (r > 0) {
        loop_defer_start(manager_loop(c->service->manager), &c->defer, step);
    } else if (r < 0) {
        (void)err_sys(&err, -r, "count the files in '%s'", c->path);
        c->done(c->arg, NULL, &err);
    } else {
        c->done(c->arg, c->walk != NULL ? usage_walk_result(c->walk) : &unseen, NULL);
    }
}

int quota_count_start(const struct policy_service *service, const char *path, quota_count_fn *done,
                      void *arg, struct quota_count **ret, struct err *err)
{
    int fd = path_open_unlinked(path, O_RDONLY | O_DIRECTORY);

    if (fd < 0 && fd != -EACCES)
        return err_set(err, ERR_INVALID,
                       "host_path must point to an existing directory on the host");
    struct quota_count *c = xnew(struct quota_count);
    c->service = service;
    c->path = xstrdup(path);
    c->done = done;
    c->arg = arg;
    c->dir_fd = fd < 0 ? -1 : fd;
    if (fd >= 0)
        c->walk =
            usage_walk_new(fd, (uint64_t)policy_settings(service->policy)->max_workspace_entries);
    loop_defer_start(manager_loop(service->manager), &c->defer, step);
    *ret = c;
    return 0;
}
