/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the two sources of the HTTP transport share. */

#include "front/mcp/mcp_internal.h"

struct mcp_listener; /* a stream that a client has opened with GET */

struct mcp_link {
    struct mcp *mcp;
    struct mcp_link *next;
    char id[33]; /* that the client sends back; nobody can guess it */
    struct mcp_place *place;
    struct mcp_listener *listener; /* or NULL */
};

/* NULL: that caller has too many with something under way. */
struct mcp_link *mcp_link_new(struct mcp *m, const struct authz_scope *scope, const char *who);
/* Of that caller; NULL: there is none. */
struct mcp_link *mcp_link_find(struct mcp *m, const char *id, const struct authz_scope *scope,
                               const char *who);
void mcp_link_free(struct mcp_link *l); /* ends what is under way, and the session */

/* http.c */
void mcp_listener_end(struct mcp_listener *listener);
