/* SPDX-License-Identifier: Apache-2.0 */

/* Looks at what runs in a sandbox: asks its supervisor for the processes, page by page, and for the
 * end of what commands have left, until none of it is listed any more. */

#include <stdlib.h>
#include <string.h>

#include "backend/task.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "inside/wire.h"

#define LOOKS_MAX 16U                     /* of one sandbox at once */
#define ROWS_MAX (8U * INSIDE_LIST_MAX)   /* processes that are told */
#define PATIENCE_NS (5ULL * NSEC_PER_SEC) /* with a supervisor that does not answer */
#define AGAIN_NS (5ULL * NSEC_PER_MSEC)   /* until it is looked whether the killed are gone */
#define AGAIN_MAX_NS (200ULL * NSEC_PER_MSEC)
#define END_NS (5ULL * NSEC_PER_SEC) /* until they have to be */

struct tasks_look {
    struct tasks *home; /* NULL: it only has to be told */
    LIST_ENTRY(tasks_look) entry;
    struct loop *loop;
    uint32_t id;
    uint32_t last;      /* number of the last process that was listed */
    uint64_t walked_ns; /* when the list has to be at its end */
    /* One of three: to tell of processes, of what is used, of the end of what was left. */
    backend_top_fn *done;
    backend_usage_fn *used;
    backend_done_fn *ended;
    void *arg;
    struct backend_process *rows; /* owned; to tell */
    size_t n;
    bool more; /* than ROWS_MAX */
    struct inside_usage usage;
    char label[INSIDE_LABEL_SIZE]; /* of what was left */
    unsigned left;                 /* processes of that */
    bool ordered;                  /* the supervisor was told to end it */
    uint64_t again_ns, until_ns;
    struct loop_timer timer;
    struct loop_defer defer;
    struct err err;
};

static void look_leave(struct tasks_look *l)
{
    loop_timer_stop(&l->timer);
    if (l->home == NULL)
        return;
    LIST_REMOVE(l, entry);
    l->home->n_looks--;
    l->home = NULL;
}

static void on_tell(struct loop_defer *d)
{
    struct tasks_look *l = container_of(d, struct tasks_look, defer);
    const struct err *err = l->err.code != ERR_NONE ? &l->err : NULL;
    if (l->done != NULL)
        l->done(l->arg, l->rows, err != NULL ? 0 : l->n, l->more, err);
    else if (l->used != NULL)
        l->used(l->arg, err != NULL ? NULL : &l->usage);
    else
        l->ended(l->arg, err);
    free(l->rows);
    free(l);
}

static void look_tell(struct tasks_look *l)
{
    look_leave(l);
    loop_defer_start(l->loop, &l->defer, on_tell);
}

static void on_late(struct loop_timer *t)
{
    struct tasks_look *l = container_of(t, struct tasks_look, timer);
    (void)err_set(&l->err, ERR_UNAVAILABLE,
                  "the session's supervisor did not answer within %llu s; try again",
                  PATIENCE_NS / NSEC_PER_SEC);
    look_tell(l);
}

static int look_ask(struct tasks_look *l)
{
    l->id = l->home->next_look++;
    loop_timer_stop(&l->timer);
    loop_timer_start(l->loop, &l->timer, PATIENCE_NS, on_late);
    if (l->used != NULL)
        return l->home->ops->usage(l->home, l->id);
    return l->home->ops->list(l->home, l->id, l->last);
}

static void look_busy(struct tasks_look *l)
{
    (void)err_set(&l->err, ERR_UNAVAILABLE,
                  "the session's supervisor takes no requests now; try again");
    look_tell(l);
}

/* From the first process on. */
static void look_walk(struct tasks_look *l)
{
    l->last = l->left = 0;
    l->walked_ns = loop_now(l->loop) + PATIENCE_NS;
    if (look_ask(l) < 0)
        look_busy(l);
}

static void on_again(struct loop_timer *t)
{
    look_walk(container_of(t, struct tasks_look, timer));
}

/* All processes are known. */
static void end_look(struct tasks_look *l)
{
    const unsigned left = l->left;
    uint64_t now = loop_now(l->loop);
    if (left == 0 && !l->ordered)
        (void)err_missing(&l->err, ERR_THING_EXEC, "exec %.64s has left nothing that runs",
                          l->label);
    else if (left > 0 && l->ordered && now >= l->until_ns)
        (void)err_set(&l->err, ERR_BACKEND,
                      "%u processes that exec %.64s has left do not end; remove the session", left,
                      l->label);
    if (left == 0 || l->err.code != ERR_NONE) {
        look_tell(l);
        return;
    }
    if (!l->ordered) {
        l->ordered = true;
        l->again_ns = AGAIN_NS;
        l->until_ns = now + END_NS;
    }
    /* Again each time: a process may have been on its way into the group. */
    if (l->home->ops->end_left(l->home, l->label) < 0) {
        look_busy(l);
        return;
    }
    loop_timer_start(l->loop, &l->timer, l->again_ns, on_again);
    l->again_ns = l->again_ns * 2 < AGAIN_MAX_NS ? l->again_ns * 2 : AGAIN_MAX_NS;
}

