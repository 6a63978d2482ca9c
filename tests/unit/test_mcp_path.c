/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/mcp/path.c"
#include "cli/mcp/payload.c"
#include "cli/mcp/plan.c"
#include "cli/mcp/status.h"
#include "spec/spec.h"

DEFINE_CLEANUP_DONE(mcp_box)
DEFINE_CLEANUP_DONE(mcp_server)

/* The 25 cases that a boxed server has to pass (row F25), by their number, and the mistakes of
 * others that must not be repeated. A file system that is a table. */

static const struct {
    const char *path;
    enum mcp_kind kind;
    const char *real; /* NULL: itself */
} files[] = {
    {"/home/u", MCP_DIR, NULL},
    {"/home/u/mcp", MCP_DIR, NULL},
    {"/home/u/mcp/server.py", MCP_FILE, NULL},
    {"/home/u/mcp/config.json", MCP_FILE, NULL},
    {"/home/u/mcp/package.json", MCP_FILE, NULL},
    {"/home/u/mcp/requirements.txt", MCP_FILE, NULL},
    {"/home/u/mcp/.venv/bin", MCP_DIR, NULL},
    {"/home/u/mcp/.venv/bin/python", MCP_FILE, "/usr/bin/python3.11"},
    {"/home/u/mcp/src", MCP_DIR, NULL},
    {"/home/u/mcp/src/deep/main.py", MCP_FILE, NULL},
    {"/home/u/mcp/src/deep", MCP_DIR, NULL},
    {"/home/u/docs", MCP_DIR, NULL},
    {"/home/u/pics", MCP_DIR, NULL},
    {"/home/u/more/docs", MCP_DIR, NULL},
    {"/home/u/link", MCP_DIR, "/home/u/mcp"},
    {"/home/u/link/server.py", MCP_FILE, "/home/u/mcp/server.py"},
    {"/home/u/.nvm/node/bin", MCP_DIR, NULL},
    {"/home/u/.nvm/node/bin/npx", MCP_FILE, NULL},
    {"/home/u/.nvm/node/bin/node", MCP_FILE, NULL},
    {"/home/u/.nvm/node/lib/node_modules", MCP_DIR, NULL},
    {"/home/u/.fnm/1/bin", MCP_DIR, "/home/u/.nvm/node/bin"},
    {"/home/u/.fnm/1/bin/pnpm", MCP_FILE, "/home/u/.nvm/node/lib/node_modules/pnpm/pnpm.cjs"},
    {"/home/u/.asdf/shims", MCP_DIR, NULL},
    {"/home/u/.asdf/shims/npx", MCP_FILE, NULL},
    {"/home/u/.local/bin", MCP_DIR, NULL},
    {"/home/u/.local/bin/node", MCP_FILE, NULL},
    {"/home/u/.local/bin/yarn", MCP_FILE, NULL},
    {"/home/u/.local/bin/uvx", MCP_FILE, NULL},
    {"/home/u/.local/bin/uv", MCP_FILE, "/home/u/.local/share/pipx/uv"},
    {"/home/u/.local/bin/deno", MCP_FILE, NULL},
    {"/home/u/.local/bin/bunx", MCP_FILE, NULL},
    {"/home/u/.local/lib/node_modules", MCP_DIR, NULL},
    {"/usr/local/bin/bunx", MCP_FILE, NULL},
    {"/home/u/pkg", MCP_DIR, NULL},
    {"/home/u/pkg/pyproject.toml", MCP_FILE, NULL},
    {"/home/u/built", MCP_DIR, NULL},
    {"/home/u/built/package.json", MCP_FILE, NULL},
    {"/home/u/built/node_modules", MCP_DIR, NULL},
    {"/data", MCP_DIR, NULL},
    {"/data/a", MCP_DIR, NULL},
    {"/usr/bin/python3", MCP_FILE, NULL},
    {"/etc/hosts", MCP_FILE, NULL},
};

static enum mcp_kind table_kind(const char *path)
{
    for (size_t i = 0; i < ARRAY_SIZE(files); i++)
        if (str_eq(files[i].path, path))
            return files[i].kind;
    return MCP_MISSING;
}

static char *table_real(const char *path)
{
    for (size_t i = 0; i < ARRAY_SIZE(files); i++)
        if (str_eq(files[i].path, path))
            return xstrdup(files[i].real != NULL ? files[i].real : path);
    return NULL;
}

static const struct mcp_fs fs = {table_kind, table_real};

#define ARGV(...) ((char *[]){__VA_ARGS__, NULL})
#define W(text) ((char[]){text})

