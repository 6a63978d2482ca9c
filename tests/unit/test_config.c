/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "config/config.h"
#include "config/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "config/config_file.h"
#include "policy/authz.h"
#include "policy/policy.h"

#define TOKEN32 "0123456789abcdef0123456789abcdef"
#define ARGS_MAX 12

static char dir[64]; /* of our own, with a directory "a" and a link "l" to it */

/* Settings come from the test alone. */
static void clear_environment(void)
{
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++)
        (void)unsetenv(config_keys[i].env);
    (void)unsetenv("LANGBOT_BOX_TRUSTED_INSTANCE_UUID");
    (void)unsetenv("LANGBOT_BOX_CONTROL_TOKEN");
    (void)unsetenv("LANGBOT_BOX_CONFIG");
    (void)unsetenv("LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS");
    (void)unsetenv("XDG_RUNTIME_DIR");
    (void)unsetenv("XDG_STATE_HOME");
    (void)setenv("HOME", "/home/somebody", 1);
}

static int make_dir(void **state)
{
    char real[4096];
    (void)snprintf(dir, sizeof(dir), "/tmp/box-config-XXXXXX");
    if (mkdtemp(dir) == NULL || chdir(dir) < 0 || realpath(dir, real) == NULL ||
        str_copy(dir, sizeof(dir), real) < 0 || mkdir("a", 0755) < 0 || symlink("a", "l") < 0)
        return -1;
    clear_environment();
    return 0;
}

static int remove_dir(void **state)
{
    return chdir("/") < 0 ? -1 : path_remove_tree_at(AT_FDCWD, dir);
}

static void write_file(const char *name, const char *text, size_t len)
{
    AUTO_CLOSE int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, len), 0);
}

/* The words after "boxd", ended by NULL. */
static int load(struct config **ret, struct err *err, ...)
{
    char *argv[ARGS_MAX] = {(char *)(uintptr_t) "boxd"};
    int argc = 1;
    va_list ap;
    va_start(ap, err);
    for (char *word; (word = va_arg(ap, char *)) != NULL; argc++) {
        assert_true(argc < ARGS_MAX - 1);
        argv[argc] = word;
    }
    va_end(ap);
    *err = (struct err){0};
    return config_load(argc, argv, ret, err);
}

static void nothing_said_means_the_defaults(void **state)
{
    AUTO(config) struct config *c = NULL;
    struct err err;
    assert_int_equal(load(&c, &err, NULL), 0);
    assert_string_equal(c->host, "127.0.0.1");
    assert_int_equal(c->port, 5410);
    assert_string_equal(c->backend, "auto");
    assert_null(c->token_file);
    assert_true(c->mount_roots_builtin);
    assert_false(c->strict_images);
    assert_false(c->require_limits);
    assert_false(c->stdio_control);
    assert_int_equal(c->max_sessions, 8000);
    assert_int_equal(c->session_ttl_sec, 300);
    assert_int_equal(c->max_processes, 64);
    assert_int_equal(c->max_exited, 256);
    assert_int_equal(c->exited_sec, 300);
    assert_int_equal(c->linger_sec, 86400);
    assert_int_equal(c->ready_fd, -1);
    assert_true(config_host_is_loopback(c));
    for (size_t i = 0; c->mount_roots != NULL && c->mount_roots[i] != NULL; i++) {
        struct stat st; /* those that are missing here are left out */
        assert_int_equal(stat(c->mount_roots[i], &st), 0);
        assert_string_not_equal(c->mount_roots[i], "/");
    }
}

static void expect_row(const struct config *c, const char *key, const char *value,
                       const char *source)
{
    struct policy_row row;
    for (size_t i = 0; config_explain(c, i, &row); i++)
        if (str_eq(row.key, key)) {
            assert_string_equal(row.value, value);
            assert_string_equal(row.source, source);
            return;
        }
    fail_msg("no setting %s", key);
}

