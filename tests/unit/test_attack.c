/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/attack/report.h"

static struct json *receipt(const char *text)
{
    struct json *v = NULL;
    struct err err;

    assert_int_equal(json_parse(text, strlen(text), &v, &err), 0);
    return v;
}

#define NATIVE                                                                                     \
    "{\"backend\": \"native\", \"network\": \"none\", \"namespaces\": {\"user\": \"private\"},"    \
    " \"payload\": {\"seccomp\": \"2\", \"cap_effective\": \"0\"},"                                \
    " \"limits\": {\"memory_bytes\": {\"enforced\": true, \"value\": 1},"                          \
    " \"pids\": {\"enforced\": false, \"reason\": \"no controller\"}}}"

/* The state of one attempt that worked. */
static enum attack_state judged(const char *receipt_text, const char *id, const char *detail)
{
    AUTO(json) struct json *v = receipt(receipt_text);
    AUTO_DONE(attack_report) struct attack_report r = {0};

    attack_add(&r, v, id, ATTACK_FAIL, detail);
    assert_int_equal(r.n, 1);
    assert_true((r.checks[0].reason[0] != '\0') == (r.checks[0].state == ATTACK_NOT_PROMISED));
    return r.checks[0].state;
}

static void what_the_receipt_promises_is_broken(void **state)
{
    assert_int_equal(judged(NATIVE, "E02", "1 GiB"), ATTACK_BROKEN);
    assert_int_equal(judged(NATIVE, "B01.unshare-user", "success"), ATTACK_BROKEN);
    assert_int_equal(judged(NATIVE, "B02.mount", "EINVAL"), ATTACK_BROKEN); /* it was looked at */
    assert_int_equal(judged(NATIVE, "A02.CapEff", "1"), ATTACK_BROKEN);
    assert_int_equal(judged(NATIVE, "A06.user", "4026531837"), ATTACK_BROKEN);
    assert_int_equal(judged(NATIVE, "D02.address-1", "success"), ATTACK_BROKEN);
    assert_int_equal(judged(NATIVE, "M03.file", "/tmp/x"), ATTACK_BROKEN);
    assert_int_equal(judged(NATIVE, "Z99", "never heard of"), ATTACK_BROKEN);
    assert_int_equal(judged("{}", "A06.pid", "1"), ATTACK_BROKEN);
}

static void what_it_does_not_promise_is_not(void **state)
{
    assert_int_equal(judged(NATIVE, "E01", "72 processes"), ATTACK_NOT_PROMISED);
    assert_int_equal(judged(NATIVE, "F01.write", "48 MiB"), ATTACK_NOT_PROMISED);
    assert_int_equal(judged(NATIVE, "C07.root", "4 host paths"), ATTACK_NOT_PROMISED);
    assert_int_equal(judged("{}", "B01.unshare-user", "success"), ATTACK_NOT_PROMISED);
    assert_int_equal(
        judged("{\"network\": \"the engine's own, not filtered\"}", "D02.address-1", "success"),
        ATTACK_NOT_PROMISED);
    assert_int_equal(judged("{\"network\": \"nat, private ranges refused\"}", "D01", "eth0"),
                     ATTACK_NOT_PROMISED);
    assert_int_equal(
        judged("{\"network\": \"nat, private ranges refused\"}", "D04.metadata", "success"),
        ATTACK_BROKEN);
}

/* A list of what is missing takes the place of what is known of engines and of gVisor. */
static void a_wall_that_the_receipt_names_as_missing_is_not_promised(void **state)
{
#define LIST                                                                                       \
    "\"container_id\": \"x\", \"weaker_than_native\": "                                            \
    "[{\"wall\": \"mount-flags\", \"reason\": \"engines\"}]}"
    assert_int_equal(judged("{" LIST, "C07.flags", "31"), ATTACK_NOT_PROMISED);
    assert_int_equal(judged("{" LIST, "C04", "9 mounts"), ATTACK_BROKEN);
    assert_int_equal(judged("{\"container_id\": \"x\"}", "C04", "9 mounts"), ATTACK_NOT_PROMISED);
    assert_int_equal(judged("{\"kernel\": \"gvisor\", " LIST, "A10.environ", "success"),
                     ATTACK_BROKEN);
    assert_int_equal(judged("{\"kernel\": \"gvisor\", " LIST, "A06.mnt", "0"), ATTACK_NOT_PROMISED);
}

