/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Requests without an answer between a client and a server that may be started again underneath.
 * Both revisions pass untouched: with the handshake (initialize, then notifications/initialized),
 * which is replayed to a new server, and without it, where there is nothing to replay. */

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define MCP_SERVER_ERROR (-32000) /* of those that JSON-RPC leaves to implementations */
#define MCP_IN_FLIGHT_MAX 4096
#define MCP_LINE_MAX                                                                               \
    (16U << 20) /* of what a client sends; boxd writes a line whole or not at all */

/* JSON-RPC messages as they pass, one per line, seen byte by byte: which kind of message, its id
 * and its method. Nothing is kept but these, so a line may be of any length, and nothing is
 * changed. What is not JSON passes like anything else; it is a message without a kind. */

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

struct mcp_pending; /* a request without its answer */

struct mcp_requests {
    struct mcp_pending *asked;  /* owned; by the client */
    struct mcp_pending *called; /* owned; by the server: sampling, roots, elicitation */
    struct mcp_pending *twice;  /* owned; asked a second time: two answers may come */
    size_t n_asked, n_called, n_twice;
    struct buf init, initialized; /* the client's own lines, newline and all */
    char init_id[MCP_ID_MAX];
    bool init_answered;
    bool replaying;      /* a new server has been sent the handshake; its answer is not passed on */
    bool answered_any;   /* this server has said something that makes sense */
    bool tools_asked;    /* a tools/list is under way */
    bool tools_more;     /* and it is not the first page */
    unsigned generation; /* of the server */
};

void mcp_requests_init(struct mcp_requests *b);
void mcp_requests_done(struct mcp_requests *b);

enum mcp_verdict {
    MCP_PASS,
    MCP_DROP,  /* not for the other side: of a server, the answer to the handshake we replayed */
    MCP_TWICE, /* neither: the second answer to a request that was sent twice */
    MCP_TOOLS, /* passes; it is the answer to tools/list */
};

/* A line of the client, with its newline, before it is sent on. */
enum mcp_verdict mcp_requests_from_client(struct mcp_requests *b, const char *line, size_t len);
/* A message of the server, before its line is passed on. */
enum mcp_verdict mcp_requests_from_server(struct mcp_requests *b, const struct mcp_msg *msg);

/* A line of the client is sent once more to the same server, which may have had it: of two answers
 * the second is dropped. */
void mcp_requests_sent_again(struct mcp_requests *b, const char *line, size_t len);

/* The server is gone. Appends an answer to each request that it had, with `why`, except to those
 * that the next one will get again, which mcp_requests_replay() writes. */
void mcp_requests_server_died(struct mcp_requests *b, const char *why, struct buf *answers);
/* What a new server gets before anything else; nothing when there was no handshake. While
 * b->replaying nothing else may be sent to it. */
void mcp_requests_replay(struct mcp_requests *b, struct buf *ret);
/* It has answered the handshake: what follows it. */
void mcp_requests_replayed(struct mcp_requests *b, struct buf *ret);
/* Every request without an answer gets one, and nothing is sent again. */
void mcp_requests_give_up(struct mcp_requests *b, const char *why, struct buf *answers);
/* Answers a line of the client that no server will see, when it holds requests. */
void mcp_requests_refuse(const char *line, size_t len, const char *why, struct buf *answers);
/* The line of an answer that is an error; `id` as it stands in JSON. */
void mcp_put_error(struct buf *out, const char *id, int code, const char *why);
