/* SPDX-License-Identifier: Apache-2.0 */

/* Refuses host paths that no session may mount, whatever the policy allows. */

#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/host_path.h"
#include "base/str.h"
#include "session/artifacts.h"
#include "session/session_internal.h"
#include "spec/spec.h"

/* Copies that were verified are nobody's to mount: not to change them, nor to see another's. */
static bool is_in_artifacts(const char *path)
{
    static const char holder[] = "/" ARTIFACTS_HOLDER;
    const char *at = strstr(path, holder);
    while (at != NULL && at[strlen(holder)] != '\0' && at[strlen(holder)] != '/')
        at = strstr(at + 1, holder);
    return at != NULL;
}

static bool is_blocked(const char *path, const char *place)
{
    return is_in_artifacts(path) || host_path_blocked(path, place);
}

static int check(const char *path, const char *place, const char *field, struct err *err)
{
    if (path == NULL || path[0] != '/')
        return 0; /* nothing, or what no Linux host has */
    AUTO_FREE char *plain = xstrdup(path);
    path_normalise(plain);
    AUTO_FREE char *real = path_real(plain);
    /* The kernel takes ".." after a link for the parent of what the link leads to. */
    AUTO_FREE char *as_kernel = path_real(path);
    if (!is_blocked(plain, place) && !is_blocked(real, place) && !is_blocked(as_kernel, place))
        return 0;
    if (!str_eq(real, path))
        return err_set(err, ERR_DENIED, "%s %.150s is blocked for security (it is %.150s)", field,
                       path, real);
    return err_set(err, ERR_DENIED, "%s %.300s is blocked for security", field, path);
}

int hostpath_check(const struct spec *spec, struct err *err)
{
    int r = check(spec->host_path, spec->own.place, "host_path", err);
    for (size_t i = 0; r == 0 && i < spec->n_extra_mounts; i++)
        if (spec->extra_mounts[i].mode != MOUNT_NONE)
            r = check(spec->extra_mounts[i].host_path, spec->own.place, "extra_mounts.host_path",
                      err);
    return r;
}
