/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the MCP front share: places, calls, tools, answers and transports. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "front/common/front.h"
#include "front/mcp/mcp.h"
#include "front/mcp/message.h"
#include "loop/loop.h"

struct authz_scope;
struct mcp_call;
struct mcp_line;
struct mcp_link;
struct session;
struct tool;

#define MCP_ANSWER_MAX (16U << 20) /* bytes of an answer */
#define MCP_CALLS_MAX 64U          /* requests of one client under way */
#define MCP_SHARED_CALLS_MAX 1024U /* at a place that many share */

struct mcp {
    const struct front *front; /* borrowed */
    struct loop *loop;         /* borrowed */
    struct buf tools;          /* the list of tools, as JSON */
    struct mcp_link *links;    /* of clients with Mcp-Session-Id, most recent use first */
    size_t n_links;
    struct mcp_place *callers; /* of requests that stand alone, one for each caller */
    struct mcp_line *lines;    /* clients on stdio */
};

/* Places ------------------------------------------------------------------------------------ *
 *
 * Where a client works: who it is, the session that is meant when it names none, and which others
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
    struct json *settings;  /* owned; of sessions it makes, as POST /v1/sessions; or NULL */
    bool confined;          /* callers without a scope reach only what is theirs */
    bool own_name;          /* nobody else is given that session */
    bool ephemeral;         /* the session goes when the place does */
    bool made;              /* we asked for it */
    bool keeps;             /* somebody is there: that session is not idle */
    struct session *kept;   /* held, or NULL: the one that is kept so */
    const char *version;    /* agreed on by `initialize`; static; NULL: not yet */
    bool shared;            /* by clients that do not know of each other's ids */
    struct mcp_call *calls; /* under way */
    unsigned n_calls;
};

/* `tail` is what names it makes up end with; those of a token begin as its scope demands. */
struct mcp_place *mcp_place_new(struct mcp *m, const struct authz_scope *scope, const char *who,
                                const char *tail);
void mcp_place_hold(struct mcp_place *p);
void mcp_place_release(struct mcp_place *p); /* the last one ends what is ephemeral */
/* The client has gone: whatever it asked for is taken back. The place may be gone after. */
void mcp_place_close(struct mcp_place *p);
/* Of a caller whose requests stand alone; borrowed. */
struct mcp_place *mcp_place_of_caller(struct mcp *m, const struct authz_scope *scope,
                                      const char *who);
/* ERR_NOT_FOUND also for those of others. */
int mcp_place_find(const struct mcp_place *p, const char *id, struct session **ret,
                   struct err *err);
/* Whether somebody is there who will use the client's own session again. */
void mcp_place_keep(struct mcp_place *p, bool on);
/* As POST /v1/sessions takes them: those of the place, with `more` (or NULL) over them. Owned. */
bool mcp_place_reaches(const struct mcp_place *p, const char *id);

/* Tools ------------------------------------------------------------------------------------- */

/* A member of a tool's result. */
struct mcp_output {
    const char *name, *type; /* of JSON Schema; "?" at the end: may be null */
    const char *doc;
    bool optional;
};

struct mcp_tool {
    const char *name, *title, *description;
    const struct model *params;      /* of the arguments, without session_id */
    const struct mcp_output *output; /* ends with {0} */
    const char *scope;               /* what a token must name; NULL: nothing */
    bool in_session;                 /* takes session_id */
    bool read_only, destructive, idempotent, open_world;
    const struct tool *agent; /* a tool of the agent; NULL: ours */
    void (*start)(struct mcp_call *c, const struct json *arguments);
};

/* Calls ------------------------------------------------------------------------------------- */

/* Where what is said about a request goes. */
struct mcp_sink {
    void (*notify)(void *arg, const struct buf *message);
    /* Once, unless the call was freed by whoever gave the sink; the call is gone by then. NULL:
     * the client has taken the request back, and is told nothing. */
    void (*answer)(void *arg, const struct buf *message, enum mcp_code code);
};

typedef void mcp_session_fn(struct mcp_call *c, struct session *s); /* s is borrowed */

/* Somebody who will call back and cannot be told not to. */
struct mcp_wait {
    struct mcp_call *call; /* NULL: nobody waits any more */
    bool own;              /* for the session of the place */
    char *text;            /* of whoever waits */
    mcp_session_fn *then;
};

