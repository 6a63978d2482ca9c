/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Messages of the Model Context Protocol: JSON-RPC 2.0 as MCP narrows it down. Bytes in, a checked
 * message out, and the texts of what is answered. No I/O and no state, so that a fuzzer can drive
 * it.
 *
 * Two eras share these rules. Up to 2025-11-25 a client opens with `initialize`; from 2026-07-28 on
 * every request says in its `_meta` which revision it speaks. */

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/json.h"

#define MCP_MESSAGE_MAX (12U << 20) /* bytes of one message; as the body of a tool over HTTP */
#define MCP_ID_MAX 256U             /* bytes of an id, and of a progress token */

#define MCP_MODERN "2026-07-28" /* the revision without a handshake */

/* JSON-RPC's own, and those that MCP defines. */
enum mcp_code {
    MCP_OK = 0,
    MCP_PARSE_ERROR = -32700,
    MCP_INVALID_REQUEST = -32600,
    MCP_NO_METHOD = -32601,
    MCP_INVALID_PARAMS = -32602,
    MCP_INTERNAL = -32603,
    MCP_NO_RESOURCE_LEGACY = -32002, /* up to 2025-11-25; MCP_INVALID_PARAMS since */
    MCP_HEADER_MISMATCH = -32020,
    MCP_UNSUPPORTED_VERSION = -32022,
};

enum mcp_kind { MCP_REQUEST, MCP_NOTIFICATION, MCP_RESPONSE };

/* What is wrong with a message, or with what it asks for. */
struct mcp_error {
    enum mcp_code code;
    char text[400];
    char requested[64]; /* MCP_UNSUPPORTED_VERSION: what was asked for */
};

struct mcp_message {
    struct json *root; /* owned; the rest is borrowed from it */
    enum mcp_kind kind;
    const struct json *id; /* a string or an integer; NULL: none that could be read */
    const char *method;
    const struct json *params; /* an object, or NULL */
    const char *version;       /* of `_meta`: the message is of the modern era; else NULL */
    const struct json *token;  /* progressToken: a string or an integer; or NULL */
};

/* Revisions that begin with `initialize`, newest first; ends with NULL. */
extern const char *const mcp_legacy_versions[];
/* The one to answer `initialize` with: the one that was asked for if we have it, else the newest.
 */
const char *mcp_negotiate(const char *asked);
bool mcp_version_known(const char *version); /* of either era */

/* 0, or -EINVAL with `why`; `ret` is to be freed in either case, and says the id where one could be
 * read. A batch (a JSON array) is MCP_INVALID_REQUEST. A modern request that lacks what every
 * request must have, or names another revision, is refused here. */
int mcp_message_parse(const char *text, size_t len, struct mcp_message *ret, struct mcp_error *why);
void mcp_message_done(struct mcp_message *m);
DEFINE_CLEANUP_DONE(mcp_message)

/* printf into *why; returns -EINVAL. */
int mcp_fail(struct mcp_error *why, enum mcp_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* An id, or a progress token, as JSON text. */
void mcp_id_text(const struct json *id, struct buf *ret);

/* {"jsonrpc":"2.0","id":…,"error":{…}}; `id` is JSON text, NULL: null. */
void mcp_write_error(struct buf *out, const char *id, const struct mcp_error *error);
/* {"jsonrpc":"2.0","id":…,"result":{ …: the caller writes members, then ends it. */
void mcp_result_begin(struct jw *w, struct buf *out, const char *id, bool modern);
int mcp_result_end(struct jw *w); /* 0, or -ENOBUFS: it is too large */
/* A value that is JSON text already. */
void mcp_raw(struct jw *w, const char *key, const char *json, size_t len);
/* name, title, version: who we are. */
void mcp_write_server_info(struct jw *w, const char *key);
void mcp_write_versions(struct jw *w, const char *key); /* those of both eras */

/* A header as sent ("=?base64?…?=" is decoded) against what the body says. */
bool mcp_header_matches(const char *header, const char *body);
