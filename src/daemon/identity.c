/* SPDX-License-Identifier: Apache-2.0 */

/* Chooses the user that boxd becomes, by the host's list of users and the owner of the state. */

#include "daemon/identity.h"

#include <pwd.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "base/log.h"
#include "config/config.h"
#include "daemon/boxd_backend.h"

#define FALLBACK_ID 1999999999U /* just below the ids of sessions: no user has it */

/* A state that was made before there was a user `box` (`make run`, then `make install`) has files
 * of the other id in it, those of sessions too, also in disk images: it stays with that id. */
static bool is_older(const struct config *c)
{
    struct stat st;

    return stat(c->state_dir, &st) == 0 && st.st_uid == FALLBACK_ID;
}

void identity_find(const struct config *c, uid_t *ret_uid, gid_t *ret_gid)
{
    const struct passwd *pw = getpwnam(IDENTITY_USER);
    const bool older = pw != NULL && is_older(c);

    if (pw == NULL)
        log_warn(NULL, "there is no user '%s' (`make install` creates it); running as uid %u",
                 IDENTITY_USER, FALLBACK_ID);
    if (older)
        log_info(NULL,
                 "'%s' was made before the user '%s' existed, so boxd goes on as uid %u; a new "
                 "state_dir will belong to %s",
                 c->state_dir, IDENTITY_USER, FALLBACK_ID, IDENTITY_USER);
    *ret_uid = pw != NULL && !older ? pw->pw_uid : FALLBACK_ID;
    *ret_gid = pw != NULL && !older ? pw->pw_gid : FALLBACK_ID;
    boxd_backend_ids(c, ret_uid, ret_gid);
}
