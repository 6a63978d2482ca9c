/* SPDX-License-Identifier: Apache-2.0 */

/* Makes the fake backend: its sandboxes, its injected faults, receipts and doctor's report. */

#include "backend/fake/fake.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/fake/fake_internal.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/strv.h"
#include "spec/spec.h"

#define TEXT_MAX 4096U

/* A receipt or a doctor's report that the loop is about to hand over. */
struct fake_text {
    struct fake *fake;
    struct fake_text *prev, *next;
    bool doctor;
    backend_text_fn *done;
    void *arg;
    struct loop_defer defer;
};

static const struct {
    const char *name;
    unsigned next;
} states[FAKE_STATE_MAX] = {
    [FAKE_CREATING] = {"creating", 1U << FAKE_READY | 1U << FAKE_DESTROYING},
    [FAKE_READY] = {"ready", 1U << FAKE_DESTROYING},
    [FAKE_DESTROYING] = {"destroying", 0},
};

static void fake_move(struct fake_sandbox *sb, enum fake_state to)
{
    assert(states[sb->state].next & (1U << to));
    sb->state = to;
}

void fake_fail(struct backend *b, enum fake_call call, const struct err *err)
{
    container_of(b, struct fake, base)->faults[call] = *err;
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
    size_t n = 0;
    for (const struct fake_sandbox *sb = ((const struct fake *)(const void *)b)->sandboxes;
         sb != NULL; sb = sb->next)
        n++;
    return n;
}

void fake_sandbox_free(struct fake_sandbox *sb)
{
    if (sb->prev != NULL)
        sb->prev->next = sb->next;
    else
        sb->fake->sandboxes = sb->next;
    if (sb->next != NULL)
        sb->next->prev = sb->prev;
    loop_defer_stop(&sb->defer);
    loop_timer_stop(&sb->timer);
    strv_free(sb->env);
    strv_free(sb->labels);
    free(sb->workdir);
    free(sb);
}

size_t fake_creations(const struct backend *b)
{
    return ((const struct fake *)(const void *)b)->names;
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
        fake_sandbox_free(sb);
        created(arg, NULL, &err);
        return;
    }
    fake_move(sb, FAKE_READY);
    sb->created(sb->arg, &sb->base, NULL);
}

static void complete_destroy(struct fake_sandbox *sb)
{
    backend_done_fn *done = sb->destroyed;
    void *arg = sb->destroyed_arg;
    struct err err;
    bool failed = fake_fault(sb->fake, FAKE_DESTROY, &err);
    fake_sandbox_free(sb);
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

static int fake_create(struct backend *b, const struct spec *spec, backend_created_fn *created,
                       backend_lost_fn *lost, void *arg, struct err *err)
{
    struct fake *f = container_of(b, struct fake, base);
    struct err fault;
    if (fake_fault(f, FAKE_CREATE, &fault)) {
        *err = fault;
        return err_code_errno(fault.code);
    }
    struct fake_sandbox *sb = xnew(struct fake_sandbox);
    sb->base.backend = b;
    sb->fake = f;
    sb->created = created;
    sb->on_lost = lost;
    sb->arg = arg;
    sb->env = strv_copy(spec->env);
    sb->labels = strv_copy(spec->own.labels);
    sb->created_ns = clock_real(loop_clock(f->loop));
    sb->workdir = xstrdup(spec->workdir);
    (void)snprintf(sb->name, sizeof(sb->name), "fake-%llu", (unsigned long long)++f->names);
    sb->next = f->sandboxes;
    if (sb->next != NULL)
        sb->next->prev = sb;
    f->sandboxes = sb;
    loop_defer_start(f->loop, &sb->defer, on_turn);
    return 0;
}

static void fake_destroy(struct sandbox *base, backend_done_fn *done, void *arg)
{
    struct fake_sandbox *sb = container_of(base, struct fake_sandbox, base);
    if (sb->state == FAKE_DESTROYING)
        return;
    fake_move(sb, FAKE_DESTROYING);
    fake_exec_lose_all(sb);
    fake_procs_lose(sb);
    sb->destroyed = done;
    sb->destroyed_arg = arg;
    loop_defer_start(sb->fake->loop, &sb->defer, on_turn);
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
    fake_exec_lose_all(sb);
    loop_defer_start(sb->fake->loop, &sb->defer, on_lost);
}

static const char *fake_sandbox_name(const struct sandbox *base)
{
    return ((const struct fake_sandbox *)(const void *)base)->name;
}

static void fake_set_deadline(struct sandbox *base, uint64_t boot_ns)
{
    container_of(base, struct fake_sandbox, base)->deadline = boot_ns;
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

static void text_free(struct fake_text *t)
{
    if (t->prev != NULL)
        t->prev->next = t->next;
    else
        t->fake->texts = t->next;
    if (t->next != NULL)
        t->next->prev = t->prev;
    loop_defer_stop(&t->defer);
    free(t);
}

static void on_text(struct loop_defer *d)
{
    struct fake_text *t = container_of(d, struct fake_text, defer);
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, TEXT_MAX);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "backend", "fake");
    if (t->doctor)
        write_check(&w);
    jw_object_end(&w);
    backend_text_fn *done = t->done;
    void *arg = t->arg;
    text_free(t);
    done(arg, out.data, out.len, NULL);
}

