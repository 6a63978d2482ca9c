/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the agent's tools share: arguments, operations, calls. */

#include "agent/files.h"
#include "agent/tools.h"
#include "base/err.h"
#include "base/json.h"
#include "loop/loop.h"

struct policy_exec;
struct session;

#define TOOL_RESULT_BYTES (50U << 10) /* of what a model is shown */
#define TOOL_ANSWER_MAX (1U << 20)    /* of a result with everything escaped */

/* What the parameters become. Owned by the models. */
struct exec_args {
    char *command, *workdir, *description;
    int64_t timeout_sec;
    char **env;
};

enum tool_encoding { ENCODING_TEXT, ENCODING_BASE64 };

struct read_args {
    char *path;
    int64_t offset, limit, max_bytes, byte_offset;
    enum tool_encoding encoding;
};

enum write_mode { WRITE_OVERWRITE, WRITE_APPEND };

struct write_args {
    char *path, *content;
    enum tool_encoding encoding;
    enum write_mode mode;
};

struct edit_args {
    char *path, *old_string, *new_string;
    bool replace_all;
};

struct glob_args {
    char *pattern, *path;
};

enum grep_mode { GREP_CONTENT, GREP_FILES, GREP_COUNT };

struct grep_args {
    char *pattern, *path, *include;
    bool ignore_case;
    enum grep_mode mode;
};

extern const struct model tool_exec_params, tool_read_params, tool_write_params, tool_edit_params,
    tool_glob_params, tool_grep_params;

struct tool_ops {
    /* Either: the session is there, ask it. */
    int (*begin)(struct tool_call *c, struct err *err);
    /* Or: finds its session itself. `arguments` is not needed after the call. */
    int (*start)(struct tool_call *c, const struct tool_where *where, const struct json *arguments,
                 struct err *err);
};

struct tool_call {
    const struct tool *tool;
    const struct policy_service *service; /* borrowed */
    char *who, *query_id;                 /* owned */
    const char *via;
    void *args;                /* owned; the struct of tool->params */
    struct session *session;   /* held, once it is there */
    struct files_call *files;  /* owned */
    char path[FILES_PATH_MAX]; /* as shown: absolute */
    struct tool_result result;
    struct files_stat stat; /* of the last STAT frame */
    struct buf text;        /* content, or what is being made of it */
    struct jw list;         /* into `text` */
    uint64_t shown;         /* items in the list */
    uint32_t cut;           /* enum files_cut: by us, beyond what the session says */
    void *own;              /* of a tool that needs more */
    void (*own_free)(void *own);
    bool acquiring, freed;
    bool ended; /* and said so */
    tool_done_fn *done;
    void (*output)(void *arg, const char *data, size_t len); /* or NULL */
    void *arg;
    struct loop_defer defer;
    bool recorded; /* that it was refused */
};

/* The root that paths must not leave: the session's workspace. */
const char *tool_root(const struct tool_call *c);
/* `given` as an absolute path into c->path, and where it lies beneath the root. NULL: it does not;
 * told. */
const char *tool_beneath(struct tool_call *c, const char *given);
/* Asks; the root is filled in. */
int tool_ask(struct tool_call *c, struct files_ask *ask, const struct files_events *events,
             struct err *err);

/* Ends it. tool_say() is a result that says no. Nothing of c may be used after any of these. */
void tool_finish(struct tool_call *c);
void tool_say(struct tool_call *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tool_fail(struct tool_call *c, const struct err *err);
/* What a failure means where the tool has no words of its own for it. */
void tool_say_failure(struct tool_call *c, const struct files_failure *f);
/* It was changed: for the records. */
void tool_record(const struct tool_call *c, const struct err *err);

/* tools_text.c */
void tool_write_cut(struct jw *w, uint32_t cut); /* truncated, truncated_by */
/* Text from files: what is no UTF-8 is shown as such. */
void tool_text(struct buf *out, const char *text, size_t len);

extern const struct tool_ops tool_exec_ops, tool_read_ops, tool_write_ops, tool_edit_ops,
    tool_glob_ops, tool_grep_ops;
