/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"
#include "session/process.h"
#include "session/record.h"
#include "spec/model.h"
#include "spec/process.h"
#include "spec/spec.h"
#include "store/store.h"

static char fake_name[] = "fake", box_name[] = "fake-1", no_text[] = "";

static void session_comes_back_without_its_command(void **state)
{
    AUTO(spec) struct spec *spec = spec_new();
    AUTO_DONE(buf) struct buf text;
    AUTO_DONE(session_record) struct session_record back = {0};
    struct err err = {0};
    buf_init(&text, STORE_RECORD_MAX);
    spec->session_id = xstrdup("s \xe2\x82\xac");
    free(spec->cmd);
    spec->cmd = xstrdup("secret command");
    spec->persistent = true;
    strv_add(&spec->env, "A=b=c");
    spec->own.artifacts = xstrdup("/srv/box/tree");
    strv_add(&spec->own.artifact_digests, "sha256:0");
    strv_add(&spec->own.allow_hosts, "127.0.0.1:5432");
    AUTO(process_spec) struct process_spec *start = xnew(struct process_spec);
    model_init(&process_request_model, start);
    free(start->process_id);
    start->process_id = xstrdup(PROCESS_START_ID);
    start->command = xstrdup("serve");
    strv_add(&start->env, "TOKEN=value"); /* it is started again by us */
    start->log = start->tty = true;
    struct session_record record = {
        .start = {.spec = start, .policy = START_ON_FAILURE, .wanted = true},
        .spec = spec,
        .backend = fake_name,
        .sandbox = box_name,
        .created_ns = 1234567890123456789,
        .numbers_end = UINT32_MAX};
    assert_int_equal(session_record_write(&record, &text), 0);
    assert_null(strstr(buf_str(&text), "secret"));
    assert_string_equal(spec->cmd, "secret command");
    assert_int_equal(session_record_read(text.data, text.len, &back, &err), 0);
    assert_string_equal(back.spec->session_id, "s \xe2\x82\xac");
    assert_string_equal(back.spec->env[0], "A=b=c");
    assert_string_equal(back.spec->own.artifacts, "/srv/box/tree");
    assert_string_equal(back.spec->own.artifact_digests[0], "sha256:0");
    assert_null(back.spec->own.artifact_digests[1]);
    assert_string_equal(back.spec->own.allow_hosts[0], "127.0.0.1:5432");
    assert_null(back.spec->own.allow_hosts[1]);
    assert_true(back.spec->persistent);
    assert_string_equal(back.backend, "fake");
    assert_string_equal(back.sandbox, "fake-1");
    assert_int_equal(back.created_ns, 1234567890123456789);
    assert_int_equal(back.numbers_end, UINT32_MAX);
    assert_string_equal(back.start.spec->env[0], "TOKEN=value");
    assert_true(back.start.spec->tty && back.start.wanted && !back.start.removes);
    assert_int_equal(back.start.policy, START_ON_FAILURE);
}

static void process_comes_back_without_its_secrets(void **state)
{
    AUTO(process_spec) struct process_spec *spec = xnew(struct process_spec);
    AUTO_DONE(buf) struct buf text;
    AUTO_DONE(process_record) struct process_record back = {0};
    struct err err = {0};
    buf_init(&text, STORE_RECORD_MAX);
    model_init(&process_spec_model, spec);
    spec->command = xstrdup("npx");
    strv_add(&spec->args, "");
    strv_add(&spec->env, "TOKEN=secret");
    strv_add(&spec->env, "EMPTY=");
    struct process_record record = {.spec = spec,
                                    .number = 7,
                                    .started_ns = 5,
                                    .exited = true,
                                    .exited_ns = 6,
                                    .exit_code = -9,
                                    .stderr_text = no_text};
    AUTO_DONE(buf) struct buf log = BUF_INIT(PROCESS_SAVED_MAX);
    for (unsigned i = 0; i < PROCESS_SAVED_MAX; i++) /* as much as there can be, of every byte */
        assert_int_equal(buf_putc(&log, (char)(i * 31)), 0);
    record.log = log;
    assert_int_equal(process_record_write(&record, &text), 0);
    assert_null(strstr(buf_str(&text), "secret"));
    assert_string_equal(spec->env[0], "TOKEN=secret");
    assert_int_equal(process_record_read(text.data, text.len, &back, &err), 0);
    assert_string_equal(back.spec->env[0], "TOKEN=");
    assert_string_equal(back.spec->env[1], "EMPTY=");
    assert_int_equal(strv_len(back.spec->args), 1);
    assert_int_equal(back.number, 7);
    assert_true(back.exited);
    assert_int_equal(back.exit_code, -9);
    assert_int_equal(back.log.len, log.len);
    assert_memory_equal(back.log.data, log.data, log.len);
}

