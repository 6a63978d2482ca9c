/* SPDX-License-Identifier: Apache-2.0 */

/* Jobs of box-fetch by way of box-priv: as the owner of the directory, which boxd is not. */

#include <stdlib.h>

#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/err.h"
#include "fetch/launcher.h"
#include "priv/client.h"

struct native_launcher {
    struct fetch_launcher base;
    struct priv_client *priv; /* borrowed */
    struct fetch_roots roots; /* borrowed */
};

/* The caller that waits for box-priv's answer. */
struct native_start {
    fetch_started_fn *fn;
    void *arg;
};

static void on_reply(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct native_start *s = arg;
    struct err err = {0};
    if (reply == NULL) {
        (void)err_set(&err, ERR_BACKEND, "box-priv has gone away");
        s->fn(s->arg, NULL, &err);
    } else if (reply->result < 0) {
        s->fn(s->arg, NULL, &reply->err);
    } else if (n_fds != 3) {
        (void)err_set(&err, ERR_LIMIT, "no descriptors left for a job");
        s->fn(s->arg, NULL, &err);
    } else {
        struct fetch_process p = {fds[0], fds[1], fds[2]};
        fds[0] = fds[1] = fds[2] = -1;
        s->fn(s->arg, &p, NULL);
        fetch_process_done(&p);
    }
    free(s);
}

static int find_root(const struct native_launcher *n, const char *dir, uint32_t *ret,
                     const char **ret_rest, struct err *err)
{
    size_t root = 0;
    if (priv_client_place_of(n->priv, dir, ret, ret_rest))
        return 0;
    int r = fetch_find_root(&n->roots, dir, &root, ret_rest, err);
    *ret = (uint32_t)root;
    return r;
}

static int launcher_start(struct fetch_launcher *l, const struct fetch_start *s,
                          fetch_started_fn *fn, void *arg, struct err *err)
{
    const struct native_launcher *n = container_of(l, struct native_launcher, base);
    struct priv_job_request request = {
        .create = s->create, .seconds = s->seconds, .bound = s->bound, .uid = s->uid};
    int r = find_root(n, s->dir, &request.root, &request.path, err);
    if (r == 0 && s->source != NULL)
        r = find_root(n, s->source, &request.source_root, &request.source, err);
    if (r == 0 && s->source != NULL)
        r = find_root(n, s->manifest, &request.manifest_root, &request.manifest, err);
    if (r < 0)
        return r;
    struct native_start *start = xnew(struct native_start);
    *start = (struct native_start){fn, arg};
    r = priv_client_job(n->priv, &request, on_reply, start, err);
    if (r < 0)
        free(start);
    return r;
}

static void launcher_free(struct fetch_launcher *l)
{
    free(container_of(l, struct native_launcher, base));
}

struct fetch_launcher *native_launcher_by(struct priv_client *priv, char *const *roots, bool outer)
{
    struct native_launcher *l = xnew(struct native_launcher);
    *l = (struct native_launcher){.base = {.start = launcher_start, .free = launcher_free},
                                  .priv = priv,
                                  .roots = {.paths = roots, .outer = outer}};
    return &l->base;
}

struct fetch_launcher *native_launcher_new(struct backend *b)
{
    const struct native *n = container_of(b, struct native, base);
    return native_launcher_by(n->priv, n->options.roots, n->options.roots_are_outer);
}