static void each_value_has_a_source(void **state)
{
    static const char text[] = "port: 7\nmax_sessions: 8\nbox:\n  profile: network_basic\n"
                               "profiles:\n  mine: {memory_mb: 64}\n";
    AUTO(config) struct config *c = NULL;
    struct err err;
    write_file("f.yaml", text, strlen(text));
    (void)setenv("BOX_MAX_SESSIONS", "9", 1);
    (void)setenv("BOX__LOCAL__WORKSPACE_QUOTA_MB", "5", 1);
    int r = load(&c, &err, "--config", "f.yaml", "--host", "127.0.0.9", NULL);
    clear_environment();
    (void)unsetenv("BOX__LOCAL__WORKSPACE_QUOTA_MB");
    if (r < 0)
        fail_msg("%s", err.msg);
    expect_row(c, "host", "127.0.0.9", "command line");
    expect_row(c, "port", "7", "file f.yaml");
    expect_row(c, "max_sessions", "9", "environment BOX_MAX_SESSIONS");
    expect_row(c, "session_ttl_sec", "300", "default");
    expect_row(c, "box.local.profile", "network_basic", "file f.yaml: box.profile");
    expect_row(c, "box.local.workspace_quota_mb", "5",
               "environment BOX__LOCAL__WORKSPACE_QUOTA_MB");
    assert_non_null(policy_profile_at(c->policy, 4)); /* mine */
}

static void a_wrong_policy_is_told_at_start(void **state)
{
    static const char text[] = "box:\n  local:\n    profil: x\n";
    AUTO(config) struct config *c = NULL;
    struct err err;
    write_file("f.yaml", text, strlen(text));
    assert_true(load(&c, &err, "--config", "f.yaml", NULL) < 0);
    assert_string_equal(err.msg, "f.yaml: unknown setting 'box.local.profil'");
}

static void tokens_are_read_from_a_file_of_their_own(void **state)
{
    static const char text[] = "tokens:\n- {name: ci, token: " TOKEN32 ", tools: [exec]}\n";
    AUTO(config) struct config *c = NULL, *open = NULL;
    struct err err;
    write_file("t.yaml", text, strlen(text));
    (void)setenv("BOX_TOKENS_FILE", "t.yaml", 1);
    int r = load(&c, &err, NULL);
    assert_int_equal(r, 0);
    assert_non_null(authz_find(tokens_file_scopes(c->tokens), TOKEN32, 32, 0));
    assert_int_equal(chmod("t.yaml", 0644), 0);
    r = load(&open, &err, NULL);
    clear_environment();
    assert_true(r < 0);
    assert_string_equal(err.msg,
                        "tokens_file 't.yaml' must be a file that others cannot use (chmod 600)");
}

#define TOKENS(name, token) "tokens:\n- {name: " name ", token: " token "}\n"

/* While we serve: what is put in its place counts, and nothing does while there is something wrong.
 */
static void tokens_are_read_again_when_the_file_changes(void **state)
{
    static const char one[] = TOKENS("one", TOKEN32), two[] = TOKENS("two", TOKEN32),
                      bad[] = "tokens: 5\n";
    AUTO(tokens_file) struct tokens_file *f = NULL;
    struct err err = {0};
    write_file("t.yaml", one, strlen(one));
    assert_int_equal(chmod("t.yaml", 0600), 0);
    assert_int_equal(tokens_file_open("t.yaml", &f, &err), 0);
    assert_int_equal(tokens_file_check(f, &err), 0);
    const struct authz_scope *held = authz_hold(authz_find(tokens_file_scopes(f), TOKEN32, 32, 0));
    write_file("t.new", two, strlen(two));
    assert_int_equal(chmod("t.new", 0600), 0);
    assert_int_equal(rename("t.new", "t.yaml"), 0);
    assert_int_equal(tokens_file_check(f, &err), 1);
    assert_int_equal(tokens_file_check(f, &err), 0);
    assert_string_equal(authz_name(authz_find(tokens_file_scopes(f), TOKEN32, 32, 0)), "two");
    assert_string_equal(authz_name(held), "one"); /* a request under way keeps what it came with */
    authz_release(held);
    write_file("t.yaml", bad, strlen(bad));
    assert_int_equal(tokens_file_check(f, &err), 1);
    assert_null(tokens_file_scopes(f));
    assert_int_equal(tokens_file_check(f, &err), 0); /* it has been told */
    write_file("t.yaml", one, strlen(one));
    assert_int_equal(tokens_file_check(f, &err), 1);
    assert_non_null(tokens_file_scopes(f));
    assert_int_equal(unlink("t.yaml"), 0);
    assert_int_equal(tokens_file_check(f, &err), 1);
    assert_null(tokens_file_scopes(f));
}