/* A server whose member "box" is that text. */
static int find_boxed(const char *box, struct mcp_server *ret, struct err *err)
{
    AUTO(json) struct json *v = NULL;
    AUTO_DONE(buf) struct buf text;

    buf_init(&text, 4096);
    (void)buf_printf(&text, "{\"mcpServers\":{\"s\":{\"command\":\"c\",\"box\":%s}}}", box);
    assert_int_equal(json_parse(buf_str(&text), text.len, &v, err), 0);
    return mcp_server_find(v, "s", ret, err);
}

static void box_of(const char *text, struct mcp_box *ret)
{
    AUTO_DONE(mcp_server) struct mcp_server server = {0};
    struct err err = {0};

    if (find_boxed(text, &server, &err) < 0)
        fail_msg("%s", err.msg);
    *ret = server.box;
    server.box = (struct mcp_box){0};
}

static void box_refused(const char *text, const char *why)
{
    struct mcp_server server;
    struct err err = {0};

    assert_true(find_boxed(text, &server, &err) < 0);
    assert_non_null(strstr(err.msg, why));
}

static void assert_defaults(const struct mcp_box *b)
{
    assert_null(b->image);
    assert_int_equal(b->network, NETWORK_ON);
    assert_null(b->host_path);
    assert_int_equal(b->host_path_mode, MOUNT_RO);
    assert_int_equal(strv_len(b->env), 0);
    assert_int_equal(b->startup_timeout_sec, 120);
    assert_true(b->cpus < 0.5);
    assert_int_equal(b->memory_mb, 0);
    assert_int_equal(b->pids_limit, 0);
    assert_int_equal(b->read_only_rootfs, 0);
}

static void test_row_F25_row_F03_case_01_default_config_values(void **state)
{
    AUTO_DONE(mcp_box) struct mcp_box b;
    AUTO_DONE(mcp_box) struct mcp_box of_empty;

    mcp_box_init(&b);
    assert_defaults(&b);
    box_of("{}", &of_empty);
    assert_defaults(&of_empty);
}

static void test_row_F25_row_F03_case_02_custom_config_values(void **state)
{
    AUTO_DONE(mcp_box) struct mcp_box b;

    box_of("{\"image\":\"node:20\",\"network\":\"off\",\"host_path\":\"/home/u/mcp\","
           "\"host_path_mode\":\"rw\",\"env\":{\"A\":\"1\"},\"startup_timeout_sec\":60,"
           "\"cpus\":2.0,\"memory_mb\":1024,\"pids_limit\":256,\"read_only_rootfs\":true}",
           &b);
    assert_string_equal(b.image, "node:20");
    assert_int_equal(b.network, NETWORK_OFF);
    assert_string_equal(b.host_path, "/home/u/mcp");
    assert_int_equal(b.host_path_mode, MOUNT_RW);
    assert_non_null(b.env);
    assert_string_equal(b.env[0], "A=1");
    assert_int_equal(b.startup_timeout_sec, 60);
    assert_true(b.cpus > 1.9 && b.cpus < 2.1);
    assert_int_equal(b.memory_mb, 1024);
    assert_int_equal(b.pids_limit, 256);
    assert_int_equal(b.read_only_rootfs, 1);
    box_refused("{\"memory_mb\":1}", "memory_mb must be at least 32");
    box_refused("{\"network\":\"maybe\"}", "network");
    box_refused("{\"host_path\":\"relative\"}", "host_path must be an absolute host path");
    box_refused("{\"startup_timeout_sec\":0}", "startup_timeout_sec");
    box_refused("{\"read_only_rootfs\":7}", "read_only_rootfs");
}

static void test_row_F25_row_F03_case_03_extra_fields_are_ignored(void **state)
{
    AUTO_DONE(mcp_box) struct mcp_box b;

    box_of("{\"colour\":\"red\",\"memory_mb\":null,\"image\":null,\"cpus\":null,"
           "\"read_only_rootfs\":null}",
           &b);
    assert_defaults(&b);
}

static void rewrites(const char *path, const char *host, const char *expected)
{
    AUTO_DONE(mcp_roots) struct mcp_roots roots = {0};

    if (host != NULL)
        mcp_roots_add(&roots, host, MCP_MOUNT);
    AUTO_FREE char *got = mcp_rewrite_arg(&fs, path, &roots);

    assert_string_equal(got, expected);
}

static void test_row_F25_case_04_rewrite_without_host_path(void **state)
{
    rewrites("/home/u/mcp/server.py", NULL, "/home/u/mcp/server.py");
    rewrites("/home/u/mcp/server.py", "", "/home/u/mcp/server.py");
}

static void test_row_F25_case_05_rewrite_empty_path(void **state)
{
    rewrites("", "/home/u/mcp", "");
}

static void test_row_F25_case_06_rewrite_prefix(void **state)
{
    rewrites("/home/u/mcp/server.py", "/home/u/mcp", "/workspace/server.py");
}

