/* SPDX-License-Identifier: Apache-2.0 */

/* Finds the tool chain of a command in $PATH and the directories that have to be mounted for it. */

#include "cli/mcp/chain.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"

enum shape {
    OF_NODE, /* a prefix: programs in bin, what they are in lib/node_modules */
    ALONE,   /* a program that needs nothing beside it but the other one */
};

static const struct tool {
    const char *name, *other; /* other: NULL, or what comes with it */
    enum shape shape;
} tools[] = {
    {"node", NULL, OF_NODE}, {"npm", NULL, OF_NODE},  {"npx", NULL, OF_NODE},
    {"pnpm", NULL, OF_NODE}, {"yarn", NULL, OF_NODE}, {"uv", "uvx", ALONE},
    {"uvx", "uv", ALONE},    {"bun", "bunx", ALONE},  {"bunx", "bun", ALONE},
    {"deno", NULL, ALONE},
};

static const struct tool *tool_of(const char *command)
{
    const char *slash = strrchr(command, '/');

    for (size_t i = 0; i < ARRAY_SIZE(tools); i++)
        if (str_eq(tools[i].name, slash != NULL ? slash + 1 : command))
            return &tools[i];
    return NULL;
}

static bool has(const struct mcp_fs *fs, const char *dir, const char *name, enum mcp_kind kind)
{
    AUTO_FREE char *path = xasprintf("%s/%s", dir, name);

    return fs->kind(path) == kind;
}

static bool system_has(const struct mcp_fs *fs, const char *name)
{
    return has(fs, "/usr/local/bin", name, MCP_FILE) || has(fs, "/usr/bin", name, MCP_FILE) ||
           has(fs, "/bin", name, MCP_FILE);
}

static char *dir_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return xstrndup(path, slash != NULL ? (size_t)(slash - path) : 0);
}

/* The directory, real, in which a shell would have found it. */
static char *where(const struct mcp_fs *fs, const char *command, const char *name, const char *path)
{
    if (command[0] == '/') {
        AUTO_FREE char *dir = dir_of(command);
        return fs->kind(command) == MCP_FILE ? fs->real(dir) : NULL;
    }
    while (path != NULL && strchr(command, '/') == NULL && *path != '\0') {
        size_t len = strcspn(path, ":");
        AUTO_FREE char *dir = xstrndup(path, len);
        if (dir[0] == '/' && has(fs, dir, name, MCP_FILE))
            return fs->real(dir);
        path += len + (path[len] == ':' ? 1 : 0);
    }
    return NULL;
}

/* Not ~/.local: programs are the least of what it holds. */
static bool may_show(const char *prefix, const char *home)
{
    const char *slash = strrchr(prefix, '/');
    size_t len = strlen(prefix);

    if (slash == NULL || slash == prefix || str_eq(slash, "/.local"))
        return false;
    return home == NULL || strncmp(home, prefix, len) != 0 ||
           (home[len] != '\0' && home[len] != '/');
}

static char *of_node(const struct mcp_fs *fs, const char *dir, const char *home,
                     struct mcp_roots *ret)
{
    AUTO_FREE char *prefix = dir_of(dir);

    if (!str_ends(dir, "/bin") || !may_show(prefix, home) || !has(fs, dir, "node", MCP_FILE) ||
        !has(fs, prefix, "lib/node_modules", MCP_DIR))
        return NULL;
    mcp_roots_add(ret, prefix, MCP_CHAIN "/node");
    return xstrdup(MCP_CHAIN "/node/bin");
}

static bool add_program(const struct mcp_fs *fs, const char *dir, const char *name,
                        struct mcp_roots *ret)
{
    AUTO_FREE char *path = xasprintf("%s/%s", dir, name);
    AUTO_FREE char *inside = xasprintf(MCP_CHAIN "/bin/%s", name);
    AUTO_FREE char *real = fs->kind(path) == MCP_FILE ? fs->real(path) : NULL;

    if (real != NULL)
        mcp_roots_add(ret, real, inside);
    return real != NULL;
}

char *mcp_chain_find(const struct mcp_fs *fs, const char *command, const char *path,
                     const char *home, struct mcp_roots *ret)
{
    const struct tool *tool = tool_of(command);

    if (tool == NULL || system_has(fs, tool->name))
        return NULL;
    AUTO_FREE char *dir = where(fs, command, tool->name, path);
    if (dir == NULL)
        return NULL;
    if (tool->shape == OF_NODE)
        return of_node(fs, dir, home, ret);
    if (!add_program(fs, dir, tool->name, ret))
        return NULL;
    if (tool->other != NULL)
        (void)add_program(fs, dir, tool->other, ret);
    return xstrdup(MCP_CHAIN "/bin");
}
