/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "policy/error_ring.c"

#define WHEN (1790000000ULL * NSEC_PER_SEC)

static void add(struct error_ring *r, enum err_code code, const char *message, const char *query,
                const char *scope)
{
    struct err err = {0};
    (void)err_set(&err, code, "%s", message);
    error_ring_add(r, WHEN, &err, query, scope);
}

static void test_row_T36_an_error_is_kept_with_type_query_and_time(void **state)
{
    AUTO(error_ring) struct error_ring *r = error_ring_new();
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, 4096);
    add(r, ERR_BACKEND, "no backend\tis usable", "50", NULL);
    assert_int_equal(error_ring_count(r, NULL), 1);
    jw_init(&w, &out);
    error_ring_write_json(r, NULL, &w);
    assert_int_equal(jw_end(&w), 0);
    assert_string_equal(buf_str(&out),
                        "[{\"timestamp\":\"2026-09-21T14:13:20.000000+00:00\","
                        "\"type\":\"BoxBackendUnavailableError\","
                        "\"message\":\"no backend\\tis usable\",\"query_id\":\"50\"}]");
}

static void test_row_T37_the_ring_keeps_the_newest_fifty(void **state)
{
    AUTO(error_ring) struct error_ring *r = error_ring_new();
    char query[8];
    for (int i = 0; i < 60; i++) {
        (void)snprintf(query, sizeof(query), "%d", 100 + i);
        add(r, ERR_BACKEND, "fail", query, NULL);
    }
    assert_int_equal(error_ring_count(r, NULL), 50);
    assert_string_equal(error_ring_at(r, NULL, 0)->query_id, "110");
    assert_string_equal(error_ring_at(r, NULL, 49)->query_id, "159");
    assert_null(error_ring_at(r, NULL, 50));
}

static void a_scope_sees_its_own_errors_only(void **state)
{
    AUTO(error_ring) struct error_ring *r = error_ring_new();
    add(r, ERR_INVALID, "one", "1", "a");
    add(r, ERR_INVALID, "two", "2", "b");
    add(r, ERR_INVALID, "three", NULL, "a");
    add(r, ERR_INVALID, "four", "4", NULL);
    assert_int_equal(error_ring_count(r, NULL), 4);
    assert_int_equal(error_ring_count(r, "a"), 2);
    assert_string_equal(error_ring_at(r, "a", 1)->message, "three");
    assert_string_equal(error_ring_at(r, "a", 1)->query_id, "");
    assert_int_equal(error_ring_count(r, "c"), 0);
    assert_int_equal(error_ring_count(r, ""), 1);
}

static void what_a_peer_sizes_is_cut_at_a_character(void **state)
{
    AUTO(error_ring) struct error_ring *r = error_ring_new();
    char query[ERROR_RING_QUERY_MAX + 2];
    memset(query, 'q', sizeof(query));
    memcpy(query + ERROR_RING_QUERY_MAX - 1, "\xc3\xa4", 3);
    add(r, ERR_INVALID, "x", query, NULL);
    assert_int_equal(strlen(error_ring_at(r, NULL, 0)->query_id), ERROR_RING_QUERY_MAX - 1);
}

static void every_code_has_a_class(void **state)
{
    for (int i = 0; i < ERR_CODE_MAX; i++)
        assert_true(str_starts(error_class_name((enum err_code)i), "Box"));
    assert_string_equal(error_class_name(ERR_INVALID), "BoxValidationError");
    assert_string_equal(error_class_name(ERR_CONFLICT), "BoxSessionConflictError");
    assert_string_equal(error_class_name(ERR_NOT_FOUND), "BoxSessionNotFoundError");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_T36_an_error_is_kept_with_type_query_and_time),
        cmocka_unit_test(test_row_T37_the_ring_keeps_the_newest_fifty),
        cmocka_unit_test(a_scope_sees_its_own_errors_only),
        cmocka_unit_test(what_a_peer_sizes_is_cut_at_a_character),
        cmocka_unit_test(every_code_has_a_class),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
