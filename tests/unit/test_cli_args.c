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

#define ARGS_MAX 1024

/* The words of a command line, NULL at the end; argv[0] is added. */
static int parse(struct args *a, struct err *err, const char *const *words)
{
    static char *argv[ARGS_MAX];
    static char pool[1 << 17]; /* secrets are overwritten in place; results point here */
    static size_t used;
    int argc = 1;

    argv[0] = (char[]){"box"};
    for (; words[argc - 1] != NULL; argc++) {
        argv[argc] = pool + used;
        used += strlen(words[argc - 1]) + 1;
        assert_true(used < sizeof(pool));
        assert_int_equal(str_copy(argv[argc], sizeof(pool), words[argc - 1]), 0);
    }
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

static void a_verb_that_runs_a_command_needs_one(void **state)
{
    bad("no command: box run [OPTION...] [--] CMD [ARG...]", WORDS("run"));
    bad("no command: box run [OPTION...] [--] CMD [ARG...]", WORDS("run", "-t", "--"));
    bad("no command: box exec SESSION [OPTION...] [--] CMD [ARG...]", WORDS("exec", "s"));
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
    bad("env entries must be NAME=value", WORDS("run", "--env", "=v", "--", "x"));
    bad("env entries must be NAME=value or NAME", WORDS("run", "--env", "", "--", "x"));
    bad("env must be valid UTF-8", WORDS("run", "--env", "A=\xff", "--", "x"));
}

static void a_later_env_entry_replaces_an_earlier_one(void **state)
{
    AUTO(spec) struct spec *s = spec_new();
    struct err err = {0};

    assert_int_equal(args_set_variable(&s->env, "A=1", &err), 0);
    assert_int_equal(args_set_variable(&s->env, "AB=2", &err), 0);
    assert_int_equal(args_set_variable(&s->env, "A=x=y", &err), 0);
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
        assert_int_equal(args_set_variable(&s->env, text, &err), 0);
    }
    assert_true(args_set_variable(&s->env, "ONE_MORE=", &err) < 0);
    assert_string_equal(err.msg, "env must have at most 4096 entries");
    assert_int_equal(args_set_variable(&s->env, "N7=again", &err), 0);

    /* Ten MiB, in pieces that a command line can hold. */
    AUTO_FREE char *piece = malloc(100 << 10);
    for (int i = 0; i < 100; i++) {
        memset(piece, 'x', 100 << 10);
        (void)snprintf(piece, 8, "N%03d", i);
        piece[4] = '=';
        piece[(100 << 10) - 1] = '\0';
        assert_int_equal(args_set_variable(&heavy->env, piece, &err), 0);
    }
    free(heavy->session_id);
    heavy->session_id = strdup("s");
    assert_true(spec_validate(heavy, &err) < 0);
    assert_string_equal(err.msg, "env must be at most 1048576 bytes in all");
}

static void a_command_begins_at_the_first_word_that_is_no_option(void **state)
{
    AUTO_DONE(args) struct args a;
    AUTO_DONE(args) struct args b;
    AUTO_DONE(args) struct args c;

    good(&a, WORDS("run", "-t", "ls", "-la", "--", "--network"));
    assert_int_equal(strv_len(a.command), 4);
    assert_string_equal(a.command[1], "-la");
    assert_string_equal(a.command[2], "--");
    assert_true(a.tty);
    good(&b, WORDS("exec", "-w", "/w", "s", "-e", "A=1", "ls", "-w", "x"));
    assert_string_equal(b.names[0], "s");
    assert_string_equal(b.spec->workdir, "/w");
    assert_int_equal(strv_len(b.command), 3);
    good(&c, WORDS("mcp", "run", "--name", "n", "npx", "-y", "server"));
    assert_int_equal(strv_len(c.command), 3);
    assert_string_equal(c.name, "n");
}

