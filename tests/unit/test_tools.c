/* SPDX-License-Identifier: Apache-2.0 */
#include "core_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/files.h"
#include "agent/tools.h"
#include "base/buf.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "policy/audit/audit.h"
#include "policy/authz.h"
#include "policy/error_ring.h"
#include "policy_fixture.h"

/* The fake backend with a box-files that says what the test wants it to say. */
struct stub {
    struct exec base;
    struct exec_events events;
    void *arg;
    struct loop *loop;
    struct loop_defer defer;
    struct buf asked;   /* what came on stdin */
    struct buf answer;  /* what it says once stdin is closed, or at once */
    bool at_once, deaf; /* deaf: it takes no input and says nothing */
    size_t piece;       /* bytes at a time; 0: all */
    bool closed, freed, killed, finished;
    unsigned starts;
};

static struct stub stub;
static struct backend_ops ops;
static const struct backend_ops *fake_ops;

static bool is_stub(const struct exec *e)
{
    return e == &stub.base;
}

static void on_turn(struct loop_defer *d)
{
    size_t n = stub.piece > 0 && stub.piece < stub.answer.len ? stub.piece : stub.answer.len;
    if (n > 0) {
        char *data = xcalloc(1, n);
        memcpy(data, stub.answer.data, n);
        buf_consume(&stub.answer, n);
        stub.events.output(stub.arg, EXEC_STDOUT, data, n);
        free(data);
    }
    if (stub.freed || stub.finished || stub.deaf)
        return;
    if (stub.answer.len > 0) {
        loop_defer_start(stub.loop, &stub.defer, on_turn);
        return;
    }
    stub.finished = true;
    stub.events.finished(stub.arg, &(struct outcome){.kind = OUTCOME_EXITED});
}

static int stub_exec(struct sandbox *sb, const struct exec_request *req,
                     const struct exec_events *events, void *arg, struct exec **ret,
                     struct err *err)
{
    if (!req->files)
        return fake_ops->exec(sb, req, events, arg, ret, err);
    assert_true(req->with_stdin && str_eq(req->cwd, "/"));
    stub.base.backend = sb->backend;
    stub.events = *events;
    stub.arg = arg;
    stub.closed = stub.freed = stub.killed = stub.finished = false;
    stub.starts++;
    buf_reset(&stub.asked);
    if (stub.at_once)
        loop_defer_start(stub.loop, &stub.defer, on_turn);
    *ret = &stub.base;
    return 0;
}

static int stub_write(struct exec *e, const char *data, size_t len)
{
    if (!is_stub(e))
        return fake_ops->exec_write(e, data, len);
    int r = buf_append(&stub.asked, data, len);
    return r == 0 && stub.deaf ? 1 : r;
}

static void stub_close(struct exec *e)
{
    if (!is_stub(e)) {
        fake_ops->exec_close_stdin(e);
        return;
    }
    stub.closed = true;
    if (!stub.deaf)
        loop_defer_start(stub.loop, &stub.defer, on_turn);
}

static void stub_kill(struct exec *e)
{
    if (is_stub(e))
        stub.killed = true;
    else
        fake_ops->exec_kill(e);
}

static void stub_free(struct exec *e)
{
    if (!is_stub(e)) {
        fake_ops->exec_free(e);
        return;
    }
    stub.freed = true;
    loop_defer_stop(&stub.defer);
}

static void stub_pause(struct exec *e, bool paused)
{
    if (!is_stub(e))
        fake_ops->exec_pause(e, paused);
}

struct stage {
    struct fixture f;
    struct policy *policy;
    struct error_ring *errors;
    struct policy_service service;
    struct heard session;
    struct tool_call *call;
    int n;
    bool is_error;
    struct err err;
    char json[8192], text[8192];
};

