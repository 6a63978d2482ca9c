/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "lib/fault.h"

/* From the library behind json.c, which only json.c includes. */
void json_set_alloc_funcs(void *(*malloc_fn)(size_t), void (*free_fn)(void *));

static struct json *parse(const char *text)
{
    struct json *root = NULL;
    struct err err = {0};

    if (json_parse(text, strlen(text), &root, &err) < 0)
        fail_msg("%s", err.msg);
    return root;
}

static void every_type_is_read(void **state)
{
    AUTO(json)
    struct json *o = parse("{\"n\":null,\"t\":true,\"f\":false,\"i\":-7,\"r\":1.5,\"s\":\"x\","
                           "\"a\":[1,2,3],\"o\":{}}");

    assert_int_equal(json_type(o), JSON_OBJECT);
    assert_int_equal(json_len(o), 8);
    assert_int_equal(json_type(json_get(o, "n")), JSON_NULL);
    assert_int_equal(json_type(json_get(o, "t")), JSON_BOOL);
    assert_true(json_bool(json_get(o, "t")));
    assert_false(json_bool(json_get(o, "f")));
    assert_int_equal(json_type(json_get(o, "i")), JSON_INT);
    assert_int_equal(json_int(json_get(o, "i")), -7);
    assert_true(json_real(json_get(o, "i")) == -7.0);
    assert_int_equal(json_type(json_get(o, "r")), JSON_REAL);
    assert_true(json_real(json_get(o, "r")) == 1.5);
    assert_int_equal(json_int(json_get(o, "r")), 0);
    assert_string_equal(json_str(json_get(o, "s")), "x");
    assert_int_equal(json_len(json_get(o, "a")), 3);
    assert_int_equal(json_int(json_at(json_get(o, "a"), 2)), 3);
    assert_null(json_at(json_get(o, "a"), 3));
    assert_int_equal(json_type(json_get(o, "o")), JSON_OBJECT);
}

static void questions_to_the_wrong_type_have_an_answer(void **state)
{
    AUTO(json) struct json *a = parse("[1]");

    assert_null(json_get(a, "x"));
    assert_null(json_get(NULL, "x"));
    assert_null(json_str(a));
    assert_null(json_str(NULL));
    assert_int_equal(json_str_len(a), 0);
    assert_null(json_iter(a));
    assert_null(json_iter(NULL));
    assert_null(json_at(NULL, 0));
    assert_int_equal(json_int(NULL), 0);
    assert_false(json_bool(NULL));
    assert_true(json_real(NULL) == 0);
    assert_int_equal(json_len(NULL), 0);
    assert_int_equal(json_len(json_at(a, 0)), 0);
    assert_int_equal(json_type(NULL), JSON_NULL);
    json_free(NULL);
}

static void any_value_may_be_the_root(void **state)
{
    static const char *const texts[] = {"null", " 1 ",      "\"x\"",  "true",
                                        "[]",   "\t{}\r\n", "-0.5e-3"};

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        json_free(parse(texts[i]));
}

static void strings_may_hold_nul(void **state)
{
    AUTO(json) struct json *s = parse("\"a\\u0000b\"");

    assert_int_equal(json_str_len(s), 3);
    assert_memory_equal(json_str(s), "a\0b", 4);
}

static void objects_are_walked_in_document_order(void **state)
{
    AUTO(json)
    struct json *o = parse("{\"z\":0,\"y\":1,\"b\":2,\"a\":3,\"\":4,\"zz\":5,\"m\":6,\"k\":7}");
    int i = 0;

    for (void *it = json_iter(o); it; it = json_iter_next(o, it)) {
        assert_ptr_equal(json_iter_value(it), json_get(o, json_iter_key(it)));
        assert_int_equal(json_int(json_iter_value(it)), i++);
    }
    assert_int_equal(i, 8);
}