static void test_row_F25_case_07_rewrite_exact(void **state)
{
    rewrites("/home/u/mcp", "/home/u/mcp", "/workspace");
}

static void test_row_F25_case_08_rewrite_no_match(void **state)
{
    rewrites("/opt/x/server.py", "/home/u/mcp", "/opt/x/server.py");
}

static void test_row_F25_case_09_rewrite_similar_prefix(void **state)
{
    rewrites("/home/u/mcp-other/server.py", "/home/u/mcp", "/home/u/mcp-other/server.py");
}

static void test_row_F25_case_10_rewrite_nested(void **state)
{
    rewrites("/home/u/mcp/src/deep/main.py", "/home/u/mcp", "/workspace/src/deep/main.py");
}

static void infers(char *const *argv, const char *expected)
{
    AUTO_DONE(mcp_roots) struct mcp_roots roots = {0};

    mcp_infer_roots(&fs, argv, NULL, MCP_MOUNT, &roots);
    if (expected == NULL) {
        for (size_t i = 0; i < roots.n; i++)
            assert_string_not_equal(roots.list[i].inside, MCP_MOUNT);
        return;
    }
    assert_int_equal(roots.n, 1);
    assert_string_equal(roots.list[0].host, expected);
    assert_string_equal(roots.list[0].inside, MCP_MOUNT);
}

static void test_row_F25_row_F04_case_11_no_absolute_path_infers_nothing(void **state)
{
    infers(ARGV(W("npx"), W("-y"), W("some-server"), W("server.py")), NULL);
}

static void test_row_F25_row_F04_case_12_what_does_not_exist_infers_nothing(void **state)
{
    infers(ARGV(W("/nonexistent/python"), W("/nonexistent/server.py")), NULL);
}

static void test_row_F25_row_F04_case_13_a_file_infers_its_directory(void **state)
{
    infers(ARGV(W("python"), W("/home/u/mcp/server.py")), "/home/u/mcp");
    infers(ARGV(W("python"), W("/home/u/mcp/server.py"), W("/home/u/mcp/src/deep/main.py")),
           "/home/u/mcp");
}

static void session_is(const struct mcp_box *b, const struct mcp_roots *roots, struct args args,
                       const char *expected)
{
    const struct mcp_plan p = {.server = {.box = *b}, .roots = *roots, .session_id = "mcp-1"};
    AUTO_DONE(buf) struct buf out;
    struct spec nothing = {0};
    struct jw w;

    if (args.spec == NULL)
        args.spec = &nothing;
    buf_init(&out, 65536);
    jw_init(&w, &out);
    mcp_write_session(&w, &p, &args);
    assert_int_equal(jw_end(&w), 0);
    assert_string_equal(buf_str(&out), expected);
}

static void test_row_F25_case_14_minimal_session_payload(void **state)
{
    AUTO_DONE(mcp_box) struct mcp_box b;
    struct mcp_roots none = {0};

    mcp_box_init(&b);
    session_is(&b, &none, (struct args){0},
               "{\"session_id\":\"mcp-1\",\"workdir\":\"/workspace\",\"env\":{},"
               "\"network\":\"on\",\"read_only_rootfs\":false}");
}

static void test_row_F25_case_15_session_payload_with_host_path(void **state)
{
    AUTO_DONE(mcp_box) struct mcp_box b;
    AUTO_DONE(mcp_roots) struct mcp_roots roots = {0};

    mcp_box_init(&b);
    mcp_roots_add(&roots, "/home/u/mcp", MCP_MOUNT);
    session_is(&b, &roots, (struct args){0},
               "{\"session_id\":\"mcp-1\",\"workdir\":\"/workspace\",\"env\":{},"
               "\"network\":\"on\",\"read_only_rootfs\":false,\"host_path\":\"/home/u/mcp\","
               "\"host_path_mode\":\"ro\"}");
}

static void test_row_F25_case_16_session_payload_with_optional_fields(void **state)
{
    AUTO_DONE(mcp_box) struct mcp_box b;
    AUTO_DONE(mcp_roots) struct mcp_roots roots = {0};

    box_of("{\"image\":\"node:20\",\"env\":{\"A\":\"1\"},\"cpus\":0.5,\"memory_mb\":64,"
           "\"pids_limit\":9,\"read_only_rootfs\":true,\"network\":\"off\"}",
           &b);
    mcp_roots_add(&roots, "/home/u/docs", "/workspace/docs");
    struct spec spec = {.workspace_quota_mb = 7};
    session_is(&b, &roots, (struct args){.profile = "strict", .spec = &spec},
               "{\"session_id\":\"mcp-1\",\"workdir\":\"/workspace\",\"env\":{\"A\":\"1\"},"
               "\"network\":\"off\",\"read_only_rootfs\":true,\"extra_mounts\":[{\"host_path\":"
               "\"/home/u/docs\",\"mount_path\":\"/workspace/docs\",\"mode\":\"ro\"}],"
               "\"image\":\"node:20\",\"cpus\":0.5,\"memory_mb\":64,\"pids_limit\":9,"
               "\"workspace_quota_mb\":7,\"profile\":\"strict\"}");
}

