/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the MCP front share: places, calls, tools, answers and transports. */

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/list.h"
#include "front/common/front.h"
#include "front/mcp/mcp.h"
#include "http/server/server.h"
#include "loop/loop.h"

struct mcp_call;
struct tool;

/* Messages ------------------------------------------------------------------------------------ *
 *
 * JSON-RPC 2.0 as MCP narrows it down: bytes in, a checked message out. No I/O and no state, so
 * that a fuzzer can drive it.
 *
 * Two eras share these rules. Up to 2025-11-25 a client opens with `initialize`; from 2026-07-28 on
 * every request says in its `_meta` which revision it speaks. */

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

/* A header as sent ("=?base64?…?=" is decoded) against what the body says. */
bool mcp_header_matches(const char *header, const char *body);

/* The front ----------------------------------------------------------------------------------- */

#define MCP_ANSWER_MAX (16U << 20) /* bytes of an answer */
#define MCP_CALLS_MAX 64U          /* requests of one client under way */
#define MCP_SHARED_CALLS_MAX 1024U /* at a place that many share */
#define MCP_LIST_TTL_MS 3600000    /* of lists that change with the program only */

struct mcp {
    const struct front *front;   /* borrowed */
    struct loop *loop;           /* borrowed */
    struct buf tools;            /* the list of tools, as JSON */
    LIST_HEAD(, mcp_link) links; /* of clients with Mcp-Session-Id, most recent use first */
    size_t n_links;
    struct mcp_place *callers;    /* of requests that stand alone, one for each caller */
    LIST_HEAD(, mcp_stdio) lines; /* clients on stdio */
};

/* Places ------------------------------------------------------------------------------------ *
 *
 * Where a client works: its name, its own session (of calls that name none), and which others
 * it can reach. A connection over stdio has one, so has a client with Mcp-Session-Id; requests that
 * stand alone share that of their caller. */

struct mcp_place {
    struct mcp *mcp;
    struct mcp_place *next; /* of mcp->callers */
    unsigned refs;
    const struct authz_scope *scope; /* held, or NULL */
    char *who;                       /* owned; for records */
    char *base;                      /* owned; what names of sessions it makes begin with */
    char *session_id;                /* owned; that of calls that name none */
    struct json *settings;       /* owned; of sessions it makes, as POST /v1/sessions; or NULL */
    bool confined;               /* callers without a scope reach only what is theirs */
    bool own_name;               /* boxd gives that session to no other client */
    bool ephemeral;              /* the session goes when the place does */
    bool keeps;                  /* the client is connected: its session is not idle */
    struct session *made;        /* held, or NULL: the one that we got for session_id */
    struct session *kept;        /* held, or NULL: the one that is kept so */
    const char *version;         /* agreed on by `initialize`; static; NULL: not yet */
    bool shared;                 /* by clients that do not know of each other's ids */
    LIST_HEAD(, mcp_call) calls; /* under way */
    unsigned n_calls;
};

static inline struct front_asker mcp_place_asker(const struct mcp_place *p)
{
    return (struct front_asker){.scope = p->scope, .who = p->who, .via = "mcp"};
}

/* `tail` is what names it makes up end with; those of a token begin as its scope demands. */
struct mcp_place *mcp_place_new(struct mcp *m, const struct authz_scope *scope, const char *who,
                                const char *tail);
void mcp_place_release(struct mcp_place *p); /* the last one ends what is ephemeral */
/* The client has gone: its requests are cancelled. The place may be gone after. */
void mcp_place_close(struct mcp_place *p);
/* Of a caller whose requests stand alone; borrowed. */
struct mcp_place *mcp_place_of_caller(struct mcp *m, const struct authz_scope *scope,
                                      const char *who);
/* ERR_NOT_FOUND also for those of others. */
int mcp_place_find(const struct mcp_place *p, const char *id, struct session **ret,
                   struct err *err);
/* Whether the client is connected and will use its own session again. */
void mcp_place_keep(struct mcp_place *p, bool on);
/* `s` is that session. */
void mcp_place_got(struct mcp_place *p, struct session *s);
/* Whether the client may know of a session of that name. */
bool mcp_place_reaches(const struct mcp_place *p, const char *id);

/* Tools ------------------------------------------------------------------------------------- */

/* A member of a tool's result. */
struct mcp_output {
    const char *name, *type; /* of JSON Schema; "?" at the end: may be null */
    const char *doc;
    bool optional;
};

typedef void mcp_session_fn(struct mcp_call *c, struct session *s); /* s is borrowed */

struct mcp_tool_row {
    const char *name, *title, *description;
    const struct model *params;      /* of the arguments, without session_id */
    const struct mcp_output *output; /* ends with {0} */
    const char *scope;               /* what a token must name; NULL: nothing */
    bool read_only, destructive, idempotent, open_world;
    const struct tool *agent; /* a tool of the agent; NULL: ours */
    mcp_session_fn *in;       /* begins it in its session; such a tool takes session_id */
    void (*start)(struct mcp_call *c, const struct json *arguments); /* where `in` is NULL */
};

