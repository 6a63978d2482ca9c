/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the agent's tools share: arguments, operations, calls. */

#include "agent/files.h"
#include "agent/tools.h"
#include "base/err.h"
#include "base/json.h"
#include "loop/loop.h"

struct command;
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
    struct files_stat stat;  /* of the last STAT frame */
    struct buf text;         /* content, or what is being made of it */
    struct jw list;          /* into `text` */
    uint64_t shown;          /* items in the list */
    uint32_t cut;            /* enum files_cut: by us, beyond what the session says */
    struct command *command; /* of exec; owned */
    bool acquiring, freed;
    bool ended; /* and said so */
    tool_done_fn *done;
    void (*output)(void *arg, const char *data, size_t len); /* or NULL */
    void *arg;
    struct loop_defer defer;
    bool recorded; /* that it was refused */
};

/* Ends it. tool_say() is a result that says no. Nothing of c may be used after any of these. */
void tool_finish(struct tool_call *c);
void tool_say(struct tool_call *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tool_fail(struct tool_call *c, const struct err *err);
/* A change of the file c->path, for the audit log. */
void tool_record(const struct tool_call *c, const char *outcome, const char *reason);

/* tools_files.c */
tool_begin_fn tool_begin_read, tool_begin_write, tool_begin_edit, tool_begin_glob, tool_begin_grep;
