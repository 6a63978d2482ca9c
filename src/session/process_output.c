/* SPDX-License-Identifier: Apache-2.0 */

/* Reads and releases the output of a managed process, and notifies its watchers. */

#include <errno.h>

#include "session/session_internal.h"
#include "spec/process.h"

struct proc_range process_range(const struct process *p)
{
    if (p->proc == NULL)
        return (struct proc_range){.eof = true};
    return p->proc->backend->ops->proc_range(p->proc);
}

ssize_t process_read(struct process *p, uint64_t from, char *buf, size_t size)
{
    if (p->proc == NULL)
        return from == 0 ? 0 : -ERANGE;
    session_touch(p->session);
    return p->proc->backend->ops->proc_read(p->proc, from, buf, size);
}

int process_release(struct process *p, uint64_t upto, struct err *err)
{
    if (p->readers != NULL)
        return err_set(err, ERR_CONFLICT,
                       "a client is attached to process %.100s; only it can release output",
                       p->spec->process_id);
    if (p->proc != NULL)
        p->proc->backend->ops->proc_release(p->proc, upto);
    return 0;
}

void process_watch_start(struct process *p, struct process_watch *w,
                         void (*fn)(struct process_watch *w, struct process *p))
{
    *w = (struct process_watch){.p = p, .next = p->watches, .fn = fn};
    if (w->next != NULL)
        w->next->prev = w;
    p->watches = w;
}

void process_watch_stop(struct process_watch *w)
{
    if (w->p == NULL)
        return;
    if (w->prev != NULL)
        w->prev->next = w->next;
    else
        w->p->watches = w->next;
    if (w->next != NULL)
        w->next->prev = w->prev;
    w->p = NULL;
}

/* Whoever is told may start or stop any watch of this process, but does not end the process from
 * inside: fronts answer, they do not act. */
void process_watches_tell(struct process *p)
{
    for (struct process_watch *w = p->watches, *next; w != NULL; w = next) {
        next = w->next;
        w->fn(w, p);
    }
}

void process_watches_end(struct process *p)
{
    while (p->watches != NULL) {
        struct process_watch *w = p->watches;
        process_watch_stop(w);
        w->fn(w, NULL);
    }
}
