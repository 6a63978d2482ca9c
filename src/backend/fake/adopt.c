/* SPDX-License-Identifier: Apache-2.0 */

/* Sandboxes of an earlier daemon in the fake backend: adopting, sweeping, listing, and restarts in
 * tests. */

#include <string.h>

#include "backend/fake/fake_internal.h"
#include "base/alloc.h"
#include "base/str.h"

/* The end of a sweep, a list, or an adoption that found nothing, on its way. */
struct fake_answer {
    struct fake *fake;
    struct fake_answer *prev, *next;
    backend_created_fn *created;
    backend_done_fn *done;
    backend_found_fn *each;    /* of a list */
    const char *const *labels; /* of a list; borrowed, static */
    void *arg;
    struct err err;
    struct loop_defer defer;
};

static void answer_free(struct fake_answer *a)
{
    if (a->prev != NULL)
        a->prev->next = a->next;
    else
        a->fake->answers = a->next;
    if (a->next != NULL)
        a->next->prev = a->prev;
    loop_defer_stop(&a->defer);
    free(a);
}

void fake_answers_free(struct fake *f)
{
    for (struct fake_answer *a = f->answers, *next; a != NULL; a = next) {
        next = a->next;
        answer_free(a);
    }
}

static bool has_labels(const struct fake_sandbox *sb, const char *const *names)
{
    for (; *names != NULL; names++) {
        size_t len = strlen(*names);
        bool found = false;
        for (char *const *l = sb->labels; l != NULL && *l != NULL && !found; l++)
            found = strncmp(*l, *names, len) == 0 && (*l)[len] == '=';
        if (!found)
            return false;
    }
    return true;
}

static void tell_each(const struct fake *f, const struct fake_answer *a)
{
    for (const struct fake_sandbox *sb = f->sandboxes; sb != NULL; sb = sb->next)
        if (sb->state == FAKE_READY && has_labels(sb, a->labels))
            a->each(a->arg, &(struct backend_found){.backend = f->base.ops->name,
                                                    .name = sb->name,
                                                    .labels = sb->labels,
                                                    .created_ns = sb->created_ns});
}

static void on_answer(struct loop_defer *d)
{
    struct fake_answer *a = container_of(d, struct fake_answer, defer);
    struct fake_answer copy = *a;
    answer_free(a);
    if (copy.each != NULL && copy.err.code == ERR_NONE)
        tell_each(copy.fake, &copy);
    if (copy.created != NULL)
        copy.created(copy.arg, NULL, &copy.err);
    else
        copy.done(copy.arg, copy.err.code != ERR_NONE ? &copy.err : NULL);
}

static struct fake_answer *answer_new(struct fake *f, void *arg)
{
    struct fake_answer *a = xnew(struct fake_answer);
    a->fake = f;
    a->arg = arg;
    a->next = f->answers;
    if (a->next != NULL)
        a->next->prev = a;
    f->answers = a;
    loop_defer_start(f->loop, &a->defer, on_answer);
    return a;
}

static struct fake_sandbox *find(const struct backend *b, const char *name)
{
    struct fake_sandbox *sb = ((const struct fake *)(const void *)b)->sandboxes;
    while (sb != NULL && !str_eq(sb->name, name))
        sb = sb->next;
    return sb;
}

static void on_adopted(struct loop_defer *d)
{
    struct fake_sandbox *sb = container_of(d, struct fake_sandbox, defer);
    sb->created(sb->arg, &sb->base, NULL);
    fake_procs_vanish(sb, 0); /* nobody took them */
}

/* NOLINTNEXTLINE(readability-function-size): it is one of the backend's operations. */
int fake_adopt(struct backend *b, const char *name, const struct spec *spec,
               backend_created_fn *created, backend_lost_fn *lost, void *arg, struct err *err)
{
    struct fake *f = container_of(b, struct fake, base);
    struct fake_sandbox *sb = find(b, name);
    if (sb == NULL || !sb->orphan || sb->state != FAKE_READY) {
        struct fake_answer *a = answer_new(f, arg);
        a->created = created;
        (void)err_set(&a->err, ERR_NOT_FOUND, "there is no sandbox '%.40s'", name);
        return 0;
    }
    sb->orphan = false;
    sb->created = created;
    sb->on_lost = lost;
    sb->arg = arg;
    fake_exec_end_detached(sb);
    loop_defer_start(f->loop, &sb->defer, on_adopted);
    return 0;
}

int fake_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err)
{
    struct fake *f = container_of(b, struct fake, base);
    for (struct fake_sandbox *sb = f->sandboxes, *next; sb != NULL; sb = next) {
        next = sb->next;
        if (!sb->orphan)
            continue;
        fake_procs_free(sb);
        fake_exec_lose_all(sb);
        fake_sandbox_free(sb);
    }
    struct fake_answer *a = answer_new(f, arg);
    a->done = done;
    (void)fake_fault(f, FAKE_SWEEP, &a->err);
    return 0;
}

int fake_list(struct backend *b, const char *const *labels, backend_found_fn *each,
              backend_done_fn *done, void *arg, struct err *err)
{
    struct fake *f = container_of(b, struct fake, base);
    struct fake_answer *a = answer_new(f, arg);
    a->done = done;
    a->each = each;
    a->labels = labels;
    (void)fake_fault(f, FAKE_LIST, &a->err);
    return 0;
}

void fake_restart(struct backend *b)
{
    struct fake *f = container_of(b, struct fake, base);
    fake_answers_free(f);
    for (struct fake_sandbox *sb = f->sandboxes; sb != NULL; sb = sb->next) {
        sb->orphan = true;
        sb->destroyed = NULL;
        fake_procs_orphan(sb);
    }
}

void fake_vanish(struct backend *b, const char *sandbox, uint32_t number)
{
    struct fake_sandbox *sb = find(b, sandbox);
    if (sb == NULL || !sb->orphan)
        return;
    fake_procs_vanish(sb, number);
    if (number > 0)
        return;
    fake_exec_lose_all(sb);
    fake_sandbox_free(sb);
}

uint64_t fake_deadline(const struct backend *b, const char *sandbox)
{
    const struct fake_sandbox *sb = find(b, sandbox);
    return sb != NULL ? sb->deadline : 0;
}
