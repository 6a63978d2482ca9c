/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Files of sessions over HTTP; docs/reference/files.md says what there is. */

#include <stdbool.h>
#include <stdint.h>

#include "agent/files.h"
#include "front/v1/v1_internal.h"

struct http_request;
struct jw;

#define V1_UPLOAD_MAX (16ULL << 30) /* bytes; what the session's disk takes is usually less */

/* One request under way. Owned by its own callbacks: v1_file_free() when the answer is given. */
struct v1_file {
    struct http_request *req;
    const struct v1 *v;
    struct session *session; /* held */
    struct files_call *call; /* owned */
    char path[FILES_PATH_MAX];
    const char *change;        /* for the records: "PUT" and the like; NULL: it changes nothing */
    const char *to;            /* where it moves; borrowed from `more`, or NULL */
    void *more;                /* owned by whoever set it */
    void (*more_free)(void *); /* or NULL */
};

/* Finds the session, asks whether the caller may, and reads the path from that member of the query.
 * A relative path starts in the session's workspace. NULL: answered. */
struct v1_file *v1_file_new(struct http_request *req, const struct v1 *v, const char *tool,
                            const char *member);
/* The same with a path that is known already. */
void v1_file_free(struct v1_file *f);
/* Asks, with f as the argument of the events; whoever leaves takes it back. False: answered, and f
 * is gone. */
bool v1_file_start(struct v1_file *f, struct files_ask *ask, const struct files_events *events);
/* Answers with the failure and frees f. */
void v1_file_fail(struct v1_file *f, const struct files_failure *failure);
/* A path as files take it: absolute. False: too long. */
/* True for "1" and "true" of the query, or when it is absent and that is the default. */
bool v1_query_flag(const struct http_request *req, const char *name, bool otherwise);
/* Before something is changed, by "PUT" or the like: false where it could not be recorded; answered
 * then, f is gone. */
bool v1_file_recordable(struct v1_file *f, const char *change);
/* It was changed, or could not be. */
void v1_file_record(const struct v1_file *f, const struct err *err);

void v1_file_write_stat(struct jw *w, const struct files_stat *st);
/* The name of a file as text; when it is none, its bytes as well. */
void v1_file_write_name(struct jw *w, const char *key, const char *name, size_t len);

int v1_files_routes(struct http_server *server, struct v1 *v, struct err *err);

/* files_content.c */
void v1_file_get(struct http_request *req, const struct v1 *v);
void v1_file_put(struct http_request *req, void *arg);
/* If-Match and If-None-Match of something that changes: flags and expect. */
void v1_file_conditions(const struct http_request *req, struct files_request *head);

/* files_watch.c */
void v1_file_watch(struct http_request *req, void *arg);