static void test_row_F25_case_17_session_payload_leaves_nulls_out(void **state)
{
    AUTO_DONE(mcp_box) struct mcp_box b;

    box_of("{\"image\":null,\"cpus\":null,\"memory_mb\":null,\"pids_limit\":null}", &b);
    session_is(&b, &(struct mcp_roots){0}, (struct args){0},
               "{\"session_id\":\"mcp-1\",\"workdir\":\"/workspace\",\"env\":{},"
               "\"network\":\"on\",\"read_only_rootfs\":false}");
}

static void process_is(char *const *argv, const struct mcp_roots *roots, const char *expected)
{
    AUTO_DONE(buf) struct buf out;
    AUTO_FREE char *command = mcp_rewrite_command(&fs, argv[0], roots);
    AUTO_STRV char **args = NULL;
    struct jw w;

    for (size_t i = 1; argv[i] != NULL; i++)
        strv_push(&args, mcp_rewrite_arg(&fs, argv[i], roots));
    buf_init(&out, 65536);
    jw_init(&w, &out);
    mcp_write_process(&w, "p", command, args, NULL, MCP_MOUNT);
    assert_int_equal(jw_end(&w), 0);
    assert_string_equal(buf_str(&out), expected);
}

#define PROCESS(command, args)                                                                     \
    "{\"process_id\":\"p\",\"command\":\"" command "\",\"args\":[" args                            \
    "],\"env\":{},\"cwd\":\"/workspace\"}"

static void test_row_F25_case_18_process_payload(void **state)
{
    struct mcp_roots none = {0};

    process_is(ARGV(W("npx"), W("-y"), W("server")), &none, PROCESS("npx", "\"-y\",\"server\""));
}

static void test_row_F25_row_F05_row_F06_case_19_process_payload_is_rewritten(void **state)
{
    AUTO_DONE(mcp_roots) struct mcp_roots roots = {0};

    mcp_roots_add(&roots, "/home/user/mcp", MCP_MOUNT);
    process_is(
        ARGV(W("/home/user/mcp/venv/bin/python"), W("/home/user/mcp/server.py"), W("--config"),
             W("/home/user/mcp/config.json")),
        &roots,
        PROCESS("python", "\"/workspace/server.py\",\"--config\",\"/workspace/config.json\""));
}

static void test_row_F25_case_20_process_payload_that_does_not_match_is_untouched(void **state)
{
    AUTO_DONE(mcp_roots) struct mcp_roots roots = {0};

    mcp_roots_add(&roots, "/home/u/mcp", MCP_MOUNT);
    process_is(ARGV(W("/opt/x/run"), W("-m"), W("module"), W("/etc/hosts"), W("server.py")), &roots,
               PROCESS("/opt/x/run", "\"-m\",\"module\",\"/etc/hosts\",\"server.py\""));
}

static void info_text(const struct mcp_info *info, struct buf *out)
{
    struct jw w;

    buf_init(out, 65536);
    jw_init(&w, out);
    mcp_write_info(&w, info);
    assert_int_equal(jw_end(&w), 0);
}

static void test_row_F25_case_21_runtime_info_of_what_is_not_stdio_has_no_box(void **state)
{
    static const char file[] = "{\"mcpServers\":{\"far\":{\"url\":\"https://example.org/mcp\"}}}";
    AUTO(json) struct json *v = NULL;
    struct mcp_server server;
    struct err err = {0};

    assert_int_equal(json_parse(file, strlen(file), &v, &err), 0);
    assert_true(mcp_server_find(v, "far", &server, &err) < 0);
    assert_non_null(strstr(err.msg, "only stdio servers are boxed"));
}

static void test_row_F25_row_F13_case_22_runtime_info_of_a_boxed_server(void **state)
{
    AUTO_DONE(buf) struct buf out;
    const struct mcp_info info = {.name = "x",
                                  .command = "npx",
                                  .session_id = "mcp-1",
                                  .status = MCP_CONNECTED,
                                  .phase = MCP_RUNTIME,
                                  .pid = 7};

    info_text(&info, &out);
    assert_string_equal(buf_str(&out),
                        "{\"kind\":\"mcp\",\"name\":\"x\",\"command\":\"npx\",\"pid\":7,"
                        "\"status\":\"connected\",\"phase\":\"runtime\",\"error_message\":null,"
                        "\"error_phase\":null,\"retry_count\":0,\"restart_count\":0,"
                        "\"box_session_id\":\"mcp-1\",\"box_enabled\":true}");
}

