/* SPDX-License-Identifier: Apache-2.0 */

/* Infers the directories to mount from a command line, rewrites its paths to those inside, and
 * finds the tool chain that runs it. */

#include "cli/mcp/path.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/host_path.h"
#include "base/str.h"
#include "base/strv.h"

static enum mcp_kind host_kind(const char *path)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return MCP_MISSING;
    return S_ISDIR(st.st_mode) ? MCP_DIR : MCP_FILE;
}

static char *host_real(const char *path)
{
    return realpath(path, NULL);
}

const struct mcp_fs mcp_fs_host = {.kind = host_kind, .real = host_real};

static bool one_of(const char *word, size_t len, const char *const *names)
{
    for (; *names != NULL; names++)
        if (strlen(*names) == len && memcmp(*names, word, len) == 0)
            return true;
    return false;
}

/* What the image brings itself, and what is never mounted. */
static bool is_system(const char *path)
{
    static const char *const roots[] = {"/usr",   "/bin",    "/sbin", "/lib",  "/lib32",
                                        "/lib64", "/libx32", "/etc",  "/proc", "/sys",
                                        "/dev",   "/run",    "/boot", "/snap", "/nix"};

    for (size_t i = 0; i < ARRAY_SIZE(roots); i++)
        if (path_at_or_below(path, roots[i]))
            return true;
    return false;
}

/* Tool chains: the tool that runs a server, not a part of the server's project. */

enum tool_shape {
    TOOL_OF_NODE, /* of a prefix: programs in bin, their code in lib/node_modules */
    TOOL_ALONE,   /* a program that needs nothing beside it but its companion */
    TOOL_UNSHOWN, /* we do not know which files of the host it needs */
};

/* clang-format off */
static const struct user_tool {
    const char *name;
    const char *companion; /* comes with it; NULL: none */
    enum tool_shape shape;
    bool installs; /* what it runs, by itself */
    bool builds;   /* inside the project */
} tools[] = {
    {"node", NULL,   TOOL_OF_NODE, false, false},
    {"npm",  NULL,   TOOL_OF_NODE, false, false},
    {"npx",  NULL,   TOOL_OF_NODE, true,  false},
    {"pnpm", NULL,   TOOL_OF_NODE, true,  false},
    {"yarn", NULL,   TOOL_OF_NODE, true,  false},
    {"uv",   "uvx",  TOOL_ALONE,   true,  true},
    {"uvx",  "uv",   TOOL_ALONE,   true,  true},
    {"bun",  "bunx", TOOL_ALONE,   false, false},
    {"bunx", "bun",  TOOL_ALONE,   true,  false},
    {"deno", NULL,   TOOL_ALONE,   false, false},
    {"pipx", NULL,   TOOL_UNSHOWN, true,  false},
};
/* clang-format on */

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

static char *dir_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == path ? xstrdup("/") : xstrndup(path, (size_t)(slash - path));
}

static const struct user_tool *tool_of(const char *command)
{
    for (size_t i = 0; i < ARRAY_SIZE(tools); i++)
        if (str_eq(tools[i].name, base_of(command)))
            return &tools[i];
    return NULL;
}

bool mcp_command_installs(const char *command)
{
    const struct user_tool *tool = tool_of(command);

    return tool != NULL && tool->installs;
}

bool mcp_command_builds(const char *command)
{
    const struct user_tool *tool = tool_of(command);

    return tool != NULL && tool->builds;
}

/* Virtual environments. */

static const char *const venv_names[] = {".venv", "venv", "env", ".env", NULL};
static const char *const bin_names[] = {"bin", "Scripts", NULL};

static bool is_separator(char c)
{
    return c == '/' || c == '\\';
}

/* The word that ends at `end` (not included); returns where it starts. */
static size_t word_before(const char *path, size_t end)
{
    size_t start = end;

    while (start > 0 && !is_separator(path[start - 1]))
        start--;
    return start;
}

/* Length of what stands before the venv, trailing separator left out; -1: there is none. */
static ssize_t venv_at(const char *path)
{
    size_t end = strlen(path);

    while (end > 0) {
        size_t start = word_before(path, end);
        if (one_of(path + start, end - start, bin_names) && start > 0) {
            size_t venv_end = start - 1;
            size_t venv = word_before(path, venv_end);
            if (one_of(path + venv, venv_end - venv, venv_names))
                return venv > 0 ? (ssize_t)venv - 1 : 0;
        }
        end = start > 0 ? start - 1 : 0;
    }
    return -1;
}

