/* SPDX-License-Identifier: Apache-2.0 */

/* Directories of callers, by way of box-priv: it looks at processes of others, and opens what may
 * be mounted from then on. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/common.h"
#include "backend/native/native_internal.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"

/* NOLINTNEXTLINE(readability-non-const-parameter): as priv_reply_fn has it. */
static void on_placed(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds)
{
    struct backend_placer p = *(struct backend_placer *)arg;
    struct err err = {0};
    char path[PRIV_PLACE_PATH_MAX];
    free(arg);
    if (reply == NULL || reply->result < 0) {
        (void)err_set(&err, ERR_BACKEND, "box-priv has gone away");
        p.fn(p.arg, NULL, reply != NULL ? &reply->err : &err);
        return;
    }
    (void)str_copy(path, sizeof(path), reply->placed.path);
    if (reply->placed.root != PRIV_NO_ROOT)
        p.learn(p.who, reply->placed.root, path);
    p.fn(p.arg, path, NULL);
}

int backend_place_by_priv(struct priv_client *priv, const struct backend_place *want,
                          const struct backend_placer *who, struct err *err)
{
    bool rootful = priv_client_host(priv)->rootful;
    AUTO_FREE char *path = NULL;
    if (!rootful && want->rest[0] == '\0')
        return err_set(err, ERR_UNSUPPORTED, "boxd was not started by root");
    if (!rootful) {
        path = xasprintf("%s/%s", want->base, want->rest);
        int r = backend_make_place(want, err);
        if (r < 0)
            return r;
        (void)close(r);
    }
    struct backend_placer *p = xnew(struct backend_placer);
    *p = *who;
    int r = priv_client_place(priv, rootful ? want->sock : -1, rootful ? want->rest : path,
                              on_placed, p, err);
    if (r < 0)
        free(p);
    return r;
}

/* Plans name it by box-priv's number. */
static void learn_root(void *who, uint32_t number, const char *path)
{
    struct native *n = who;
    while (strv_len(n->roots) <= number)
        strv_add(&n->roots, NATIVE_NO_ROOT);
    free(n->roots[number]);
    n->roots[number] = xstrdup(path);
    n->facts.roots = n->roots;
}

int native_place(struct backend *b, const struct backend_place *want, backend_place_fn *fn,
                 void *arg, struct err *err)
{
    struct native *n = container_of(b, struct native, base);
    return backend_place_by_priv(n->priv, want, &(struct backend_placer){learn_root, n, fn, arg},
                                 err);
}
