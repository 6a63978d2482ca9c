/* SPDX-License-Identifier: Apache-2.0 */

/* The fake backend: its sandboxes, their adoption after a restart, injected faults, receipts and
 * the doctor's report. */

#include "fake/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/state.h"
#include "base/str.h"
#include "base/strv.h"
#include "fake/fake_internal.h"
#include "spec/spec.h"

#define TEXT_MAX 4096U

/* The end of a sweep or a list, an adoption that found nothing, a receipt or a report, on its way:
 * one of the functions is set. */
struct fake_answer {
    struct fake *fake; /* borrowed */
    LIST_ENTRY(fake_answer) entry;
    backend_created_fn *created;
    backend_done_fn *done;
    backend_text_fn *text;
    backend_found_fn *each;    /* of a list */
    backend_held_fn *held;     /* of what is kept */
    const char *const *labels; /* of a list; borrowed, static */
    bool doctor;               /* the text is its report */
    void *arg;
    struct err err;
    struct loop_defer defer;
};

static struct fake *fake_of(const struct backend *b)
{
    return container_of((struct backend *)(uintptr_t)b, struct fake, base);
}

static struct fake_sandbox *sandbox_of(const struct sandbox *sb)
{
    return container_of((struct sandbox *)(uintptr_t)sb, struct fake_sandbox, tasks.sandbox);
}

static void fake_move(struct fake_sandbox *sb, enum fake_state to)
{
    static const unsigned moves[FAKE_STATE_MAX] = {
        [FAKE_CREATING] = 1U << FAKE_READY | 1U << FAKE_DESTROYING,
        [FAKE_READY] = 1U << FAKE_DESTROYING,
    };
    STATE_MOVE(sb->state, moves, to);
}

void fake_fail(struct backend *b, enum fake_call call, const struct err *err)
{
    fake_of(b)->faults[call] = *err;
}

bool fake_fault(struct fake *f, enum fake_call call, struct err *err)
{
    if (f->faults[call].code == ERR_NONE)
        return false;
    *err = f->faults[call];
    f->faults[call] = (struct err){0};
    return true;
}

size_t fake_sandboxes(const struct backend *b)
{
    const struct fake_sandbox *sb;
    size_t n = 0;
    LIST_FOREACH (sb, &fake_of(b)->sandboxes, entry)
        n++;
    return n;
}

size_t fake_creations(const struct backend *b)
{
    return fake_of(b)->names;
}

bool fake_keeps(const struct backend *b, const char *name)
{
    char *const *kept = fake_of(b)->kept;
    for (size_t i = 0; kept != NULL && kept[i] != NULL; i++)
        if (str_eq(kept[i], name))
            return true;
    return false;
}

static void sandbox_free(struct fake_sandbox *sb)
{
    tasks_lose(&sb->tasks);
    LIST_REMOVE(sb, entry);
    loop_defer_stop(&sb->defer);
    loop_timer_stop(&sb->timer);
    strv_free(sb->env);
    strv_free(sb->labels);
    free(sb->workdir);
    free(sb);
}

static void complete_create(struct fake_sandbox *sb)
{
    struct err err;
    if (sb->orphan) {
        fake_move(sb, FAKE_READY);
        return;
    }
    if (fake_fault(sb->fake, FAKE_CREATE_LATER, &err)) {
        backend_created_fn *created = sb->created;
        void *arg = sb->arg;
        sandbox_free(sb);
        created(arg, NULL, &err);
        return;
    }
    fake_move(sb, FAKE_READY);
    sb->created(sb->arg, &sb->tasks.sandbox, NULL);
}

static void complete_destroy(struct fake_sandbox *sb)
{
    backend_done_fn *done = sb->destroyed;
    void *arg = sb->destroyed_arg;
    struct err err;
    bool failed = fake_fault(sb->fake, FAKE_DESTROY, &err);
    sandbox_free(sb);
    if (done != NULL)
        done(arg, failed ? &err : NULL);
}

static void complete(struct fake_sandbox *sb)
{
    if (sb->state == FAKE_CREATING)
        complete_create(sb);
    else
        complete_destroy(sb);
}

static void on_time(struct loop_timer *t)
{
    complete(container_of(t, struct fake_sandbox, timer));
}

/* Behind the execs that end first, which are deferred too. */
static void on_turn(struct loop_defer *d)
{
    struct fake_sandbox *sb = container_of(d, struct fake_sandbox, defer);
    const struct fake_options *o = &sb->fake->options;
    uint64_t delay = sb->state == FAKE_CREATING ? o->create_ns : o->destroy_ns;
    if (delay > 0)
        loop_timer_start(sb->fake->loop, &sb->timer, delay, on_time);
    else
        complete(sb);
}