static void expect_dirs(const char *state_dir, const char *socket)
{
    AUTO(config) struct config *c = NULL;
    struct err err;
    assert_int_equal(load(&c, &err, NULL), 0);
    assert_string_equal(c->state_dir, state_dir);
    assert_string_equal(c->socket_path, socket);
}

static void places_depend_on_who_we_are(void **state)
{
    bool root = geteuid() == 0;
    if (root) {
        expect_dirs("/var/lib/box", "/run/box/boxd.sock");
        assert_int_equal(seteuid(65534), 0);
    }
    expect_dirs("/home/somebody/.local/state/box", "/home/somebody/.local/state/box/boxd.sock");
    (void)setenv("XDG_STATE_HOME", "/x/state", 1);
    (void)setenv("XDG_RUNTIME_DIR", "/x/run", 1);
    expect_dirs("/x/state/box", "/x/run/box/boxd.sock");
    (void)setenv("XDG_STATE_HOME", "relative", 1); /* to be ignored, says its specification */
    (void)setenv("HOME", "", 1);
    expect_dirs("/tmp/.local/state/box", "/x/run/box/boxd.sock");
    clear_environment();
    if (root)
        assert_int_equal(seteuid(0), 0);
}

static void command_line_beats_environment_beats_file_beats_default(void **state)
{
    static const char file[] = "port: 1\nhost: 127.0.0.3\nbackend: from-file\nstate_dir: /file\n"
                               "max_sessions: 7\nsession_ttl_sec: 9\n"
                               "max_managed_processes: 5\nmax_completed_processes: 0\n"
                               "completed_process_retention_sec: 1\n";
    AUTO(config) struct config *c = NULL;
    struct err err;
    write_file("box.yaml", file, strlen(file));
    (void)setenv("BOX_LISTEN_PORT", "2", 1);
    (void)setenv("BOX_LISTEN_HOST", "127.0.0.2", 1);
    (void)setenv("BOX_MAX_SESSIONS", "", 1); /* empty is as good as not there */
    (void)setenv("BOX_STATE_DIR", "/env", 1);
    (void)setenv("LANGBOT_BOX_TRUSTED_INSTANCE_UUID", "i", 1); /* -s needs one */
    assert_int_equal(
        load(&c, &err, "--config", "box.yaml", "--port", "3", "--state-dir=/line", "-s", NULL), 0);
    clear_environment();
    assert_int_equal(c->port, 3);
    assert_string_equal(c->host, "127.0.0.2");
    assert_string_equal(c->backend, "from-file");
    assert_string_equal(c->state_dir, "/line");
    assert_string_equal(c->socket_path, "/line/boxd.sock");
    assert_int_equal(c->max_sessions, 7);
    assert_int_equal(c->session_ttl_sec, 9);
    assert_int_equal(c->max_processes, 5);
    assert_int_equal(c->max_exited, 0);
    assert_int_equal(c->exited_sec, 1);
    assert_true(c->stdio_control);
    assert_false(c->strict_images);
}

static void every_setting_comes_from_the_environment_too(void **state)
{
    AUTO(config) struct config *c = NULL;
    struct err err;
    write_file("token", TOKEN32 "\n", 33);
    (void)setenv("BOX_LISTEN_HOST", "::1", 1);
    (void)setenv("BOX_LISTEN_PORT", "0", 1);
    (void)setenv("BOX_BACKEND", "fake", 1);
    (void)setenv("BOX_STATE_DIR", "/s", 1);
    (void)setenv("BOX_TOKEN_FILE", "token", 1);
    (void)setenv("BOX_ALLOWED_MOUNT_ROOTS", dir, 1);
    (void)setenv("BOX_IMAGE_POLICY", "strict", 1);
    (void)setenv("BOX_REQUIRE_LIMITS", "true", 1);
    (void)setenv("BOX_MAX_SESSIONS", "8000", 1);
    (void)setenv("BOX_SESSION_TTL_SEC", "31536000", 1);
    assert_int_equal(load(&c, &err, NULL), 0);
    clear_environment();
    assert_string_equal(c->host, "::1");
    assert_true(config_host_is_loopback(c));
    assert_int_equal(c->port, 0);
    assert_string_equal(c->backend, "fake");
    assert_string_equal(token_file_text(c->token_file), TOKEN32);
    assert_int_equal(strv_len(c->mount_roots), 1);
    assert_string_equal(c->mount_roots[0], dir);
    assert_false(c->mount_roots_builtin);
    assert_true(c->strict_images);
    assert_true(c->require_limits);
    assert_int_equal(c->session_ttl_sec, 31536000);
}

