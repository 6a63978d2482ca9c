/* SPDX-License-Identifier: Apache-2.0 */

/* Remembers chats whose sandbox could not be stopped, and tries again to remove it. */

#include <string.h>

#include "agent/chat/chat_internal.h"
#include "backend/backend.h"
#include "base/alloc.h"
#include "base/log.h"
#include "base/str.h"
#include "session/manager.h"

bool chat_debris_has(const struct chat *c, const char *chat_id)
{
    const struct chat_debris *d = c->debris;
    while (d != NULL && !str_eq(d->chat_id, chat_id))
        d = d->next;
    return d != NULL;
}

void chat_debris_add(struct chat *c, const char *chat_id)
{
    struct chat_debris *d = xnew(struct chat_debris);
    (void)str_copy(d->chat_id, sizeof(d->chat_id), chat_id);
    d->serial = ++c->debris_serial;
    d->next = c->debris;
    c->debris = d;
}

void chat_debris_forget(struct chat *c, uint64_t serial)
{
    for (struct chat_debris **at = &c->debris; *at != NULL;) {
        struct chat_debris *d = *at;
        if (d->serial > serial) {
            at = &d->next;
            continue;
        }
        *at = d->next;
        free(d);
    }
}

static void on_swept(void *arg, const struct err *err)
{
    struct chat *c = arg;
    c->sweeping = false;
    if (err != NULL)
        log_warn(NULL, "chat sandboxes that could not be stopped: %s; trying again later",
                 err->msg);
    else
        chat_debris_forget(c, c->sweep_serial);
}

void chat_debris_sweep(struct chat *c)
{
    struct backend *b = manager_backend(c->m);
    struct err err = {0};
    if (c->debris == NULL || c->sweeping || b->ops->sweep == NULL)
        return;
    c->sweep_serial = c->debris_serial;
    c->sweeping = true;
    if (b->ops->sweep(b, on_swept, c, &err) < 0)
        on_swept(c, &err);
}
