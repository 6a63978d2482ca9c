/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Box as an MCP server: /mcp (streamable HTTP), and /mcp/stdio, a WebSocket that carries the lines
 * of `box mcp serve`. Tools, sessions, processes and files of sandboxes for any agent that speaks
 * the Model Context Protocol. The rights of a caller are decided in the same place as for every
 * front. */

#include "base/cleanup.h"

struct err;
struct http_server;
struct mcp;
struct front;

/* `v` is borrowed: sessions are made as its front makes them. Freed after the server, before v. */
struct mcp *mcp_new(const struct front *f);
void mcp_free(struct mcp *m);
DEFINE_CLEANUP(mcp)

int mcp_routes(struct http_server *server, struct mcp *m, struct err *err);