static void bad_texts_are_refused_without_an_echo(void **state)
{
    static const struct {
        const char *text;
        const char *says;
    } rows[] = {
        {"", "ends too early"},
        {"   ", "ends too early"},
        {"{\"secret\":", "ends too early"},
        {"[secret]", "syntax"},
        {"{secret:1}", "syntax"},
        {"[1,]", "syntax"},
        {"{\"secret\":1,}", "syntax"},
        {"[1] secret", "more bytes"},
        {"{\"secret\":1,\"secret\":2}", "duplicate key"},
        {"\"secret\xff\"", "UTF-8"},
        {"\"secret\xed\xa0\x80\"", "UTF-8"},
        {"\"secret\n\"", "syntax"},
        {"\"\\ud800secret\"", "syntax"},
        {"\"\\xsecret\"", "syntax"},
        {"{\"secret\\u0000\":1}", "NUL"},
        {"[9223372036854775808]", "out of range"},
        {"[-9223372036854775809]", "out of range"},
        {"[1e999]", "out of range"},
        {"01", "syntax"},
        {"NaN", "syntax"},
        {"'secret'", "syntax"},
        {"// secret\n1", "syntax"},
        {"\xef\xbb\xbf{}", "syntax"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct json *root = NULL;
        struct err err = {0};
        assert_int_equal(json_parse(rows[i].text, strlen(rows[i].text), &root, &err), -EINVAL);
        assert_null(root);
        assert_int_equal(err.code, ERR_INVALID);
        if (!strstr(err.msg, rows[i].says))
            fail_msg("'%s' for %s", err.msg, rows[i].text);
        assert_null(strstr(err.msg, "secret"));
        assert_non_null(strstr(err.msg, "line "));
        assert_non_null(strstr(err.msg, "byte "));
    }
}

static void errors_have_a_place(void **state)
{
    const char *text = "{\n  \"a\": 1,\n  \"b\": x\n}";
    struct json *root;
    struct err err;

    assert_true(json_parse(text, strlen(text), &root, &err) < 0);
    assert_string_equal(err.msg, "JSON, line 3, column 8 (byte 20): syntax error");
}

static void bytes_after_the_length_are_not_read(void **state)
{
    struct json *root = NULL;
    char text[3] = {'1', '2', '3'};

    assert_int_equal(json_parse(text, 2, &root, NULL), 0);
    assert_int_equal(json_int(root), 12);
    json_free(root);
    assert_true(json_parse("\"\\", 2, &root, NULL) < 0);
    assert_int_equal(json_parse("1\0", 2, &root, NULL), -EINVAL);
    assert_int_equal(json_parse("[1\0,2]", 6, &root, NULL), -EINVAL);
    assert_int_equal(json_parse("\"\0\"", 3, &root, NULL), -EINVAL);
    assert_true(json_parse(NULL, 0, &root, NULL) < 0);
}

static int parse_nested(size_t depth, const char *open, const char *close)
{
    AUTO_DONE(buf) struct buf b;
    struct json *root = NULL;
    struct err err = {0};

    buf_init(&b, 100000);
    for (size_t i = 0; i < depth; i++)
        assert_int_equal(buf_puts(&b, open), 0);
    assert_int_equal(buf_puts(&b, "1"), 0);
    for (size_t i = 0; i < depth; i++)
        assert_int_equal(buf_puts(&b, close), 0);
    int r = json_parse(b.data, b.len, &root, &err);
    assert_int_equal(err.code, r < 0 ? ERR_LIMIT : ERR_NONE);
    json_free(root);
    return r;
}

static void depth_is_capped(void **state)
{
    assert_int_equal(parse_nested(JSON_DEPTH_MAX, "[", "]"), 0);
    assert_true(parse_nested(JSON_DEPTH_MAX + 1, "[", "]") < 0);
    assert_int_equal(parse_nested(JSON_DEPTH_MAX, "{\"[\\\"[\":", "}"), 0);
    assert_true(parse_nested(JSON_DEPTH_MAX + 1, "{\"a\":", "}") < 0);
    assert_true(parse_nested(5000, "[", "]") < 0);
}

static int parse_wide(size_t n)
{
    AUTO_DONE(buf) struct buf b;
    struct json *root = NULL;
    struct err err = {0};

    buf_init(&b, 10 * JSON_NODES_MAX);
    assert_int_equal(buf_puts(&b, "[\",,,,,:::{[\""), 0);
    for (size_t i = 1; i < n; i++)
        assert_int_equal(buf_puts(&b, ",1"), 0);
    assert_int_equal(buf_puts(&b, "]"), 0);
    int r = json_parse(b.data, b.len, &root, &err);
    assert_int_equal(err.code, r < 0 ? ERR_LIMIT : ERR_NONE);
    json_free(root);
    return r;
}

static void the_number_of_values_is_capped(void **state)
{
    assert_int_equal(parse_wide(JSON_NODES_MAX), 0);
    assert_true(parse_wide(JSON_NODES_MAX + 1) < 0);
}

/* What the emitter makes of a call; the caller frees. */
#define EMIT(...)                                                                                  \
    __extension__({                                                                                \
        struct buf emit_buf;                                                                       \
        struct jw w;                                                                               \
        buf_init(&emit_buf, 100000);                                                               \
        jw_init(&w, &emit_buf);                                                                    \
        __VA_ARGS__;                                                                               \
        assert_int_equal(jw_end(&w), 0);                                                           \
        buf_take(&emit_buf);                                                                       \
    })

static void commas_and_colons_fall_into_place(void **state)
{
    AUTO_FREE char *text = EMIT({
        jw_object(&w);
        jw_kstr(&w, "s", "x");
        jw_kint(&w, "i", INT64_MIN);
        jw_ku64(&w, "u", UINT64_MAX);
        jw_kreal(&w, "r", 0.5);
        jw_kbool(&w, "b", true);
        jw_knull(&w, "n");
        jw_kstr(&w, "none", NULL);
        jw_key(&w, "a");
        jw_array(&w);
        jw_int(&w, 1);
        jw_array(&w);
        jw_array_end(&w);
        jw_object(&w);
        jw_object_end(&w);
        jw_bool(&w, false);
        jw_array_end(&w);
        jw_key(&w, "");
        jw_null(&w);
        jw_object_end(&w);
    });

    assert_string_equal(text, "{\"s\":\"x\",\"i\":-9223372036854775808,"
                              "\"u\":18446744073709551615,\"r\":0.5,\"b\":true,\"n\":null,"
                              "\"none\":null,\"a\":[1,[],{},false],\"\":null}");
}

static void strings_are_escaped_and_repaired(void **state)
{
    static const struct {
        const char *in;
        size_t len;
        const char *out;
    } rows[] = {
        {"", 0, "\"\""},
        {"a\"b\\c/", 6, "\"a\\\"b\\\\c/\""},
        {"\b\f\n\r\t", 5, "\"\\b\\f\\n\\r\\t\""},
        {"\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\\u007f\""},
        {"\xc2\x9b\xc2\xa0", 4, "\"\\u009b\xc2\xa0\""},
        {"\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa", 9, "\"\\u2028\\u2029\xe2\x80\xaa\""},
        {"\xe2\x82\xac\xf0\x9f\x98\x80", 7, "\"\xe2\x82\xac\xf0\x9f\x98\x80\""},
        /* One U+FFFD for each maximal subpart, as Python's errors="replace" has it. */
        {"\xff", 1, "\"\xef\xbf\xbd\""},
        {"a\xe2\x82z", 4, "\"a\xef\xbf\xbdz\""},
        {"\xe2\x82", 2, "\"\xef\xbf\xbd\""},
        {"\xf0\x9f\x98", 3, "\"\xef\xbf\xbd\""},
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xc0\xaf", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xf0\x80\x80\x41", 4, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x41\""},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO_FREE char *text = EMIT(jw_strn(&w, rows[i].in, rows[i].len));
        assert_string_equal(text, rows[i].out);
        json_free(parse(text));
    }
}