static void letters_take_their_values_as_people_write_them(void **state)
{
    AUTO_DONE(args) struct args a;

    good(&a, WORDS("run", "-itm512m", "-e=A=1", "-eB=2", "-e", "C=3", "-w/w", "-v", "/:/m:ro",
                   "--volume=/:/n", "--name", "n", "--rm", "--pids-limit", "9", "x"));
    assert_true(a.tty && a.interactive && a.remove);
    assert_int_equal(a.spec->memory_mb, 512);
    assert_int_equal(strv_len(a.spec->env), 3);
    assert_string_equal(a.spec->env[0], "A=1");
    assert_string_equal(a.spec->env[1], "B=2");
    assert_string_equal(a.spec->workdir, "/w");
    assert_int_equal(a.spec->n_extra_mounts, 2);
    assert_string_equal(a.spec->session_id, "n");
    assert_int_equal(a.spec->pids_limit, 9);
    bad("--memory wants a value: SIZE", WORDS("run", "-m"));
    bad("--workdir wants a value: DIR", WORDS("run", "-w", "--", "x"));
}

static void sizes_and_times_have_units(void **state)
{
    static const struct {
        const char *text;
        int64_t mib;
    } sizes[] = {{"512m", 512},    {"512M", 512},  {"1.5g", 1536},   {"2GiB", 2048},
                 {"1tb", 1 << 20}, {"65536k", 64}, {"67108864", 64}, {"67108865b", 64}};
    static const struct {
        const char *text;
        int64_t seconds;
    } times[] = {{"30", 30},      {"30s", 30},   {"5m", 300},   {"5min", 300},   {"1.5m", 90},
                 {"1h30m", 5400}, {"2000ms", 2}, {"1d", 86400}, {"1h0.5m", 3630}};

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        AUTO_DONE(args) struct args a;
        good(&a, WORDS("run", "--memory", sizes[i].text, "x"));
        assert_int_equal(a.spec->memory_mb, sizes[i].mib);
        assert_true(args_given(&a, SPEC_MEMORY_MB));
    }
    for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
        AUTO_DONE(args) struct args a;
        good(&a, WORDS("run", "--timeout", times[i].text, "x"));
        assert_int_equal(a.spec->timeout_sec, times[i].seconds);
    }
    static const char *const no_size[] = {"",    "m",    "1x",  "-1m", "1.2.3m", "nan",
                                          "1e9", "0x10", "1mm", " 1m", "m1"};
    for (size_t i = 0; i < ARRAY_SIZE(no_size); i++) {
        AUTO_FREE char *say = NULL;
        assert_true(
            asprintf(&say, "--memory: '%s' is not a size such as 512m or 1.5g", no_size[i]) > 0);
        bad(say, WORDS("run", "--memory", no_size[i], "x"));
    }
    static const char *const no_time[] = {"",       "s",   "1x",  "-1s", "1h30",
                                          "1.2.3s", "nan", "1e3", "1 s", "s1"};
    for (size_t i = 0; i < ARRAY_SIZE(no_time); i++) {
        AUTO_FREE char *say = NULL;
        assert_true(asprintf(&say, "--timeout: '%s' is not a time such as 30, 30s, 5m or 1h30m",
                             no_time[i]) > 0);
        bad(say, WORDS("run", "--timeout", no_time[i], "x"));
    }
    bad("--memory: '512' is less than 1 MiB; write 512m for MiB", WORDS("run", "-m", "512", "x"));
    bad("--memory: '512k' is less than 1 MiB; write 512m", WORDS("run", "-m", "512k", "x"));
    bad("memory_mb must be at least 32", WORDS("run", "-m", "31m", "x"));
    bad("memory_mb must be at least 32", WORDS("run", "-m", "0", "x"));
    bad("memory_mb must be at most 1073741824", WORDS("run", "-m", "9999999999999t", "x"));
    bad("--timeout: '1500ms' is not a whole number of seconds",
        WORDS("run", "--timeout", "1500ms", "x"));
    bad("timeout_sec must be greater than 0", WORDS("run", "--timeout", "0s", "x"));
    bad("timeout_sec must be at most 315360000", WORDS("run", "--timeout", "9999999999h", "x"));
}

static void a_name_alone_passes_the_variable_on(void **state)
{
    AUTO_DONE(args) struct args a;

    assert_int_equal(setenv("BOX_TEST_HERE", "a=b", 1), 0);
    assert_int_equal(unsetenv("BOX_TEST_GONE"), 0);
    good(&a, WORDS("run", "-e", "BOX_TEST_HERE", "-e", "BOX_TEST_GONE", "x"));
    assert_int_equal(strv_len(a.spec->env), 1);
    assert_string_equal(a.spec->env[0], "BOX_TEST_HERE=a=b");
}

