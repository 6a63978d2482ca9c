/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Tool chains of a user's own: npx of nvm, uvx of ~/.local/bin. The box has what the system has, so
 * such a tool has to be shown to it. */

#include "cli/mcp/path.h"

#define MCP_CHAIN "/opt/box-tools" /* below which it is, inside */

/* What `command` takes to run, when it is such a tool and the system has none of that name: adds
 * what is to be mounted, read-only, and returns the directory that must be on PATH inside (owned).
 * `path` is the PATH of whoever called us. NULL: nothing is needed, or nothing is known to do. */
char *mcp_chain_find(const struct mcp_fs *fs, const char *command, const char *path,
                     const char *home, struct mcp_roots *ret);
