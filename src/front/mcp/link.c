/* SPDX-License-Identifier: Apache-2.0 */

/* Clients of the revisions with a handshake, by their Mcp-Session-Id. Most recent use first. */

#include <stdlib.h>

#include "base/alloc.h"
#include "base/str.h"
#include "front/mcp/http.h"
#include "policy/authz.h"

#define LINKS_MAX 1024U
#define LINKS_EACH 64U /* of one caller */

static void unlink_it(struct mcp_link *l)
{
    struct mcp_link **at = &l->mcp->links;

    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    l->mcp->n_links--;
}

static void push(struct mcp_link *l)
{
    l->next = l->mcp->links;
    l->mcp->links = l;
    l->mcp->n_links++;
}

void mcp_link_free(struct mcp_link *l)
{
    unlink_it(l);
    if (l->listener != NULL)
        mcp_listener_end(l->listener);
    mcp_place_close(l->place);
    free(l);
}

void mcp_links_free(struct mcp *m)
{
    for (struct mcp_link *l = m->links, *next; l != NULL; l = next) {
        next = l->next;
        /* We go, not they. Their sessions end when they are idle for long enough. */
        l->place->ephemeral = false;
        mcp_link_free(l);
    }
}

/* One that nothing hears of goes for a new one of the same caller. */
static bool make_room(struct mcp *m, const char *who)
{
    struct mcp_link *oldest = NULL;
    unsigned n = 0;

    for (struct mcp_link *l = m->links; l != NULL; l = l->next) {
        if (!str_eq(l->place->who, who))
            continue;
        n++;
        if (l->listener == NULL && l->place->n_calls == 0)
            oldest = l;
    }
    if (n < LINKS_EACH && m->n_links < LINKS_MAX)
        return true;
    if (oldest == NULL)
        return false;
    mcp_link_free(oldest);
    return true;
}

struct mcp_link *mcp_link_new(struct mcp *m, const struct authz_scope *scope, const char *who)
{
    char name[17], first[17], second[17];

    if (!make_room(m, who))
        return NULL;
    struct mcp_link *l = xnew(struct mcp_link);
    id_random(name);
    id_random(first);
    id_random(second);
    AUTO_FREE char *tail = xasprintf("mcp-%s", name);
    (void)str_fmt(l->id, sizeof(l->id), "%s%s", first, second);
    l->mcp = m;
    l->place = mcp_place_new(m, scope, who, tail);
    l->place->ephemeral = true;
    push(l);
    return l;
}

struct mcp_link *mcp_link_find(struct mcp *m, const char *id, const struct authz_scope *scope,
                               const char *who)
{
    for (struct mcp_link *l = m->links; l != NULL; l = l->next) {
        if (!str_eq(l->id, id) || !str_eq(l->place->who, who))
            continue;
        unlink_it(l);
        push(l);
        /* The tokens may have been read again meanwhile. */
        if (l->place->scope != scope) {
            authz_release(l->place->scope);
            l->place->scope = authz_hold(scope);
        }
        return l;
    }
    return NULL;
}