/* A file with that text; --env-file FILE and --env B=option. */
static int read_file(const char *text, size_t len, struct args *a, struct err *err)
{
    char path[] = "/tmp/box-test-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, len), len);
    assert_int_equal(close(fd), 0);
    int r = parse(a, err, WORDS("run", "-e", "B=option", "--env-file", path, "x"));
    assert_int_equal(unlink(path), 0);
    return r;
}

static void an_env_file_is_read_as_docker_reads_it(void **state)
{
    static const char text[] = "# comment\n\n  A=\"quoted\" # no comment\nB=file\nBOX_TEST_HERE\r\n"
                               "C=\nBOX_TEST_GONE\nlast=1";
    AUTO_DONE(args) struct args a;
    struct err err = {0};

    assert_int_equal(setenv("BOX_TEST_HERE", "here", 1), 0);
    assert_int_equal(unsetenv("BOX_TEST_GONE"), 0);
    assert_int_equal(read_file(text, strlen(text), &a, &err), 0);
    static const char *const want[] = {"A=\"quoted\" # no comment", "B=option",
                                       "BOX_TEST_HERE=here", "C=", "last=1"};
    assert_int_equal(strv_len(a.spec->env), ARRAY_SIZE(want));
    for (size_t i = 0; i < ARRAY_SIZE(want); i++)
        assert_string_equal(a.spec->env[i], want[i]);
}

static void a_wrong_env_file_is_refused_with_its_line(void **state)
{
    static const struct {
        const char *text;
        size_t len;
        const char *say;
    } rows[] = {
        {"A=1\nB C=2\n", 10, "line 2: the name of a variable cannot hold a blank"},
        {"=2\n", 3, "line 1: env entries must be NAME=value"},
        {"A=\0\n", 4, "the file holds a NUL"},
        {"A=1\n\nB=\xff\n", 9, "line 3 is not valid UTF-8"},
    };
    struct err err = {0};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        AUTO_DONE(args) struct args a;
        assert_true(read_file(rows[i].text, rows[i].len, &a, &err) < 0);
        assert_non_null(strstr(err.msg, rows[i].say));
    }
    AUTO_DONE(args) struct args a;
    AUTO_DONE(args) struct args b;
    static char large[SPEC_ENV_BYTES_MAX + 2];
    memset(large, '\n', sizeof(large));
    assert_int_equal(read_file(large, SPEC_ENV_BYTES_MAX - 1, &a, &err), 0);
    assert_true(read_file(large, SPEC_ENV_BYTES_MAX + 1, &b, &err) < 0);
    assert_non_null(strstr(err.msg, "is larger than 1048576 bytes"));
    AUTO_DONE(args) struct args c;
    assert_true(parse(&c, &err, WORDS("run", "--env-file", "/no/such", "x")) < 0);
    assert_string_equal(err.msg, "--env-file '/no/such': No such file or directory");
}

static void a_secret_does_not_stay_on_the_command_line(void **state)
{
    AUTO_DONE(args) struct args a;
    char run[] = "run", option[] = "-e", secret[] = "KEY=hunter2", x[] = "x";
    char *argv[] = {(char[]){"box"}, run, option, secret, x, NULL};
    struct err err = {0};

    assert_int_equal(args_parse(5, argv, &a, &err), 0);
    assert_string_equal(a.spec->env[0], "KEY=hunter2");
    assert_string_equal(secret, "KEY=*******");
}

static void an_entrypoint_gets_the_command_as_its_arguments(void **state)
{
    AUTO_DONE(args) struct args a;
    AUTO_DONE(args) struct args b;

    good(&a, WORDS("run", "--entrypoint", "ls", "--", "-l", "/"));
    assert_int_equal(strv_len(a.command), 3);
    assert_string_equal(a.command[0], "ls");
    assert_string_equal(a.command[1], "-l");
    good(&b, WORDS("run", "--entrypoint=ls", "-t"));
    assert_int_equal(strv_len(b.command), 1);
    assert_string_equal(b.command[0], "ls");
}