static void stage_start(struct stage *s)
{
    memset(s, 0, sizeof(*s));
    fixture_start(&s->f, NULL, NULL);
    stub = (struct stub){.loop = s->f.loop};
    buf_init(&stub.asked, 1 << 24);
    buf_init(&stub.answer, 1 << 24);
    fake_ops = s->f.backend->ops;
    ops = *fake_ops;
    ops.exec = stub_exec;
    ops.exec_write = stub_write;
    ops.exec_close_stdin = stub_close;
    ops.exec_kill = stub_kill;
    ops.exec_free = stub_free;
    ops.exec_pause = stub_pause;
    s->f.backend->ops = &ops;
    s->policy = policy_good("{}");
    s->errors = error_ring_new();
    s->service = (struct policy_service){
        .policy = s->policy, .manager = s->f.m, .errors = s->errors, .session_ttl_sec = 300};
    acquire_id(&s->f, "s", &s->session);
    pump(&s->f);
    assert_non_null(s->session.session);
}

static void stage_stop(struct stage *s)
{
    tool_call_free(s->call);
    pump(&s->f);
    give_back(&s->session);
    s->f.backend->ops = fake_ops;
    fixture_stop(&s->f);
    policy_free(s->policy);
    error_ring_free(s->errors);
    buf_done(&stub.asked);
    buf_done(&stub.answer);
}

static void on_done(void *arg, const struct tool_result *result, const struct err *err)
{
    struct stage *s = arg;
    s->n++;
    assert_true((result == NULL) == (err != NULL));
    s->err = err != NULL ? *err : (struct err){0};
    if (result == NULL)
        return;
    s->is_error = result->is_error;
    assert_true(result->json.len < sizeof(s->json) && result->text.len < sizeof(s->text));
    assert_int_equal(str_copy(s->json, sizeof(s->json), buf_str(&result->json)), 0);
    assert_int_equal(str_copy(s->text, sizeof(s->text), buf_str(&result->text)), 0);
    /* The object is one, whatever came from inside. */
    struct json *parsed = NULL;
    assert_int_equal(json_parse(result->json.data, result->json.len, &parsed, NULL), 0);
    assert_int_equal(json_type(parsed), JSON_OBJECT);
    json_free(parsed);
}

static int start(struct stage *s, const char *tool, const char *arguments,
                 const struct tool_where *where, struct err *err)
{
    AUTO(json) struct json *json = NULL;
    assert_int_equal(json_parse(arguments, strlen(arguments), &json, NULL), 0);
    tool_call_free(s->call);
    s->call = NULL;
    s->n = 0;
    s->is_error = false;
    s->json[0] = s->text[0] = '\0';
    struct tool_where here = {.service = &s->service, .session_id = "s", .via = "test"};
    if (where != NULL)
        here = *where;
    here.arguments = json;
    return tool_call_start(tools_find(tool), &here, on_done, s, &s->call, err);
}

static void call(struct stage *s, const char *tool, const char *arguments)
{
    struct err err = {0};
    if (start(s, tool, arguments, NULL, &err) < 0)
        fail_msg("%s: %s", tool, err.msg);
    assert_int_equal(s->n, 0); /* never from inside the call */
    pump(&s->f);
    assert_int_equal(s->n, 1);
}

static void say(uint32_t type, const void *head, size_t head_len, const char *text)
{
    struct files_head h = {.type = type, .len = (uint32_t)(head_len + strlen(text))};
    assert_int_equal(buf_append(&stub.answer, &h, sizeof(h)), 0);
    assert_int_equal(buf_append(&stub.answer, head, head_len), 0);
    assert_int_equal(buf_append(&stub.answer, text, strlen(text)), 0);
}

static void say_done(struct files_done done)
{
    say(FILES_FRAME_DONE, &done, sizeof(done), "");
}

static void say_fail(enum files_why why, int error, uint64_t n, const char *text)
{
    struct files_fail f = {.why = why, .error = error, .n = n};
    say(FILES_FRAME_FAIL, &f, sizeof(f), text);
}

static void say_stat(uint64_t size)
{
    struct files_stat st = {.tag = {.size = size}, .end = size, .mode = S_IFREG | 0644};
    say(FILES_FRAME_STAT, &st, sizeof(st), "");
}

