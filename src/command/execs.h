/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Execs that are known by an id, so that a lost connection is not the end of them: the last output
 * is kept, by position, and a client that comes back can read it again.
 *
 * A position counts the bytes of both streams in the order they came. A reader that goes on where
 * it stopped sees no gap and no repeat as long as what it wants is still kept; what was dropped
 * before is counted and said. While a reader is attached, nothing that it has not read is dropped:
 * the program is held back instead. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/list.h"
#include "command/command.h"
#include "loop/loop.h"

struct authz_scope;
struct err;
struct execs;
struct named_exec;
struct log_segment;
struct policy_service;
struct session;

#define EXEC_ID_MAX 64U

struct execs_options {
    const struct policy_service *service; /* borrowed; decides on every exec */
    size_t max_running;                   /* of execs */
    /* Of those that ended. The oldest exec of the token that has the most goes first: one token
     * does not cost others what they may still want to read. */
    size_t max_ended;
    uint64_t ended_ns; /* and how long they are kept */
    /* Of output, over all; those that ended go first, as above, then old output. */
    size_t max_bytes;
};

extern const struct execs_options execs_defaults; /* without a service */

struct execs *execs_new(struct loop *loop, const struct execs_options *options);
/* Readers must be gone. Running execs go on unobserved. */
void execs_free(struct execs *x);
DEFINE_CLEANUP(execs)

struct named_exec_options {
    struct session *session;
    struct run_options run; /* borrows from `owned` */
    const char *stdin_text; /* the same; NULL: none */
    void *owned;            /* taken, also on failure */
    void (*owned_free)(void *owned);
    /* The rest is borrowed for the call. */
    const char *id;                  /* as id_valid() wants it; NULL: a random one */
    const struct authz_scope *scope; /* NULL: may do everything that the policy allows */
    const char *who;                 /* for the records; NULL: the name of the scope */
    const char *via;                 /* the front; static */
    bool cleanup;                    /* it only makes room: see quota.h */
    bool keep;      /* it goes on without readers until its time is up, and is then remembered */
    size_t log_max; /* bytes of output kept for readers to come; only with `keep` */
};

/* ERR_CONFLICT when the session has an exec of that id already; ERR_LIMIT; or what the policy says
 * at once. Without `keep` the exec is killed and forgotten when its last reader leaves, so the
 * first should come at once. */
int execs_start(struct execs *x, const struct named_exec_options *options, struct named_exec **ret,
                struct err *err);
struct named_exec *execs_find(const struct execs *x, const char *session_id, const char *id);
/* Of one session, oldest first; `after` NULL starts. */
struct named_exec *execs_next(const struct execs *x, const char *session_id,
                              const struct named_exec *after);

enum command_state named_exec_state(const struct named_exec *k); /* COMMAND_DONE: it has ended */
const char *named_exec_state_name(const struct named_exec *k);
bool named_exec_ran(const struct named_exec *k); /* at all */
const char *named_exec_id(const struct named_exec *k);
const char *named_exec_session_id(const struct named_exec *k);
const char *named_exec_who(const struct named_exec *k);  /* name of the scope that started it */
uint64_t named_exec_started(const struct named_exec *k); /* wall clock */
/* Valid once it has ended without an error: it ran, and the policy accepted what it left. */
const struct run_result *named_exec_result(const struct named_exec *k);
const struct err *named_exec_error(const struct named_exec *k); /* NULL: none */
bool named_exec_keeps(const struct named_exec *k);              /* asked to outlive its readers */
void named_exec_range(const struct named_exec *k, uint64_t *ret_begin, uint64_t *ret_end);
uint64_t named_exec_stdin_bytes(const struct named_exec *k); /* that were taken so far */
/* As those of a run; they do nothing on one that does not run. */
int named_exec_write(struct named_exec *k, const char *data, size_t len);
void named_exec_close_stdin(struct named_exec *k);
void named_exec_signal(struct named_exec *k, int signo);
void named_exec_kill(struct named_exec *k);
void named_exec_resize(struct named_exec *k, uint16_t rows, uint16_t cols);
/* The caller does not need the exec any more: it is killed if it runs, and forgotten once it has
 * ended. */
void named_exec_dismiss(struct named_exec *k);

struct named_exec_events {
    void (*ready)(void *arg);         /* it runs, there is more to read, or it has ended */
    void (*stdin_drained)(void *arg); /* optional */
};

/* Zero-initialised, inside its owner. */
struct named_exec_reader {
    struct named_exec *kept; /* NULL: not attached; the rest is private */
    LIST_ENTRY(named_exec_reader) link;
    struct log_segment *segment; /* a hint */
    uint64_t at, dropped;
    const struct named_exec_events *events;
    void *arg;
};

/* The caller reads existing output at once; `ready` comes from the loop when there is more. A
 * reader may detach itself in it. */
void named_exec_attach(struct named_exec *k, struct named_exec_reader *r, uint64_t from,
                       const struct named_exec_events *events, void *arg);
void named_exec_detach(struct named_exec_reader *r);
/* Copies what comes next, of one stream: its length, 0 when there is nothing (yet). */
size_t named_exec_read(struct named_exec_reader *r, enum exec_stream *ret_stream, char *ret,
                       size_t size);
/* Whether more of that stream may follow directly behind these `len` bytes: a character that is cut
 * there may still be completed. */
bool named_exec_may_grow(const struct named_exec_reader *r, size_t len);
void named_exec_advance(struct named_exec_reader *r, size_t len);
/* Bytes that were gone before this reader got to them, since it was last asked. */
uint64_t named_exec_take_dropped(struct named_exec_reader *r);
/* Everything was read and nothing follows. */
bool named_exec_at_end(const struct named_exec_reader *r);