/* With a name: on what is kept under it. */
/* NOLINTNEXTLINE(readability-function-size): it is two of the backend's operations. */
static int sandbox_make(struct fake *f, const char *name, const struct spec *spec,
                        backend_created_fn *created, backend_lost_fn *lost, void *arg,
                        struct err *err)
{
    struct backend *b = &f->base;
    if (fake_fault(f, FAKE_CREATE, err))
        return err_code_errno(err->code);
    struct fake_sandbox *sb = xnew(struct fake_sandbox);
    tasks_init(&sb->tasks, b, &fake_tasks_ops, f->loop);
    sb->fake = f;
    sb->created = created;
    sb->on_lost = lost;
    sb->arg = arg;
    sb->env = strv_copy(spec->env);
    sb->labels = strv_copy(spec->own.labels);
    sb->created_ns = clock_real(loop_clock(f->loop));
    sb->workdir = xstrdup(spec->workdir);
    if (name != NULL)
        (void)str_copy(sb->name, sizeof(sb->name), name);
    else
        (void)snprintf(sb->name, sizeof(sb->name), "fake-%llu", (unsigned long long)++f->names);
    if (spec->own.durable && !fake_keeps(b, sb->name))
        strv_add(&f->kept, sb->name);
    LIST_INSERT_HEAD(&f->sandboxes, sb, entry);
    loop_defer_start(f->loop, &sb->defer, on_turn);
    return 0;
}

static int fake_create(struct backend *b, const struct spec *spec, backend_created_fn *created,
                       backend_lost_fn *lost, void *arg, struct err *err)
{
    return sandbox_make(fake_of(b), NULL, spec, created, lost, arg, err);
}

/* NOLINTNEXTLINE(readability-function-size): it is one of the backend's operations. */
static int fake_start(struct backend *b, const char *name, const struct spec *spec,
                      backend_created_fn *created, backend_lost_fn *lost, void *arg,
                      struct err *err)
{
    if (!fake_keeps(b, name))
        return err_set(err, ERR_NOT_FOUND, "nothing is kept under '%.40s'", name);
    return sandbox_make(fake_of(b), name, spec, created, lost, arg, err);
}

static void kept_remove(struct fake *f, const char *name)
{
    char **left = NULL;
    for (size_t i = 0; f->kept != NULL && f->kept[i] != NULL; i++)
        if (!str_eq(f->kept[i], name))
            strv_add(&left, f->kept[i]);
    strv_free(f->kept);
    f->kept = left;
}

static void fake_end(struct sandbox *base, backend_done_fn *done, void *arg)
{
    struct fake_sandbox *sb = sandbox_of(base);
    if (sb->state == FAKE_DESTROYING)
        return;
    fake_move(sb, FAKE_DESTROYING);
    tasks_lose(&sb->tasks);
    sb->destroyed = done;
    sb->destroyed_arg = arg;
    loop_defer_start(sb->fake->loop, &sb->defer, on_turn);
}

static void fake_destroy(struct sandbox *base, backend_done_fn *done, void *arg)
{
    kept_remove(sandbox_of(base)->fake, sandbox_of(base)->name);
    fake_end(base, done, arg);
}

static void on_lost(struct loop_defer *d)
{
    struct fake_sandbox *sb = container_of(d, struct fake_sandbox, defer);
    sb->on_lost(sb->arg);
}

void fake_lose(struct fake_sandbox *sb)
{
    if (sb->lost || sb->state != FAKE_READY)
        return;
    sb->lost = true;
    tasks_lose(&sb->tasks);
    loop_defer_start(sb->fake->loop, &sb->defer, on_lost);
}

void fake_die(struct sandbox *sb)
{
    fake_lose(sandbox_of(sb));
}

static const char *fake_sandbox_name(const struct sandbox *base)
{
    return sandbox_of(base)->name;
}

static void fake_set_deadline(struct sandbox *base, uint64_t boot_ns)
{
    sandbox_of(base)->deadline = boot_ns;
}

/* Answers. */

static void answer_free(struct fake_answer *a)
{
    LIST_REMOVE(a, entry);
    loop_defer_stop(&a->defer);
    free(a);
}