static void any_refusal_of_gvisor_holds(void **state)
{
    const char *gvisor = "{\"kernel\": \"gvisor\", \"payload\": {\"seccomp\": \"2\"}}";

    assert_int_equal(judged(gvisor, "B17.securebits", "EINVAL"), ATTACK_HELD);
    assert_int_equal(judged(gvisor, "B18.nice", "success"), ATTACK_NOT_PROMISED);
    assert_int_equal(judged(gvisor, "C08.fds", "EINVAL"), ATTACK_BROKEN);
    assert_int_equal(judged(gvisor, "E06", "too much"), ATTACK_BROKEN);
    assert_int_equal(judged(NATIVE, "C05./dev", "EACCES"), ATTACK_HELD);
}

static void lines_are_read_and_nonsense_is_not(void **state)
{
    static const char text[] = "A02.CapEff ok 0\n"
                               "A02.CapEff FAIL the first word counts\n"
                               "E02 FAIL 1 GiB\n"
                               "B16.landlock n/a ENOSYS\n"
                               "C14./tmp n/a bytes=1\n"
                               "nonsense ok\n\nA03 maybe\nA\033[31m ok x\n B01 ok\n"
                               "D01 ok";
    AUTO(json) struct json *v = receipt(NATIVE);
    AUTO_DONE(attack_report) struct attack_report r = {0};

    assert_false(attack_read(&r, v, text, strlen(text)));
    assert_int_equal(r.n, 4);
    assert_int_equal(r.counts[ATTACK_HELD], 2);
    assert_int_equal(r.counts[ATTACK_BROKEN], 1);
    assert_int_equal(r.counts[ATTACK_NOT_TRIED], 1);
    assert_string_equal(r.checks[2].reason, "ENOSYS");
    assert_true(attack_read(&r, v, "# 4 checks, 1 failed\n", 21));
    assert_int_equal(attack_status(&r), 1);
}

static void there_is_a_cap_on_checks(void **state)
{
    AUTO_DONE(attack_report) struct attack_report r = {0};
    char id[16];

    for (unsigned i = 0; i <= ATTACK_CHECKS_MAX; i++) {
        (void)str_fmt(id, sizeof(id), "A%u", i);
        attack_add(&r, NULL, id, ATTACK_OK, "");
    }
    assert_int_equal(r.n, ATTACK_CHECKS_MAX);
}

static void nothing_tried_is_no_success(void **state)
{
    struct attack_report r = {0};

    assert_int_equal(attack_status(&r), 125);
    r.has_escapes = true;
    assert_int_equal(attack_status(&r), 0);
}

/* What comes from inside can neither end a tag nor drive a terminal. */
static void reports_escape_what_comes_from_inside(void **state)
{
    AUTO(json) struct json *v = receipt(NATIVE);
    AUTO_DONE(attack_report) struct attack_report r = {.backend = "native", .has_escapes = true};
    AUTO_DONE(buf) struct buf out;
    struct err err;
    AUTO(json) struct json *parsed = NULL;

    buf_init(&out, 65536);
    attack_add(&r, v, "E02", ATTACK_FAIL, "<&\"\033[31m\xff>");
    attack_add(&r, v, "E01", ATTACK_FAIL, "many");
    assert_true(attack_write(&r, "junit", &out) >= 0);
    assert_non_null(
        strstr(buf_str(&out), "<failure message=\"BROKEN: &lt;&amp;&quot;\\x1b[31m\\xff&gt;\"/>"));
    assert_non_null(
        strstr(buf_str(&out), "<skipped message=\"not promised: many; no controller\"/>"));
    assert_non_null(strstr(buf_str(&out), "tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"1\""));
    buf_reset(&out);
    assert_true(attack_write(&r, "text", &out) >= 0);
    assert_null(strchr(buf_str(&out), '\033'));
    assert_non_null(strstr(buf_str(&out), "BROKEN: E02 (memory)"));
    assert_true(str_ends(buf_str(&out), "2 checks on native in 0.0 s: 0 held, 1 broken, 1 not "
                                        "promised, 0 not tried\n"));
    buf_reset(&out);
    assert_true(attack_write(&r, "json", &out) >= 0);
    assert_int_equal(json_parse(buf_str(&out), out.len, &parsed, &err), 0);
    assert_string_equal(json_str(json_get(parsed, "result")), "broken");
    assert_int_equal(json_int(json_get(json_get(parsed, "counts"), "not_promised")), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_receipt_promises_is_broken),
        cmocka_unit_test(what_it_does_not_promise_is_not),
        cmocka_unit_test(a_wall_that_the_receipt_names_as_missing_is_not_promised),
        cmocka_unit_test(any_refusal_of_gvisor_holds),
        cmocka_unit_test(lines_are_read_and_nonsense_is_not),
        cmocka_unit_test(there_is_a_cap_on_checks),
        cmocka_unit_test(nothing_tried_is_no_success),
        cmocka_unit_test(reports_escape_what_comes_from_inside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
