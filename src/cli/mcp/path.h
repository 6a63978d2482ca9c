/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Which part of the host a command line is about, and what its paths are called inside. */

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"

enum mcp_kind { MCP_MISSING, MCP_FILE, MCP_DIR };

/* What is asked of a file system. */
struct mcp_fs {
    enum mcp_kind (*kind)(const char *path);
    char *(*real)(const char *path); /* owned; NULL when it is not there */
};
extern const struct mcp_fs mcp_fs_host;

/* A venv's part of a path is left out: everything from .venv, venv, env or .env on that holds a bin
 * or Scripts. `path` is taken as it is written, because the python of a venv is a link elsewhere.
 * Returns a new string, "/" when nothing is left. */
char *mcp_unwrap_venv(const char *path);

/* The longest directory that holds all absolute paths of the command line that exist: a file by its
 * directory, a directory as itself. Relative words, what the system itself has (/usr, /etc, ...)
 * and interpreters of a user's own tool chain are not looked at. NULL: none, or only "/". */
char *mcp_infer_host_path(const struct mcp_fs *fs, char *const *argv);

/* Directories of the host and what they are called inside. */
struct mcp_root {
    char *host;   /* owned; real */
    char *inside; /* owned */
};

struct mcp_roots {
    struct mcp_root *list; /* owned */
    size_t n;
};

void mcp_roots_add(struct mcp_roots *r, const char *host, const char *inside);
void mcp_roots_done(struct mcp_roots *r);
DEFINE_CLEANUP_DONE(mcp_roots)

/* As mcp_infer_host_path(), for what is to be mounted. Where the common directory is that of all
 * of a user's files (`home` or above), each path of the command line becomes a root of its own,
 * beside the others below `mount`. */
void mcp_infer_roots(const struct mcp_fs *fs, char *const *argv, const char *home,
                     const char *mount, struct mcp_roots *ret);

/* `path` inside, when it is `host` or below it; else as it is. A new string. */
char *mcp_rewrite_path(const char *path, const char *host, const char *mount);

/* A word of the command line: absolute paths, also those behind "--x=" and "KEY=". */
char *mcp_rewrite_arg(const struct mcp_fs *fs, const char *arg, const struct mcp_roots *roots);
/* The first word. The python of a venv becomes "python", an interpreter of a user's tool chain its
 * bare name. */
char *mcp_rewrite_command(const struct mcp_fs *fs, const char *command,
                          const struct mcp_roots *roots);