static void bad_values_are_told_by_name(void **state)
{
    static const struct {
        const char *env, *value, *message;
    } cases[] = {
        {"BOX_LISTEN_PORT", "65536", "port must be a number from 0 to 65535, not '65536'"},
        {"BOX_LISTEN_PORT", "http", "port must be a number from 0 to 65535, not 'http'"},
        {"BOX_LISTEN_PORT", "-1", "port must be a number from 0 to 65535, not '-1'"},
        {"BOX_LISTEN_PORT", " 1", "port must be a number from 0 to 65535, not ' 1'"},
        {"BOX_LISTEN_HOST", "localhost", "host must be a numeric address, not 'localhost'"},
        {"BOX_LISTEN_HOST", "1.2.3", "host must be a numeric address, not '1.2.3'"},
        {"BOX_MAX_SESSIONS", "8001", "max_sessions must be a number from 0 to 8000, not '8001'"},
        {"BOX_MAX_SESSIONS", "18446744073709551616",
         "max_sessions must be a number from 0 to 8000, not '18446744073709551616'"},
        {"BOX_SESSION_TTL_SEC", "31536001",
         "session_ttl_sec must be a number from 0 to 31536000, not '31536001'"},
        {"BOX_SESSION_TTL_SEC", "1.5",
         "session_ttl_sec must be a number from 0 to 31536000, not '1.5'"},
        {"BOX_IMAGE_POLICY", "Strict", "image_policy must be fallback or strict, not 'Strict'"},
        {"BOX_REQUIRE_LIMITS", "yes", "require_limits must be false or true, not 'yes'"},
        {"BOX_TOKEN_FILE", "/nonexistent",
         "read token_file '/nonexistent': No such file or directory"},
        {"BOX_STATE_DIR", "/", "state_dir must be a directory of its own, not '/'"},
        {"BOX_STATE_DIR", "///", "state_dir must be a directory of its own, not '///'"},
        {"BOX_ALLOWED_MOUNT_ROOTS", "srv", "allowed_mount_roots: 'srv' is not an absolute path"},
        {"BOX_ALLOWED_MOUNT_ROOTS", "/nonexistent",
         "allowed_mount_roots: '/nonexistent': No such file or directory"},
        {"BOX_ALLOWED_MOUNT_ROOTS", "/",
         "allowed_mount_roots: the whole file system cannot be allowed"},
        {"BOX_ALLOWED_MOUNT_ROOTS", "/tmp,//",
         "allowed_mount_roots: the whole file system cannot be allowed"},
        {"BOX_ALLOWED_MOUNT_ROOTS", "/tmp/..",
         "allowed_mount_roots: the whole file system cannot be allowed"},
        {"BOX_COMMAND_ALIASES", "python",
         "command_aliases: 'python' is not name=command (none: no aliases)"},
        {"BOX_COMMAND_ALIASES", "a/b=c",
         "command_aliases: 'a/b' is no plain name of a command (letters, digits, '.', '_', '+', "
         "'-')"},
        {"BOX_COMMAND_ALIASES", "..=c",
         "command_aliases: '..' is no plain name of a command (letters, digits, '.', '_', '+', "
         "'-')"},
        {"BOX_COMMAND_ALIASES", "a=b/c",
         "command_aliases: a must be the name of a command or an absolute path without '.', '..' "
         "or '//', not 'b/c'"},
        {"BOX_COMMAND_ALIASES", "a=/x/../y",
         "command_aliases: a must be the name of a command or an absolute path without '.', '..' "
         "or '//', not '/x/../y'"},
        {"BOX_COMMAND_ALIASES", "a=",
         "command_aliases: a must be the name of a command or an absolute path without '.', '..' "
         "or '//', not ''"},
        {"BOX_COMMAND_ALIASES", "a=b,a=c", "command_aliases: 'a' is given twice"},
        {"BOX_COMMAND_ALIASES", "a=a", "command_aliases: 'a' is given as itself"},
    };
    struct config *c = NULL;
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        (void)setenv(cases[i].env, cases[i].value, 1);
        assert_true(load(&c, &err, NULL) < 0);
        assert_string_equal(err.msg, cases[i].message);
        assert_null(c);
        clear_environment();
    }
}