/* Every field is hostile. */
static bool row_fits(const struct tasks_look *l, const struct inside_process *row)
{
    return row->owner < INSIDE_OWNER_MAX && row->state > 0 && row->state < 128 &&
           memchr(row->label, 0, sizeof(row->label)) != NULL &&
           memchr(row->command, 0, sizeof(row->command)) != NULL &&
           (row->label[0] == '\0' || id_valid(row->label)) && row->pid > l->last;
}

static void add_row(struct tasks_look *l, const struct inside_process *row)
{
    static const enum backend_owner owners[INSIDE_OWNER_MAX] = {
        [INSIDE_OWNER_EXEC] = BACKEND_OWNER_EXEC, [INSIDE_OWNER_PROC] = BACKEND_OWNER_PROC};
    struct backend_process *p = &l->rows[l->n++];
    *p = (struct backend_process){.pid = row->pid,
                                  .parent = row->parent,
                                  .owner = owners[row->owner],
                                  .left = row->left != 0,
                                  .state = (char)row->state,
                                  .user_ns = row->user_ns,
                                  .system_ns = row->system_ns,
                                  .age_ns = row->age_ns,
                                  .memory_bytes = row->memory_bytes};
    (void)str_copy(p->label, sizeof(p->label), row->label);
    (void)str_copy(p->command, sizeof(p->command), row->command);
}

/* 1: there are more to ask for. */
static int take_rows(struct tasks_look *l, const struct inside_process *rows, size_t n, int error)
{
    if (error != 0)
        return err_sys(&l->err, error, "list the processes of the session");
    for (size_t i = 0; i < n; i++) {
        if (!row_fits(l, &rows[i]))
            return err_set(&l->err, ERR_BACKEND, "the session's supervisor makes no sense");
        l->last = rows[i].pid;
        l->more = l->done != NULL && l->n == ROWS_MAX;
        if (l->more)
            return 0;
        if (l->done != NULL)
            add_row(l, &rows[i]);
        else
            l->left += rows[i].owner == INSIDE_OWNER_EXEC && rows[i].left != 0 &&
                       strchr("ZXx", (int)rows[i].state) == NULL && str_eq(rows[i].label, l->label);
    }
    return n == INSIDE_LIST_MAX;
}

/* Whose timer is stopped then; NULL: it took too long. */
static struct tasks_look *look_find(const struct tasks *home, uint32_t id, bool usage)
{
    struct tasks_look *l;
    LIST_FOREACH (l, &home->looks, entry)
        if (l->id == id && (l->used != NULL) == usage)
            break;
    if (l != NULL)
        loop_timer_stop(&l->timer);
    return l;
}

void looks_used(struct tasks *home, uint32_t id, const struct inside_usage *usage)
{
    struct tasks_look *l = look_find(home, id, true);
    if (l == NULL)
        return;
    l->usage = *usage;
    look_tell(l);
}

void looks_answer(struct tasks *home, uint32_t id, const struct inside_process *rows, size_t n,
                  int error)
{
    struct tasks_look *l = look_find(home, id, false);
    if (l == NULL)
        return;
    int r = take_rows(l, rows, n, error);
    if (r > 0 && loop_now(l->loop) >= l->walked_ns)
        on_late(&l->timer);
    else if (r > 0 && look_ask(l) < 0)
        look_busy(l);
    else if (r < 0 || (r == 0 && l->done != NULL))
        look_tell(l);
    else if (r == 0)
        end_look(l);
}

/* `want` says what for. */
static int look_start(struct sandbox *sb, const struct tasks_look *want, struct err *err)
{
    struct tasks *home = container_of(sb, struct tasks, sandbox);
    if (!home->ops->ready(home))
        return err_set(err, ERR_STATE, "the session is not running");
    if (home->n_looks >= LOOKS_MAX)
        return err_set(err, ERR_LIMIT, "%u clients list the processes of this session already",
                       home->n_looks);
    struct tasks_look *l = xnew(struct tasks_look);
    *l = *want;
    l->home = home;
    l->loop = home->loop;
    if (l->done != NULL)
        l->rows = xnew_n(struct backend_process, ROWS_MAX);
    LIST_INSERT_HEAD(&home->looks, l, entry);
    home->n_looks++;
    look_walk(l);
    return 0;
}

int tasks_top(struct sandbox *sb, backend_top_fn *done, void *arg, struct err *err)
{
    return look_start(sb, &(struct tasks_look){.done = done, .arg = arg}, err);
}

int tasks_usage(struct sandbox *sb, backend_usage_fn *done, void *arg, struct err *err)
{
    return look_start(sb, &(struct tasks_look){.used = done, .arg = arg}, err);
}

int tasks_end_left(struct sandbox *sb, const char *label, backend_done_fn *done, void *arg,
                   struct err *err)
{
    struct tasks_look want = {.ended = done, .arg = arg};
    if (label[0] == '\0' || str_copy(want.label, sizeof(want.label), label) < 0)
        return err_missing(err, ERR_THING_EXEC, "exec %.64s has left nothing that runs", label);
    return look_start(sb, &want, err);
}

void looks_lose(struct tasks *home)
{
    struct tasks_look *l;
    while ((l = LIST_FIRST(&home->looks)) != NULL) {
        (void)err_set(&l->err, ERR_STATE, "the session has ended");
        look_tell(l);
    }
}
