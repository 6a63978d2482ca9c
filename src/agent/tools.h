/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The tools of an agent: exec, read, write, edit, glob, grep. One table that HTTP and MCP both
 * serve: what a tool is called, what it takes, what it is allowed to do and its code. Nothing
 * about a tool is written down anywhere else.
 *
 * Paths are those of the sandbox, and what is done there is done inside, by a process of the
 * session's own identity (files.h). */

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "policy/policy.h"

struct err;
struct json;
struct jw;
struct model;
struct policy_service;
struct tool_call;

/* What a tool can do to the session; for clients that ask before they call it. */
enum tool_class {
    TOOL_READS,  /* changes nothing */
    TOOL_WRITES, /* changes files */
    TOOL_RUNS,   /* starts programs */
};

typedef int tool_begin_fn(struct tool_call *c, struct err *err);

struct tool {
    const char *name;
    const char *title;          /* for people */
    const char *description;    /* for the model */
    const struct model *params; /* of `arguments`; model_write_schema() describes them */
    enum tool_class kind;
    bool idempotent; /* twice is the same as once */
    /* Its code: the session is there, ask it. NULL: `exec`, which finds its session itself. */
    tool_begin_fn *begin;
};

size_t tools_count(void);
const struct tool *tools_at(size_t i);           /* NULL at the end */
const struct tool *tools_find(const char *name); /* NULL: there is none */

/* One tool as an object: name, title, description, class, parameters (a JSON Schema). MCP writes
 * its own, from the same row. */
void tool_write(const struct tool *t, struct jw *w);

/* The session and the client of a call. Everything is borrowed for the call of tool_call_start()
 * only, except `service`, which has to outlive the tool call. */
struct tool_where {
    const struct json *arguments;
    const struct policy_service *service;
    struct policy_request request; /* scope; and with session_id NULL the query and the profile */
    const char *session_id;        /* a session that is there; NULL: that of request.query, made if
                                      need be */
    const char *via;               /* the front, for the records; static */
    const char *who;               /* for the records; NULL: the name of the scope */
    /* Optional: what a command in a named session writes, as it comes; with `arg` of the call. */
    void (*output)(void *arg, const char *data, size_t len);
};

/* `json` is one object, the same that `text` says in words; both are always there, also with an
 * error, which is then the object's "error". Borrowed for the call of tool_done_fn. */
struct tool_result {
    bool is_error; /* the tool says no: no such file, not unique, a command that never ran */
    struct buf json, text;
};

/* Exactly one is NULL. `err` is for calls that never became one: no such session, not allowed, no
 * backend. From the loop, once; tool_call_free() is still owed, and may be called in it. */
typedef void tool_done_fn(void *arg, const struct tool_result *result, const struct err *err);

/* ERR_INVALID for arguments that do not fit tool->params, ERR_DENIED for what the scope does not
 * allow. What is refused here was not begun, and is in the records. */
int tool_call_start(const struct tool *t, const struct tool_where *where, tool_done_fn *done,
                    void *arg, struct tool_call **ret, struct err *err);
/* Before the end it takes back what was asked: a running command is killed, a file that is not
 * complete is dropped without an answer. */
void tool_call_free(struct tool_call *c); /* NULL is fine */
DEFINE_CLEANUP(tool_call)
