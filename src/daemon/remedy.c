/* SPDX-License-Identifier: Apache-2.0 */

/* Turns what the kernel said at the start of boxd into what to do about it. */

#include "daemon/remedy.h"

#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"

#define PRIVILEGED_PORTS 1024

int remedy_port(int r, const char *host, uint64_t port, struct err *err)
{
    const unsigned long long number = port;

    if (r == -EADDRINUSE)
        return err_set(err, ERR_CONFLICT,
                       "port %llu of %s is in use by another process (`ss -ltnp 'sport = :%llu'` "
                       "tells which); stop it, or choose another with `port` in the configuration, "
                       "$BOX_LISTEN_PORT or --port (0: none)",
                       number, host, number);
    if (r == -EACCES && port < PRIVILEGED_PORTS)
        return err_set(err, ERR_DENIED,
                       "port %llu is for root alone: choose one from %d on with `port` in the "
                       "configuration, $BOX_LISTEN_PORT or --port",
                       number, PRIVILEGED_PORTS);
    if (r == -EADDRNOTAVAIL)
        return err_set(err, ERR_INVALID,
                       "%s is no address of this machine (`ip address` lists them); correct `host` "
                       "in the configuration or $BOX_LISTEN_HOST",
                       host);
    return r;
}

int remedy_dir(int r, const char *dir, const char *setting, struct err *err)
{
    if (err->sys == 0)
        return r; /* not the kernel's word: the message says what to do already */
    if (r == -ENOSPC || r == -EDQUOT)
        return err_set(
            err, ERR_LIMIT,
            "the disk of '%.120s' is full (`df -h '%.120s'`): make room there, or choose "
            "another directory with %s",
            dir, dir, setting);
    if (r == -EACCES || r == -EPERM)
        return err_set(err, ERR_DENIED,
                       "this user may not use '%.150s': run boxd as a user who may, or choose "
                       "another directory with %s",
                       dir, setting);
    if (r == -EROFS)
        return err_set(err, ERR_DENIED,
                       "'%.150s' is on a file system that is read-only; choose another directory "
                       "with %s",
                       dir, setting);
    return r;
}

int remedy_owner(const char *dir, uid_t owner, uid_t uid, struct err *err)
{
    return err_set(err, ERR_DENIED,
                   "directory '%.120s' belongs to uid %u, and boxd is uid %u: choose another with "
                   "state_dir in the configuration, $BOX_STATE_DIR or --state-dir; if it is empty, "
                   "`chown %u '%.120s'` will do",
                   dir, owner, uid, uid, dir);
}
