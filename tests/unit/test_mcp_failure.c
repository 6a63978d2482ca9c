/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/mcp/failure.h"
#include "cli/mcp/plan.h"
#include "spec/spec.h"

static void failure_is(const char *said, const char *expected)
{
    AUTO_FREE char *text = mcp_failure_text(said);

    assert_string_equal(text, expected);
}

static void of_a_traceback_the_exception_is_told(void **state)
{
    failure_is(
        "INFO starting\nTraceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n"
        "    import redis\nModuleNotFoundError: No module named 'redis'\n",
        "ModuleNotFoundError: No module named 'redis'");
    /* Words behind it, as logs and exit handlers write them, are not why it died. */
    failure_is("Traceback (most recent call last):\n  File \"a.py\", line 3\n    f()\n"
               "KeyError: 'API_KEY'\n\nclosing 3 connections\nbye\n",
               "KeyError: 'API_KEY'");
    /* The last of a chain was not caught. */
    failure_is("Traceback (most recent call last):\n  File \"a\"\nOSError: first\n\n"
               "During handling of the above exception, another exception occurred:\n\n"
               "Traceback (most recent call last):\n  File \"b\"\nRuntimeError: second\n",
               "RuntimeError: second");
    /* A message of several lines. */
    failure_is("Traceback (most recent call last):\n  File \"a\"\n"
               "pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings\n"
               "api_key\n  Field required [type=missing]\n",
               "pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings "
               "api_key Field required [type=missing]");
}

static void of_a_group_of_exceptions_the_innermost_is_told(void **state)
{
    failure_is("  + Exception Group Traceback (most recent call last):\n"
               "  |   File \"/x/run.py\", line 1, in main\n"
               "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
               "  +-+---------------- 1 ----------------\n"
               "    | Traceback (most recent call last):\n"
               "    |   File \"/x/redis.py\", line 2, in connect\n"
               "    | redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379.\n"
               "    +------------------------------------\n",
               "redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379.");
}

static void of_a_traceback_in_a_drawn_box_the_line_below_is_told(void **state)
{
    failure_is(
        "\xe2\x95\xad\xe2\x94\x80 Traceback (most recent call last) \xe2\x94\x80\xe2\x95\xae\n"
        "\xe2\x94\x82 /x/a.py:3 in <module>      \xe2\x94\x82\n"
        "\xe2\x94\x82   ValueError: not this one \xe2\x94\x82\n"
        "\xe2\x95\xb0\xe2\x94\x80\xe2\x94\x80\xe2\x95\xaf\n"
        "\033[1;91mValueError: \033[0mbad port\n",
        "ValueError: bad port");
    /* A box that holds the message itself. */
    failure_is("Usage: server [OPTIONS]\n"
               "\xe2\x95\xad\xe2\x94\x80 Error \xe2\x94\x80\xe2\x95\xae\n"
               "\xe2\x94\x82 Missing option '--db'. \xe2\x94\x82\n"
               "\xe2\x95\xb0\xe2\x94\x80\xe2\x94\x80\xe2\x95\xaf\n",
               "Missing option '--db'.");
}

static void of_node_the_error_above_the_stack_is_told(void **state)
{
    failure_is("node:internal/modules/cjs/loader:1210\n  throw err;\n  ^\n\n"
               "Error: Cannot find module 'express'\nRequire stack:\n- /workspace/a.js\n"
               "    at Module._resolveFilename (node:internal:1207:15)\n"
               "    at node:internal/main:23:47 {\n  code: 'MODULE_NOT_FOUND',\n"
               "  requireStack: [ '/workspace/a.js' ]\n}\n\nNode.js v20.20.2\n",
               "Error: Cannot find module 'express' Require stack: - /workspace/a.js");
    failure_is("Fatal error in main():\nTypeError [ERR_X]: bad\n    at f (a.js:1:1)\n",
               "TypeError [ERR_X]: bad");
    failure_is("    at f (a.js:1:1)\n    at g (a.js:2:1)\n", "");
    failure_is("AggregateError [ECONNREFUSED]: \n    at x (node:net:1)\n  [errors]: [\n  "
               "]\n}\n\nNode.js v22\n",
               "AggregateError [ECONNREFUSED]:");
}

static void of_other_languages_too(void **state)
{
    failure_is("panic: no config\n\ngoroutine 1 [running]:\nmain.main()\n\t/x/main.go:3 +0x1\nexit "
               "status 2\n",
               "panic: no config");
    failure_is("thread 'main' panicked at src/main.rs:3:5:\nno config\nnote: run with "
               "`RUST_BACKTRACE=1`\n",
               "thread 'main' panicked at src/main.rs:3:5: no config");
    failure_is(
        "Exception in thread \"main\" java.lang.RuntimeException: x\n\tat a.B.main(B.java:1)\n",
        "Exception in thread \"main\" java.lang.RuntimeException: x");
    failure_is("starting\nerror: unknown option '--x'\nsee --help\n",
               "error: unknown option '--x'");
    failure_is("2026-01-01 10:00:00 - server - ERROR - no token\nshutting down\n",
               "2026-01-01 10:00:00 - server - ERROR - no token");
    failure_is("sh: 1: npm: not found\n", "sh: 1: npm: not found");
    failure_is("", "");
    failure_is("}\n  ^\n", "");
}

