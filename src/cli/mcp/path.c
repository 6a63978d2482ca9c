/* SPDX-License-Identifier: Apache-2.0 */

/* Infers the directories to mount from a command line, and rewrites its paths to those inside. */

#include "cli/mcp/path.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/host_path.h"
#include "base/str.h"

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

/* What the image brings itself, and what nobody mounts. */
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

char *mcp_unwrap_venv(const char *path)
{
    ssize_t len = venv_at(path);

    if (len < 0)
        return xstrdup(path);
    return len == 0 ? xstrdup("/") : xstrndup(path, (size_t)len);
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

/* node of nvm, python of pyenv, uvx of ~/.local: the tool, not a part of the project. */
static bool is_tool(const char *path)
{
    static const char *const names[] = {"node", "npm",  "npx",  "uv",   "uvx",  "bun",
                                        "bunx", "deno", "pnpm", "yarn", "pipx", NULL};
    const char *base = base_of(path);

    if (venv_at(path) >= 0)
        return false;
    return one_of(base, strlen(base), names) || str_starts(base, "python");
}

/* Inference. */

static char *dir_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == path ? xstrdup("/") : xstrndup(path, (size_t)(slash - path));
}

/* The directory that a word of the command line speaks of; NULL: none. */
static char *place_of(const struct mcp_fs *fs, const char *word, bool is_command)
{
    if (word[0] != '/' || is_system(word) || (is_command && is_tool(word)))
        return NULL;
    enum mcp_kind kind = fs->kind(word);
    if (kind == MCP_MISSING)
        return NULL;
    AUTO_FREE char *dir = kind == MCP_DIR ? xstrdup(word) : dir_of(word);
    AUTO_FREE char *project = mcp_unwrap_venv(dir);
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

char *mcp_infer_host_path(const struct mcp_fs *fs, char *const *argv)
{
    AUTO_FREE char *found = NULL;

    for (size_t i = 0; argv[i] != NULL; i++) {
        AUTO_FREE char *place = place_of(fs, argv[i], i == 0);
        if (place == NULL)
            continue;
        if (found == NULL)
            found = TAKE_PTR(place);
        else
            common(found, place);
    }
    return found == NULL || str_eq(found, "/") ? NULL : TAKE_PTR(found);
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

/* All of a user's files, keys and all. Whoever means that says --host-path. */
static bool holds_home(const char *host, const char *home)
{
    return str_eq(host, "/") || (home != NULL && path_at_or_below(home, host));
}

/* Whether a word of the command line speaks of just that directory. */
static bool fs_names(const struct mcp_fs *fs, char *const *argv, const char *host)
{
    for (size_t i = 0; argv[i] != NULL; i++) {
        AUTO_FREE char *place = place_of(fs, argv[i], i == 0);
        if (str_eq(place, host))
            return true;
    }
    return false;
}

void mcp_infer_roots(const struct mcp_fs *fs, char *const *argv, const char *home,
                     const char *mount, struct mcp_roots *ret)
{
    AUTO_FREE char *whole = mcp_infer_host_path(fs, argv);

    /* Nobody who names two directories means to show all that lies between them. */
    if (whole != NULL && !holds_home(whole, home) &&
        (strchr(whole + 1, '/') != NULL || fs_names(fs, argv, whole))) {
        mcp_roots_add(ret, whole, mount);
        return;
    }
    for (size_t i = 0; argv[i] != NULL; i++) {
        AUTO_FREE char *place = place_of(fs, argv[i], i == 0);
        if (place != NULL && !holds_home(place, home) && !is_covered(ret, place))
            add_apart(ret, place, mount);
    }
}

/* Rewriting. */

char *mcp_rewrite_path(const char *path, const char *host, const char *mount)
{
    if (host == NULL || host[0] == '\0' || path[0] == '\0' || !path_at_or_below(path, host))
        return xstrdup(path);
    const char *rest = path + strlen(host);
    return xasprintf("%s%s", mount, rest);
}

static char *below_roots(const char *path, const struct mcp_roots *roots)
{
    for (size_t i = 0; i < roots->n; i++)
        if (path_at_or_below(path, roots->list[i].host))
            return mcp_rewrite_path(path, roots->list[i].host, roots->list[i].inside);
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