/* A venv's part of a path is left out: everything from .venv, venv, env or .env on that holds a bin
 * or Scripts. `path` is taken as it is written, because the python of a venv is a link elsewhere.
 * Returns a new string, "/" when nothing is left. */
static char *unwrap_venv(const char *path)
{
    ssize_t len = venv_at(path);

    if (len < 0)
        return xstrdup(path);
    return len == 0 ? xstrdup("/") : xstrndup(path, (size_t)len);
}

/* node of nvm, python of pyenv, uvx of ~/.local. */
static bool is_tool(const char *path)
{
    return venv_at(path) < 0 && (tool_of(path) != NULL || str_starts(base_of(path), "python"));
}

/* Inference. */

/* The directory that a word of the command line speaks of; NULL: none. */
static char *place_of(const struct mcp_fs *fs, const char *word, bool is_command)
{
    if (word[0] != '/' || is_system(word) || (is_command && is_tool(word)))
        return NULL;
    enum mcp_kind kind = fs->kind(word);
    if (kind == MCP_MISSING)
        return NULL;
    AUTO_FREE char *dir = kind == MCP_DIR ? xstrdup(word) : dir_of(word);
    AUTO_FREE char *project = unwrap_venv(dir);
    return fs->real(project);
}

/* Cuts `a` down to what it has in common with `b`. */
static void common(char *a, const char *b)
{
    while (!path_at_or_below(b, a)) {
        char *slash = strrchr(a, '/');
        if (slash == a) {
            a[1] = '\0';
            return;
        }
        *slash = '\0';
    }
}

/* Of each word of the command line that exists: a file by its directory, a directory as itself.
 * Relative words, what the system itself has (/usr, /etc, ...) and interpreters of a user's own
 * tool chain are not looked at. */
static char **places_of(const struct mcp_fs *fs, char *const *argv)
{
    char **places = NULL;

    for (size_t i = 0; argv[i] != NULL; i++) {
        char *place = place_of(fs, argv[i], i == 0);
        if (place != NULL)
            strv_push(&places, place);
    }
    return places;
}

void mcp_roots_add(struct mcp_roots *r, const char *host, const char *inside)
{
    r->list = xreallocarray(r->list, r->n + 1, sizeof(*r->list));
    r->list[r->n++] = (struct mcp_root){.host = xstrdup(host), .inside = xstrdup(inside)};
}

void mcp_roots_done(struct mcp_roots *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->list[i].host);
        free(r->list[i].inside);
    }
    free(r->list);
    *r = (struct mcp_roots){0};
}

static bool has_inside(const struct mcp_roots *r, const char *inside)
{
    for (size_t i = 0; i < r->n; i++)
        if (str_eq(r->list[i].inside, inside))
            return true;
    return false;
}

static bool is_covered(const struct mcp_roots *r, const char *host)
{
    for (size_t i = 0; i < r->n; i++)
        if (path_at_or_below(host, r->list[i].host))
            return true;
    return false;
}

static void add_apart(struct mcp_roots *r, const char *host, const char *mount)
{
    AUTO_FREE char *inside = xasprintf("%s/%s", mount, base_of(host));

    for (unsigned i = 2; has_inside(r, inside); i++) {
        free(TAKE_PTR(inside));
        inside = xasprintf("%s/%s-%u", mount, base_of(host), i);
    }
    mcp_roots_add(r, host, inside);
}

/* All of a user's files, keys and all. A user who means that says --host-path. */
static bool holds_home(const char *host, const char *home)
{
    return str_eq(host, "/") || (home != NULL && path_at_or_below(home, host));
}

