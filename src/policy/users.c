/* SPDX-License-Identifier: Apache-2.0 */

/* Resolves the configured users and groups, and ranks a connected user. */

#include "policy/users.h"

#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "loop/peer.h"

#define NAMED_MAX 256U   /* in one list */
#define GROUPS_MAX 65536 /* the kernel's NGROUPS_MAX */

struct ids {
    uint32_t list[NAMED_MAX];
    size_t n;
};

struct users {
    uid_t own;
    struct ids uids, gids;
    gid_t socket_gid; /* 0: none */
};

static bool ids_have(const struct ids *ids, uint32_t id)
{
    for (size_t i = 0; i < ids->n; i++)
        if (ids->list[i] == id)
            return true;
    return false;
}

static int find_id(const char *word, bool group, uint32_t *ret, struct err *err)
{
    const char *what = group ? "allowed_groups" : "allowed_users";
    uint64_t number = 0;
    if (str_to_u64(word, &number) == 0) {
        if (number >= UINT32_MAX)
            return err_set(err, ERR_INVALID, "%s: '%.40s' is no id", what, word);
        *ret = (uint32_t)number;
        return 0;
    }
    const struct passwd *pw = group ? NULL : getpwnam(word);
    const struct group *gr = group ? getgrnam(word) : NULL;
    if (pw == NULL && gr == NULL)
        return err_set(err, ERR_INVALID, "%s: there is no %s '%.80s' on this machine", what,
                       group ? "group" : "user", word);
    *ret = pw != NULL ? pw->pw_uid : gr->gr_gid;
    return 0;
}

static int read_list(const char *text, bool group, struct ids *ret, struct err *err)
{
    AUTO_FREE char *copy = xstrdup(text != NULL ? text : "");
    char *save = NULL;
    for (char *item = strtok_r(copy, ",", &save); item != NULL; item = strtok_r(NULL, ",", &save)) {
        AUTO_FREE char *word = str_strip(item);
        if (word[0] == '\0')
            continue;
        if (ret->n == NAMED_MAX)
            return err_set(err, ERR_LIMIT, "%s: more than %u entries",
                           group ? "allowed_groups" : "allowed_users", NAMED_MAX);
        int r = find_id(word, group, &ret->list[ret->n], err);
        if (r < 0)
            return r;
        ret->n++;
    }
    return 0;
}

int users_new(uid_t own, const char *names, const char *groups, struct users **ret, struct err *err)
{
    AUTO(users) struct users *u = xnew(struct users);
    u->own = own;
    int r = read_list(names, false, &u->uids, err);
    if (r == 0)
        r = read_list(groups, true, &u->gids, err);
    if (r == 0)
        *ret = TAKE_PTR(u);
    return r;
}

void users_free(struct users *u)
{
    free(u);
}

bool users_any(const struct users *u)
{
    return u->uids.n > 0 || u->gids.n > 0;
}

int users_set_group(struct users *u, const char *name, const char *otherwise, gid_t *ret,
                    struct err *err)
{
    const struct group *gr = NULL;
    uint64_t number = 0;

    *ret = 0;
    if (str_eq(name, "none"))
        return 0;
    gr = getgrnam(name != NULL ? name : otherwise);
    if (gr != NULL)
        *ret = gr->gr_gid;
    else if (name != NULL && str_to_u64(name, &number) == 0 && number < UINT32_MAX)
        *ret = (gid_t)number;
    else if (name != NULL)
        return err_set(err, ERR_INVALID,
                       "socket_group: there is no group '%.80s' on this machine; `groupadd "
                       "--system %.80s` makes it",
                       name, name);
    u->socket_gid = *ret;
    return 0;
}

static bool in_groups(const struct users *u, uid_t uid)
{
    const struct passwd *pw = u->gids.n > 0 || u->socket_gid != 0 ? getpwuid(uid) : NULL;
    int n = GROUPS_MAX;
    if (pw == NULL)
        return false;
    AUTO_FREE gid_t *groups = xnew_n(gid_t, GROUPS_MAX);
    if (getgrouplist(pw->pw_name, pw->pw_gid, groups, &n) < 0)
        return false;
    for (int i = 0; i < n; i++)
        if (ids_have(&u->gids, groups[i]) || (groups[i] != 0 && groups[i] == u->socket_gid))
            return true;
    return false;
}

enum users_rank users_rank(const struct users *u, const struct peer *peer)
{
    if (u == NULL || (peer->known && (peer->uid == 0 || peer->uid == u->own)))
        return USERS_FULL;
    if (!peer->known)
        return USERS_REFUSED;
    return ids_have(&u->uids, peer->uid) || in_groups(u, peer->uid) ? USERS_BOUND : USERS_REFUSED;
}

void users_log_refusal(const struct peer *peer)
{
    if (peer->known)
        log_info(NULL,
                 "uid %u is refused: it is not root, not boxd's own user, no member of "
                 "socket_group, and neither in allowed_users nor in allowed_groups",
                 peer->uid);
    else
        log_info(
            NULL,
            "a TCP client is refused: it sent no token, and boxd cannot tell which user it is");
}
