/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "session/metrics.h"

static void durations_fall_into_their_buckets(void **state)
{
    struct hist h = {0};

    hist_add(&h, 0);
    hist_add(&h, hist_bounds[0]);
    hist_add(&h, hist_bounds[0] + 1);
    hist_add(&h, 400 * NSEC_PER_SEC);
    assert_int_equal(h.buckets[0], 2); /* a bound belongs to its bucket: le */
    assert_int_equal(h.buckets[1], 1);
    assert_int_equal(h.buckets[HIST_BOUNDS], 1);
    assert_int_equal(hist_count(&h), 4);
    assert_int_equal(h.sum_ns, 2 * hist_bounds[0] + 1 + 400 * NSEC_PER_SEC);
    for (unsigned i = 1; i < HIST_BOUNDS; i++)
        assert_true(hist_bounds[i] > hist_bounds[i - 1]);
}

static uint64_t count_of(const struct metrics_cells *t, const char *a, const char *b, unsigned n)
{
    uint64_t found = 0;
    for (size_t i = 0; i < METRICS_CELLS; i++)
        if (t->cells[i].a == a && t->cells[i].b == b && t->cells[i].n == n)
            found += t->cells[i].count;
    return found;
}

static void cells_are_counted_by_all_three(void **state)
{
    static struct metrics_cells t;
    static const char get[] = "GET", put[] = "PUT", a[] = "/a", b[] = "/b";

    for (int i = 0; i < 3; i++)
        metrics_count(&t, get, a, 200);
    metrics_count(&t, get, a, 404);
    metrics_count(&t, put, a, 200);
    metrics_count(&t, get, b, 200);
    assert_int_equal(count_of(&t, get, a, 200), 3);
    assert_int_equal(count_of(&t, get, a, 404), 1);
    assert_int_equal(count_of(&t, put, a, 200), 1);
    assert_int_equal(count_of(&t, get, b, 200), 1);
    assert_int_equal(t.used, 4);
    assert_int_equal(t.rest, 0);
}

/* However many there are, it ends, and nothing is lost from the sum. */
static void a_full_table_still_counts(void **state)
{
    static struct metrics_cells t;
    uint64_t sum = 0;

    for (unsigned round = 0; round < 2; round++)
        for (unsigned n = 0; n < 5000; n++)
            metrics_count(&t, "a", "b", n);
    for (size_t i = 0; i < METRICS_CELLS; i++)
        sum += t.cells[i].count;
    assert_true(t.used < METRICS_CELLS);
    assert_true(t.rest > 0);
    assert_int_equal(sum + t.rest, 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations_fall_into_their_buckets),
        cmocka_unit_test(cells_are_counted_by_all_three),
        cmocka_unit_test(a_full_table_still_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
