/* SPDX-License-Identifier: Apache-2.0 */

/* Resolves host paths and checks them against the allowed mount roots. */

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/host_path.h"
#include "base/str.h"
#include "base/strv.h"
#include "policy/policy_internal.h"

#define LIST_MAX 65536U

char *policy_plain_path(const char *base, const char *path)
{
    char *whole = xasprintf("%s/%s", path[0] != '/' && base != NULL ? base : "", path);

    path_normalise(whole);
    return whole;
}

int policy_set_roots(struct policy *p, const struct policy_options *options, struct err *err)
{
    struct policy_settings *s = &p->settings;
    size_t n = strv_len(s->mount_roots);

    p->roots = xnew_n(struct policy_root, n + 1);
    for (size_t i = 0; i < n; i++) {
        struct policy_root *root = &p->roots[p->n_roots++];
        root->given = s->mount_roots[i];
        root->real =
            options->resolve != NULL ? options->resolve(root->given) : xstrdup(root->given);
        s->mount_roots[i] = xstrdup(root->real);
        if (str_eq(root->real, "/"))
            return err_set(err, ERR_DENIED, "the whole file system cannot be allowed");
    }
    return 0;
}

static const char *roots_name(const struct policy *p)
{
    return p->flat ? "allowed_host_mount_roots" : "allowed_mount_roots";
}

static int outside(const struct policy *p, const char *what, const char *path, enum err_code code,
                   struct err *err)
{
    AUTO_DONE(buf) struct buf list;

    buf_init(&list, LIST_MAX);
    for (size_t i = 0; i < p->n_roots; i++)
        (void)buf_printf(&list, "%s%s", i > 0 ? ", " : "", p->roots[i].real);
    return err_set(err, code, "%s is outside %s: %.180s (it is %.120s)", what, roots_name(p),
                   buf_str(&list), path);
}

/* What follows the root, or NULL when the path does not lie there. */
static const char *below(const char *path, const char *root)
{
    size_t n = strlen(root);

    return strncmp(path, root, n) == 0 && (path[n] == '\0' || path[n] == '/') ? path + n : NULL;
}

/* The path with its root as it resolved at start, owned; NULL: it lies below none. */
static char *placed(const struct policy *p, const char *path)
{
    AUTO_FREE char *plain = policy_plain_path(NULL, path);

    for (size_t i = 0; i < p->n_roots; i++) {
        const char *rest = below(plain, p->roots[i].real);
        if (rest == NULL)
            rest = below(plain, p->roots[i].given);
        if (rest != NULL)
            return xasprintf("%s%s", p->roots[i].real, rest);
    }
    return NULL;
}

int policy_check_mount(const struct policy *p, const char *path, char **ret, struct err *err)
{
    if (p->n_roots == 0)
        return err_set(err, ERR_DENIED,
                       "host_path mounting is disabled because no %s are configured",
                       roots_name(p));
    char *found = path[0] == '/' ? placed(p, path) : NULL;
    if (found == NULL)
        return outside(p, "host_path", path, ERR_DENIED, err);
    *ret = found;
    return 0;
}

static int make_all(char *path, struct err *err)
{
    for (char *at = path + 1;; at++) {
        if (*at != '/' && *at != '\0')
            continue;
        char end = *at;
        *at = '\0';
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            return err_sys(err, errno, "make default_workspace '%.200s'", path);
        *at = end;
        if (end == '\0')
            return 0;
    }
}

int policy_ensure_workspace(const struct policy *p, struct err *err)
{
    const char *path = p->settings.default_workspace;
    const char *name = p->flat ? "default_host_workspace" : "default_workspace";
    struct stat st;

    if (path == NULL)
        return 0;
    bool there = stat(path, &st) == 0;
    if (there && !S_ISDIR(st.st_mode))
        return err_set(err, ERR_INVALID, "%s must point to a directory on the host", name);
    if (p->n_roots == 0 && !there)
        return err_set(err, ERR_INVALID, "%s cannot be created because no %s are configured", name,
                       roots_name(p));
    if (p->n_roots == 0)
        return 0;
    /* Also of one that is there: else each request would be refused, and nobody was told. */
    AUTO_FREE char *real = placed(p, path);
    if (real == NULL)
        return outside(p, name, path, ERR_INVALID, err);
    return there ? 0 : make_all(real, err);
}
