/* SPDX-License-Identifier: Apache-2.0 */

/* Creates and frees the MCP front and registers its routes. */

#include "front/mcp/mcp.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "front/mcp/mcp_internal.h"
#include "session/manager.h"

#define TOOLS_MAX (1U << 20)

struct mcp *mcp_new(const struct front *f)
{
    struct mcp *m = xnew(struct mcp);

    m->front = f;
    m->loop = manager_loop(f->manager);
    buf_init(&m->tools, TOOLS_MAX);
    mcp_tools_write(&m->tools);
    return m;
}

void mcp_free(struct mcp *m)
{
    if (m == NULL)
        return;
    mcp_links_free(m);
    while (m->callers != NULL) {
        struct mcp_place *p = m->callers;
        m->callers = p->next;
        mcp_place_close(p);
    }
    buf_done(&m->tools);
    free(m);
}

int mcp_routes(struct http_server *server, struct mcp *m, struct err *err)
{
    return mcp_http_routes(server, m, err);
}