void mcp_infer_roots(const struct mcp_fs *fs, char *const *argv, const char *home,
                     const char *mount, struct mcp_roots *ret)
{
    AUTO_STRV char **places = places_of(fs, argv);
    AUTO_FREE char *whole = xstrdup(places != NULL && places[0] != NULL ? places[0] : "/");
    bool is_named = false;

    for (char **place = places; place != NULL && *place != NULL; place++)
        common(whole, *place);
    for (char **place = places; place != NULL && *place != NULL; place++)
        is_named = is_named || str_eq(*place, whole);
    /* A user who names two directories does not mean to show all that lies beside them. */
    if (!holds_home(whole, home) && (strchr(whole + 1, '/') != NULL || is_named)) {
        mcp_roots_add(ret, whole, mount);
        return;
    }
    for (char **place = places; place != NULL && *place != NULL; place++)
        if (!holds_home(*place, home) && !is_covered(ret, *place))
            add_apart(ret, *place, mount);
}

/* Rewriting. */

static char *below_roots(const char *path, const struct mcp_roots *roots)
{
    for (size_t i = 0; i < roots->n; i++) {
        const struct mcp_root *root = &roots->list[i];
        if (root->host[0] != '\0' && path_at_or_below(path, root->host))
            return xasprintf("%s%s", root->inside, path + strlen(root->host));
    }
    return NULL;
}

/* The directory resolved, the last word as it is: that may be a link out of the tree. */
static char *half_real(const struct mcp_fs *fs, const char *path)
{
    AUTO_FREE char *dir = dir_of(path);
    AUTO_FREE char *real = fs->real(fs->kind(path) == MCP_DIR ? path : dir);

    if (real == NULL)
        return NULL;
    if (fs->kind(path) == MCP_DIR)
        return TAKE_PTR(real);
    return xasprintf("%s/%s", str_eq(real, "/") ? "" : real, base_of(path));
}

static char *rewrite_absolute(const struct mcp_fs *fs, const char *path,
                              const struct mcp_roots *roots)
{
    char *inside = below_roots(path, roots);

    if (inside != NULL)
        return inside;
    AUTO_FREE char *real = half_real(fs, path);
    inside = real != NULL ? below_roots(real, roots) : NULL;
    return inside != NULL ? inside : xstrdup(path);
}

