/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "base/clock.h"
#include "lib/fake_clock.h"

static void the_system_clock_goes_forward(void **state)
{
    uint64_t mono = clock_mono(&clock_system), boot = clock_boot(&clock_system);

    assert_true(mono > 0);
    assert_true(clock_mono(&clock_system) >= mono);
    assert_true(clock_boot(&clock_system) >= boot);
    assert_true(boot >= mono);
    assert_true(clock_real(&clock_system) > 1700000000 * NSEC_PER_SEC);
}

static void a_fake_clock_moves_when_told(void **state)
{
    struct fake_clock f;

    fake_clock_init(&f);
    uint64_t mono = clock_mono(&f.clock), boot = clock_boot(&f.clock), real = clock_real(&f.clock);
    assert_int_equal(clock_mono(&f.clock), mono);
    fake_clock_advance(&f, 5);
    assert_int_equal(clock_mono(&f.clock), mono + 5);
    assert_int_equal(clock_boot(&f.clock), boot + 5);
    assert_int_equal(clock_real(&f.clock), real + 5);
}

static void dates_are_rfc_3339(void **state)
{
    char text[40], small[8];

    clock_format(0, text, sizeof(text));
    assert_string_equal(text, "1970-01-01T00:00:00.000000+00:00");
    clock_format(1794731563 * NSEC_PER_SEC + 123456, text, sizeof(text));
    assert_string_equal(text, "2026-11-15T08:32:43.000123+00:00");
    clock_format(UINT64_MAX, text, sizeof(text));
    assert_string_equal(text, "2554-07-21T23:34:33.709551+00:00");
    clock_format(0, small, sizeof(small));
    assert_string_equal(small, "1970-01");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_system_clock_goes_forward),
        cmocka_unit_test(a_fake_clock_moves_when_told),
        cmocka_unit_test(dates_are_rfc_3339),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