#define SESSION "\"spec\":{\"session_id\":\"s\"}"
#define STATE "\"backend\":\"fake\",\"sandbox\":\"fake-1\",\"created_ns\":1,\"numbers_end\":1"

static void edited_records_are_refused(void **state)
{
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {"{\"version\":1," SESSION ",\"state\":{" STATE "}}", true},
        {"{\"version\":1," SESSION ",\"state\":{" STATE
         ",\"start_policy\":\"always\"},\"start\":{\"process_id\":\"main\",\"command\":\"a\","
         "\"log\":true}}",
         true},
        {"{\"version\":1," SESSION ",\"state\":{" STATE ",\"start_policy\":\"often\"}}", false},
        {"{\"version\":1," SESSION ",\"state\":{" STATE "},\"start\":{}}", false},
        {"{\"version\":1," SESSION ",\"state\":{" STATE
         "},\"start\":{\"command\":\"a\",\"log\":true}}",
         false},
        {"", false},
        {"null", false},
        {"{\"version\":1," SESSION "}", false},
        {"{\"version\":1,\"state\":{" STATE "}}", false},
        {"{\"version\":\"1\"," SESSION ",\"state\":{" STATE "}}", false},
        {"{\"version\":1,\"spec\":{\"session_id\":\" \"},\"state\":{" STATE "}}", false},
        {"{\"version\":1," SESSION ",\"state\":{" STATE ",\"more\":1}}", false},
        {"{\"version\":1," SESSION ",\"state\":{\"backend\":\"fake\",\"sandbox\":\"../x\","
         "\"created_ns\":1,\"numbers_end\":1}}",
         false},
        {"{\"version\":1," SESSION ",\"state\":{\"backend\":\"fake\",\"sandbox\":\"\","
         "\"created_ns\":1,\"numbers_end\":1}}",
         false},
        {"{\"version\":1," SESSION ",\"state\":{\"backend\":\"fake\",\"sandbox\":\"a\","
         "\"created_ns\":-1,\"numbers_end\":1}}",
         false},
        {"{\"version\":1," SESSION ",\"state\":{\"backend\":\"fake\",\"sandbox\":\"a\","
         "\"created_ns\":1,\"numbers_end\":0}}",
         false},
        {"{\"version\":1," SESSION ",\"state\":{\"backend\":\"fake\",\"sandbox\":\"a\","
         "\"created_ns\":1,\"numbers_end\":4294967296}}",
         false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct session_record back = {0};
        struct err err = {0};
        int r = session_record_read(cases[i].text, strlen(cases[i].text), &back, &err);
        if ((r == 0) != cases[i].good)
            fail_msg("%s: %s", cases[i].text, err.msg);
        assert_true(r == 0 || err.msg[0] != '\0');
        session_record_done(&back);
    }
}

static void record_that_is_too_large_is_not_even_parsed(void **state)
{
    AUTO_FREE char *large = xcalloc(1, STORE_RECORD_MAX + 1);
    struct process_record back = {0};
    struct err err = {0};
    memset(large, ' ', STORE_RECORD_MAX + 1);
    assert_int_equal(process_record_read(large, STORE_RECORD_MAX + 1, &back, &err),
                     err_code_errno(ERR_LIMIT));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(session_comes_back_without_its_command),
        cmocka_unit_test(process_comes_back_without_its_secrets),
        cmocka_unit_test(edited_records_are_refused),
        cmocka_unit_test(record_that_is_too_large_is_not_even_parsed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