static void test_row_F25_case_23_runtime_info_without_a_box_has_neither(void **state)
{
    AUTO_DONE(buf) struct buf out;
    const struct mcp_info info = {.name = "x",
                                  .command = "npx",
                                  .status = MCP_ERROR,
                                  .phase = MCP_BOX_UNAVAILABLE,
                                  .error = "no boxd"};

    info_text(&info, &out);
    assert_null(strstr(buf_str(&out), "box_session_id"));
    assert_null(strstr(buf_str(&out), "box_enabled"));
    assert_non_null(strstr(buf_str(&out), "\"error_phase\":\"box_unavailable\""));
}

static void find_server(const char *text, const char *name, struct mcp_server *ret)
{
    AUTO(json) struct json *v = NULL;
    struct err err = {0};

    assert_int_equal(json_parse(text, strlen(text), &v, &err), 0);
    if (mcp_server_find(v, name, ret, &err) < 0)
        fail_msg("%s", err.msg);
}

static void test_row_F25_case_24_a_box_section_is_read(void **state)
{
    AUTO_DONE(mcp_server) struct mcp_server s;

    find_server(
        "{\"mcpServers\":{\"x\":{\"command\":\"npx\",\"args\":[\"-y\",\"p\"],\"env\":{\"K\":"
        "\"v\"},\"box\":{\"memory_mb\":99}}}}",
        "x", &s);
    assert_string_equal(s.command, "npx");
    assert_true(s.args != NULL && s.env != NULL);
    assert_string_equal(s.args[1], "p");
    assert_string_equal(s.env[0], "K=v");
    assert_int_equal(s.box.memory_mb, 99);
}

static void test_row_F25_case_25_without_a_box_section_everything_has_its_default(void **state)
{
    AUTO_DONE(mcp_server) struct mcp_server s;
    AUTO(json) struct json *v = NULL;
    struct mcp_server none; /* what fails owns nothing */
    struct err err = {0};
    static const char text[] = "{\"servers\":{\"x\":{\"command\":\"npx\"}}}";

    find_server(text, "x", &s);
    assert_defaults(&s.box);
    assert_int_equal(json_parse(text, strlen(text), &v, &err), 0);
    assert_true(mcp_server_find(v, "y", &none, &err) < 0);
    assert_non_null(strstr(err.msg, "no server 'y'"));
}

/* Mistakes of others. */

static void a_real_venv_is_a_link_out_of_the_project(void **state)
{
    AUTO_DONE(mcp_roots) struct mcp_roots roots = {0};
    AUTO_FREE char *got = NULL;

    infers(ARGV(W("/home/u/mcp/.venv/bin/python"), W("server.py")), "/home/u/mcp");
    mcp_roots_add(&roots, "/home/u/mcp", MCP_MOUNT);
    got = mcp_rewrite_command(&fs, "/home/u/mcp/.venv/bin/python", &roots);
    assert_string_equal(got, "python");
}

static void paths_behind_an_equals_sign_are_rewritten(void **state)
{
    static const char *const cases[][2] = {
        {"--config=/home/u/mcp/c", "--config=/workspace/c"},
        {"KEY=/home/u/mcp", "KEY=/workspace"},
        {"--x=/home/u/mcp-other", "--x=/home/u/mcp-other"},
        {"=/home/u/mcp", "=/home/u/mcp"},
        {"http://h/?x=/home/u/mcp", "http://h/?x=/home/u/mcp"},
        {"-m", "-m"},
        {"server.py", "server.py"},
        {"/home/u/link/server.py", "/workspace/server.py"},
        {"/home/u/mcp/new", "/workspace/new"},
    };
    AUTO_DONE(mcp_roots) struct mcp_roots roots = {0};

    mcp_roots_add(&roots, "/home/u/mcp", MCP_MOUNT);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_FREE char *got = mcp_rewrite_arg(&fs, cases[i][0], &roots);
        assert_string_equal(got, cases[i][1]);
    }
}

static void what_the_system_has_says_nothing_about_a_project(void **state)
{
    infers(ARGV(W("/usr/bin/python3"), W("/home/u/mcp/server.py")), "/home/u/mcp");
    infers(ARGV(W("/usr/bin/python3"), W("/etc/hosts")), NULL);
    infers(ARGV(W("/home/u/.nvm/node/bin/npx"), W("/home/u/docs")), "/home/u/docs");
    infers(ARGV(W("x"), W("/data"), W("/home/u/docs")), NULL);
}

static void a_directory_is_itself(void **state)
{
    infers(ARGV(W("npx"), W("server-filesystem"), W("/home/u/docs")), "/home/u/docs");
}