static void bad_command_lines_are_refused(void **state)
{
    struct config *c = NULL;
    struct err err;
    assert_true(load(&c, &err, "--nonsense", NULL) < 0);
    assert_string_equal(err.msg, "unknown or incomplete option '--nonsense'; see boxd --help");
    assert_true(load(&c, &err, "-x", NULL) < 0);
    assert_string_equal(err.msg, "unknown or incomplete option '-x'; see boxd --help");
    assert_true(load(&c, &err, "--host", NULL) < 0);
    assert_string_equal(err.msg, "unknown or incomplete option '--host'; see boxd --help");
    assert_true(load(&c, &err, "-s", "serve", NULL) < 0);
    assert_string_equal(err.msg, "unexpected argument 'serve'; see boxd --help");
    assert_true(load(&c, &err, "--state-dir", "", NULL) < 0);
    assert_string_equal(err.msg, "state_dir must be a directory of its own, not ''");
    assert_true(load(&c, &err, "--config", "/nonexistent", NULL) < 0);
    assert_string_equal(err.msg, "read configuration '/nonexistent': No such file or directory");
    static const char *const fds[] = {"0", "2", "x", "-1", "99999", "4294967299"};
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
        assert_true(load(&c, &err, "--ready-fd", fds[i], NULL) < 0);
        assert_true(str_starts(err.msg, "--ready-fd must be an open descriptor above 2, not '"));
    }
    assert_null(c);
}

static void token_is_the_first_line_and_long_enough(void **state)
{
    static char big[4200];
    static const struct {
        const char *text, *token; /* NULL: refused */
    } cases[] = {
        {TOKEN32, TOKEN32},
        {TOKEN32 "\n", TOKEN32},
        {TOKEN32 "\r\n", TOKEN32},
        {TOKEN32 "\nsecond line\n", TOKEN32},
        {" " TOKEN32 " ", " " TOKEN32 " "},
        {"0123456789abcdef0123456789abcde", NULL},
        {"short\n" TOKEN32 "\n", NULL},
        {"\n" TOKEN32 "\n", NULL},
        {"", NULL},
    };
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO(config) struct config *c = NULL;
        write_file("token", cases[i].text, strlen(cases[i].text));
        (void)setenv("BOX_TOKEN_FILE", "token", 1);
        int r = load(&c, &err, NULL);
        assert_int_equal(r == 0, cases[i].token != NULL);
        if (r == 0)
            assert_string_equal(token_file_text(c->token_file), cases[i].token);
        else
            assert_string_equal(err.msg, "the token in 'token' must have at least 32 characters");
    }
    /* At the cap, and one past it. */
    AUTO(config) struct config *c = NULL;
    memset(big, 'x', sizeof(big));
    write_file("token", big, 4096);
    assert_int_equal(load(&c, &err, NULL), 0);
    assert_int_equal(strlen(token_file_text(c->token_file)), 4096);
    config_free(TAKE_PTR(c));
    write_file("token", big, 4097);
    assert_true(load(&c, &err, NULL) < 0);
    assert_non_null(strstr(err.msg, "read token_file 'token'"));
    clear_environment();
}

static void a_langbot_host_is_heard(void **state)
{
    AUTO(config) struct config *c = NULL;
    struct err err;
    assert_int_equal(load(&c, &err, NULL), 0);
    assert_null(c->control_token);
    assert_null(c->instance);
    assert_null(c->box_config);
    assert_null(c->report_backend);
    assert_false(c->unsafe_storage);
    assert_false(c->legacy_protocol);
    config_free(TAKE_PTR(c));
    (void)setenv("LANGBOT_BOX_CONTROL_TOKEN", " " TOKEN32 "\n", 1);
    (void)setenv("LANGBOT_BOX_TRUSTED_INSTANCE_UUID", " i ", 1);
    (void)setenv("LANGBOT_BOX_CONFIG", "{}", 1);
    (void)setenv("LANGBOT_BOX_ALLOW_UNSAFE_SOFT_STORAGE_LIMITS", "Yes", 1);
    (void)setenv("BOX_LEGACY_PROTOCOL", "true", 1);
    (void)setenv("BOX_REPORT_BACKEND_AS", "nsjail", 1);
    assert_int_equal(load(&c, &err, "-s", NULL), 0);
    assert_string_equal(c->control_token, TOKEN32);
    assert_string_equal(c->instance, "i");
    assert_string_equal(c->box_config, "{}");
    assert_string_equal(c->report_backend, "nsjail");
    assert_true(c->unsafe_storage);
    assert_true(c->legacy_protocol);
    assert_true(c->stdio_control);
    clear_environment();
}

