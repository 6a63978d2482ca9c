/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "session/events.h"

struct seen {
    struct events_reader reader;
    unsigned ready;
    const char *hide; /* events of this session are not ours */
};

static void on_ready(void *arg)
{
    ((struct seen *)arg)->ready++;
}

static bool is_visible(void *arg, const struct event *event)
{
    return !str_eq(((struct seen *)arg)->hide, event->session);
}

static void emit(struct events *e, const char *session)
{
    events_emit(e, &(struct event){.kind = EVENT_SESSION_CREATED, .session = session});
}

static void attach(struct events *e, struct seen *s, uint64_t after)
{
    s->reader.ready = on_ready;
    s->reader.visible = is_visible;
    s->reader.arg = s;
    events_attach(e, &s->reader, after);
}

struct place {
    struct loop *loop;
    struct events *events;
};

static void start(struct place *p, size_t max)
{
    assert_int_equal(loop_new(&clock_system, &p->loop, NULL), 0);
    p->events = events_new(p->loop, max);
}

static void stop(struct place *p)
{
    events_free(p->events);
    loop_free(p->loop);
}

static void readers_go_on_where_they_were(void **state)
{
    struct place p;
    struct seen a = {0}, b = {0};
    uint64_t missed = 0;
    start(&p, 4);
    emit(NULL, "nobody listens");
    attach(p.events, &a, 0);
    emit(p.events, "x");
    emit(p.events, "y");
    assert_int_equal(a.ready, 0); /* from the loop only */
    assert_true(loop_turn(p.loop, 0) > 0);
    assert_int_equal(a.ready, 1);
    const struct event *e = events_next(&a.reader, &missed);
    assert_non_null(e);
    assert_string_equal(e->session, "x");
    assert_int_equal(e->seq, 1);
    assert_int_equal(events_next(&a.reader, &missed)->seq, 2);
    assert_null(events_next(&a.reader, &missed));
    assert_int_equal(missed, 0);
    attach(p.events, &b, 1); /* comes back with the first */
    assert_int_equal(events_next(&b.reader, &missed)->seq, 2);
    events_detach(&a.reader);
    events_detach(&b.reader);
    events_detach(&b.reader); /* once is enough */
    stop(&p);
}

static void what_was_missed_is_counted(void **state)
{
    struct place p;
    struct seen a = {0}, late = {0};
    uint64_t missed = 0;
    start(&p, 4);
    attach(p.events, &a, 0);
    a.hide = "theirs";
    for (int i = 0; i < 5; i++) {
        emit(p.events, "ours");
        emit(p.events, "theirs");
    }
    /* Ten events, the last four are kept; of the six that are gone three were for this reader. */
    assert_int_equal(events_next(&a.reader, &missed)->seq, 7);
    assert_int_equal(missed, 3);
    assert_int_equal(events_next(&a.reader, &missed)->seq, 9);
    assert_int_equal(missed, 0);
    assert_null(events_next(&a.reader, &missed));
    attach(p.events, &late, 2);
    assert_int_equal(events_next(&late.reader, &missed)->seq, 7);
    assert_int_equal(missed, 4);
    events_detach(&late.reader);
    attach(p.events, &late, 1000); /* a number that never was */
    assert_null(events_next(&late.reader, &missed));
    events_detach(&late.reader);
    events_detach(&a.reader);
    stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_go_on_where_they_were),
        cmocka_unit_test(what_was_missed_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
