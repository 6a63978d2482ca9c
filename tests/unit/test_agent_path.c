/* SPDX-License-Identifier: Apache-2.0 */

/* What is shown of a user's own programs so that a coding agent runs in a box. */

#include "lib/unit.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/str.h"
#include "cli/mcp/path.h"

#define NODE "/home/u/.nvm/node"

static const struct {
    const char *path;
    enum mcp_kind kind;
    const char *real; /* NULL: itself */
} files[] = {
    {NODE "/bin", MCP_DIR, NULL},
    {NODE "/bin/node", MCP_FILE, NULL},
    {NODE "/bin/codex", MCP_FILE, NODE "/lib/node_modules/@openai/codex/bin/codex.js"},
    {NODE "/lib/node_modules", MCP_DIR, NULL},
    {"/home/u/.local/bin", MCP_DIR, NULL},
    {"/home/u/.local/bin/claude", MCP_FILE, "/home/u/.local/share/claude/versions/2.1.0"},
    {"/home/u/.local/bin/alone", MCP_FILE, NULL},
    {"/home/u/.local/bin/linked", MCP_FILE, "/home/u/docs/x"},
    {"/usr/bin", MCP_DIR, NULL},
    {"/usr/bin/python3", MCP_FILE, NULL},
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

static const struct mcp_fs fs = {.kind = table_kind, .real = table_real};

/* The program inside, what goes on PATH for it, and what is mounted. */
static void agent_is(const char *name, const char *expected)
{
    static const char path[] = NODE "/bin:/home/u/.local/bin:/usr/bin";
    AUTO_DONE(mcp_roots) struct mcp_roots roots = {0};
    AUTO_DONE(buf) struct buf text = BUF_INIT(4096);
    AUTO_FREE char *on_path = NULL;
    AUTO_FREE char *program = mcp_agent_find(&fs, name, path, "/home/u", &roots, &on_path);

    assert_int_equal(buf_puts(&text, program != NULL ? program : "-"), 0);
    if (program != NULL && on_path[0] != '\0')
        assert_int_equal(buf_printf(&text, " (%s)", on_path), 0);
    for (size_t i = 0; i < roots.n; i++)
        assert_int_equal(buf_printf(&text, " %s=%s", roots.list[i].host, roots.list[i].inside), 0);
    assert_string_equal(buf_str(&text), expected);
}

static void of_npm_its_modules_and_the_node_of_the_same_user(void **state)
{
    agent_is("codex",
             "/opt/box-tools/lib/node_modules/@openai/codex/bin/codex.js (/opt/box-tools/node/bin) "
             "/home/u/.nvm/node=/opt/box-tools/node "
             "/home/u/.nvm/node/lib/node_modules=/opt/box-tools/lib/node_modules");
}

static void of_an_installer_its_versions_so_that_an_update_needs_no_other_mount(void **state)
{
    agent_is("claude", "/opt/box-tools/versions/2.1.0 "
                       "/home/u/.local/share/claude/versions=/opt/box-tools/versions");
}

static void of_another_program_the_file_and_not_the_directory_that_it_is_in(void **state)
{
    agent_is("alone", "/opt/box-tools/bin/alone /home/u/.local/bin/alone=/opt/box-tools/bin/alone");
    agent_is("linked", "/opt/box-tools/bin/linked /home/u/docs/x=/opt/box-tools/bin/linked");
}

static void of_the_system_nothing_and_of_what_is_missing_too(void **state)
{
    agent_is("python3", "/usr/bin/python3");
    agent_is("none", "-");
    agent_is("./alone", "-");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_npm_its_modules_and_the_node_of_the_same_user),
        cmocka_unit_test(of_an_installer_its_versions_so_that_an_update_needs_no_other_mount),
        cmocka_unit_test(of_another_program_the_file_and_not_the_directory_that_it_is_in),
        cmocka_unit_test(of_the_system_nothing_and_of_what_is_missing_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
