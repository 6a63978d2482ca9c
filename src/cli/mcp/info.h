/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What is told of a server to whoever asks: `box mcp ls`. Never a value of its environment, never
 * an argument. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/mcp/phase.h"

struct buf;
struct jw;

#define MCP_TOOLS_MAX 256
#define MCP_ERROR_MAX 512

struct mcp_tool {
    char name[128];
    char description[200]; /* cut between characters */
};

struct mcp_tools {
    struct mcp_tool *list; /* owned */
    size_t n, total;       /* kept, and told */
    bool known;
};

void mcp_tools_done(struct mcp_tools *t);
/* The answer to tools/list; what is none changes nothing. `more`: a further page of the list. */
void mcp_tools_read(struct mcp_tools *t, const char *line, size_t len, bool more);

struct mcp_info {
    const char *name;
    const char *command;    /* its last component */
    const char *session_id; /* NULL: not boxed */
    enum mcp_status status;
    enum mcp_phase phase;
    const char *error; /* NULL: none */
    unsigned retries, restarts;
    const struct mcp_tools *tools;
    int64_t pid; /* of the wrapper */
};

void mcp_write_info(struct jw *w, const struct mcp_info *info);

/* `text` with every value of env ("NAME=value", of four characters or more) as "***". */
void mcp_hide_secrets(const char *text, char *const *env, struct buf *ret);
