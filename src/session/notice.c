/* SPDX-License-Identifier: Apache-2.0 */

/* Callbacks that wait for a managed process to start or to stop. */

#include "base/alloc.h"
#include "session/session_internal.h"
#include "spec/process.h"

struct notice *notice_new(struct process *p, void *arg)
{
    struct manager *m = p->session->m;
    struct notice *n = xnew(struct notice);
    n->m = m;
    n->process = p;
    n->arg = arg;
    n->request = log_scope_now();
    n->next = p->notices;
    p->notices = n;
    n->all_next = m->notices;
    if (n->all_next != NULL)
        n->all_next->all_prev = n;
    m->notices = n;
    return n;
}

static void leave(struct notice *n)
{
    if (n->process == NULL)
        return;
    struct notice **at = &n->process->notices;
    while (*at != n)
        at = &(*at)->next;
    *at = n->next;
    n->process = NULL;
}

void notice_free(struct notice *n)
{
    leave(n);
    if (n->all_prev != NULL)
        n->all_prev->all_next = n->all_next;
    else
        n->m->notices = n->all_next;
    if (n->all_next != NULL)
        n->all_next->all_prev = n->all_prev;
    loop_defer_stop(&n->defer);
    free(n);
}

static void on_told(struct loop_defer *d)
{
    struct notice *n = container_of(d, struct notice, defer);
    const struct err *err = n->err.code != ERR_NONE ? &n->err : NULL;
    LOG_REQUEST(n->request.id);
    if (n->started != NULL)
        n->started(n->arg, err == NULL ? n->process : NULL, err);
    else if (n->stopped != NULL)
        n->stopped(n->arg, err);
    notice_free(n);
}

void notice_tell(struct notice *n)
{
    loop_defer_start(n->m->loop, &n->defer, on_told);
}

void notices_fail_all(struct process *p, const struct err *err)
{
    while (p->notices != NULL) {
        struct notice *n = p->notices;
        leave(n);
        n->err = *err;
        notice_tell(n);
    }
}

void notices_tell_all(struct process *p, const struct err *start_err)
{
    while (p->notices != NULL) {
        struct notice *n = p->notices;
        leave(n);
        if (n->started != NULL)
            n->err = *start_err;
        notice_tell(n);
    }
}