static void answers_free(struct fake *f)
{
    struct fake_answer *a, *next;
    LIST_FOREACH_SAFE (a, &f->answers, entry, next)
        answer_free(a);
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
    const struct fake_sandbox *sb;
    LIST_FOREACH (sb, &f->sandboxes, entry)
        if (sb->state == FAKE_READY && has_labels(sb, a->labels))
            a->each(a->arg, &(struct backend_found){.backend = f->base.ops->name,
                                                    .name = sb->name,
                                                    .labels = sb->labels,
                                                    .created_ns = sb->created_ns});
}

static void write_check(struct jw *w)
{
    jw_key(w, "checks");
    jw_array(w);
    jw_object(w);
    jw_kstr(w, "id", "isolation");
    jw_kstr(w, "status", "warn");
    jw_kstr(w, "detail", "commands are simulated: nothing runs, so nothing is confined");
    jw_kstr(w, "remedy", "use the native backend");
    jw_object_end(w);
    jw_array_end(w);
}

static void tell_text(const struct fake_answer *a)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "backend", "fake");
    if (a->doctor)
        write_check(&w);
    jw_object_end(&w);
    a->text(a->arg, out.data, out.len, NULL);
}

static void on_answer(struct loop_defer *d)
{
    struct fake_answer *a = container_of(d, struct fake_answer, defer);
    struct fake_answer copy = *a;
    answer_free(a);
    if (copy.each != NULL && copy.err.code == ERR_NONE)
        tell_each(copy.fake, &copy);
    if (copy.text != NULL)
        tell_text(&copy);
    else if (copy.held != NULL)
        copy.held(copy.arg, copy.err.code != ERR_NONE
                                ? NULL
                                : &(struct backend_held){.stored_bytes = FAKE_STORED_BYTES});
    else if (copy.created != NULL)
        copy.created(copy.arg, NULL, &copy.err);
    else
        copy.done(copy.arg, copy.err.code != ERR_NONE ? &copy.err : NULL);
}

static struct fake_answer *answer_new(struct fake *f, void *arg)
{
    struct fake_answer *a = xnew(struct fake_answer);
    a->fake = f;
    a->arg = arg;
    LIST_INSERT_HEAD(&f->answers, a, entry);
    loop_defer_start(f->loop, &a->defer, on_answer);
    return a;
}

static int fake_discard(struct backend *b, const char *name, backend_done_fn *done, void *arg,
                        struct err *err)
{
    struct fake_answer *a = answer_new(fake_of(b), arg);
    a->done = done;
    if (!fake_fault(fake_of(b), FAKE_DISCARD, &a->err))
        kept_remove(fake_of(b), name);
    return 0;
}

static int fake_stored(struct backend *b, const char *name, backend_held_fn *done, void *arg,
                       struct err *err)
{
    if (!fake_keeps(b, name))
        return err_set(err, ERR_NOT_FOUND, "nothing is kept under '%.40s'", name);
    struct fake_answer *a = answer_new(fake_of(b), arg);
    a->held = done;
    (void)fake_fault(fake_of(b), FAKE_STORED, &a->err);
    return 0;
}

static int fake_pause(struct sandbox *base, bool paused, backend_done_fn *done, void *arg,
                      struct err *err)
{
    struct fake_sandbox *sb = sandbox_of(base);
    struct fake_answer *a = answer_new(sb->fake, arg);
    a->done = done;
    if (!fake_fault(sb->fake, FAKE_PAUSE, &a->err))
        sb->frozen = paused;
    return 0;
}

static int fake_update(struct sandbox *base, const struct spec *spec, backend_done_fn *done,
                       void *arg, struct err *err)
{
    struct fake *f = sandbox_of(base)->fake;
    struct fake_answer *a = answer_new(f, arg);
    a->done = done;
    if (!fake_fault(f, FAKE_UPDATE, &a->err))
        f->memory_mb = spec->memory_mb;
    return 0;
}

int64_t fake_memory_mb(const struct backend *b)
{
    return container_of(b, const struct fake, base)->memory_mb;
}

static int fake_receipt(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err)
{
    answer_new(sandbox_of(base)->fake, arg)->text = done;
    return 0;
}

static int fake_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err)
{
    struct fake_answer *a = answer_new(fake_of(b), arg);
    a->text = done;
    a->doctor = true;
    return 0;
}

/* A daemon that is killed, and the next one. */

static struct fake_sandbox *sandbox_find(const struct backend *b, const char *name)
{
    struct fake_sandbox *sb = LIST_FIRST(&fake_of(b)->sandboxes);
    while (sb != NULL && !str_eq(sb->name, name))
        sb = LIST_NEXT(sb, entry);
    return sb;
}