static void what_a_langbot_host_says_is_checked(void **state)
{
    static const char *const bad[] = {"short", "0123456789abcdef 123456789abcdef0",
                                      "0123456789abcdef0123456789abcde"};
    AUTO(config) struct config *c = NULL;
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        (void)setenv("LANGBOT_BOX_CONTROL_TOKEN", bad[i], 1);
        assert_true(load(&c, &err, NULL) < 0);
        assert_string_equal(err.msg, "LANGBOT_BOX_CONTROL_TOKEN must be a non-whitespace secret of "
                                     "at least 32 characters");
    }
    clear_environment();
    assert_true(load(&c, &err, "-s", NULL) < 0);
    assert_string_equal(err.msg,
                        "LANGBOT_BOX_TRUSTED_INSTANCE_UUID is required for stdio Box control");
}

/* What the file holds after each change, and what is found. */
static void token_file_is_read_again(void **state)
{
    static const char other[] = "fedcba9876543210fedcba9876543210";
    AUTO(token_file) struct token_file *f = NULL;
    struct err err = {0};
    write_file("token", TOKEN32 "\n", 33);
    assert_int_equal(token_file_open("token", &f, &err), 0);
    assert_int_equal(token_file_check(f, &err), 0);
    write_file("token", other, 32); /* in place */
    assert_int_equal(token_file_check(f, &err), 1);
    assert_string_equal(token_file_text(f), other);
    assert_int_equal(token_file_check(f, &err), 0);
    write_file("fresh", TOKEN32, 32);
    assert_int_equal(rename("fresh", "token"), 0);
    assert_int_equal(token_file_check(f, &err), 1);
    assert_string_equal(token_file_text(f), TOKEN32);
    write_file("token", "short", 5);
    assert_int_equal(token_file_check(f, &err), 1);
    assert_null(token_file_text(f));
    assert_string_equal(err.msg, "the token in 'token' must have at least 32 characters");
    assert_int_equal(token_file_check(f, &err), 0); /* said once */
    assert_int_equal(unlink("token"), 0);
    assert_int_equal(token_file_check(f, &err), 0);
    assert_int_equal(mkdir("token", 0700), 0);
    assert_int_equal(token_file_check(f, &err), 0);
    assert_int_equal(rmdir("token"), 0);
    write_file("token", other, 32);
    assert_int_equal(token_file_check(f, &err), 1);
    assert_string_equal(token_file_text(f), other);
    assert_int_equal(unlink("token"), 0);
    assert_int_equal(token_file_check(f, &err), 1);
    assert_null(token_file_text(f));
    assert_string_equal(err.msg, "read token_file 'token': No such file or directory");
}

static void token_may_come_from_a_pipe(void **state)
{
    AUTO(token_file) struct token_file *f = NULL;
    struct err err = {0};
    char path[32];
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    assert_int_equal(write(p[1], TOKEN32 "\n", 33), 33);
    (void)close(p[1]);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", p[0]);
    assert_int_equal(token_file_open(path, &f, &err), 0);
    (void)close(p[0]);
    assert_int_equal(token_file_check(f, &err), 0); /* it has said all it has to say */
    assert_string_equal(token_file_text(f), TOKEN32);
}

static void roots_are_real_paths(void **state)
{
    AUTO(config) struct config *c = NULL;
    struct err err;
    char text[256], want[128];
    (void)snprintf(text, sizeof(text), "%s/l, %s/a/../a/,,%s", dir, dir, dir);
    (void)setenv("BOX_ALLOWED_MOUNT_ROOTS", text, 1);
    assert_int_equal(load(&c, &err, NULL), 0);
    clear_environment();
    (void)snprintf(want, sizeof(want), "%s/a", dir);
    assert_int_equal(strv_len(c->mount_roots), 3);
    assert_string_equal(c->mount_roots[0], want);
    assert_string_equal(c->mount_roots[1], want);
    assert_string_equal(c->mount_roots[2], dir);
}

