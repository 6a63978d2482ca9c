/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the HTTP API share: its state, exec requests, files and route tables. */

#include <stdbool.h>
#include <stdint.h>

#include "command/policy_gate.h"
#include "front/common/front.h"
#include "front/v1/v1.h"
#include "session/manager.h"
#include "session/run.h"

struct audit_record;
struct authz_scope;
struct buf;
struct chat;
struct err;
struct events;
struct execs;
struct http_request;
struct http_server;
struct idem;
struct json;
struct jw;
struct named_exec;
struct manager;
struct model;
struct policy_service;
struct process;
struct session;
struct spec;

#define V1_CURSOR_KEY 32
#define V1_CURSOR_SIZE 33 /* with the NUL */

/* The argument of every handler of the API. */
struct v1 {
    struct front front;
    const struct http_server *server; /* borrowed; that it is served by */
    struct events *events;            /* borrowed */
    struct execs *execs;              /* owned */
    struct idem *idem;                /* owned */
    char cursor_key[V1_CURSOR_KEY];   /* random */
};

enum v1_disconnect { V1_DISCONNECT_KILL, V1_DISCONNECT_KEEP };

/* What an exec request may say, owned. Read from a table (request.c). */
struct v1_exec {
    char **argv;
    char *cmd;
    char **env;
    char *cwd;
    char *stdin_text;
    double timeout_sec;
    bool tty, with_stdin, stdin_acks;
    bool cleanup; /* it only makes room */
    int64_t rows, cols, capture_bytes;
    char *exec_id;
    enum v1_disconnect on_disconnect;
    bool detach;
};

/* `more` (NULL, or ending with NULL) names members that are somebody else's. */
int v1_exec_parse(const struct json *object, const char *const *more, struct v1_exec *ret,
                  struct err *err);
void v1_exec_done(struct v1_exec *e);
void v1_exec_request(const struct v1_exec *e, struct run_options *ret); /* borrows from e */

/* A command of `exec` in a session under the policy: command/policy_gate.h with what this API
 * knows. Cuts the timeout to the longest that the caller may have. */
struct v1_gate {
    struct session *session;
    const struct authz_scope *scope;
    const char *who;
    struct v1_exec *exec;
    void (*over)(void *arg);
};

void v1_write_session(struct jw *w, const struct session *s);
void v1_write_outcome(struct jw *w, const struct run_result *r);

/* The process of {id} and {process}. NULL: answered. */
struct process *v1_find_process(struct http_request *req, const struct v1 *v);

/* process.c */
int v1_process_routes(struct http_server *server, struct v1 *v, struct err *err);

/* output.c */
int v1_output_routes(struct http_server *server, struct v1 *v, struct err *err);

/* exec.c */
void v1_exec(struct http_request *req, void *arg);
/* A decimal number of the query. False: answered. */
bool v1_query_number(struct http_request *req, const char *name, uint64_t most, uint64_t otherwise,
                     uint64_t *ret);

/* tools.c */
int v1_tools_routes(struct http_server *server, struct v1 *v, struct err *err);

/* attach.c: stdin, stdout and stderr of one managed process on one WebSocket, by offset. */
struct v1_attach;
struct ws_conn;

struct v1_attach_terms {
    const char *process_id;
    uint64_t from;        /* next byte of stdout the peer wants */
    uint64_t stderr_from; /* and of stderr */
    bool joined_acks;     /* it takes an acknowledgement in front of output */
};

/* Says what happens on `ws` until v1_attach_free(), which is owed in any case. */
int v1_attach_new(struct session *s, const struct v1_attach_terms *terms, struct ws_conn *ws,
                  struct v1_attach **ret, struct err *err);
void v1_attach_free(struct v1_attach *a);
/* One whole line, or several, for stdin. */
void v1_attach_stdin(struct v1_attach *a, const char *data, size_t len);
void v1_attach_stdin_eof(struct v1_attach *a);
void v1_attach_received(struct v1_attach *a,
                        uint64_t upto);       /* the peer has these bytes of stdout */
void v1_attach_writable(struct v1_attach *a); /* the connection is, again */

/* hold.c */
int v1_hold_routes(struct http_server *server, struct v1 *v, struct err *err);

/* stderr.c */
void v1_read_stderr(struct http_request *req, void *arg);

/* stream.c */
void v1_stream(struct http_request *req, void *arg);
/* Goes on with one that runs, from that position, over a WebSocket. */
void v1_stream_attach(struct http_request *req, const struct v1 *v, struct named_exec *k,
                      uint64_t from);

/* execs.c: execs by id. */
int v1_execs_routes(struct http_server *server, struct v1 *v, struct err *err);
/* Asks for one that is known by its id; what *e owns is taken, also on failure. */
int v1_exec_begin(const struct v1 *v, struct session *s, const struct front_asker *asker,
                  struct v1_exec *e, struct named_exec **ret, struct err *err);
/* POST …/exec that wants a stream, or to be left alone (`detach`). True: answered, or taken over.
 */
bool v1_exec_kept(struct http_request *req, const struct v1 *v, struct session *s,
                  const struct json *body);

void v1_write_problem(struct jw *w, const char *key, const struct err *err); /* as an object */
/* Of "INT" and the like; 0: none. */
int v1_signal_number(const char *name);
void v1_kept_signal(struct named_exec *k, int signo); /* KILL ends all it started */

/* cursor.c: a number that tells its reader nothing, and only that reader can give back. False:
 * it is not even one; whether it ever was is for the caller to say. */
void v1_cursor_write(const struct v1 *v, const char *who, uint64_t number,
                     char ret[static V1_CURSOR_SIZE]);
bool v1_cursor_read(const struct v1 *v, const char *who, const char *text, uint64_t *ret);

/* events.c, admin.c, tool.c, openapi.c */
int v1_events_routes(struct http_server *server, struct v1 *v, struct err *err);
int v1_admin_routes(struct http_server *server, struct v1 *v, struct err *err);
int v1_tool_routes(struct http_server *server, struct v1 *v, struct err *err);
int v1_openapi_routes(struct http_server *server, struct v1 *v, struct err *err);

/* The tables of request bodies that are nobody else's. */
extern const struct model v1_exec_model, v1_change_model;

/* exec_sse.c */
void v1_exec_sse(struct http_request *req, const struct v1 *v, struct named_exec *k, uint64_t from);