static void what_a_server_writes_is_bounded(void **state)
{
    size_t len = 300000;
    AUTO_FREE char *flood = xcalloc(1, len + 1);
    AUTO_FREE char *lines = xcalloc(1, len + 1);

    memset(flood, 'x', len);
    AUTO_FREE char *text = mcp_failure_text(flood);
    assert_int_equal(strlen(text), MCP_FAILURE_MAX);
    for (size_t i = 0; i < len; i++)
        lines[i] = i % 2 == 0 ? 'a' : '\n';
    failure_is(lines, "a");
    failure_is("\033[", "");
    failure_is("\033", "");
    failure_is("\xe2\x94", "\xe2\x94"); /* half a character */
}

/* Hints. */

struct hints {
    struct mcp_plan plan;
    struct spec *spec;
};

static void hint_is(const struct hints *h, const char *said, const char *part)
{
    AUTO_FREE char *hint = mcp_failure_hint(said, &h->plan, h->spec);

    if (part == NULL)
        assert_null(hint);
    else if (hint == NULL || strstr(hint, part) == NULL)
        fail_msg("%s: %s", said, hint != NULL ? hint : "no hint");
}

static void a_refusal_names_the_option_that_allows_it(void **state)
{
    struct hints h = {.spec = spec_new()};

    h.plan.server.box.network = NETWORK_ON;
    hint_is(&h, "connect ECONNREFUSED 127.0.0.1:6379", "'--allow-host 127.0.0.1:6379'");
    hint_is(&h, "Error 111 connecting to localhost:6379. Connection refused.", ":6379'");
    hint_is(&h, "connect ECONNREFUSED [::1]:6379", "'--allow-host 127.0.0.1:6379'");
    hint_is(&h, "connection to 127.0.0.1 failed: ECONNREFUSED", "'--allow-host 127.0.0.1:PORT'");
    hint_is(&h, "connect ECONNREFUSED 127.0.0.1:65536", "'--allow-host 127.0.0.1:PORT'");
    hint_is(&h, "connect ECONNREFUSED 192.0.2.1:6379", NULL);
    hint_is(&h, "sqlite3.OperationalError: attempt to write a readonly database",
            "--host-path-mode rw");
    hint_is(&h, "EROFS: read-only file system, open '/workspace/a'", ":rw");
    hint_is(&h, "getaddrinfo ENOTFOUND example.org", NULL);
    h.plan.server.box.network = NETWORK_OFF;
    hint_is(&h, "getaddrinfo ENOTFOUND example.org", "--network on");
    hint_is(&h, "FileNotFoundError: x", NULL); /* is no ENOTFOUND */
    hint_is(&h, "all is well", NULL);
    /* A path is looked up only where the user has given it to the server. */
    hint_is(&h, "ENOENT: /var/tmp", NULL);
    strv_add(&h.plan.server.env, "DATA=/var/tmp");
    hint_is(&h, "ENOENT: /var/tmp", "--mount /var/tmp:/mnt/tmp:ro");
    hint_is(&h, "ENOENT: something else", NULL);
    hint_is(&h, "connection refused", NULL);
    strv_add(&h.plan.server.env, "URL=redis://localhost:6379");
    hint_is(&h, "connection refused", "'--allow-host 127.0.0.1:6379'");
    strv_free(h.plan.server.env);
    spec_free(h.spec);
}

static void path_is(const struct hints *h, const char *path, const char *expected)
{
    AUTO_FREE char *hint = mcp_path_hint(path, &h->plan, h->spec);

    if (expected == NULL)
        assert_null(hint);
    else if (hint == NULL || strstr(hint, expected) == NULL)
        fail_msg("%s: %s", path, hint != NULL ? hint : "no hint");
}

static void a_path_of_the_host_is_told_by_its_name_inside(void **state)
{
    struct hints h = {.spec = spec_new()};

    path_is(&h, "/var/tmp", "--mount /var/tmp:/mnt/tmp:ro");
    path_is(&h, "/root", "no box may have it");
    path_is(&h, "/home", "--mount /home:/home:ro");
    path_is(&h, "/var/tmp/none-of-that-name", NULL);
    path_is(&h, "/usr/bin", NULL); /* the box has its own */
    path_is(&h, "/", NULL);
    path_is(&h, "var/tmp", NULL);
    mcp_roots_add(&h.plan.roots, "/var/tmp", MCP_MOUNT);
    path_is(&h, "/var/tmp", "'/var/tmp' of this host is called '/workspace' in the box");
    path_is(&h, "/var", "no box may have it");
    mcp_roots_done(&h.plan.roots);
    spec_free(h.spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_a_traceback_the_exception_is_told),
        cmocka_unit_test(of_a_group_of_exceptions_the_innermost_is_told),
        cmocka_unit_test(of_a_traceback_in_a_drawn_box_the_line_below_is_told),
        cmocka_unit_test(of_node_the_error_above_the_stack_is_told),
        cmocka_unit_test(of_other_languages_too),
        cmocka_unit_test(what_a_server_writes_is_bounded),
        cmocka_unit_test(a_refusal_names_the_option_that_allows_it),
        cmocka_unit_test(a_path_of_the_host_is_told_by_its_name_inside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
