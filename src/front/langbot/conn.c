/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "http/codec/ws.h"

struct rpc_conn *rpc_conn_new(struct rpc *r, const struct rpc_transport *transport, void *arg,
                              unsigned flags)
{
    struct rpc_conn *c = xnew(struct rpc_conn);
    char id[LOG_REQUEST_SIZE];
    c->rpc = r;
    c->transport = transport;
    c->arg = arg;
    c->flags = flags;
    log_request_make(id);
    (void)str_copy(c->request, sizeof(c->request), id);
    c->file_max = r->limits.max_rpc_file_bytes;
    c->next = r->conns;
    if (c->next != NULL)
        c->next->prev = c;
    r->conns = c;
    return c;
}

void rpc_conn_message(struct rpc_conn *c, const char *text, size_t len)
{
    struct rpc_message m;
    if (rpc_message_read(text, len, c->flags == 0, &m))
        rpc_call_start(c, &m);
    else if (m.no_memory && c->transport->close != NULL)
        c->transport->close(c->arg, WS_CODE_TOO_BIG, "out of memory for this message");
}

void rpc_conn_idle(struct rpc_conn *c)
{
    if (c->outdated && c->transport->close != NULL)
        c->transport->close(c->arg, WS_CODE_POLICY, "the token has changed");
}

void rpc_conn_free(struct rpc_conn *c)
{
    if (c == NULL)
        return;
    c->outdated = false; /* it has ended already */
    while (c->calls != NULL)
        rpc_call_cancel(c->calls);
    rpc_files_free(c);
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        c->rpc->conns = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    free(c);
}
