/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What boxd is asked for: the session, and the process in it. */

#include <stdint.h>

struct jw;
struct mcp_box;
struct mcp_roots;
struct mount_spec;

#define MCP_MOUNT "/workspace"

struct mcp_session_payload {
    const char *session_id;
    const char *workdir;           /* NULL: MCP_MOUNT */
    const struct mcp_box *box;     /* what is null is left out */
    const struct mcp_roots *roots; /* the one at MCP_MOUNT is the workspace */
    const struct mcp_roots *chain; /* read-only, whatever the others are; or NULL */
    const struct mount_spec *mounts;
    unsigned n_mounts;
    const char *profile; /* NULL: none is asked for */
    int64_t quota_mb;    /* 0: left to boxd */
};

void mcp_write_session(struct jw *w, const struct mcp_session_payload *p);

struct mcp_process_payload {
    const char *process_id;
    const char *command;
    char *const *args; /* without the command */
    char *const *env;
    const char *cwd;
};

void mcp_write_process(struct jw *w, const struct mcp_process_payload *p);