static void the_table_is_whole(void **state)
{
    static const char *const names[] = {"exec", "read", "write", "edit", "glob", "grep"};
    assert_int_equal(tools_count(), ARRAY_SIZE(names));
    assert_null(tools_at(tools_count()));
    assert_null(tools_find("rm"));
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        const struct tool *t = tools_find(names[i]);
        AUTO_DONE(buf) struct buf out;
        AUTO(json) struct json *json = NULL;
        struct jw w;
        assert_ptr_equal(t, tools_at(i));
        buf_init(&out, 1 << 16);
        jw_init(&w, &out);
        tool_write(t, &w);
        assert_int_equal(jw_end(&w), 0);
        assert_int_equal(json_parse(out.data, out.len, &json, NULL), 0);
        const struct json *schema = json_get(json, "parameters");
        assert_string_equal(json_str(json_get(schema, "type")), "object");
        assert_false(json_bool(json_get(schema, "additionalProperties")));
        assert_true(json_len(json_get(schema, "required")) > 0);
        assert_true(strlen(t->description) > 40);
    }
}

static void wrong_arguments_start_nothing(void **state)
{
    static const struct {
        const char *tool, *arguments;
    } cases[] = {
        {"read", "{}"},
        {"read", "{\"path\":\"\"}"},
        {"read", "{\"path\":\"a\",\"limit\":0}"},
        {"read", "{\"path\":\"a\",\"limit\":10001}"},
        {"read", "{\"path\":\"a\",\"max_bytes\":51201}"},
        {"read", "{\"path\":\"a\",\"encoding\":\"rot13\"}"},
        {"read", "{\"path\":\"a\",\"more\":1}"},
        {"write", "{\"path\":\"a\"}"},
        {"edit", "{\"path\":\"a\",\"old_string\":\"\",\"new_string\":\"b\"}"},
        {"glob", "{}"},
        {"grep", "{\"pattern\":\"\"}"},
        {"exec", "{\"command\":\"x\",\"timeout_sec\":0}"},
        {"exec", "[]"},
    };
    struct stage s;
    stage_start(&s);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct err err = {0};
        if (start(&s, cases[i].tool, cases[i].arguments, NULL, &err) >= 0)
            fail_msg("%s %s", cases[i].tool, cases[i].arguments);
        assert_int_equal(err.code, ERR_INVALID);
        assert_true(strlen(err.msg) > 0);
    }
    assert_int_equal(stub.starts, 0);
    stage_stop(&s);
}

/* What a host expects to read, word for word. */
static void failures_have_their_words(void **state)
{
    static const struct {
        const char *tool, *arguments;
        enum files_why why;
        int error;
        uint64_t n;
        const char *text, *want;
    } cases[] = {
        {"read", "{\"path\":\"/workspace/x\"}", FILES_WHY_ERRNO, ENOENT, 0, "",
         "File not found: /workspace/x"},
        {"read", "{\"path\":\"x\"}", FILES_WHY_ERRNO, ENOTDIR, 0, "",
         "File not found: /workspace/x"},
        {"read", "{\"path\":\"x\"}", FILES_WHY_SPECIAL, EINVAL, 0, "",
         "Path must reference a regular file or directory."},
        {"read", "{\"path\":\"x\"}", FILES_WHY_ESCAPE, EXDEV, 0, "",
         "Path escapes the workspace boundary."},
        {"write", "{\"path\":\"x\",\"content\":\"\"}", FILES_WHY_ERRNO, EISDIR, 0, "",
         "Path must reference a regular file."},
        {"write", "{\"path\":\"x\",\"content\":\"\"}", FILES_WHY_ERRNO, ENOSPC, 0, "",
         "/workspace/x: the session's disk is full; nothing was kept"},
        {"edit", "{\"path\":\"x\",\"old_string\":\"a\",\"new_string\":\"\"}", FILES_WHY_NO_PLACE,
         ENOENT, 0, "", "old_string not found in file."},
        {"edit", "{\"path\":\"x\",\"old_string\":\"a\",\"new_string\":\"\"}", FILES_WHY_PLACES, 0,
         3, "", "old_string matches 3 locations; provide a more unique string."},
        {"edit", "{\"path\":\"x\",\"old_string\":\"a\",\"new_string\":\"\"}", FILES_WHY_TOO_LARGE,
         EFBIG, 1, "", "File exceeds the 1048576-byte edit limit."},
        {"edit", "{\"path\":\"x\",\"old_string\":\"a\",\"new_string\":\"\"}", FILES_WHY_TOO_LARGE,
         EOVERFLOW, 1, "", "Edited file exceeds the 1048576-byte limit."},
        {"edit", "{\"path\":\"x\",\"old_string\":\"a\",\"new_string\":\"\"}", FILES_WHY_ERRNO,
         ENOENT, 0, "", "File not found: /workspace/x"},
        {"glob", "{\"pattern\":\"*\",\"path\":\"/workspace/d\"}", FILES_WHY_ERRNO, ENOENT, 0, "",
         "Path is not a directory: /workspace/d"},
        {"grep", "{\"pattern\":\"*\"}", FILES_WHY_PATTERN, EINVAL, 0, "nothing to repeat",
         "Invalid regex: nothing to repeat"},
        {"grep", "{\"pattern\":\"a\",\"path\":\"d\"}", FILES_WHY_ERRNO, ENOENT, 0, "",
         "Path not found: /workspace/d"},
    };
    struct stage s;
    stage_start(&s);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        say_fail(cases[i].why, cases[i].error, cases[i].n, cases[i].text);
        call(&s, cases[i].tool, cases[i].arguments);
        assert_true(s.is_error);
        assert_string_equal(s.text, cases[i].want);
        assert_non_null(strstr(s.json, "\"ok\":false"));
    }
    stage_stop(&s);
}

