/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* JSON-RPC messages as they pass, one per line, seen byte by byte: which kind of message, its id
 * and its method. Nothing is kept but these, so a line may be of any length, and nothing is
 * changed. What is not JSON passes like anything else; it is a message without a kind. */

#include <stdbool.h>
#include <stddef.h>

#define MCP_ID_MAX 128
#define MCP_METHOD_MAX 64

struct mcp_msg {
    char id[MCP_ID_MAX];         /* as it stands in the text, quotes and all; "": none */
    char method[MCP_METHOD_MAX]; /* without its quotes; "": none */
    bool id_cut, method_cut;     /* longer than that: not to be relied on */
    bool has_result, has_error;
};

static inline bool mcp_msg_is_request(const struct mcp_msg *m)
{
    return m->method[0] != '\0' && m->id[0] != '\0';
}

static inline bool mcp_msg_is_response(const struct mcp_msg *m)
{
    return m->method[0] == '\0' && m->id[0] != '\0' && (m->has_result || m->has_error);
}

struct mcp_scan {
    unsigned depth, level; /* level: that of the members of a message, 2 in a batch */
    bool in_string, escaped, wants_key, is_junk;
    int field;   /* whose value comes or is read */
    int capture; /* what the bytes are copied to */
    char key[16];
    size_t n_key, n_id, n_method;
    struct mcp_msg msg;
};

/* One message of the line, whole. */
typedef void mcp_scan_fn(void *arg, const struct mcp_msg *msg);

void mcp_scan_reset(struct mcp_scan *s); /* at the start of each line */
/* Bytes of one line, without its newline. */
void mcp_scan_feed(struct mcp_scan *s, const char *data, size_t len, mcp_scan_fn *fn, void *arg);