static void reals_are_spelled_as_python_does(void **state)
{
    static const struct {
        double v;
        const char *text;
    } rows[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1.0, "1.0"},
        {-1.5, "-1.5"},
        {0.1, "0.1"},
        {0.30000000000000004, "0.30000000000000004"},
        {100.0, "100.0"},
        {123456789.125, "123456789.125"},
        {0.0001, "0.0001"},
        {0.00012345, "0.00012345"},
        {0.00001, "1e-05"},
        {1.5e-7, "1.5e-07"},
        {1e15, "1000000000000000.0"},
        {9999999999999998.0, "9999999999999998.0"},
        {1e16, "1e+16"},
        {12345678901234567890.0, "1.2345678901234567e+19"},
        {1e22, "1e+22"},
        {1e23, "1e+23"},
        {1e100, "1e+100"},
        {5e-324, "5e-324"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {5.684341886080802e-14, "5.684341886080802e-14"}, /* 2**-44: the nearest 16 digits miss */
        {9.5367431640625e-07, "9.5367431640625e-07"},
        {1792000000.123456, "1792000000.123456"},
        {NAN, "null"},
        {INFINITY, "null"},
        {-INFINITY, "null"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO_FREE char *text = EMIT(jw_real(&w, rows[i].v));
        assert_string_equal(text, rows[i].text);
    }
}

static void reals_read_back_as_they_were(void **state)
{
    uint64_t x = 88172645463325252ULL; /* xorshift, always the same row */

    for (int i = 0; i < 20000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        double v, back;
        memcpy(&v, &x, sizeof(v));
        if (!isfinite(v))
            continue;
        AUTO_FREE char *text = EMIT(jw_real(&w, v));
        assert_int_equal(str_to_double(text, &back), 0);
        assert_memory_equal(&v, &back, sizeof(v));
    }
}

static void a_parsed_value_is_written_as_it_was(void **state)
{
    const char *text = "{\"z\":[1,-2.5,1e+16,null,true,{\"a\\u0000\\n\":\"\\u0000\xe2\x82\xac\"}],"
                       "\"a\":{},\"\":[]}";
    const char *clean = "{\"z\":[1,-2.5,1e+16,null,true,{\"k\":\"\\u0000\xe2\x82\xac\"}],"
                        "\"a\":{},\"\":[]}";
    struct json *bad;

    assert_true(json_parse(text, strlen(text), &bad, NULL) < 0);
    AUTO(json) struct json *root = parse(clean);
    AUTO_FREE char *back = EMIT(jw_value(&w, root));
    assert_string_equal(back, clean);
    AUTO_FREE char *none = EMIT(jw_value(&w, NULL));
    assert_string_equal(none, "null");
}

static void build(struct jw *w)
{
    jw_object(w);
    jw_kstr(w, "key", "a text with \"quotes\" and \xff");
    jw_key(w, "list");
    jw_array(w);
    for (int i = 0; i < 20; i++)
        jw_real(w, i / 7.0);
    jw_array_end(w);
    jw_object_end(w);
}

static void text_that_is_json_is_a_value_of_its_own(void **state)
{
    AUTO_FREE char *text = EMIT(jw_array(&w); jw_raw(&w, "{\"a\":1}", 7); jw_raw(&w, "2x", 1);
                                jw_object(&w); jw_key(&w, "k"); jw_raw(&w, "null", 4);
                                jw_kint(&w, "n", 3); jw_object_end(&w); jw_array_end(&w));
    assert_string_equal(text, "[{\"a\":1},2,{\"k\":null,\"n\":3}]");
}

static void a_full_buffer_is_told_at_the_end(void **state)
{
    AUTO_FREE char *whole = EMIT(build(&w));

    for (size_t max = 0; max <= strlen(whole); max++) {
        AUTO_DONE(buf) struct buf b;
        struct jw w;
        buf_init(&b, max);
        jw_init(&w, &b);
        build(&w);
        assert_int_equal(jw_end(&w), max < strlen(whole) ? -ENOBUFS : 0);
        assert_memory_equal(buf_str(&b), whole, b.len);
    }
}

static void an_emitter_without_memory_fails_cleanly(void **state)
{
    for (long nth = 1; fault_next(FAULT_MALLOC, nth, ENOMEM); nth++) {
        AUTO_DONE(buf) struct buf b;
        struct jw w;
        buf_init(&b, 100000);
        jw_init(&w, &b);
        build(&w);
        assert_int_equal(jw_end(&w), fault_missed() ? 0 : -ENOBUFS);
    }
}

static void a_parser_without_memory_fails_cleanly(void **state)
{
    const char *text =
        "{\"a\":[1,2.5,\"text\",{\"b\":null,\"c\":[true,[[\"\\u0000\"]]]}],\"d\":-1}";

    json_set_alloc_funcs(fault_malloc, free);
    for (long nth = 1; fault_next(FAULT_MALLOC, nth, ENOMEM); nth++) {
        struct json *root = NULL;
        struct err err = {0};
        int r = json_parse(text, strlen(text), &root, &err);
        assert_int_equal(r == 0, fault_missed());
        assert_int_equal(r == 0, root != NULL);
        assert_int_equal(r == 0, err.code == ERR_NONE);
        json_free(root);
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_read),
        cmocka_unit_test(questions_to_the_wrong_type_have_an_answer),
        cmocka_unit_test(any_value_may_be_the_root),
        cmocka_unit_test(strings_may_hold_nul),
        cmocka_unit_test(objects_are_walked_in_document_order),
        cmocka_unit_test(bad_texts_are_refused_without_an_echo),
        cmocka_unit_test(errors_have_a_place),
        cmocka_unit_test(bytes_after_the_length_are_not_read),
        cmocka_unit_test(depth_is_capped),
        cmocka_unit_test(the_number_of_values_is_capped),
        cmocka_unit_test(commas_and_colons_fall_into_place),
        cmocka_unit_test(strings_are_escaped_and_repaired),
        cmocka_unit_test(reals_are_spelled_as_python_does),
        cmocka_unit_test(reals_read_back_as_they_were),
        cmocka_unit_test(a_parsed_value_is_written_as_it_was),
        cmocka_unit_test(text_that_is_json_is_a_value_of_its_own),
        cmocka_unit_test(a_full_buffer_is_told_at_the_end),
        cmocka_unit_test(an_emitter_without_memory_fails_cleanly),
        cmocka_unit_test(a_parser_without_memory_fails_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