static void list_of_no_roots_allows_nothing(void **state)
{
    static const char *const files[] = {"allowed_mount_roots: []\n", "allowed_mount_roots: ''\n",
                                        "allowed_mount_roots: ','\n"};
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        AUTO(config) struct config *c = NULL;
        write_file("box.yaml", files[i], strlen(files[i]));
        assert_int_equal(load(&c, &err, "--config", "box.yaml", NULL), 0);
        assert_int_equal(strv_len(c->mount_roots), 0);
        assert_false(c->mount_roots_builtin);
    }
}

static void aliases_are_pairs_of_names_and_commands(void **state)
{
    static const struct {
        const char *file, *first, *last;
        size_t n;
    } cases[] = {
        {"{}\n", "python=python3", "python=python3", 1},
        {"command_aliases: [a=b, 'c-1.2+_=/opt/x y/c']\n", "a=b", "c-1.2+_=/opt/x y/c", 2},
        {"command_aliases: a=b , c=d\n", "a=b", "c=d", 2},
        {"command_aliases: []\n", NULL, NULL, 0},
        {"command_aliases: none\n", NULL, NULL, 0},
    };
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO(config) struct config *c = NULL;
        write_file("box.yaml", cases[i].file, strlen(cases[i].file));
        assert_int_equal(load(&c, &err, "--config", "box.yaml", NULL), 0);
        assert_int_equal(strv_len(c->aliases), cases[i].n);
        if (cases[i].n == 0)
            continue;
        assert_string_equal(c->aliases[0], cases[i].first);
        assert_string_equal(c->aliases[cases[i].n - 1], cases[i].last);
    }
}

static void aliases_are_limited(void **state)
{
    AUTO(config) struct config *c = NULL;
    struct err err;
    char text[1024] = "";
    size_t len = 0;
    for (int i = 0; i < 33; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "n%d=x,", i);
    (void)setenv("BOX_COMMAND_ALIASES", text, 1);
    assert_int_equal(load(&c, &err, NULL), err_code_errno(ERR_LIMIT));
    assert_string_equal(err.msg, "command_aliases: more than 32 entries");
    clear_environment();
}

static void roots_are_limited(void **state)
{
    AUTO(config) struct config *c = NULL;
    struct err err;
    char text[1024] = "";
    size_t len = 0;
    for (int i = 0; i < 64; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "/tmp,");
    (void)setenv("BOX_ALLOWED_MOUNT_ROOTS", text, 1);
    assert_int_equal(load(&c, &err, NULL), 0);
    assert_int_equal(strv_len(c->mount_roots), 64);
    config_free(TAKE_PTR(c));
    (void)snprintf(text + len, sizeof(text) - len, "/tmp");
    (void)setenv("BOX_ALLOWED_MOUNT_ROOTS", text, 1);
    assert_int_equal(load(&c, &err, NULL), err_code_errno(ERR_LIMIT));
    assert_string_equal(err.msg, "allowed_mount_roots: more than 64 entries");
    clear_environment();
}

static void state_directory_becomes_absolute(void **state)
{
    AUTO(config) struct config *c = NULL;
    struct err err;
    char want[128];
    assert_int_equal(load(&c, &err, "--state-dir", "state/here//", NULL), 0);
    (void)snprintf(want, sizeof(want), "%s/state/here", dir);
    assert_string_equal(c->state_dir, want);
    (void)snprintf(want, sizeof(want), "%s/state/here/boxd.sock", dir);
    assert_string_equal(c->socket_path, want);
}

static void directories_are_made_with_their_parents(void **state)
{
    AUTO(config) struct config *c = NULL;
    struct err err;
    struct stat st;
    mode_t mask = umask(0);
    assert_int_equal(load(&c, &err, "--state-dir", "new/deep/state", NULL), 0);
    assert_int_equal(config_make_dirs(c, &err), 0);
    assert_int_equal(config_make_dirs(c, &err), 0); /* as good as new */
    (void)umask(mask);
    assert_int_equal(stat("new/deep/state", &st), 0);
    assert_int_equal(st.st_mode & 07777, 0711);
    assert_int_equal(stat("new/deep", &st), 0);
    assert_int_equal(st.st_mode & 07777, 0755);
    config_free(TAKE_PTR(c));
    write_file("file", "", 0);
    assert_int_equal(load(&c, &err, "--state-dir", "file/state", NULL), 0);
    assert_true(config_make_dirs(c, &err) < 0);
    assert_non_null(strstr(err.msg, "make directory"));
}

