/* SPDX-License-Identifier: Apache-2.0 */

/* realpath(3) for paths whose end does not exist yet. */

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/path.h"
#include "base/str.h"

/* "." and ".." of the part that does not exist yet; there are no links in it to mislead. */
static void push_component(char *path, size_t size, const char *name, size_t len)
{
    size_t used = strlen(path);
    if (len == 0 || (len == 1 && name[0] == '.'))
        return;
    if (len == 2 && memcmp(name, "..", 2) == 0) {
        char *slash = strrchr(path, '/');
        if (slash != NULL)
            *slash = '\0';
        return;
    }
    if (used + len + 2 > size)
        return; /* the caller has checked the length of the whole */
    path[used] = '/';
    memcpy(path + used + 1, name, len);
    path[used + 1 + len] = '\0';
}

static void resolve_absolute(const char *path, char ret[static PATH_MAX])
{
    char head[PATH_MAX], real[PATH_MAX];
    size_t end = strlen(path);
    memcpy(head, path, end + 1);
    while (end > 0 && realpath(head, real) == NULL) {
        while (end > 0 && head[end - 1] == '/')
            head[--end] = '\0';
        while (end > 0 && head[end - 1] != '/')
            head[--end] = '\0';
    }
    (void)str_copy(ret, PATH_MAX, end > 0 && !str_eq(real, "/") ? real : "");
    for (const char *at = path + end; *at != '\0';) {
        size_t len = strcspn(at, "/");
        push_component(ret, PATH_MAX, at, len);
        at += len + (at[len] == '/');
    }
    if (ret[0] == '\0')
        (void)str_copy(ret, PATH_MAX, "/");
}

int path_real(const char *path, char ret[static PATH_MAX])
{
    if (strlen(path) >= PATH_MAX)
        return -ENAMETOOLONG;
    resolve_absolute(path, ret);
    return 0;
}