static void an_interpreter_of_a_tool_chain_is_called_by_its_name(void **state)
{
    struct mcp_roots none = {0};
    AUTO_FREE char *npx = mcp_rewrite_command(&fs, "/home/u/.nvm/node/bin/npx", &none);
    AUTO_FREE char *system = mcp_rewrite_command(&fs, "/usr/bin/python3", &none);

    AUTO_FREE char *inside = mcp_rewrite_command(&fs, "/opt/tool/uvx", &none);

    assert_string_equal(npx, "npx");
    assert_string_equal(system, "/usr/bin/python3");
    assert_string_equal(inside, "/opt/tool/uvx"); /* of the image, or of --mount */
}

static void chain_is(const char *command, const char *path, const char *expected)
{
    AUTO_DONE(mcp_roots) struct mcp_roots roots = {0};
    AUTO_DONE(buf) struct buf text;
    AUTO_FREE char *on_path = mcp_chain_find(&fs, command, path, "/home/u", &roots);

    buf_init(&text, 4096);
    assert_int_equal(buf_printf(&text, "%s", on_path != NULL ? on_path : "-"), 0);
    for (size_t i = 0; i < roots.n; i++)
        assert_int_equal(buf_printf(&text, " %s=%s", roots.list[i].host, roots.list[i].inside), 0);
    assert_string_equal(buf_str(&text), expected);
}

static void a_tool_of_the_user_is_shown_where_the_system_has_none(void **state)
{
    static const char all[] = "rel:/nowhere::/home/u/.nvm/node/bin:/home/u/.local/bin:/usr/bin";
    static const char node[] = "/opt/box-tools/node/bin /home/u/.nvm/node=/opt/box-tools/node";

    chain_is("npx", all, node);
    chain_is("/home/u/.nvm/node/bin/npx", NULL, node);
    chain_is("pnpm", "/home/u/.fnm/1/bin", node); /* a link to it */
    chain_is("uvx", all,
             "/opt/box-tools/bin /home/u/.local/bin/uvx=/opt/box-tools/bin/uvx "
             "/home/u/.local/share/pipx/uv=/opt/box-tools/bin/uv");
    chain_is("deno", all, "/opt/box-tools/bin /home/u/.local/bin/deno=/opt/box-tools/bin/deno");
    chain_is("bunx", all, "-");                  /* the system has it */
    chain_is("yarn", "/home/u/.local/bin", "-"); /* never all of ~/.local */
    chain_is("npx", "/home/u/.asdf/shims", "-"); /* a script of a version manager */
    chain_is("npx", "/usr/bin:relative", "-");
    chain_is("npx", NULL, "-");
    chain_is("./npx", all, "-");
    chain_is("python3", all, "-");
    chain_is("server", all, "-");
}

