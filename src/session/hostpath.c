/* SPDX-License-Identifier: Apache-2.0 */

/* Refuses host paths that no session may mount, whatever the policy allows. */

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "session/artifacts.h"
#include "session/session_internal.h"
#include "spec/spec.h"

/* Where hosts keep their secrets and their control sockets. The sockets of container engines lie
 * below some of these; they are named all the same, so that the list says what it is about. */
static const char *const blocked[] = {
    "/etc",
    "/proc",
    "/sys",
    "/dev",
    "/root",
    "/boot",
    "/run",
    "/var/run",
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/podman",
    "/var/run/podman",
};

/* Copies that were verified are nobody's to mount: not to change them, nor to see another's. */
static bool is_in_artifacts(const char *path)
{
    static const char holder[] = "/" ARTIFACTS_HOLDER;
    const char *at = strstr(path, holder);
    while (at != NULL && at[strlen(holder)] != '\0' && at[strlen(holder)] != '/')
        at = strstr(at + 1, holder);
    return at != NULL;
}

static bool is_at_or_below(const char *path, const char *root)
{
    size_t len = strlen(root);
    return strncmp(path, root, len) == 0 &&
           (path[len] == '\0' || path[len] == '/' || str_eq(root, "/"));
}

/* Whoever mounts an ancestor mounts what lies below it. Root's home is blocked but for a directory
 * in it that is the caller's own. */
static bool is_blocked(const char *path, const char *place)
{
    if (is_in_artifacts(path))
        return true;
    if (place != NULL && is_at_or_below(place, "/root") && is_at_or_below(path, place))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(blocked); i++)
        if (is_at_or_below(path, blocked[i]) || is_at_or_below(blocked[i], path))
            return true;
    return false;
}

/* Without ".", ".." and empty components; links are not looked at. In place. */
static void normalise(char *path)
{
    char *out = path;
    const char *in = path;
    while (*in != '\0') {
        in += strspn(in, "/");
        size_t len = strcspn(in, "/");
        if (len == 2 && in[0] == '.' && in[1] == '.') {
            while (out > path && *--out != '/')
                continue;
        } else if (len > 0 && !(len == 1 && in[0] == '.')) {
            *out++ = '/';
            memmove(out, in, len);
            out += len;
        }
        in += len;
    }
    if (out == path)
        *out++ = '/';
    *out = '\0';
}

/* The real path of what exists of it, with the rest behind. Only a check by name, for a better
 * answer: whoever mounts resolves it again, by descriptor. */
static char *resolve(const char *path)
{
    AUTO_FREE char *head = xstrdup(path);
    char real[PATH_MAX];
    for (;;) {
        if (realpath(head, real) != NULL) {
            char *whole = xasprintf("%s%s", real, path + strlen(head));
            normalise(whole);
            return whole;
        }
        char *slash = strrchr(head, '/');
        if (slash == NULL || slash == head)
            return xstrdup(path);
        *slash = '\0';
    }
}

static int check(const char *path, const char *place, const char *field, struct err *err)
{
    if (path == NULL || path[0] != '/')
        return 0; /* nothing, or what no Linux host has */
    AUTO_FREE char *plain = xstrdup(path);
    normalise(plain);
    AUTO_FREE char *real = resolve(plain);
    /* The kernel takes ".." after a link for the parent of what the link leads to. */
    AUTO_FREE char *as_kernel = resolve(path);
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
