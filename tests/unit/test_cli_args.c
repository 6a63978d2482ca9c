/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "spec/model.h"
#include "spec/spec.h"

#define ARGS_MAX 64

/* The words of a command line, NULL at the end; argv[0] is added. */
static int parse(struct args *a, struct err *err, const char *const *words)
{
    static char *argv[ARGS_MAX];
    int argc = 1;

    argv[0] = (char[]){"box"};
    for (; words[argc - 1] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
    argv[argc] = NULL;
    return args_parse(argc, argv, a, err);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void good(struct args *a, const char *const *words)
{
    struct err err = {0};
    if (parse(a, &err, words) < 0)
        fail_msg("%s", err.msg);
}

static void bad(const char *message, const char *const *words)
{
    AUTO_DONE(args) struct args a;
    struct err err = {0};

    assert_true(parse(&a, &err, words) < 0);
    assert_int_equal(err.code, ERR_INVALID);
    assert_string_equal(err.msg, message);
}

static void run_takes_every_option_of_the_contract(void **state)
{
    AUTO_DONE(args) struct args a;

    good(&a, WORDS("run", "--session", "s1", "--image=img", "--network", "on", "--memory-mb", "64",
                   "--cpus", "1.5", "--pids", "7", "--quota-mb", "9", "--timeout", "5",
                   "--read-only-root", "off", "--mount", "/:/m:ro", "--env", "A=1", "--env",
                   "B=", "--workdir", "/w", "-ti", "--", "sh", "-c", "exit 3"));
    assert_int_equal(a.verb, VERB_RUN);
    assert_string_equal(a.spec->session_id, "s1");
    assert_string_equal(a.spec->image, "img");
    assert_int_equal(a.spec->network, NETWORK_ON);
    assert_int_equal(a.spec->memory_mb, 64);
    assert_true(a.spec->cpus > 1.49 && a.spec->cpus < 1.51);
    assert_int_equal(a.spec->pids_limit, 7);
    assert_int_equal(a.spec->workspace_quota_mb, 9);
    assert_int_equal(a.spec->timeout_sec, 5);
    assert_false(a.spec->read_only_rootfs);
    assert_int_equal(a.spec->n_extra_mounts, 1);
    assert_int_equal(strv_len(a.spec->env), 2);
    assert_string_equal(a.spec->workdir, "/w");
    assert_true(a.tty);
    assert_true(a.interactive);
    assert_int_equal(strv_len(a.command), 3);
    assert_string_equal(a.command[2], "exit 3");
    uint64_t all = FIELD_BIT(SPEC_SESSION_ID) | FIELD_BIT(SPEC_IMAGE) | FIELD_BIT(SPEC_NETWORK) |
                   FIELD_BIT(SPEC_MEMORY_MB) | FIELD_BIT(SPEC_CPUS) | FIELD_BIT(SPEC_PIDS_LIMIT) |
                   FIELD_BIT(SPEC_WORKSPACE_QUOTA_MB) | FIELD_BIT(SPEC_TIMEOUT_SEC) |
                   FIELD_BIT(SPEC_READ_ONLY_ROOTFS) | FIELD_BIT(SPEC_EXTRA_MOUNTS) |
                   FIELD_BIT(SPEC_ENV) | FIELD_BIT(SPEC_WORKDIR);
    assert_true(a.given == all);
}

static void what_was_not_given_is_not_marked_as_given(void **state)
{
    AUTO_DONE(args) struct args a;

    good(&a, WORDS("run", "--", "true"));
    assert_true(a.given == 0);
    assert_false(a.tty || a.interactive || a.json || a.all);
}

static void options_end_at_the_two_dashes(void **state)
{
    AUTO_DONE(args) struct args a;

    good(&a, WORDS("run", "--", "echo", "--memory-mb", "3", "--", "-t"));
    assert_int_equal(strv_len(a.command), 5);
    assert_string_equal(a.command[3], "--");
    assert_false(a.tty);
}

static void exec_takes_its_session_before_or_after_options(void **state)
{
    AUTO_DONE(args) struct args a;
    AUTO_DONE(args) struct args b;

    good(&a, WORDS("exec", "s", "--env", "A=1", "--", "true"));
    good(&b, WORDS("exec", "--timeout", "3", "s", "-t", "--", "true"));
    assert_string_equal(a.names[0], "s");
    assert_string_equal(b.names[0], "s");
    assert_string_equal(b.spec->session_id, "s");
    assert_int_equal(b.spec->timeout_sec, 3);
}

static void other_verbs_take_what_they_should(void **state)
{
    AUTO_DONE(args) struct args ps;
    AUTO_DONE(args) struct args rm;
    AUTO_DONE(args) struct args all;
    AUTO_DONE(args) struct args doctor;

    good(&ps, WORDS("ps", "--json"));
    good(&rm, WORDS("rm", "a", "b", "c"));
    good(&all, WORDS("rm", "--all"));
    good(&doctor, WORDS("doctor", "--json"));
    assert_true(ps.json && ps.verb == VERB_PS);
    assert_int_equal(strv_len(rm.names), 3);
    assert_true(all.all && all.names == NULL);
    assert_true(doctor.json && doctor.verb == VERB_DOCTOR);
}

static void help_is_found_everywhere(void **state)
{
    static const struct {
        const char *words[3];
        enum verb topic;
    } rows[] = {
        {{"--help"}, VERB_HELP},   {{"-h"}, VERB_HELP},           {{"help"}, VERB_HELP},
        {{"help", "rm"}, VERB_RM}, {{"run", "--help"}, VERB_RUN}, {{"ps", "-h"}, VERB_PS},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO_DONE(args) struct args a;
        good(&a, rows[i].words);
        assert_int_equal(a.verb, VERB_HELP);
        assert_int_equal(a.topic, rows[i].topic);
    }
    AUTO_DONE(args) struct args version;
    good(&version, WORDS("--version"));
    assert_true(version.version);
}

static void wrong_words_are_named(void **state)
{
    bad("unknown verb 'walk', see 'box --help'", WORDS("walk"));
    bad("unknown option '--bogus' of 'run', see 'box help run'",
        WORDS("run", "--bogus", "--", "x"));
    bad("unknown option '--bogus' of 'run', see 'box help run'", WORDS("run", "--bogus=1"));
    bad("unknown option '-x' of 'exec', see 'box help exec'", WORDS("exec", "s", "-tx", "--", "x"));
    bad("unknown option '--json' of 'rm', see 'box help rm'", WORDS("rm", "--json"));
    bad("unknown option '--memory-mb' of 'exec', see 'box help exec'",
        WORDS("exec", "s", "--memory-mb", "64", "--", "x"));
    bad("unknown option '--walk', see 'box --help'", WORDS("--walk"));
    bad("--tty takes no value", WORDS("run", "--tty=yes", "--", "x"));
    bad("--image wants a value: IMAGE", WORDS("run", "--image"));
    bad("--image wants a value: IMAGE", WORDS("run", "--image", "--", "x"));
}

static void a_command_needs_its_dashes_and_itself(void **state)
{
    bad("no command: box run [OPTION...] -- CMD [ARG...]", WORDS("run"));
    bad("no command: box run [OPTION...] -- CMD [ARG...]", WORDS("run", "-t", "--"));
    bad("no command: box exec SESSION [OPTION...] -- CMD [ARG...]", WORDS("exec", "s"));
    bad("unexpected 'echo': put '--' before the command", WORDS("run", "echo", "hi"));
    bad("unexpected 'b': put '--' before the command", WORDS("exec", "a", "b", "--", "x"));
    bad("'box ps' takes no command", WORDS("ps", "--", "x"));
    bad("argument 1 of the command is not valid UTF-8", WORDS("run", "--", "echo", "\xff"));
}

static void names_of_sessions_are_checked(void **state)
{
    bad("'box exec' wants a SESSION", WORDS("exec", "--", "x"));
    bad("'box rm' wants a SESSION", WORDS("rm"));
    bad("--all and names of sessions exclude each other", WORDS("rm", "--all", "a"));
    bad("unexpected 'x' after 'box ps'", WORDS("ps", "x"));
    bad("session '../x': an id has 1 to 64 letters, digits, '-' or '_', and starts with a letter "
        "or "
        "digit",
        WORDS("rm", "a", "../x"));
    bad("session '': an id has 1 to 64 letters, digits, '-' or '_', and starts with a letter or "
        "digit",
        WORDS("run", "--session", "", "--", "x"));
}

static void values_obey_the_rules_of_the_spec(void **state)
{
    bad("memory_mb must be at least 32", WORDS("run", "--memory-mb", "3", "--", "x"));
    bad("memory_mb must be at least 32",
        WORDS("run", "--memory-mb", "-99999999999999999999", "--", "x"));
    bad("memory_mb must be at most 1073741824",
        WORDS("run", "--memory-mb", "99999999999999999999", "--", "x"));
    bad("--memory-mb: '64M' is not a whole number", WORDS("run", "--memory-mb", "64M", "--", "x"));
    bad("--memory-mb: '' is not a whole number", WORDS("run", "--memory-mb=", "--", "x"));
    bad("cpus must be greater than 0", WORDS("run", "--cpus", "0", "--", "x"));
    bad("--cpus: 'nan' is not a number", WORDS("run", "--cpus", "nan", "--", "x"));
    bad("pids_limit must be at least 1", WORDS("run", "--pids", "0", "--", "x"));
    bad("workspace_quota_mb must be greater than or equal to 0",
        WORDS("run", "--quota-mb", "-1", "--", "x"));
    bad("timeout_sec must be greater than 0", WORDS("run", "--timeout", "0", "--", "x"));
    bad("timeout_sec must be greater than 0", WORDS("exec", "s", "--timeout", "0", "--", "x"));
    bad("--network: 'maybe' is not one of off, on", WORDS("run", "--network", "maybe", "--", "x"));
    bad("--read-only-root: 'yes' is not one of off, on",
        WORDS("run", "--read-only-root", "yes", "--", "x"));
    bad("workdir must be an absolute path inside the sandbox",
        WORDS("run", "--workdir", "rel", "--", "x"));
    bad("workdir must be an absolute path inside the sandbox",
        WORDS("exec", "s", "--workdir", "./rel", "--", "x"));
}

static void env_entries_have_a_name_and_an_equals_sign(void **state)
{
    bad("env entries must be NAME=value", WORDS("run", "--env", "A", "--", "x"));
    bad("env entries must be NAME=value", WORDS("run", "--env", "=v", "--", "x"));
    bad("env must be valid UTF-8", WORDS("run", "--env", "A=\xff", "--", "x"));
}

static void a_later_env_entry_replaces_an_earlier_one(void **state)
{
    AUTO(spec) struct spec *s = spec_new();
    struct err err = {0};

    assert_int_equal(args_parse_env("A=1", s, &err), 0);
    assert_int_equal(args_parse_env("AB=2", s, &err), 0);
    assert_int_equal(args_parse_env("A=x=y", s, &err), 0);
    assert_int_equal(strv_len(s->env), 2);
    assert_string_equal(s->env[0], "A=x=y");
    assert_string_equal(s->env[1], "AB=2");
}

static void env_entries_are_counted_and_weighed(void **state)
{
    AUTO(spec) struct spec *s = spec_new();
    AUTO(spec) struct spec *heavy = spec_new();
    struct err err = {0};
    char text[32];

    for (int i = 0; i < SPEC_ENV_ENTRIES_MAX; i++) {
        (void)snprintf(text, sizeof(text), "N%d=", i);
        assert_int_equal(args_parse_env(text, s, &err), 0);
    }
    assert_true(args_parse_env("ONE_MORE=", s, &err) < 0);
    assert_string_equal(err.msg, "env must have at most 4096 entries");
    assert_int_equal(args_parse_env("N7=again", s, &err), 0);

    /* Ten MiB, in pieces that a command line can hold. */
    AUTO_FREE char *piece = malloc(100 << 10);
    for (int i = 0; i < 100; i++) {
        memset(piece, 'x', 100 << 10);
        (void)snprintf(piece, 8, "N%03d", i);
        piece[4] = '=';
        piece[(100 << 10) - 1] = '\0';
        assert_int_equal(args_parse_env(piece, heavy, &err), 0);
    }
    free(heavy->session_id);
    heavy->session_id = strdup("s");
    assert_true(spec_validate(heavy, &err) < 0);
    assert_string_equal(err.msg, "env must be at most 1048576 bytes in all");
}

static void mount_texts_are_split_from_the_right(void **state)
{
    char dir[] = "/tmp/box-test-XXXXXX";
    char odd[64];
    char text[96];
    AUTO(spec) struct spec *s = spec_new();
    struct err err = {0};

    assert_non_null(mkdtemp(dir));
    (void)snprintf(odd, sizeof(odd), "%s/a:b", dir);
    assert_int_equal(mkdir(odd, 0700), 0);
    static const struct {
        const char *tail;
        const char *box;
        enum mount_mode mode;
    } rows[] = {
        {":/x", "/x", MOUNT_RW}, {":/x:ro", "/x", MOUNT_RO}, {":/x/y:rw", "/x/y", MOUNT_RW}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        (void)snprintf(text, sizeof(text), "%s%s", odd, rows[i].tail);
        assert_int_equal(args_parse_mount(text, s, &err), 0);
        assert_string_equal(s->extra_mounts[i].host_path, odd);
        assert_string_equal(s->extra_mounts[i].mount_path, rows[i].box);
        assert_int_equal(s->extra_mounts[i].mode, rows[i].mode);
    }
    assert_int_equal(rmdir(odd), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void mount_sources_are_resolved_where_box_runs(void **state)
{
    char dir[] = "/tmp/box-test-XXXXXX";
    char link[64];
    char text[96];
    AUTO(spec) struct spec *s = spec_new();
    struct err err = {0};

    assert_non_null(mkdtemp(dir));
    (void)snprintf(link, sizeof(link), "%s/l", dir);
    assert_int_equal(symlink("/etc", link), 0);
    (void)snprintf(text, sizeof(text), "%s/../%s/l:/x", dir, strrchr(dir, '/') + 1);
    assert_int_equal(args_parse_mount(text, s, &err), 0);
    assert_string_equal(s->extra_mounts[0].host_path, "/etc");
    assert_int_equal(args_parse_mount(".:/x", s, &err), 0);
    assert_int_equal(s->extra_mounts[1].host_path[0], '/');
    assert_int_equal(unlink(link), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void bad_mounts_are_refused_before_anything_happens(void **state)
{
    char dir[] = "/tmp/box-test-XXXXXX";
    char blank[64];
    char text[96];
    AUTO(spec) struct spec *s = spec_new();
    struct err err = {0};

    bad("mount source '/nope/nope' does not exist",
        WORDS("run", "--mount", "/nope/nope:/x", "--", "x"));
    bad("mount source '/etc/passwd/x' does not exist",
        WORDS("run", "--mount", "/etc/passwd/x:/x", "--", "x"));
    static const char *const malformed[] = {"/tmp",       ":/x", "/tmp:", "/tmp:x",
                                            "/tmp:/x:rx", "",    ":ro"};
    for (size_t i = 0; i < ARRAY_SIZE(malformed); i++) {
        assert_true(args_parse_mount(malformed[i], s, &err) < 0);
        assert_non_null(strstr(err.msg, "must be HOST:BOX[:ro|rw]"));
    }
    assert_int_equal(s->n_extra_mounts, 0);

    assert_non_null(mkdtemp(dir));
    (void)snprintf(blank, sizeof(blank), "%s/a ", dir);
    (void)snprintf(text, sizeof(text), "%s:/x", blank);
    assert_int_equal(mkdir(blank, 0700), 0);
    assert_true(args_parse_mount(text, s, &err) < 0);
    assert_non_null(strstr(err.msg, "begins or ends with a blank"));
    assert_int_equal(rmdir(blank), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void mounts_are_counted(void **state)
{
    AUTO(spec) struct spec *s = spec_new();
    struct err err = {0};

    for (int i = 0; i < SPEC_MOUNTS_MAX; i++)
        assert_int_equal(args_parse_mount("/:/x", s, &err), 0);
    assert_true(args_parse_mount("/:/x", s, &err) < 0);
    assert_string_equal(err.msg, "extra_mounts must have at most 256 entries");
}

static void help_tells_every_option_of_a_verb_and_no_other(void **state)
{
    AUTO_DONE(buf) struct buf run;
    AUTO_DONE(buf) struct buf ps;
    AUTO_DONE(buf) struct buf all;

    buf_init(&run, 65536);
    buf_init(&ps, 65536);
    buf_init(&all, 65536);
    assert_true(args_help(VERB_RUN, &run) >= 0);
    assert_true(args_help(VERB_PS, &ps) >= 0);
    assert_true(args_help(VERB_HELP, &all) >= 0);
    static const char *const options[] = {"--session ID",      "--image IMAGE",
                                          "--network on|off",  "--memory-mb N",
                                          "--cpus X",          "--pids N",
                                          "--quota-mb N",      "--timeout SEC",
                                          "--workdir DIR",     "--mount HOST:BOX[:ro|rw]",
                                          "--env NAME=VALUE",  "-t, --tty",
                                          "-i, --interactive", "--read-only-root on|off",
                                          "Default 512.",      "125"};
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        assert_non_null(strstr(buf_str(&run), options[i]));
    assert_null(strstr(buf_str(&run), "--json"));
    assert_non_null(strstr(buf_str(&ps), "--json"));
    assert_null(strstr(buf_str(&ps), "--memory-mb"));
    static const char *const verbs[] = {"run", "exec", "ps", "rm", "doctor", "help", "BOX_HOST"};
    for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
        assert_non_null(strstr(buf_str(&all), verbs[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_takes_every_option_of_the_contract),
        cmocka_unit_test(what_was_not_given_is_not_marked_as_given),
        cmocka_unit_test(options_end_at_the_two_dashes),
        cmocka_unit_test(exec_takes_its_session_before_or_after_options),
        cmocka_unit_test(other_verbs_take_what_they_should),
        cmocka_unit_test(help_is_found_everywhere),
        cmocka_unit_test(wrong_words_are_named),
        cmocka_unit_test(a_command_needs_its_dashes_and_itself),
        cmocka_unit_test(names_of_sessions_are_checked),
        cmocka_unit_test(values_obey_the_rules_of_the_spec),
        cmocka_unit_test(env_entries_have_a_name_and_an_equals_sign),
        cmocka_unit_test(a_later_env_entry_replaces_an_earlier_one),
        cmocka_unit_test(env_entries_are_counted_and_weighed),
        cmocka_unit_test(mount_texts_are_split_from_the_right),
        cmocka_unit_test(mount_sources_are_resolved_where_box_runs),
        cmocka_unit_test(bad_mounts_are_refused_before_anything_happens),
        cmocka_unit_test(mounts_are_counted),
        cmocka_unit_test(help_tells_every_option_of_a_verb_and_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