struct mcp_call {
    struct mcp *mcp;
    struct mcp_place *place; /* held */
    struct mcp_call *prev, *next;
    struct mcp_message message; /* owned */
    struct buf id;              /* as JSON */
    bool modern;
    const struct mcp_sink *sink;
    void *sink_arg;
    struct mcp_call **slot; /* or NULL */
    struct mcp_wait *wait;  /* borrowed: it frees itself */
    struct mcp_tool tool;   /* tools/call */
    struct json *arguments; /* owned; without session_id; NULL: those of the message */
    const char *session_id; /* the handle that was given; NULL: none */
    void *work;             /* of whoever does it */
    void (*work_free)(void *work);
    struct mcp_progress *progress; /* owned; NULL: not asked for */
};

/* What came in; takes what *message owns. Of a request the sink hears, perhaps at once. While the
 * call is under way *slot (or NULL) is it, and NULL after. */
void mcp_receive(struct mcp_place *p, struct mcp_message *message, const struct mcp_sink *sink,
                 void *arg, struct mcp_call **slot);
/* A message that never became a call; `id` may be NULL. */
void mcp_refuse(const struct json *id, const struct mcp_error *why, const struct mcp_sink *sink,
                void *arg);
/* Takes it back: a command is killed, nobody is told. */
void mcp_call_free(struct mcp_call *c);
/* It goes on, but nobody listens any more. */
void mcp_call_detach(struct mcp_call *c);

/* Answers; the call is gone after. */
void mcp_call_failf(struct mcp_call *c, enum mcp_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Between the two the caller writes the members of the result. */
void mcp_call_begin(struct mcp_call *c, struct jw *w, struct buf *out);
void mcp_call_end(struct mcp_call *c, struct jw *w);
/* The result of a tool: text for the model, JSON for programs (NULL: none). */
void mcp_call_tool(struct mcp_call *c, bool is_error, const struct buf *text,
                   const struct buf *json);
void mcp_call_tool_err(struct mcp_call *c, const struct err *err); /* as a tool that says no */
/* A result that is one JSON object; `text` says it in words, NULL: the JSON does. */
void mcp_call_tool_json(struct mcp_call *c, struct jw *json, const char *text);

const struct json *mcp_call_arguments(const struct mcp_call *c); /* without the handle */

struct mcp_wait *mcp_wait_new(struct mcp_call *c);
/* The call that waited, or NULL. Frees w. */
struct mcp_call *mcp_wait_end(struct mcp_wait *w);

/* place.c: the session that is meant, made if need be. `then` gets it borrowed, perhaps at
 * once; where there is none the call is answered. */
void mcp_call_session(struct mcp_call *c, const char *id, mcp_session_fn *then);

/* The session of that name, made if need be: with the settings of the place and `more` (or NULL).
 */
void mcp_call_make_session(struct mcp_call *c, const char *id, const struct json *more,
                           mcp_session_fn *then);

/* tools.c */
void mcp_tools_write(struct buf *out); /* the array of tools/list */
void mcp_tools_list(struct mcp_call *c);
void mcp_tools_call(struct mcp_call *c);

/* Tables of further tools; end with {0}. */
extern const struct mcp_tool mcp_session_tools[], mcp_process_tools[];
/* output.c: members of results of the tools of the agent; NULL: no such tool. */
const struct mcp_output *mcp_agent_output(const char *name);
void mcp_output_write(const struct mcp_output *output, struct jw *w); /* a JSON Schema */

/* resource.c */
void mcp_resources_list(struct mcp_call *c);
void mcp_resources_templates(struct mcp_call *c);
void mcp_resources_read(struct mcp_call *c);

/* progress.c: what a long command says, now and then. */
struct mcp_progress *mcp_progress_new(struct mcp_call *c);
void mcp_progress_free(struct mcp_progress *p);
void mcp_progress_output(struct mcp_progress *p, const char *data, size_t len);

/* http.c, ws.c */
int mcp_http_routes(struct http_server *server, struct mcp *m, struct err *err);
void mcp_links_free(struct mcp *m);
void mcp_ws(struct http_request *req, void *arg);