/* Calls ------------------------------------------------------------------------------------- */

/* Receives the messages about a request. */
struct mcp_sink {
    void (*notify)(void *arg, const struct buf *message);
    /* Once, unless the owner of the sink has freed the call; the call is gone by then. NULL: the
     * client has cancelled the request, and gets no answer. */
    void (*answer)(void *arg, const struct buf *message, enum mcp_code code);
};

/* A callback that cannot be cancelled, while its call may be freed. */
struct mcp_wait {
    struct mcp_call *call;   /* NULL: the call was freed */
    struct mcp_place *place; /* held: its own session is waited for; or NULL */
    mcp_session_fn *then;
};

struct mcp_call {
    struct mcp *mcp;
    struct mcp_place *place;    /* held */
    LIST_ENTRY(mcp_call) next;  /* of place->calls */
    struct mcp_message message; /* owned */
    bool modern;
    const struct mcp_sink *sink; /* NULL: the call goes on, but its client gets no answer */
    void *sink_arg;
    struct mcp_call **slot;   /* or NULL */
    struct mcp_wait *wait;    /* borrowed: it frees itself */
    struct mcp_tool_row tool; /* tools/call */
    struct json *arguments;   /* owned; without session_id; NULL: those of the message */
    const char *session_id;   /* the handle that was given; NULL: none */
    void *work;               /* owned, by work_free */
    void (*work_free)(void *work);
};

/* Handles a message; takes what *message owns. For a request the sink is called, perhaps at once.
 * While the call is under way *slot (or NULL) points to it; afterwards it is NULL. */
void mcp_receive(struct mcp_place *p, struct mcp_message *message, const struct mcp_sink *sink,
                 void *arg, struct mcp_call **slot);
/* A message that never became a call; `id` may be NULL. */
void mcp_refuse(const struct json *id, const struct mcp_error *why, const struct mcp_sink *sink,
                void *arg);
/* Cancels the request: a command is killed, the client gets no answer. */
void mcp_call_free(struct mcp_call *c);

/* Answers; the call is gone after. */
void mcp_call_failf(struct mcp_call *c, enum mcp_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Between the two the caller writes the members of the result. */
struct jw *mcp_call_begin(struct mcp_call *c, struct front_answer *out);
void mcp_call_end(struct mcp_call *c, struct front_answer *out);
/* The result of a tool: text for the model, JSON for programs (NULL: none). */
void mcp_call_tool(struct mcp_call *c, bool is_error, const struct buf *text,
                   const struct buf *json);
void mcp_call_tool_err(struct mcp_call *c, const struct err *err); /* as a tool that says no */
/* A result that is one JSON object; `text` says it in words, NULL: the JSON does. */
void mcp_call_tool_json(struct mcp_call *c, struct front_answer *json, const char *text);

const struct json *mcp_call_arguments(const struct mcp_call *c); /* without the handle */

/* Data that the call owns while it is under way, freed with it. */
void mcp_call_set_work(struct mcp_call *c, void *work, void (*work_free)(void *work));

struct mcp_wait *mcp_wait_new(struct mcp_call *c);
/* The call that waited, or NULL. Frees w. */
struct mcp_call *mcp_wait_end(struct mcp_wait *w);
/* The same, and a call that waited is answered: as a tool that says no, or (err NULL) with {member:
 * true}. */
void mcp_wait_failed(struct mcp_wait *w, const struct err *err);
void mcp_wait_done(struct mcp_wait *w, const struct err *err, const char *member, const char *text);

/* The session that the call means, made if need be. `then` gets it, perhaps at once; where there is
 * none the call is answered. */
void mcp_call_session(struct mcp_call *c, mcp_session_fn *then);

/* Methods and tools, by file ------------------------------------------------------------------ */

enum {
    MCP_ERA_LEGACY = 1,
    MCP_ERA_MODERN = 2,
    MCP_ERA_BOTH = MCP_ERA_LEGACY | MCP_ERA_MODERN,
    MCP_BEFORE_INITIALIZE = 4, /* the legacy era allows it before the handshake */
};

struct mcp_method {
    const char *name;
    unsigned eras;
    void (*run)(struct mcp_call *c);
};

/* Each ends with {0}. */
extern const struct mcp_method mcp_tool_methods[], mcp_resource_methods[];
extern const struct mcp_tool_row mcp_session_tools[], mcp_process_tools[], mcp_background_tools[],
    mcp_output_tools[];
extern const struct http_route mcp_http_routes[], mcp_stdio_routes[];

void mcp_tools_write(struct buf *out); /* the array of tools/list */
/* The params of a tool that takes no arguments but session_id. */
extern const struct model mcp_no_arguments;
/* Reads arguments by a closed table; model_done() is owed in any case. */
int mcp_args_parse(const struct model *m, const struct json *arguments, void *ret, struct err *err);

void mcp_links_free(struct mcp *m);