static void words_that_are_nearly_right_are_recognised(void **state)
{
    bad("unknown verb 'rnu'; did you mean 'box run'?", WORDS("rnu"));
    bad("unknown verb 'doctr'; did you mean 'box doctor'?", WORDS("doctr"));
    bad("unknown verb 'comp'; did you mean 'box completion'?", WORDS("comp"));
    bad("unknown verb 'xyz', see 'box --help'", WORDS("xyz"));
    bad("'box mcp' wants one of: run, ls, logs, serve; see 'box help mcp run'", WORDS("mcp"));
    bad("unknown verb 'mcp rnu'; did you mean 'box mcp run'?", WORDS("mcp", "rnu"));
    bad("unknown option '--wokrdir' of run; did you mean '--workdir'?",
        WORDS("run", "--wokrdir", "/x", "x"));
    bad("unknown option '--interact' of run; did you mean '--interactive'?",
        WORDS("run", "--interact", "x"));
    bad("unknown option '--versoin'; did you mean '--version'?", WORDS("--versoin"));
}

static void words_of_docker_that_box_lacks_are_explained(void **state)
{
    bad("there is no 'box network': there are no networks to manage; 'box run --network on|off' "
        "decides for one session",
        WORDS("network", "ls"));
    bad("there is no --privileged: no command in a box has privileges",
        WORDS("run", "--privileged", "x"));
}

static void ls_is_ps(void **state)
{
    AUTO_DONE(args) struct args a;

    good(&a, WORDS("ls"));
    assert_int_equal(a.verb, VERB_PS);
}

