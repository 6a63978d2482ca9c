/* SPDX-License-Identifier: Apache-2.0 */

/* One connection of a LangBot client, independent of its transport: makes calls of its messages. */

#include <stdlib.h>

#include "base/alloc.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "http/codec/ws.h"

struct langbot_conn *langbot_conn_new(struct langbot *r, const struct langbot_transport *transport,
                                      void *arg, unsigned flags)
{
    struct langbot_conn *c = xnew(struct langbot_conn);
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

void langbot_conn_message(struct langbot_conn *c, const char *text, size_t len)
{
    struct langbot_message m;
    if (langbot_message_read(text, len, c->flags == 0, &m))
        langbot_call_start(c, &m);
    else if (m.no_memory && c->transport->close != NULL)
        c->transport->close(c->arg, WS_CODE_TOO_BIG, "out of memory for this message");
}

void langbot_conn_idle(struct langbot_conn *c)
{
    if (c->outdated && c->transport->close != NULL)
        c->transport->close(c->arg, WS_CODE_POLICY, "the token has changed");
}

void langbot_conn_free(struct langbot_conn *c)
{
    if (c == NULL)
        return;
    c->outdated = false; /* it has ended already */
    while (c->calls != NULL)
        langbot_call_cancel(c->calls);
    langbot_files_free(c);
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        c->rpc->conns = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    free(c);
}