static void paths_outside_are_never_asked_for(void **state)
{
    static const char *const paths[] = {"/etc/passwd", "/workspacefoo", "/", "//workspace/x"};
    char arguments[128];
    struct stage s;
    stage_start(&s);
    for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
        (void)snprintf(arguments, sizeof(arguments), "{\"path\":\"%s\"}", paths[i]);
        call(&s, "read", arguments);
        assert_string_equal(s.text, "Path must be under /workspace.");
    }
    call(&s, "write", "{\"path\":\"/workspace\",\"content\":\"x\"}");
    assert_string_equal(s.text, "Path must reference a file under /workspace.");
    assert_int_equal(stub.starts, 0);
    stage_stop(&s);
}

static void results_have_their_members(void **state)
{
    struct stage s;
    struct files_match m = {.line = 7, .path_len = 3, .text_len = 4};
    stage_start(&s);
    stub.piece = 5; /* frames come as they like */
    say_stat(9);
    say(FILES_FRAME_DATA, "", 0,
        "one\n\xff"
        "two");
    say_done(
        (struct files_done){.cut = FILES_CUT_LINES, .first = 1, .last = 2, .next = 3, .total = 2});
    call(&s, "read", "{\"path\":\"x\",\"limit\":2}");
    assert_string_equal(s.json,
                        "{\"ok\":true,\"content\":\"one\\n\xef\xbf\xbdtwo\",\"truncated\":true,"
                        "\"truncated_by\":\"lines\",\"start_line\":1,\"end_line\":2,"
                        "\"next_offset\":3,\"max_lines\":2,\"max_bytes\":51200}");
    assert_string_equal(s.text, "one\n\xef\xbf\xbdtwo\n[truncated; go on with offset 3]");
    say(FILES_FRAME_MATCH, &m, sizeof(m), "a.cline");
    say_done((struct files_done){.total = 1});
    call(&s, "grep", "{\"pattern\":\"l\"}");
    assert_string_equal(s.json, "{\"ok\":true,\"matches\":[{\"file\":\"/workspace/a.c\",\"line\":7,"
                                "\"content\":\"line\"}],\"total\":1,\"truncated\":false,"
                                "\"truncated_by\":null}");
    assert_string_equal(s.text, "/workspace/a.c:7:line");
    say_stat(3);
    say_done((struct files_done){.created = 1});
    call(&s, "write", "{\"path\":\"x\",\"content\":\"YWJj\",\"encoding\":\"base64\"}");
    assert_string_equal(
        s.json, "{\"ok\":true,\"path\":\"/workspace/x\",\"size_bytes\":3,\"created\":true}");
    assert_non_null(memmem(stub.asked.data, stub.asked.len, "abc", 3));
    stage_stop(&s);
}