/* The mount of `box run --mount TEXT`, added to those of the spec. */
static int add_mount(const char *text, struct spec *s, struct err *err)
{
    AUTO_DONE(args) struct args a;
    int r = parse(&a, err, WORDS("run", "--mount", text, "--", "x"));

    if (r < 0)
        return r;
    assert_int_equal(a.spec->n_extra_mounts, 1);
    s->extra_mounts =
        reallocarray(s->extra_mounts, s->n_extra_mounts + 1, sizeof(*s->extra_mounts));
    s->extra_mounts[s->n_extra_mounts++] = a.spec->extra_mounts[0];
    a.spec->n_extra_mounts = 0;
    return 0;
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
        assert_int_equal(add_mount(text, s, &err), 0);
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
    assert_int_equal(add_mount(text, s, &err), 0);
    assert_string_equal(s->extra_mounts[0].host_path, "/etc");
    assert_int_equal(add_mount(".:/x", s, &err), 0);
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
        assert_true(add_mount(malformed[i], s, &err) < 0);
        assert_non_null(strstr(err.msg, "must be HOST:BOX[:ro|rw]"));
    }
    assert_int_equal(s->n_extra_mounts, 0);

    assert_non_null(mkdtemp(dir));
    (void)snprintf(blank, sizeof(blank), "%s/a ", dir);
    (void)snprintf(text, sizeof(text), "%s:/x", blank);
    assert_int_equal(mkdir(blank, 0700), 0);
    assert_true(add_mount(text, s, &err) < 0);
    assert_non_null(strstr(err.msg, "begins or ends with a blank"));
    assert_int_equal(rmdir(blank), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void mounts_are_counted(void **state)
{
    const char *words[1 + 2 * (SPEC_MOUNTS_MAX + 1) + 3] = {"run"};
    size_t n = 1;

    while (n < 1 + 2 * (SPEC_MOUNTS_MAX + 1)) {
        words[n++] = "--mount";
        words[n++] = "/:/x";
    }
    words[n++] = "--";
    words[n] = "x";
    bad("extra_mounts must have at most 256 entries", words);
}

static void help_tells_every_option_of_a_verb_and_no_other(void **state)
{
    AUTO_DONE(buf) struct buf run;
    AUTO_DONE(buf) struct buf ps;
    AUTO_DONE(buf) struct buf all;

    buf_init(&run, 65536);
    buf_init(&ps, 65536);
    buf_init(&all, 65536);
    args_help(VERB_RUN, &run);
    args_help(VERB_PS, &ps);
    args_help(VERB_HELP, &all);
    static const char *const options[] = {"--session ID",       "--image IMAGE",
                                          "--network on|off",   "--memory-mb N",
                                          "--cpus X",           "--pids N",
                                          "--quota-mb N",       "--timeout TIME",
                                          "--workdir DIR",      "--mount HOST:BOX[:ro|rw]",
                                          "--env NAME[=VALUE]", "-t, --tty",
                                          "-m, --memory SIZE",  "-v, --mount",
                                          "-i, --interactive",  "--read-only-root on|off",
                                          "Default 512.",       "125"};
    for (size_t i = 0; i < ARRAY_SIZE(options); i++)
        assert_non_null(strstr(buf_str(&run), options[i]));
    assert_null(strstr(buf_str(&run), "--json"));
    assert_non_null(strstr(buf_str(&ps), "--json"));
    assert_null(strstr(buf_str(&ps), "--memory-mb"));
    static const char *const verbs[] = {"run", "exec", "ps", "rm", "doctor", "help", "BOX_HOST"};
    for (size_t i = 0; i < ARRAY_SIZE(verbs); i++)
        assert_non_null(strstr(buf_str(&all), verbs[i]));
}

/* What `box mcp run` does without the option (test_mcp_path.c) is what its help says. */
static void help_tells_the_defaults_of_the_verb(void **state)
{
    static const struct {
        enum verb verb;
        const char *option, *end;
    } cases[] = {
        {VERB_RUN, "--network ", " Default off."},
        {VERB_RUN, "--read-only-root ", " Default on."},
        {VERB_RUN, "--timeout ", "without a unit.\n"}, /* none */
        {VERB_MCP_SERVE, "--network ", " Default off."},
        {VERB_MCP_RUN, "--network ", " Default on."},
        {VERB_MCP_RUN, "--read-only-root ", " Default off."},
        {VERB_MCP_RUN, "--host-path-mode ", " Default ro."},
        {VERB_MCP_RUN, "--startup-timeout ", " Default 120s."},
        {VERB_MCP_RUN, "--memory-mb ", " Default 512."},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_DONE(buf) struct buf help = BUF_INIT(65536);
        args_help(cases[i].verb, &help);
        const char *at = strstr(buf_str(&help), cases[i].option);
        assert_non_null(at);
        const char *next = strstr(at + 1, " --"); /* the next option */
        const char *found = strstr(at, cases[i].end);
        assert_true(found != NULL && next != NULL && found < next);
    }
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
        cmocka_unit_test(a_verb_that_runs_a_command_needs_one),
        cmocka_unit_test(names_of_sessions_are_checked),
        cmocka_unit_test(values_obey_the_rules_of_the_spec),
        cmocka_unit_test(env_entries_have_a_name_and_an_equals_sign),
        cmocka_unit_test(a_later_env_entry_replaces_an_earlier_one),
        cmocka_unit_test(env_entries_are_counted_and_weighed),
        cmocka_unit_test(a_command_begins_at_the_first_word_that_is_no_option),
        cmocka_unit_test(letters_take_their_values_as_people_write_them),
        cmocka_unit_test(sizes_and_times_have_units),
        cmocka_unit_test(a_name_alone_passes_the_variable_on),
        cmocka_unit_test(an_env_file_is_read_as_docker_reads_it),
        cmocka_unit_test(a_wrong_env_file_is_refused_with_its_line),
        cmocka_unit_test(a_secret_does_not_stay_on_the_command_line),
        cmocka_unit_test(an_entrypoint_gets_the_command_as_its_arguments),
        cmocka_unit_test(words_that_are_nearly_right_are_recognised),
        cmocka_unit_test(words_of_docker_that_box_lacks_are_explained),
        cmocka_unit_test(ls_is_ps),
        cmocka_unit_test(mount_texts_are_split_from_the_right),
        cmocka_unit_test(mount_sources_are_resolved_where_box_runs),
        cmocka_unit_test(bad_mounts_are_refused_before_anything_happens),
        cmocka_unit_test(mounts_are_counted),
        cmocka_unit_test(help_tells_every_option_of_a_verb_and_no_other),
        cmocka_unit_test(help_tells_the_defaults_of_the_verb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
