/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A stdio server as clients' configuration files describe it: {"command", "args", "env"}, and how
 * it is boxed in a member "box" (MCPServerBoxConfig), which may be missing. */

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"

struct err;
struct json;

#define MCP_STARTUP_SEC 120
#define MCP_FILE_MAX (1 << 20) /* of a configuration file */

/* Zero, NULL and -1 stand for null: it is left to boxd. */
struct mcp_box {
    char *image;     /* owned */
    int network;     /* enum network; on unless told otherwise */
    char *host_path; /* owned; NULL: inferred */
    int host_path_mode;
    char **env; /* owned; of the session */
    int64_t startup_timeout_sec;
    double cpus;
    int64_t memory_mb, pids_limit;
    int read_only_rootfs; /* -1: null, which is false: installers write there */
};

void mcp_box_init(struct mcp_box *b);
void mcp_box_done(struct mcp_box *b);
DEFINE_CLEANUP_DONE(mcp_box)
/* NULL, or null, is all defaults. Members that are not known are ignored. ERR_INVALID. */
int mcp_box_parse(const struct json *box, struct mcp_box *ret, struct err *err);

struct mcp_server {
    char *command;      /* owned */
    char **args, **env; /* owned */
    struct mcp_box box;
};

void mcp_server_done(struct mcp_server *s);
DEFINE_CLEANUP_DONE(mcp_server)
/* The server of that name in {"mcpServers": {...}}, or {"servers": {...}} as some have it. */
int mcp_server_find(const struct json *file, const char *name, struct mcp_server *ret,
                    struct err *err);