static void on_adopted(struct loop_defer *d)
{
    struct fake_sandbox *sb = container_of(d, struct fake_sandbox, defer);
    sb->created(sb->arg, &sb->tasks.sandbox, NULL);
    fake_tasks_end_untaken(sb, 0);
}

/* NOLINTNEXTLINE(readability-function-size): it is one of the backend's operations. */
static int fake_adopt(struct backend *b, const char *name, const struct spec *spec,
                      backend_created_fn *created, backend_lost_fn *lost, void *arg,
                      struct err *err)
{
    struct fake *f = fake_of(b);
    struct fake_sandbox *sb = sandbox_find(b, name);
    if (sb == NULL || !sb->orphan || sb->state != FAKE_READY) {
        struct fake_answer *a = answer_new(f, arg);
        a->created = created;
        (void)err_set(&a->err, ERR_NOT_FOUND, "there is no sandbox '%.40s'", name);
        return 0;
    }
    sb->orphan = false;
    sb->tasks.sandbox.paused = sb->frozen;
    sb->frozen = false;
    sb->created = created;
    sb->on_lost = lost;
    sb->arg = arg;
    fake_tasks_end_detached(sb);
    loop_defer_start(f->loop, &sb->defer, on_adopted);
    return 0;
}

static int fake_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err)
{
    struct fake *f = fake_of(b);
    struct fake_sandbox *sb, *next;
    LIST_FOREACH_SAFE (sb, &f->sandboxes, entry, next) {
        if (!sb->orphan)
            continue;
        tasks_drop(&sb->tasks);
        sandbox_free(sb);
    }
    struct fake_answer *a = answer_new(f, arg);
    a->done = done;
    (void)fake_fault(f, FAKE_SWEEP, &a->err);
    return 0;
}

static int fake_list(struct backend *b, const char *const *labels, backend_found_fn *each,
                     backend_done_fn *done, void *arg, struct err *err)
{
    struct fake *f = fake_of(b);
    struct fake_answer *a = answer_new(f, arg);
    a->done = done;
    a->each = each;
    a->labels = labels;
    (void)fake_fault(f, FAKE_LIST, &a->err);
    return 0;
}

void fake_restart(struct backend *b)
{
    struct fake *f = fake_of(b);
    struct fake_sandbox *sb;
    answers_free(f);
    LIST_FOREACH (sb, &f->sandboxes, entry) {
        sb->orphan = true;
        sb->destroyed = NULL;
        fake_tasks_orphan(sb);
    }
}

void fake_vanish(struct backend *b, const char *sandbox, uint32_t number)
{
    struct fake_sandbox *sb = sandbox_find(b, sandbox);
    if (sb == NULL || !sb->orphan)
        return;
    fake_tasks_end_untaken(sb, number);
    if (number == 0)
        sandbox_free(sb);
}

uint64_t fake_deadline(const struct backend *b, const char *sandbox)
{
    const struct fake_sandbox *sb = sandbox_find(b, sandbox);
    return sb != NULL ? sb->deadline : 0;
}

/* The backend. */

static void fake_free(struct backend *b)
{
    struct fake *f = fake_of(b);
    struct fake_sandbox *sb, *next;
    answers_free(f);
    LIST_FOREACH_SAFE (sb, &f->sandboxes, entry, next) {
        tasks_drop(&sb->tasks);
        sandbox_free(sb);
    }
    strv_free(f->kept);
    free(f);
}

/* A run may be freed later than its backend: the operations outlive it. */
static struct backend_ops fake_ops = {
    .name = "fake",
    .create = fake_create,
    .destroy = fake_destroy,
    .sandbox_name = fake_sandbox_name,
    .list = fake_list,
    .adopt = fake_adopt,
    .sweep = fake_sweep,
    .set_deadline = fake_set_deadline,
    .stop = fake_end,
    .start = fake_start,
    .discard = fake_discard,
    .stored = fake_stored,
    .pause = fake_pause,
    .update = fake_update,
    .receipt = fake_receipt,
    .doctor = fake_doctor,
    .free = fake_free,
};

int fake_new(struct loop *loop, const struct fake_options *options, struct backend **ret,
             struct err *err)
{
    struct fake *f = xnew(struct fake);
    tasks_operations(&fake_ops);
    f->base.ops = &fake_ops;
    f->loop = loop;
    f->options = *options;
    *ret = &f->base;
    return 0;
}
