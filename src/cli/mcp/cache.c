/* SPDX-License-Identifier: Apache-2.0 */

/* The package caches of a user: directories of the host in which npm, pip, uv and cargo keep what
 * they have downloaded inside a box, so that the next start of the same box is warm.
 *
 * A program that can write what another box reads decides what that box runs. So a cache belongs to
 * one user and has one name, and the caller chooses a name that only boxes have which may trust
 * each other. */

#include "cli/mcp/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/host_path.h"
#include "base/path.h"
#include "base/str.h"

/* Where no directory of the home can be mounted, as root's. */
#define PUBLIC_PLACE "/var/tmp"

static const struct {
    const char *name, *inside;
} parts[] = {
    {"npm", "/home/box/.npm"},
    {"cache", "/home/box/.cache"}, /* of pip, uv, yarn, deno and others */
    {"cargo", "/home/box/.cargo/registry"},
};

/* The directory that the caches of this user lie in: `ret_rest` below the one that is returned,
 * both owned. */
static char *cache_place(char **ret_rest)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool named = xdg != NULL && xdg[0] == '/';
    char *base = named ? realpath(xdg, NULL) : home != NULL ? realpath(home, NULL) : NULL;

    if (base != NULL && !str_eq(base, "/") && !host_path_blocked(base, NULL)) {
        *ret_rest = xstrdup(named ? "box" : ".cache/box");
        return base;
    }
    free(base);
    *ret_rest = xasprintf("box-cache-%u", (unsigned)geteuid());
    return xstrdup(PUBLIC_PLACE);
}

/* Nobody else may write there, or even reach what programs in a box leave there. */
static int take_place(int base, const char *rest, struct err *err)
{
    AUTO_CLOSE int place = path_make_beneath(base, rest);
    struct stat st;

    if (place < 0)
        return err_sys(err, -place, "make the directory '%s' for package caches", rest);
    AUTO_CLOSE int fd = openat(place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, errno, "open the directory '%s' of package caches", rest);
    if (st.st_uid != geteuid())
        return err_set(err, ERR_DENIED,
                       "the directory '%s' for package caches belongs to uid %u; remove it, or set "
                       "XDG_CACHE_HOME",
                       rest, (unsigned)st.st_uid);
    return fchmod(fd, 0700) < 0 ? err_sys(err, errno, "protect '%s'", rest) : TAKE_FD(place);
}

int mcp_cache_open(const char *name, struct mcp_roots *ret, struct err *err)
{
    AUTO_FREE char *rest = NULL;
    AUTO_FREE char *base = cache_place(&rest);
    AUTO_CLOSE int fd = path_open_unlinked(base, O_PATH | O_DIRECTORY);

    if (fd < 0)
        return err_sys(err, -fd, "open '%s'", base);
    AUTO_CLOSE int place = take_place(fd, rest, err);
    if (place < 0)
        return place;
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        AUTO_FREE char *part = xasprintf("%s/%s", name, parts[i].name);
        AUTO_CLOSE int made = path_make_beneath(place, part);
        if (made < 0)
            return err_sys(err, -made, "make the package cache '%s/%s/%s'", base, rest, part);
        AUTO_FREE char *host = xasprintf("%s/%s/%s", base, rest, part);
        mcp_roots_add(ret, host, parts[i].inside);
    }
    return 0;
}
