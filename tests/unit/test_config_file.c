/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "config/config_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"

static char path[64];
static char *values[CONFIG_KEY_MAX];
static struct json *sections;

static int make_file(void **state)
{
    (void)snprintf(path, sizeof(path), "/tmp/box-config-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 || close(fd) < 0 ? -1 : 0;
}

static int remove_file(void **state)
{
    return unlink(path);
}

static void forget(void)
{
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++) {
        free(values[i]);
        values[i] = NULL;
    }
    json_free(sections);
    sections = NULL;
}

static int read_bytes(const char *text, size_t len, struct err *err)
{
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, len), 0);
    forget();
    *err = (struct err){0};
    return config_file_read(path, values, &sections, err);
}

static int read_text(const char *text, struct err *err)
{
    return read_bytes(text, strlen(text), err);
}

static void settings_are_read_by_name(void **state)
{
    struct err err;
    assert_int_equal(read_text("# what we serve\n"
                               "host: 127.0.0.2\n"
                               "port: 1234\n"
                               "backend: 'native'\n"
                               "state_dir: \"/var/lib/b\\x6fx\"\n"
                               "token_file: /etc/box/token\n"
                               "allowed_mount_roots: /srv,/home\n"
                               "image_policy: strict\n"
                               "require_limits: true\n"
                               "max_sessions: 5\n"
                               "session_ttl_sec: 60\n"
                               "linger_sec: 6\n"
                               "max_managed_processes: 7\n"
                               "max_completed_processes: 8\n"
                               "completed_process_retention_sec: 9\n",
                               &err),
                     0);
    static const char *const want[CONFIG_KEY_MAX] = {
        [CONFIG_HOST] = "127.0.0.2",
        [CONFIG_PORT] = "1234",
        [CONFIG_BACKEND] = "native",
        [CONFIG_STATE_DIR] = "/var/lib/box",
        [CONFIG_TOKEN_FILE] = "/etc/box/token",
        [CONFIG_MOUNT_ROOTS] = "/srv,/home",
        [CONFIG_IMAGE_POLICY] = "strict",
        [CONFIG_REQUIRE_LIMITS] = "true",
        [CONFIG_MAX_SESSIONS] = "5",
        [CONFIG_SESSION_TTL] = "60",
        [CONFIG_LINGER] = "6",
        [CONFIG_MAX_PROCESSES] = "7",
        [CONFIG_MAX_EXITED] = "8",
        [CONFIG_EXITED_SEC] = "9",
    };
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++)
        if (want[i] != NULL)
            assert_string_equal(values[i], want[i]);
        else
            assert_null(values[i]); /* the text does not name it */
    forget();
}

static void what_the_file_lacks_stays_open(void **state)
{
    static const char *const texts[] = {"", "# nothing\n", "{}", "port: 1\n"};
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        assert_int_equal(read_text(texts[i], &err), 0);
        for (size_t k = 0; k < CONFIG_KEY_MAX; k++)
            assert_true(values[k] == NULL || k == CONFIG_PORT);
    }
    forget();
}

static void list_becomes_text_with_commas(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"allowed_mount_roots: [/srv, /home]\nport: 1\n", "/srv,/home"},
        {"allowed_mount_roots:\n  - /srv\n  - /home\n  - /data\nport: 1\n", "/srv,/home,/data"},
        {"allowed_mount_roots: [/srv]\nport: 1\n", "/srv"},
        {"allowed_mount_roots: ''\nport: 1\n", ""},
        /* Nothing may be mounted, which is not the same as nothing said. */
        {"allowed_mount_roots: []\nport: 1\n", ""},
    };
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        assert_int_equal(read_text(cases[i].text, &err), 0);
        assert_string_equal(values[CONFIG_MOUNT_ROOTS], cases[i].want);
        assert_string_equal(values[CONFIG_PORT], "1"); /* the list has ended */
    }
    forget();
}

/* Sections are kept for the policy, with the types that YAML gives its values. */
static void sections_are_kept(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"port: 1\n", "{}"},
        {"", "{}"},
        {"box:\n", "{\"box\":null}"},
        {"port: 1\nbox:\n  local: {profile: default}\nhost: x\naudit: {}\n",
         "{\"box\":{\"local\":{\"profile\":\"default\"}},\"audit\":{}}"},
        {"box: [1, -2, 1.5, true, FALSE, ~, null, '1', \"true\", 1e3, 0x10, a b, '']\n",
         "{\"box\":[1,-2,1.5,true,false,null,null,\"1\",\"true\",1000.0,\"0x10\",\"a b\",\"\"]}"},
        {"profiles:\n  a:\n    locked: [env]\n  b: {}\n",
         "{\"profiles\":{\"a\":{\"locked\":[\"env\"]},\"b\":{}}}"},
        {"box: {a: [{b: c}, [d]], e: f}\nport: 7\n",
         "{\"box\":{\"a\":[{\"b\":\"c\"},[\"d\"]],\"e\":\"f\"}}"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_DONE(buf) struct buf text;
        struct err err;
        struct jw w;
        buf_init(&text, 4096);
        if (read_text(cases[i].text, &err) < 0)
            fail_msg("%s: %s", cases[i].text, err.msg);
        jw_init(&w, &text);
        jw_value(&w, sections);
        assert_string_equal(buf_str(&text), cases[i].want);
    }
    assert_string_equal(values[CONFIG_PORT], "7");
    forget();
}