static int start_text(struct fake *f, bool doctor, backend_text_fn *done, void *arg)
{
    struct fake_text *t = xnew(struct fake_text);
    *t =
        (struct fake_text){.fake = f, .next = f->texts, .doctor = doctor, .done = done, .arg = arg};
    if (t->next != NULL)
        t->next->prev = t;
    f->texts = t;
    loop_defer_start(f->loop, &t->defer, on_text);
    return 0;
}

static int fake_receipt(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err)
{
    struct fake_sandbox *sb = container_of(base, struct fake_sandbox, base);
    return start_text(sb->fake, false, done, arg);
}

static int fake_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err)
{
    return start_text(container_of(b, struct fake, base), true, done, arg);
}

static void fake_free(struct backend *b)
{
    struct fake *f = container_of(b, struct fake, base);
    for (struct fake_text *t = f->texts, *next; t != NULL; t = next) {
        next = t->next;
        text_free(t);
    }
    fake_answers_free(f);
    for (struct fake_sandbox *sb = f->sandboxes, *next; sb != NULL; sb = next) {
        next = sb->next;
        fake_procs_free(sb);
        fake_exec_lose_all(sb);
        fake_sandbox_free(sb);
    }
    free(f);
}

static const struct backend_ops fake_ops = {
    .name = "fake",
    .create = fake_create,
    .destroy = fake_destroy,
    .exec = fake_exec_start,
    .exec_write = fake_exec_write,
    .exec_close_stdin = fake_exec_close_stdin,
    .exec_signal = fake_exec_signal,
    .exec_kill = fake_exec_kill,
    .exec_resize = fake_exec_resize,
    .exec_pause = fake_exec_pause,
    .exec_free = fake_exec_free,
    .sandbox_name = fake_sandbox_name,
    .list = fake_list,
    .adopt = fake_adopt,
    .sweep = fake_sweep,
    .set_deadline = fake_set_deadline,
    .proc_start = fake_proc_start,
    .proc_adopt = fake_proc_adopt,
    .proc_range = fake_proc_range,
    .proc_read = fake_proc_read,
    .proc_release = fake_proc_release,
    .proc_stderr = fake_proc_stderr,
    .proc_stderr_from = fake_proc_stderr_from,
    .proc_unwritten = fake_proc_unwritten,
    .proc_write = fake_proc_write,
    .proc_close_stdin = fake_proc_close_stdin,
    .proc_signal = fake_proc_signal,
    .proc_kill = fake_proc_kill,
    .proc_free = fake_proc_free,
    .receipt = fake_receipt,
    .doctor = fake_doctor,
    .free = fake_free,
};

int fake_new(struct loop *loop, const struct fake_options *options, struct backend **ret,
             struct err *err)
{
    struct fake *f = xnew(struct fake);
    f->base.ops = &fake_ops;
    f->loop = loop;
    f->options = *options;
    *ret = &f->base;
    return 0;
}