static void venvs_unwrap_to_their_project(void **state)
{
    static const char *const cases[][2] = {
        {"/p/.venv/bin", "/p"},
        {"/p/venv/Scripts", "/p"},
        {"/p/env/bin/x", "/p"},
        {"/.venv/bin", "/"},
        {"/p/bin", "/p/bin"},
        {"/p/.venv/lib", "/p/.venv/lib"},
        {"C:\\p\\venv\\Scripts", "C:\\p"},
        {"/p/.venv/x/.env/bin", "/p/.venv/x"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        AUTO_FREE char *got = unwrap_venv(cases[i][0]);
        assert_string_equal(got, cases[i][1]);
    }
}

static void roots_are(char *const *argv, const char *expected)
{
    AUTO_DONE(mcp_roots) struct mcp_roots roots = {0};
    AUTO_DONE(buf) struct buf text;

    buf_init(&text, 4096);
    mcp_infer_roots(&fs, argv, "/home/u", MCP_MOUNT, &roots);
    for (size_t i = 0; i < roots.n; i++)
        (void)buf_printf(&text, "%s=%s;", roots.list[i].host, roots.list[i].inside);
    assert_string_equal(buf_str(&text), expected);
}

static void a_home_is_never_mounted_because_two_of_its_directories_are_named(void **state)
{
    roots_are(ARGV(W("x"), W("/home/u/mcp/server.py")), "/home/u/mcp=/workspace;");
    roots_are(ARGV(W("x"), W("/home/u/docs"), W("/home/u/pics"), W("/home/u/more/docs")),
              "/home/u/docs=/workspace/docs;/home/u/pics=/workspace/pics;"
              "/home/u/more/docs=/workspace/docs-2;");
    roots_are(ARGV(W("x"), W("/home/u")), "");
    roots_are(ARGV(W("x"), W("/data")), "/data=/workspace;");
    roots_are(ARGV(W("x"), W("/data/a"), W("/home/u/docs")),
              "/data/a=/workspace/a;/home/u/docs=/workspace/docs;");
}

/* Preparing. */

static void test_row_F07_projects_are_told_by_their_files(void **state)
{
    struct mcp_project p;

    project_look(&fs, "/home/u/mcp", &p);
    assert_true(!p.python_package && p.requirements && p.node);
    project_look(&fs, "/home/u/pkg", &p);
    assert_true(p.python_package && !p.requirements && !p.node);
    project_look(&fs, "/home/u/built", &p);
    assert_true(!p.python_package && !p.requirements && !p.node);
    project_look(&fs, NULL, &p);
    assert_true(!p.python_package && !p.requirements && !p.node);
    assert_true(mcp_command_installs("/x/uvx") && !mcp_command_installs("python"));
}

static int script_of(const struct mcp_prepare *p, struct buf *out)
{
    AUTO(json) struct json *body = NULL;
    AUTO_DONE(buf) struct buf text;
    struct err err = {0};

    buf_init(&text, 65536);
    assert_int_equal(mcp_write_prepare(&(struct mcp_plan){.prepare = *p}, &text), 0);
    assert_int_equal(json_parse(buf_str(&text), text.len, &body, &err), 0);
    return buf_puts(out, json_str(json_at(json_get(body, "argv"), 2)));
}

static void test_row_F08_only_a_read_only_project_is_copied(void **state)
{
    AUTO_DONE(buf) struct buf copied;
    AUTO_DONE(buf) struct buf placed;
    struct mcp_prepare p = {.project = {.python_package = true}, .install = true};

    buf_init(&copied, 65536);
    buf_init(&placed, 65536);
    assert_int_equal(script_of(&p, &copied), 0);
    assert_non_null(strstr(buf_str(&copied), "tar -C /workspace"));
    p.writable = true;
    assert_int_equal(script_of(&p, &placed), 0);
    assert_null(strstr(buf_str(&placed), "tar -C /workspace"));
    assert_false(mcp_prepare_stages(&p));
    p = (struct mcp_prepare){.project = {.node = true}, .install = true};
    assert_true(mcp_prepare_stages(&p));
    p = (struct mcp_prepare){.project = {.python_package = true}, .builds = true};
    assert_true(mcp_prepare_stages(&p));
    buf_reset(&copied);
    assert_int_equal(script_of(&p, &copied), 0);
    assert_non_null(strstr(buf_str(&copied), "tar -C /workspace"));
    assert_null(strstr(buf_str(&copied), "pip install"));
    p.writable = true;
    assert_false(mcp_prepare_stages(&p));
    p = (struct mcp_prepare){.project = {.requirements = true}, .builds = true};
    assert_false(mcp_prepare_stages(&p));
}

static void what_the_step_says_is_read_from_its_own_lines(void **state)
{
    struct mcp_prepared p = {0};
    struct err err = {0};

    assert_int_equal(
        mcp_prepare_read("box-mcp-command /usr/bin/x y\nbox-mcp-path /a:/b\n", &p, &err), 0);
    assert_string_equal(p.command, "/usr/bin/x y");
    assert_string_equal(p.path, "/a:/b");
    assert_null(p.python_path);
    mcp_prepared_done(&p);
    assert_true(mcp_prepare_read("x box-mcp-command /a\nbox-mcp-path /b\n", &p, &err) < 0);
}

static void files_of_variables(void **state)
{
    AUTO_STRV char **env = NULL;
    struct err err = {0};

    static const char text[] = "# no\n\nA=1\nexport B=\"two words\"\nC='x=y'\nA=3\nD=";
    assert_int_equal(mcp_env_read(&env, text, strlen(text), &err), 0);
    assert_non_null(env);
    assert_int_equal(strv_len(env), 4);
    assert_string_equal(env[0], "A=3");
    assert_string_equal(env[1], "B=two words");
    assert_string_equal(env[2], "C=x=y");
    assert_string_equal(env[3], "D=");
    assert_true(mcp_env_read(&env, "A=1\nsecret words\n", 17, &err) < 0);
    assert_non_null(strstr(err.msg, "line 2"));
    assert_null(strstr(err.msg, "secret"));
}

static void secrets_are_hidden_in_what_is_said(void **state)
{
    AUTO_DONE(buf) struct buf out;
    char *env[] = {W("A=abcd"), W("B=abcdef"), W("C=1"), NULL};

    buf_init(&out, 1024);
    mcp_hide_secrets("x abcdef y abcd 1 abc", env, &out);
    assert_string_equal(buf_str(&out), "x *** y *** 1 abc");
}

static void env_is(char *const *env, const char *expected)
{
    AUTO_DONE(buf) struct buf all;

    buf_init(&all, 4096);
    for (size_t i = 0; i < strv_len(env); i++)
        assert_int_equal(buf_printf(&all, "%s ", env[i]), 0);
    assert_string_equal(buf_str(&all), expected);
}

static void installers_hear_of_proxies_and_certificates_and_of_no_secret(void **state)
{
    char *env[] = {W("PIP_INDEX_URL=a"),      W("API_KEY=b"),  W("NODE_EXTRA_CA_CERTS=c"),
                   W("npm_config_cache=d"),   W("PIPE=e"),     W("ALL_PROXY=f"),
                   W("REQUESTS_CA_BUNDLE=g"), W("NODE_ENV=h"), NULL};
    AUTO_STRV char **some = mcp_env_for_install(env);

    env_is(some, "PIP_INDEX_URL=a NODE_EXTRA_CA_CERTS=c npm_config_cache=d ALL_PROXY=f "
                 "REQUESTS_CA_BUNDLE=g ");
}

static void without_a_network_installers_need_not_try(void **state)
{
    char *mine[] = {W("UV_OFFLINE=0"), W("X=1"), NULL};
    AUTO_STRV char **on = mcp_env_defaults(NETWORK_ON);
    AUTO_STRV char **off = mcp_env_with(mcp_env_defaults(NETWORK_OFF), mine);

    assert_int_equal(strv_len(on), 0);
    env_is(off, "PIP_RETRIES=0 UV_OFFLINE=0 npm_config_offline=true X=1 ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_F25_row_F03_case_01_default_config_values),
        cmocka_unit_test(test_row_F25_row_F03_case_02_custom_config_values),
        cmocka_unit_test(test_row_F25_row_F03_case_03_extra_fields_are_ignored),
        cmocka_unit_test(test_row_F25_case_04_rewrite_without_host_path),
        cmocka_unit_test(test_row_F25_case_05_rewrite_empty_path),
        cmocka_unit_test(test_row_F25_case_06_rewrite_prefix),
        cmocka_unit_test(test_row_F25_case_07_rewrite_exact),
        cmocka_unit_test(test_row_F25_case_08_rewrite_no_match),
        cmocka_unit_test(test_row_F25_case_09_rewrite_similar_prefix),
        cmocka_unit_test(test_row_F25_case_10_rewrite_nested),
        cmocka_unit_test(test_row_F25_row_F04_case_11_no_absolute_path_infers_nothing),
        cmocka_unit_test(test_row_F25_row_F04_case_12_what_does_not_exist_infers_nothing),
        cmocka_unit_test(test_row_F25_row_F04_case_13_a_file_infers_its_directory),
        cmocka_unit_test(test_row_F25_case_14_minimal_session_payload),
        cmocka_unit_test(test_row_F25_case_15_session_payload_with_host_path),
        cmocka_unit_test(test_row_F25_case_16_session_payload_with_optional_fields),
        cmocka_unit_test(test_row_F25_case_17_session_payload_leaves_nulls_out),
        cmocka_unit_test(test_row_F25_case_18_process_payload),
        cmocka_unit_test(test_row_F25_row_F05_row_F06_case_19_process_payload_is_rewritten),
        cmocka_unit_test(test_row_F25_case_20_process_payload_that_does_not_match_is_untouched),
        cmocka_unit_test(test_row_F25_case_21_runtime_info_of_what_is_not_stdio_has_no_box),
        cmocka_unit_test(test_row_F25_row_F13_case_22_runtime_info_of_a_boxed_server),
        cmocka_unit_test(test_row_F25_case_23_runtime_info_without_a_box_has_neither),
        cmocka_unit_test(test_row_F25_case_24_a_box_section_is_read),
        cmocka_unit_test(test_row_F25_case_25_without_a_box_section_everything_has_its_default),
        cmocka_unit_test(a_real_venv_is_a_link_out_of_the_project),
        cmocka_unit_test(paths_behind_an_equals_sign_are_rewritten),
        cmocka_unit_test(what_the_system_has_says_nothing_about_a_project),
        cmocka_unit_test(a_directory_is_itself),
        cmocka_unit_test(an_interpreter_of_a_tool_chain_is_called_by_its_name),
        cmocka_unit_test(venvs_unwrap_to_their_project),
        cmocka_unit_test(a_home_is_never_mounted_because_two_of_its_directories_are_named),
        cmocka_unit_test(test_row_F07_projects_are_told_by_their_files),
        cmocka_unit_test(test_row_F08_only_a_read_only_project_is_copied),
        cmocka_unit_test(what_the_step_says_is_read_from_its_own_lines),
        cmocka_unit_test(a_tool_of_the_user_is_shown_where_the_system_has_none),
        cmocka_unit_test(files_of_variables),
        cmocka_unit_test(installers_hear_of_proxies_and_certificates_and_of_no_secret),
        cmocka_unit_test(without_a_network_installers_need_not_try),
        cmocka_unit_test(secrets_are_hidden_in_what_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
