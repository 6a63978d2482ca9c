/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Which part of the host a command line is about, and what its paths are called inside; which tool
 * runs it, and what has to be mounted where only the user has that tool. */

#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"

struct err;

enum mcp_kind { MCP_MISSING, MCP_FILE, MCP_DIR };

/* What is asked of a file system. */
struct mcp_fs {
    enum mcp_kind (*kind)(const char *path);
    char *(*real)(const char *path); /* owned; NULL when it is not there */
};
extern const struct mcp_fs mcp_fs_host;

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

/* What is to be mounted for a command line: at `mount`, the longest directory that holds all of its
 * absolute paths that exist. Where that directory holds all of a user's files (`home` or above),
 * each path of the command line becomes a root of its own, beside the others below `mount`. */
void mcp_infer_roots(const struct mcp_fs *fs, char *const *argv, const char *home,
                     const char *mount, struct mcp_roots *ret);

/* A word of the command line: absolute paths, also those behind "--x=" and "KEY=". */
char *mcp_rewrite_arg(const struct mcp_fs *fs, const char *arg, const struct mcp_roots *roots);
/* The first word. The python of a venv becomes "python", an interpreter of a user's tool chain its
 * bare name. */
char *mcp_rewrite_command(const struct mcp_fs *fs, const char *command,
                          const struct mcp_roots *roots);

/* Whether the command installs what it runs by itself (npx, uvx), and whether it works inside the
 * project: uv makes a virtual environment and a lock there. */
bool mcp_command_installs(const char *command);
bool mcp_command_builds(const char *command);

#define MCP_CHAIN "/opt/box-tools" /* where tools of the user's own are, inside */

/* The box has the tools of the system. Where `command` is a tool that the system lacks and the user
 * has (npx of nvm, uvx of ~/.local/bin), adds what has to be mounted read-only to run it, and
 * returns the directory that must be on PATH inside (owned). `path` is the PATH of our caller.
 * NULL: nothing is needed, or we do not know how to show this tool. */
char *mcp_chain_find(const struct mcp_fs *fs, const char *command, const char *path,
                     const char *home, struct mcp_roots *ret);

/* The same for a coding agent, which may be any program of the user's: one of the system needs
 * nothing, one that npm has installed needs the modules that it lies in and a node, any other is
 * taken as a program that needs nothing beside it. Returns how it is called inside (owned), and in
 * *ret_path what must be on PATH for it ("": nothing more, owned). NULL: PATH has no such program.
 */
char *mcp_agent_find(const struct mcp_fs *fs, const char *name, const char *path, const char *home,
                     struct mcp_roots *ret, char **ret_path);

/* cache.c: makes the package cache of that name for this user, and adds what has to be mounted,
 * writable, to use it. Boxes that share a cache can choose each other's code. */
int mcp_cache_open(const char *name, struct mcp_roots *ret, struct err *err);