char *mcp_rewrite_arg(const struct mcp_fs *fs, const char *arg, const struct mcp_roots *roots)
{
    if (arg[0] == '/')
        return rewrite_absolute(fs, arg, roots);
    size_t key = strspn(arg, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.");
    if (key == 0 || arg[key] != '=' || arg[key + 1] != '/')
        return xstrdup(arg);
    AUTO_FREE char *value = rewrite_absolute(fs, arg + key + 1, roots);
    return xasprintf("%.*s=%s", (int)key, arg, value);
}

/* <venv>/<bin>/python*, as it is written. */
static bool is_venv_python(const char *command)
{
    if (!str_starts(base_of(command), "python"))
        return false;
    AUTO_FREE char *dir = dir_of(command);
    size_t start = word_before(dir, strlen(dir));
    if (start == 0 || !one_of(dir + start, strlen(dir + start), bin_names))
        return false;
    size_t venv = word_before(dir, start - 1);
    return one_of(dir + venv, start - 1 - venv, venv_names);
}

char *mcp_rewrite_command(const struct mcp_fs *fs, const char *command,
                          const struct mcp_roots *roots)
{
    if (command[0] != '/')
        return xstrdup(command);
    AUTO_FREE char *inside = rewrite_absolute(fs, command, roots);
    if (is_venv_python(command) && !str_eq(inside, command))
        return xstrdup("python");
    /* What is not there on the host is meant as it is written: it may be in the image. */
    if (str_eq(inside, command) && !is_system(command) && is_tool(command) &&
        fs->kind(command) != MCP_MISSING)
        return xstrdup(base_of(command));
    return TAKE_PTR(inside);
}

/* Tools of the user's own. */

static bool fs_has(const struct mcp_fs *fs, const char *dir, const char *name, enum mcp_kind kind)
{
    AUTO_FREE char *path = xasprintf("%s/%s", dir, name);

    return fs->kind(path) == kind;
}

static bool system_has(const struct mcp_fs *fs, const char *name)
{
    return fs_has(fs, "/usr/local/bin", name, MCP_FILE) || fs_has(fs, "/usr/bin", name, MCP_FILE) ||
           fs_has(fs, "/bin", name, MCP_FILE);
}

/* The directory, real, in which a shell would have found it. */
static char *find_program_dir(const struct mcp_fs *fs, const char *command, const char *name,
                              const char *path)
{
    if (command[0] == '/') {
        AUTO_FREE char *dir = dir_of(command);
        return fs->kind(command) == MCP_FILE ? fs->real(dir) : NULL;
    }
    while (path != NULL && strchr(command, '/') == NULL && *path != '\0') {
        size_t len = strcspn(path, ":");
        AUTO_FREE char *dir = xstrndup(path, len);
        if (dir[0] == '/' && fs_has(fs, dir, name, MCP_FILE))
            return fs->real(dir);
        path += len + (path[len] == ':' ? 1 : 0);
    }
    return NULL;
}

/* Not ~/.local: programs are the least of what it holds. */
static bool prefix_may_be_shown(const char *prefix, const char *home)
{
    const char *slash = strrchr(prefix, '/');
    size_t len = strlen(prefix);

    if (slash == NULL || slash == prefix || str_eq(slash, "/.local"))
        return false;
    return home == NULL || strncmp(home, prefix, len) != 0 ||
           (home[len] != '\0' && home[len] != '/');
}

static char *add_node_prefix(const struct mcp_fs *fs, const char *dir, const char *home,
                             struct mcp_roots *ret)
{
    AUTO_FREE char *prefix = dir_of(dir);

    if (!str_ends(dir, "/bin") || !prefix_may_be_shown(prefix, home) ||
        !fs_has(fs, dir, "node", MCP_FILE) || !fs_has(fs, prefix, "lib/node_modules", MCP_DIR))
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
    const struct user_tool *tool = tool_of(command);

    if (tool == NULL || tool->shape == TOOL_UNSHOWN || system_has(fs, tool->name))
        return NULL;
    AUTO_FREE char *dir = find_program_dir(fs, command, tool->name, path);
    if (dir == NULL)
        return NULL;
    if (tool->shape == TOOL_OF_NODE)
        return add_node_prefix(fs, dir, home, ret);
    if (!add_program(fs, dir, tool->name, ret))
        return NULL;
    if (tool->companion != NULL)
        (void)add_program(fs, dir, tool->companion, ret);
    return xstrdup(MCP_CHAIN "/bin");
}

#define MODULES "/lib/node_modules/"
#define VERSIONS MCP_CHAIN "/versions"

/* ~/.local/bin/claude leads to ~/.local/share/claude/versions/2.1.0, and to another file after each
 * update. A session that is kept has the directory, so that the next version is there as well. */
static char *add_versions(const char *found, const char *real, const char *home,
                          struct mcp_roots *ret)
{
    AUTO_FREE char *dir = dir_of(real);
    AUTO_FREE char *share = xasprintf("%s/.local/share", home != NULL ? home : "");

    if (home == NULL || str_eq(found, real) || str_eq(dir, share) || !path_at_or_below(dir, share))
        return NULL;
    mcp_roots_add(ret, dir, VERSIONS);
    return xasprintf(VERSIONS "/%s", base_of(real));
}

char *mcp_agent_find(const struct mcp_fs *fs, const char *name, const char *path, const char *home,
                     struct mcp_roots *ret, char **ret_path)
{
    AUTO_FREE char *dir = find_program_dir(fs, name, name, path);
    AUTO_FREE char *found = dir != NULL ? xasprintf("%s/%s", dir, name) : NULL;
    AUTO_FREE char *real = found != NULL ? fs->real(found) : NULL;

    if (real == NULL)
        return NULL;
    const char *modules = strstr(real, MODULES);
    bool of_system = is_system(found) && is_system(real);
    *ret_path = !of_system && modules != NULL ? mcp_chain_find(fs, "node", path, home, ret) : NULL;
    if (*ret_path == NULL)
        *ret_path = xstrdup("");
    if (of_system)
        return TAKE_PTR(found);
    if (modules != NULL) {
        AUTO_FREE char *host = xstrndup(real, (size_t)(modules - real) + strlen(MODULES) - 1);
        mcp_roots_add(ret, host, MCP_CHAIN "/lib/node_modules");
        return xasprintf(MCP_CHAIN MODULES "%s", modules + strlen(MODULES));
    }
    char *versioned = add_versions(found, real, home, ret);
    if (versioned != NULL)
        return versioned;
    (void)add_program(fs, dir, name, ret);
    return xasprintf(MCP_CHAIN "/bin/%s", name);
}
