/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the HTTP API share: its state, exec requests, files and route tables. */

#include "front/common/front.h"
#include "front/v1/v1.h"
#include "http/server/server.h"
#include "session/run.h"

struct authz_scope;
struct execs;
struct idem;
struct loop;
struct named_exec;
struct store;

#define V1_CURSOR_KEY 32

/* The argument of every handler of the API. */
struct v1 {
    struct front front;
    const struct http_server *server; /* borrowed; that it is served by */
    struct events *events;            /* borrowed */
    struct execs *execs;              /* owned */
    struct idem *idem;                /* owned */
    char cursor_key[V1_CURSOR_KEY];   /* random */
};

/* Each ends with {0}. */
extern const struct http_route v1_exec_routes[], v1_stream_routes[], v1_process_routes[],
    v1_hold_routes[], v1_files_routes[], v1_output_routes[], v1_tools_routes[], v1_history_routes[],
    v1_metrics_routes[], v1_state_routes[], v1_ports_routes[], v1_look_routes[], v1_log_routes[];

enum v1_disconnect { V1_DISCONNECT_KILL, V1_DISCONNECT_KEEP };

/* Members of an exec request, owned. Read from a table (exec.c). */
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

/* `more` (NULL, or ending with NULL) names further members, which the caller reads. */
int v1_exec_parse(const struct json *object, const char *const *more, struct v1_exec *ret,
                  struct err *err);
void v1_exec_done(struct v1_exec *e);

/* A decimal number of the query. False: answered. */
bool v1_query_number(struct http_request *req, const char *name, uint64_t most, uint64_t otherwise,
                     uint64_t *ret);
/* True for "1" and "true" of the query, or when it is absent and that is the default. */
bool v1_query_flag(const struct http_request *req, const char *name, bool otherwise);

struct v1_range {
    uint64_t from, length; /* of bytes */
    bool is_suffix;        /* the last `length` bytes; `from` is 0 */
};
/* A Range header of one range. Any other is as if there were none: false. */
bool v1_range_parse(const char *text, struct v1_range *ret);
/* Content-Range: the bytes from `from` to before `end`, of `size`; `end` 0: none of them. */
void v1_put_range(struct http_request *req, uint64_t from, uint64_t end, uint64_t size);
/* Of "INT" and the like; 0: no such signal. */
int v1_signal_number(const char *name);
/* That of {"signal": NAME}; 0: answered. */
int v1_read_signal(struct http_request *req, const struct json *body);

/* Members of answers. */
void v1_write_session(struct jw *w, const struct session *s);
void v1_write_outcome(struct jw *w, const struct run_result *r);

/* Ports that a request wants published in its session. */
struct v1_ports;
/* `list` NULL: *ret is NULL, too. ERR_INVALID, or the policy's refusal. */
int v1_ports_parse(const struct v1 *v, const struct authz_scope *scope, const struct json *list,
                   struct v1_ports **ret, struct err *err);
void v1_ports_free(struct v1_ports *p); /* NULL is fine */
int v1_ports_publish(struct v1_ports *p, struct session *s, struct err *err);
void v1_ports_write(const struct v1_ports *p, struct jw *w); /* the member `ports` */

/* Starts a command that is known by its id; takes what *e owns, also on failure. */
int v1_exec_begin(const struct v1 *v, struct session *s, const struct front_asker *asker,
                  struct v1_exec *e, struct named_exec **ret, struct err *err);

/* The message stdin_ack for so many bytes, which is 0 then. */
void v1_say_stdin_ack(struct ws_conn *ws, size_t *unacked);
/* Follows a command from that position on, over a WebSocket. */
void v1_stream_attach(struct http_request *req, const struct v1 *v, struct named_exec *k,
                      uint64_t from);

/* Requests that may be repeated: with an Idempotency-Key header a second one of the same caller,
 * method, path and body gets the answer of the first, and does nothing. One that comes while the
 * first is at work waits for it. Only answers of success are kept: a client whose request failed
 * may try again. Answers are kept for a day, so many of them, and survive a restart. */
struct idem *idem_new(struct loop *loop, struct store *store); /* store borrowed; NULL: in memory */
void idem_free(struct idem *d);                                /* no request may wait any more */
/* True: the handler is to do its work, and what it answers is kept if the caller wants that. False:
 * answered, or it will be. `who` names the caller. */
bool idem_begin(struct idem *d, struct http_request *req, const char *who);

/* The tables of request bodies that only this front has. */
struct v1_rename {
    char *name; /* owned */
};
extern const struct model v1_exec_model, v1_change_model, v1_rename_model, v1_publication_model;

/* docs/api/openapi.json without its indentation; the build makes it. */
extern const unsigned char v1_openapi_json[];
extern const size_t v1_openapi_json_len;