static void mistakes_are_told_with_their_line(void **state)
{
    static const struct {
        const char *text, *want; /* after the path */
    } cases[] = {
        {"port: 1\nprot: 2\n", "line 2: unknown setting 'prot'; see boxd --help"},
        {"port: 1\n\n\nport: 2\n", "line 4: setting given twice"},
        {"allowed_mount_roots: []\nallowed_mount_roots: [/srv]\n", "line 2: setting given twice"},
        {"port:\n  number: 1\n", "line 2: settings have no sections"},
        {"boks:\n  port: 1\n", "line 1: unknown setting 'boks'; see boxd --help"},
        {"box: {}\naudit: {}\nbox: {}\n", "line 3: setting given twice"},
        {"box:\n  a: &x 1\n", "line 2: anchors are not allowed"},
        {"box:\n  a: *x\n", "line 2: aliases are not allowed"},
        {"box:\n  [a]: 1\n", "line 2: a key must be text"},
        {"box:\n  a: [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]\n", "line 2: this is nested too deep"},
        {"box:\n  a: \"x\\0y\"\n", "line 2: NUL is not allowed"},
        {"port: [1]\n", "line 1: a list is not expected here"},
        {"host: 127.0.0.1\nport:\n- 1\n", "line 3: a list is not expected here"},
        {"allowed_mount_roots: [[/srv]]\n", "line 1: a list is not expected here"},
        {"allowed_mount_roots:\n  - a: b\n", "line 2: settings have no sections"},
        {"- port\n", "line 1: a list is not expected here"},
        {"---\n", "line 2: the file must be a mapping of settings"},
        {"port\n", "line 1: the file must be a mapping of settings"},
        {"port: &p 1\n", "line 1: anchors are not allowed"},
        {"&p port: 1\n", "line 1: anchors are not allowed"},
        {"&all\nport: 1\n", "line 1: anchors are not allowed"},
        {"allowed_mount_roots: &a [/srv]\n", "line 1: anchors are not allowed"},
        {"allowed_mount_roots: [&a /srv]\n", "line 1: anchors are not allowed"},
        {"host: \"a\\0b\"\n", "line 1: NUL is not allowed"},
        {"port: *p\n", "line 1: aliases are not allowed"},
        {"*p : 1\n", "line 1: aliases are not allowed"},
        {"<<: *p\n", "line 1: unknown setting '<<'; see boxd --help"},
        {"port: 1\n---\nhost: 127.0.0.1\n", "line 3: settings have no sections"},
    };
    struct err err;
    char want[256];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        (void)snprintf(want, sizeof(want), "%s %s", path, cases[i].want);
        assert_true(read_text(cases[i].text, &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
        assert_string_equal(err.msg, want);
    }
    forget();
}

static void what_is_no_yaml_is_refused(void **state)
{
    static const char *const texts[] = {
        "port: [1",         "port: 'a",     "\tport: 1",       "port: 1\n  host: x\n",
        "%YAML 9.9\n---\n", "port: \x01\n", "port: \xff\xfe\n"};
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        assert_true(read_text(texts[i], &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
        assert_non_null(strstr(err.msg, " line "));
    }
    forget();
}

static void size_and_number_are_limited(void **state)
{
    AUTO_DONE(buf) struct buf text;
    struct err err;
    buf_init(&text, 2U << 20);
    assert_int_equal(buf_puts(&text, "allowed_mount_roots:\n"), 0);
    for (int i = 0; i < 4100; i++)
        assert_int_equal(buf_puts(&text, "- /a\n"), 0);
    assert_true(read_bytes(text.data, text.len, &err) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
    assert_non_null(strstr(err.msg, "is too large"));

    buf_reset(&text);
    while (text.len < 1U << 20)
        assert_int_equal(buf_putc(&text, '\n'), 0);
    assert_int_equal(read_bytes(text.data, text.len, &err), 0);
    assert_int_equal(buf_putc(&text, '\n'), 0);
    assert_true(read_bytes(text.data, text.len, &err) < 0);
    assert_non_null(strstr(err.msg, "read configuration"));
    forget();
}

static void missing_file_is_told(void **state)
{
    struct err err = {0};
    assert_true(config_file_read("/nonexistent/box.yaml", values, &sections, &err) < 0);
    assert_string_equal(err.msg,
                        "read configuration '/nonexistent/box.yaml': No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_are_read_by_name),
        cmocka_unit_test(what_the_file_lacks_stays_open),
        cmocka_unit_test(list_becomes_text_with_commas),
        cmocka_unit_test(sections_are_kept),
        cmocka_unit_test(mistakes_are_told_with_their_line),
        cmocka_unit_test(what_is_no_yaml_is_refused),
        cmocka_unit_test(size_and_number_are_limited),
        cmocka_unit_test(missing_file_is_told),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