/* Programs of the same user id run beside box-files: whatever they make it say, there is one
 * answer, and it is an error. */
static void a_hostile_answer_is_an_error(void **state)
{
    static const struct files_entry entry = {.name_len = 100};
    static const struct files_stat twice = {.end = 5, .tag = {.size = 5}};
    static const struct files_stat lies = {.begin = 5, .end = 4, .tag = {.size = 9}};
    struct stage s;
    stage_start(&s);
    for (int i = 0; i < 10; i++) {
        struct files_head h = {.type = FILES_FRAME_DATA, .len = UINT32_MAX};
        const char *tool = "read", *arguments = "{\"path\":\"x\",\"encoding\":\"base64\"}";
        switch (i) {
        case 0: /* a frame without end */
            (void)buf_append(&stub.answer, &h, sizeof(h));
            break;
        case 1: /* content that was not announced */
            say(FILES_FRAME_DATA, "", 0, "x");
            break;
        case 2: /* more than was announced */
            say_stat(1);
            say(FILES_FRAME_DATA, "", 0, "xx");
            break;
        case 3: /* less */
            say_stat(5);
            say(FILES_FRAME_DATA, "", 0, "xx");
            say_done((struct files_done){0});
            break;
        case 4:
            say(FILES_FRAME_STAT, &twice, sizeof(twice), "");
            say(FILES_FRAME_STAT, &twice, sizeof(twice), "");
            break;
        case 5:
            say(FILES_FRAME_STAT, &lies, sizeof(lies), "");
            break;
        case 6: /* a frame of another request */
            say(FILES_FRAME_ENTRY, &entry, sizeof(entry), "x");
            break;
        case 7: /* a name that is longer than its frame */
            tool = "glob";
            arguments = "{\"pattern\":\"*\"}";
            say(FILES_FRAME_ENTRY, &entry, sizeof(entry), "x");
            break;
        case 8: /* more than was asked for */
            say_stat(51201);
            break;
        default: /* nothing at all */
            break;
        }
        call(&s, tool, arguments);
        assert_int_equal(s.err.code, ERR_BACKEND);
        buf_reset(&stub.answer);
    }
    stage_stop(&s);
}

static void what_is_taken_back_is_not_told(void **state)
{
    struct stage s;
    struct err err = {0};
    stage_start(&s);
    assert_int_equal(start(&s, "grep", "{\"pattern\":\"x\"}", NULL, &err), 0);
    tool_call_free(TAKE_PTR(s.call));
    pump(&s.f);
    assert_int_equal(stub.starts, 0);
    say_stat(1);
    assert_int_equal(start(&s, "read", "{\"path\":\"x\"}", NULL, &err), 0);
    (void)loop_turn(s.f.loop, 0);
    assert_int_equal(stub.starts, 1);
    tool_call_free(TAKE_PTR(s.call));
    pump(&s.f);
    assert_true(stub.killed && stub.freed);
    assert_int_equal(s.n, 0);
    stage_stop(&s);
}

/* A program beside it can stop box-files for good. */
static void nobody_waits_for_one_that_stands_still(void **state)
{
    struct stage s;
    struct err err = {0};
    stage_start(&s);
    stub.deaf = true;
    assert_int_equal(start(&s, "write", "{\"path\":\"x\",\"content\":\"y\"}", NULL, &err), 0);
    pass(&s.f, FILES_TIMEOUT_NS - 1);
    assert_int_equal(s.n, 0);
    pass(&s.f, 2);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.err.code, ERR_LIMIT);
    assert_true(stub.killed);

    assert_int_equal(start(&s, "read", "{\"path\":\"x\",\"encoding\":\"base64\"}", NULL, &err), 0);
    pass(&s.f, FILES_TIMEOUT_NS - 1);
    say_stat(1);
    on_turn(&stub.defer); /* a sign of life */
    pass(&s.f, FILES_TIMEOUT_NS - 1);
    assert_int_equal(s.n, 0);
    pass(&s.f, 2);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.err.code, ERR_LIMIT);
    stage_stop(&s);
}

