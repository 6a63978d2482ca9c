/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "core/run.h"

struct buf;
struct err;
struct http_request;
struct http_server;
struct json;
struct jw;
struct manager;
struct model;
struct process;
struct session;
struct spec;

/* What an exec request may say, owned. Read from a table (v1_request.c). */
struct v1_exec {
    char **argv;
    char *cmd;
    char **env;
    char *cwd;
    char *stdin_text;
    double timeout_sec;
    bool tty, with_stdin, stdin_acks;
    int64_t rows, cols, capture_bytes;
};

/* `more` (NULL, or ending with NULL) names members that are somebody else's. */
int v1_exec_parse(const struct json *object, const char *const *more, struct v1_exec *ret,
                  struct err *err);
void v1_exec_done(struct v1_exec *e);
void v1_exec_request(const struct v1_exec *e, struct run_options *ret); /* borrows from e */

/* A spec from the members that were given; `given` is the set of them. Ids follow the grammar;
 * without one (`id_required` false) a random one is made. */
int v1_spec_parse(const struct json *object, bool id_required, struct spec **ret,
                  uint64_t *ret_given, struct err *err);

/* What a session was made with, under the names that both fronts use. */
void v1_write_settings(struct jw *w, const struct spec *spec);
void v1_write_session(struct jw *w, const struct session *s);
void v1_write_outcome(struct jw *w, const struct run_result *r);

/* Problem details for an error of ours. */
void v1_fail(struct http_request *req, const struct err *err);
const char *v1_remedy(const struct err *err);
unsigned v1_status(const struct err *err);

/* v1_strict.c: no member that the table does not know, and each of its own JSON type. */
int v1_strict(const struct model *m, const struct json *object, const char *const *more,
              struct err *err);

/* v1.c */
void v1_reply_json(struct http_request *req, unsigned status, struct buf *out, struct jw *w);
/* A body that must be a JSON object; *ret is owned. False: answered. */
bool v1_read_body(struct http_request *req, struct json **ret);
/* The session of {id}. NULL: answered. */
struct session *v1_find_session(struct http_request *req, struct manager *m);

/* The process of {id} and {process}. NULL: answered. */
struct process *v1_find_process(struct http_request *req, struct manager *m);
/* A decimal number of the query. False: answered. */
bool v1_number_of(struct http_request *req, const char *name, uint64_t most, uint64_t otherwise,
                  uint64_t *ret);

/* v1_process.c */
int v1_process_routes(struct http_server *server, struct manager *manager, struct err *err);

/* v1_attach.c: stdin, stdout and stderr of one managed process on one WebSocket, by offset. */
struct v1_attach;
struct ws_conn;

struct v1_attach_terms {
    const char *process_id;
    uint64_t from;        /* next byte of stdout the peer wants */
    uint64_t stderr_from; /* and of stderr */
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

/* v1_hold.c */
int v1_hold_routes(struct http_server *server, struct manager *manager, struct err *err);

/* v1_stderr.c */
void v1_read_stderr(struct http_request *req, void *arg);

/* v1_stream.c */
void v1_stream(struct http_request *req, void *arg);
