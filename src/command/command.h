/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One command of a user, from the request to the answer. It asks the policy, finds or makes the
 * session, runs the command, keeps its output, checks what it left, and records its end. Every
 * front runs the commands of its users this way, and in no other; a front only reads the request
 * and writes the answer.
 *
 * Before: is there a backend, does the scope allow it, has the token room for it in its share, is
 * the workspace within its quota, can it be recorded. Meanwhile: if the workspace exceeds its
 * quota, the command is killed. After: if the workspace is over its quota, the session is removed,
 * and the command has failed although it ran. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/buf.h"
#include "policy/outputs.h"
#include "policy/policy.h"
#include "session/run.h"

struct command;
struct err;
struct json;
struct jw;
struct policy_service;
struct session;

/* Fields that identify a session's kind: a query's command never runs in a session with other
 * values. */
#define COMMAND_SESSION_FIELDS                                                                     \
    (FIELD_BIT(SPEC_NETWORK) | FIELD_BIT(SPEC_IMAGE) | FIELD_BIT(SPEC_HOST_PATH) |                 \
     FIELD_BIT(SPEC_HOST_PATH_MODE) | FIELD_BIT(SPEC_MOUNT_PATH) | FIELD_BIT(SPEC_CPUS) |          \
     FIELD_BIT(SPEC_MEMORY_MB) | FIELD_BIT(SPEC_PIDS_LIMIT) | FIELD_BIT(SPEC_READ_ONLY_ROOTFS) |   \
     FIELD_BIT(SPEC_WORKSPACE_QUOTA_MB))

enum command_keep {
    COMMAND_KEEP_NOTHING, /* the output goes to events->output alone */
    COMMAND_KEEP_BYTES,   /* the first run.capture bytes of each stream */
    COMMAND_KEEP_CHARS, /* head and tail of each stream, as many characters as an agent is shown */
};

/* Borrowed for the call, except where it says otherwise. */
struct command_options {
    /* Either in this session, which is held. What `run` and `stdin_text` point to is needed until
     * `started` or `ended`; the timeout is cut to the longest that the caller may have. */
    struct session *session;
    struct run_options run;
    const char *stdin_text; /* NULL: none */
    /* Or, where session is NULL, in that of request.query, by the arguments of a tool call; without
     * a query the arguments are a whole spec. */
    const struct json *arguments;
    struct policy_request request; /* for a command in a given session only the scope */
    const char *via;               /* the front, for the records; static */
    const char *who;               /* for the records; NULL: the name of the scope */
    bool cleanup;                  /* it only makes room: see quota.h */
    enum command_keep keep;
    bool keep_rest; /* output that is not all in the result can be read by an id */
};

struct command_result {
    const char *session_id, *backend;
    struct outcome outcome;
    uint64_t timeout_sec;
    struct buf text[2];         /* stdout and stderr, as far as they are kept */
    bool cut[2];                /* not all of it */
    uint64_t produced[2];       /* bytes */
    char id[2][OUTPUT_ID_SIZE]; /* of the full output; "" when all is there or the rest is lost */
};

/* From the loop. */
struct command_events {
    void (*started)(void *arg); /* optional: it runs */
    void (*output)(void *arg, enum exec_stream stream, const char *data, size_t len); /* optional */
    void (*stdin_drained)(void *arg);                                                 /* optional */
    /* Once; exactly one is NULL. command_free() is still owed, and may be called in it. */
    void (*ended)(void *arg, const struct command_result *result, const struct err *err);
};

/*   ASKING ──► ACQUIRING ──► RUNNING ──► JUDGING ──► DROPPING ──► DONE
 *      └──────────────────────┘ └───────────┴────────────────────┘
 *   Any state but DROPPING may move to DONE when the command fails. ACQUIRING and DROPPING move to
 *   ABANDONED when the front lets go. */
enum command_state {
    COMMAND_ASKING,    /* the policy */
    COMMAND_ACQUIRING, /* the session of its query */
    COMMAND_RUNNING,
    COMMAND_JUDGING,  /* it has ended, and the policy looks at what it left */
    COMMAND_DROPPING, /* its session goes, because the workspace is over the quota */
    COMMAND_DONE,
    COMMAND_ABANDONED, /* freed by its front while the manager still owes an answer */
    COMMAND_STATE_MAX,
};

/* The return value reports an immediate refusal, `ended` everything else; both are on record by
 * then. The service and the events are borrowed. */
int command_start(const struct policy_service *service, const struct command_options *options,
                  const struct command_events *events, void *arg, struct command **ret,
                  struct err *err);
enum command_state command_state(const struct command *c);
struct run *command_run(const struct command *c); /* NULL: it does not run; c may be NULL */
/* Of a command in a given session: kills it; one that does not run yet ends in here. */
void command_kill(struct command *c);
/* No callback comes any more. A command that has not ended is recorded as given up; if it runs, it
 * goes on unobserved. */
void command_free(struct command *c);
void command_cancel(struct command *c); /* the same, but it is killed */

/* For a command that did not end by itself: what happened, for a person; nothing for others. */
void command_explain(const struct command_result *r, struct buf *out);
/* The exit code as the command line of a container engine reports it, null after a timeout. */
void command_write_exit(const struct command_result *r, struct jw *w);
/* Members of an object: session_id, backend, status, ok, exit_code, stdout, stderr,
 * stdout_truncated, stderr_truncated, duration_ms, outcome; stdout_id and stderr_id where there is
 * more to read. */
void command_write_result(const struct command_result *r, struct jw *w);
