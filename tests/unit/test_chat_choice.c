/* SPDX-License-Identifier: Apache-2.0 */

/* Labels over several backends: who must be able to tell, and who need not be there. */

#include "core_fixture.h"

#include <string.h>

#include "backend/choice.h"
#include "base/str.h"
#include "base/strv.h"

static struct backend *made[2];
static struct backend_ops ops[2];
static bool cannot[2];

static int make(void *arg, struct loop *loop, const char *name, struct backend **ret,
                struct err *err)
{
    static const struct fake_options at_once = {0};
    size_t i = str_eq(name, "one") ? 0 : 1;
    struct fixture *f = arg;
    if (cannot[i])
        return err_set(err, ERR_UNAVAILABLE, "%s is not there", name);
    assert_int_equal(fake_new(f->loop, &at_once, &made[i], err), 0);
    ops[i] = *made[i]->ops;
    ops[i].name = i == 0 ? "one" : "two";
    made[i]->ops = &ops[i];
    *ret = made[i];
    return 0;
}

static const struct choice_candidate list[] = {{"one", make, NULL, "pwd", NULL},
                                               {"two", make, NULL, "pwd", NULL}};
static const char *const labels[] = {"chat_id", NULL};

static void start(struct fixture *f, size_t n)
{
    struct err err = {0};
    *f = (struct fixture){0};
    memset(made, 0, sizeof(made));
    memset(cannot, 0, sizeof(cannot));
    fake_clock_init(&f->clock);
    assert_int_equal(loop_new(&f->clock.clock, &f->loop, &err), 0);
    static struct choice_options options;
    options = (struct choice_options){.candidates = list, .n = n, .arg = f};
    f->backend = choice_new(f->loop, &options);
}

static void stop(struct fixture *f)
{
    f->backend->ops->free(f->backend);
    loop_free(f->loop);
}

struct seen {
    struct heard end;
    int n;
    char backends[64];
};

static void on_found(void *arg, const struct backend_found *found)
{
    struct seen *s = arg;
    AUTO_FREE char *before = xstrdup(s->backends);
    assert_int_equal(s->end.n, 0);
    s->n++;
    assert_int_equal(str_fmt(s->backends, sizeof(s->backends), "%s%s ", before, found->backend), 0);
}

static void on_listed(void *arg, const struct err *err)
{
    on_gone(&((struct seen *)arg)->end, err);
}

static struct seen ask(struct fixture *f)
{
    struct seen s = {0};
    struct err err = {0};
    assert_int_equal(f->backend->ops->list(f->backend, labels, on_found, on_listed, &s, &err), 0);
    assert_int_equal(s.end.n, 0); /* from the loop */
    pump(f);
    assert_int_equal(s.end.n, 1);
    return s;
}

static void on_created(void *arg, struct sandbox *sb, const struct err *err)
{
    assert_null(err);
    assert_non_null(sb);
}

static void on_lost(void *arg)
{
}

static void make_labelled(struct fixture *f, size_t i)
{
    AUTO(spec) struct spec *s = named_spec("x");
    struct err err = {0};
    assert_int_equal(choice_make(f->backend, list[i].name, &err), 0);
    strv_add(&s->own.labels, "chat_id=1");
    assert_int_equal(made[i]->ops->create(made[i], s, on_created, on_lost, NULL, &err), 0);
    pump(f);
}

static struct err broken(void)
{
    struct err err = {0};
    (void)err_set(&err, ERR_BACKEND, "broken");
    return err;
}

static void all_that_are_there_are_asked(void **state)
{
    struct fixture f;
    start(&f, 2);
    assert_int_equal(ask(&f).n, 0); /* there is none yet */
    make_labelled(&f, 0);
    make_labelled(&f, 1);
    struct seen s = ask(&f);
    assert_int_equal(s.n, 2);
    assert_string_equal(s.backends, "one two ");
    stop(&f);
}

static void only_one_must_be_able_to_tell(void **state)
{
    struct fixture f;
    struct err err = {0}, why = broken();
    struct seen s = {0};
    start(&f, 1);
    cannot[0] = true;
    assert_true(f.backend->ops->list(f.backend, labels, on_found, on_listed, &s, &err) < 0);
    assert_int_equal(err.code, ERR_UNAVAILABLE);
    cannot[0] = false;
    make_labelled(&f, 0);
    fake_fail(made[0], FAKE_LIST, &why);
    assert_string_equal(ask(&f).end.err.msg, "broken");
    assert_int_equal(ask(&f).n, 1);
    stop(&f);
}

static void one_that_never_worked_is_not_waited_for(void **state)
{
    struct fixture f;
    struct err err = {0}, why = broken();
    start(&f, 2);
    assert_int_equal(choice_try_now(f.backend, "one", &err), 0);
    make_labelled(&f, 1);
    fake_fail(made[1], FAKE_LIST, &why);
    assert_int_equal(ask(&f).end.err.code, ERR_NONE);
    fake_fail(made[0], FAKE_LIST, &why); /* which serves */
    assert_int_equal(ask(&f).end.err.code, ERR_BACKEND);
    stop(&f);
}

static void list_under_way_goes_with_its_backends(void **state)
{
    struct fixture f;
    struct seen s = {0};
    struct err err = {0};
    start(&f, 2);
    make_labelled(&f, 0);
    assert_int_equal(f.backend->ops->list(f.backend, labels, on_found, on_listed, &s, &err), 0);
    stop(&f);
    assert_int_equal(s.end.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_that_are_there_are_asked),
        cmocka_unit_test(only_one_must_be_able_to_tell),
        cmocka_unit_test(one_that_never_worked_is_not_waited_for),
        cmocka_unit_test(list_under_way_goes_with_its_backends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