static void readiness_is_one_byte_and_the_end(void **state)
{
    AUTO(config) struct config *c = NULL;
    struct err err;
    int fds[2];
    char number[16], got[8];
    assert_int_equal(pipe(fds), 0);
    (void)snprintf(number, sizeof(number), "%d", fds[1]);
    assert_int_equal(load(&c, &err, "--ready-fd", number, NULL), 0);
    assert_int_equal(c->ready_fd, fds[1]);
    assert_int_equal(fcntl(fds[1], F_GETFD), FD_CLOEXEC); /* not for those we start */
    config_say_ready(c);
    assert_int_equal(fd_read_full(fds[0], got, sizeof(got)), 1);
    config_say_ready(c); /* nobody listens any more */
    assert_int_equal(c->ready_fd, -1);
    (void)close(fds[0]);
}

static void only_loopback_needs_no_token(void **state)
{
    static const struct {
        const char *host;
        bool loopback;
    } cases[] = {{"127.0.0.1", true}, {"127.9.9.9", true}, {"::1", true},      {"0.0.0.0", false},
                 {"::", false},       {"10.0.0.1", false}, {"12.7.0.0", false}};
    struct err err;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO(config) struct config *c = NULL;
        assert_int_equal(load(&c, &err, "--host", cases[i].host, NULL), 0);
        assert_int_equal(config_host_is_loopback(c), cases[i].loopback);
    }
}

/* What goes to stdout meanwhile. */
static void load_aloud(const char *option, char *ret, size_t size)
{
    struct config *c = NULL;
    struct err err;
    (void)fflush(stdout);
    int saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    int fd = open("out", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(saved >= 0 && fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0);
    int r = load(&c, &err, option, NULL);
    (void)fflush(stdout);
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    (void)close(saved);
    (void)close(fd);
    assert_int_equal(r, 1);
    assert_null(c);
    assert_true(fd_read_file_at(AT_FDCWD, "out", ret, size) > 0);
}

static void help_and_version_are_answered(void **state)
{
    char text[8192];
    load_aloud("--version", text, sizeof(text));
    char version[256];
    assert_true(str_starts(config_version, BOX_VERSION));
    (void)snprintf(version, sizeof(version), "boxd %s\n", config_version);
    assert_string_equal(text, version);
    load_aloud("-h", text, sizeof(text));
    for (size_t i = 0; i < CONFIG_KEY_MAX; i++) {
        assert_non_null(strstr(text, config_keys[i].name));
        assert_non_null(strstr(text, config_keys[i].env));
        assert_non_null(strstr(text, config_keys[i].doc));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_said_means_the_defaults),
        cmocka_unit_test(each_value_has_a_source),
        cmocka_unit_test(a_wrong_policy_is_told_at_start),
        cmocka_unit_test(tokens_are_read_from_a_file_of_their_own),
        cmocka_unit_test(tokens_are_read_again_when_the_file_changes),
        cmocka_unit_test(places_depend_on_who_we_are),
        cmocka_unit_test(command_line_beats_environment_beats_file_beats_default),
        cmocka_unit_test(every_setting_comes_from_the_environment_too),
        cmocka_unit_test(bad_values_are_told_by_name),
        cmocka_unit_test(bad_command_lines_are_refused),
        cmocka_unit_test(token_is_the_first_line_and_long_enough),
        cmocka_unit_test(a_langbot_host_is_heard),
        cmocka_unit_test(what_a_langbot_host_says_is_checked),
        cmocka_unit_test(token_file_is_read_again),
        cmocka_unit_test(token_may_come_from_a_pipe),
        cmocka_unit_test(roots_are_real_paths),
        cmocka_unit_test(list_of_no_roots_allows_nothing),
        cmocka_unit_test(aliases_are_pairs_of_names_and_commands),
        cmocka_unit_test(aliases_are_limited),
        cmocka_unit_test(roots_are_limited),
        cmocka_unit_test(state_directory_becomes_absolute),
        cmocka_unit_test(directories_are_made_with_their_parents),
        cmocka_unit_test(readiness_is_one_byte_and_the_end),
        cmocka_unit_test(only_loopback_needs_no_token),
        cmocka_unit_test(help_and_version_are_answered),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