/* Whoever leaves in time must not be able to change files unseen. */
static void a_change_that_is_taken_back_is_recorded(void **state)
{
    char dir[] = "/tmp/box-tools-XXXXXX";
    AUTO_DONE(buf) struct buf text;
    struct stage s;
    struct err err = {0};
    stage_start(&s);
    buf_init(&text, 1 << 20);
    assert_non_null(mkdtemp(dir));
    AUTO_CLOSE int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const struct audit_options options = {.dir_fd = dir_fd, .clock = &s.f.clock.clock};
    assert_int_equal(audit_open(&options, &s.service.audit, &err), 0);
    stub.deaf = true;
    assert_int_equal(start(&s, "write", "{\"path\":\"x\",\"content\":\"y\"}", NULL, &err), 0);
    pump(&s.f);
    tool_call_free(TAKE_PTR(s.call));
    stub.deaf = false;
    say_stat(1);
    say_done((struct files_done){0});
    call(&s, "write", "{\"path\":\"y\",\"content\":\"y\"}");
    tool_call_free(TAKE_PTR(s.call));
    AUTO_CLOSE int fd = openat(dir_fd, AUDIT_CURRENT, O_RDONLY | O_CLOEXEC);
    assert_int_equal(fd_read_to_buf(fd, &text), 0);
    assert_non_null(strstr(buf_str(&text), "\"command\":\"write /workspace/x\""));
    assert_non_null(strstr(buf_str(&text), "\"outcome\":\"given_up\""));
    const char *second = strstr(buf_str(&text), "\"command\":\"write /workspace/y\"");
    assert_non_null(second);
    assert_non_null(strstr(second, "\"outcome\":\"done\""));
    assert_null(strstr(second, "given_up"));
    audit_free(s.service.audit);
    stage_stop(&s);
    assert_int_equal(path_remove_tree_at(AT_FDCWD, dir), 0);
}

static void on_large(void *arg, const struct tool_result *result, const struct err *err)
{
    AUTO(json) struct json *object = NULL;
    assert_null(err);
    assert_int_equal(json_parse(result->json.data, result->json.len, &object, NULL), 0);
    *(size_t *)arg = json_str_len(json_get(object, "stdout"));
}

/* As much as the operator lets an agent see is one object still. */
static void a_long_output_is_whole(void **state)
{
    static const char arguments[] = "{\"command\":\"flood 900000; err x\"}";
    AUTO(json) struct json *json = NULL;
    struct stage s;
    struct err err = {0};
    size_t shown = 0;
    stage_start(&s);
    policy_free(s.policy);
    s.policy = policy_good("{\"box\": {\"output_limit_chars\": 1000000}}");
    s.service.policy = s.policy;
    assert_int_equal(json_parse(arguments, strlen(arguments), &json, NULL), 0);
    const struct tool_where where = {
        .service = &s.service, .arguments = json, .session_id = "s", .via = "test"};
    assert_int_equal(tool_call_start(tools_find("exec"), &where, on_large, &shown, &s.call, &err),
                     0);
    pump(&s.f);
    assert_int_equal(shown, 900000);
    stage_stop(&s);
}

static void exec_is_the_same_table(void **state)
{
    struct stage s;
    stage_start(&s);
    call(&s, "exec", "{\"command\":\"echo hi; err oh; exit 3\"}");
    assert_false(s.is_error);
    assert_non_null(strstr(s.json, "\"exit_code\":3"));
    assert_non_null(strstr(s.json, "\"preview\":\"stdout:\\nhi"));
    assert_non_null(strstr(s.text, "[exit code 3]"));
    stage_stop(&s);
}

