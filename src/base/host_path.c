/* SPDX-License-Identifier: Apache-2.0 */

/* Normalises and resolves paths of the host, and knows those that no session may have. */

#include "base/host_path.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/str.h"

/* The sockets of container engines lie below some of these; they are named all the same, so that
 * the list says what it is about. */
static const char *const blocked[] = {"/etc",
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
                                      "/var/run/podman"};

bool path_at_or_below(const char *path, const char *root)
{
    size_t len = strlen(root);
    return strncmp(path, root, len) == 0 &&
           (path[len] == '\0' || path[len] == '/' || str_eq(root, "/"));
}

bool host_path_find_root(char *const *roots, bool outer, const char *path, size_t *ret,
                         const char **ret_rest)
{
    size_t best = 0;
    bool found = false;

    for (size_t i = 0; roots != NULL && roots[i] != NULL; i++) {
        size_t len = str_eq(roots[i], "/") ? 0 : strlen(roots[i]);
        if (!path_at_or_below(path, roots[i]) || len < best || (outer && path[len] == '\0'))
            continue;
        best = len;
        found = true;
        *ret = i;
        *ret_rest = path[len] == '/' ? path + len + 1 : path + len;
    }
    return found;
}

void path_normalise(char *path)
{
    char *out = path;
    for (const char *in = path; *in != '\0';) {
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

char *path_real(const char *path)
{
    AUTO_FREE char *head = xstrdup(path);
    size_t end = strlen(head);
    char real[PATH_MAX] = "";
    while (end > 0 && realpath(head, real) == NULL) {
        while (end > 0 && head[end - 1] == '/')
            head[--end] = '\0';
        while (end > 0 && head[end - 1] != '/')
            head[--end] = '\0';
    }
    char *whole = xasprintf("%s/%s", end > 0 ? real : "", path + end);
    path_normalise(whole);
    return whole;
}

bool host_path_blocked(const char *path, const char *place)
{
    if (place != NULL && path_at_or_below(place, "/root") && path_at_or_below(path, place))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(blocked); i++)
        if (path_at_or_below(path, blocked[i]) || path_at_or_below(blocked[i], path))
            return true;
    return false;
}