static void scopes_and_sessions_are_asked(void **state)
{
    static const char tokens[] =
        "{\"tokens\":[{\"name\":\"reader\",\"token\":\"0123456789abcdef0123456789abcdef\","
        "\"tools\":[\"read\"],\"sessions\":[\"s*\"],\"profiles\":[\"default\"]}]}";
    AUTO(json) struct json *json = NULL;
    AUTO(authz) struct authz *authz = NULL;
    struct stage s;
    struct err err = {0};
    stage_start(&s);
    assert_int_equal(json_parse(tokens, strlen(tokens), &json, NULL), 0);
    if (authz_parse(json, &authz, &err) < 0)
        fail_msg("%s", err.msg);
    struct tool_where where = {.service = &s.service, .session_id = "s", .via = "test"};
    where.request.scope = authz_find(authz, "0123456789abcdef0123456789abcdef", 32, 1);
    assert_non_null(where.request.scope);
    assert_true(start(&s, "write", "{\"path\":\"x\",\"content\":\"\"}", &where, &err) < 0);
    assert_int_equal(err.code, ERR_DENIED);
    assert_int_equal(start(&s, "read", "{\"path\":\"x\"}", &where, &err), 0);
    pump(&s.f);
    where.session_id = "other";
    assert_true(start(&s, "read", "{\"path\":\"x\"}", &where, &err) < 0);
    assert_int_equal(err.code, ERR_NOT_FOUND);
    where.request.scope = NULL;
    assert_true(start(&s, "read", "{\"path\":\"x\"}", &where, &err) < 0);
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_true(error_ring_count(s.errors, NULL) >= 2);
    stage_stop(&s);
}

/* With a query the session is made, and named after it. */
static void a_query_has_its_session(void **state)
{
    static const char query[] =
        "{\"query_id\":1,\"launcher_type\":\"person\",\"launcher_id\":\"7\"}";
    AUTO(json) struct json *json = NULL;
    struct stage s;
    struct err err = {0};
    stage_start(&s);
    assert_int_equal(json_parse(query, strlen(query), &json, NULL), 0);
    const struct tool_where where = {
        .service = &s.service, .request = {.query = json}, .via = "test"};
    say_stat(0);
    say_done((struct files_done){.first = 1});
    if (start(&s, "read", "{\"path\":\"x\"}", &where, &err) < 0)
        fail_msg("%s", err.msg);
    pump(&s.f);
    assert_int_equal(s.n, 1);
    assert_false(s.is_error);
    assert_non_null(manager_find(s.f.m, "person_7"));
    /* One that is given up while its session is being made. */
    assert_int_equal(start(&s, "glob", "{\"pattern\":\"*\"}", &where, &err), 0);
    tool_call_free(TAKE_PTR(s.call));
    pump(&s.f);
    assert_int_equal(s.n, 0);
    stage_stop(&s);
}

static void etags_are_read_back(void **state)
{
    static const struct files_tag tag = {1, 2, -3, INT64_MAX};
    static const char *const bad[] = {"",
                                      "\"",
                                      "\"1-2-3\"",
                                      "1-2-3-4",
                                      "\"1-2-3-4",
                                      "\"1-2-3-g\"",
                                      "W/\"1-2-3-4\"",
                                      "\"1-2-3-4\"x",
                                      "\"11111111111111111-2-3-4\""};
    char text[FILES_ETAG_SIZE];
    struct files_tag back;
    files_etag(&tag, text);
    assert_true(files_etag_parse(text, strlen(text), &back));
    assert_memory_equal(&tag, &back, sizeof(tag));
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_false(files_etag_parse(bad[i], strlen(bad[i]), &back));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_whole),
        cmocka_unit_test(wrong_arguments_start_nothing),
        cmocka_unit_test(failures_have_their_words),
        cmocka_unit_test(paths_outside_are_never_asked_for),
        cmocka_unit_test(results_have_their_members),
        cmocka_unit_test(a_hostile_answer_is_an_error),
        cmocka_unit_test(what_is_taken_back_is_not_told),
        cmocka_unit_test(nobody_waits_for_one_that_stands_still),
        cmocka_unit_test(a_change_that_is_taken_back_is_recorded),
        cmocka_unit_test(a_long_output_is_whole),
        cmocka_unit_test(exec_is_the_same_table),
        cmocka_unit_test(scopes_and_sessions_are_asked),
        cmocka_unit_test(a_query_has_its_session),
        cmocka_unit_test(etags_are_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
