/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* `box mcp run`: a stdio server in a session of its own, in front of a client that does not know.
 * The process is boxd's; what is here is a client of it that can lose its connection and come back.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "cli/io/pipe.h"
#include "cli/mcp/config.h"
#include "cli/mcp/info.h"
#include "cli/mcp/path.h"
#include "cli/mcp/phase.h"
#include "cli/mcp/prepare.h"
#include "cli/mcp/requests.h"
#include "loop/loop.h"

#define MCP_STATUS_FAILED 1 /* the server could not be kept running */

struct app;
struct args;
struct http_call;
struct mcp_run;
struct ws_conn;

/*  LINK ──► HOLD ──► PREPARE ──► START ──► ATTACH ──► SERVE
 *   ▲        │          │          │          │         │
 *   └────────┴──────────┴── WAIT ◄─┴──────────┴─────────┤   a failure: again, a little later
 *   └◄──────────────────────────────────────────────────┘   only the connection was lost
 *  from any of them: LEAVE                                                                    */
enum mcp_step {
    STEP_LINK, /* the connection to boxd is being made */
    STEP_HOLD,
    STEP_PREPARE,
    STEP_START,
    STEP_ATTACH,
    STEP_SERVE,
    STEP_WAIT,
    STEP_LEAVE,
    STEP_MAX,
};

/* A line of the client. */
struct mcp_line {
    struct mcp_line *next;
    uint64_t end; /* once it is sent: behind its last byte, as boxd counts */
    size_t len;
    bool booked; /* the book knows it already */
    bool again;  /* boxd may have written it before it was lost */
    char data[]; /* with its newline */
};

struct mcp_lines {
    struct mcp_line *first, **end;
    size_t bytes;
};

/* What comes from the server, cut into lines. */
struct mcp_out {
    struct buf part;      /* of the line that is not whole yet */
    bool passing;         /* that line was too long to be kept, and is passed on as it comes */
    struct mcp_scan scan; /* of that line */
    enum mcp_verdict verdict;
};

/* How the next answer is waited for. */
struct mcp_awake {
    bool possible;   /* there is a processor beside ours */
    uint64_t until;  /* when we would have gone to sleep; 0: nothing was waited for */
    bool in_time;    /* the answer came before */
    unsigned misses; /* in a row */
    unsigned asleep; /* so many requests are not worth a try */
};

struct mcp_run {
    struct app *app;         /* borrowed */
    const struct args *args; /* borrowed */

    /* What is run. */
    struct mcp_server server; /* owned */
    char *name;               /* owned */
    struct mcp_roots roots;   /* owned */
    struct mcp_roots chain;   /* owned; the command, when it is the user's own tool */
    char *chain_path;         /* owned; where that is on PATH inside; "": nowhere */
    struct mcp_prepare prepare;
    char *command;      /* owned; as it is called inside */
    char **inside_args; /* owned */
    char *venv;         /* owned; the one the command came from, inside; "": none */
    char *cwd;          /* owned */
    struct mcp_prepared prepared;
    char session_id[40];
    uint32_t grace_sec;

    /* Where we are. */
    enum mcp_step step;
    enum mcp_phase phase;
    enum mcp_status status;
    struct mcp_retry retry;
    struct loop_timer timer; /* of WAIT, of LINK, of LEAVE */
    struct loop_timer start_timer;
    uint64_t link_delay_ns;
    unsigned link_failures;
    uint64_t working_since; /* 0: it has not worked yet */
    unsigned restarts;
    char error[MCP_ERROR_MAX]; /* "": none */
    int exit_status;
    bool was_linked; /* there was a boxd at some time */
    bool is_prepared, has_session;
    bool hold_asked;                /* boxd is making the session */
    bool must_release;              /* the session died underneath us */
    bool has_remains;               /* the last process is still to be forgotten */
    bool quitting;                  /* as soon as the client has everything */
    bool failed;                    /* quick retries are used up: requests are answered at once */
    struct loop_timer finish_timer; /* of a server whose input has ended */
    unsigned finish_tries;

    /* The process. */
    unsigned process_number; /* 0: none runs */
    unsigned starts;
    unsigned attached_once; /* number of the process that we had already */
    char process_id[32];
    uint64_t at, received, err_at; /* offsets of its output */
    uint64_t sent_bytes;

    /* The connection. */
    struct ws_conn *ws;     /* NULL: none */
    bool opening;           /* it will be told to on_opened() */
    struct http_call *call; /* under way; NULL: none */
    struct buf answer;
    unsigned call_status;
    void (*call_done)(struct mcp_run *m, unsigned status, const struct err *err);

    /* Client and server. */
    struct mcp_requests book;
    struct mcp_awake awake;
    struct mcp_tools tools;
    struct source in;
    struct sink out, err_out;
    struct loop_io out_gone;
    int out_copy;    /* owned; -1: none */
    struct buf line; /* of the client, not whole yet */
    struct mcp_scan line_scan;
    bool line_too_long;
    struct mcp_lines waiting, sent;
    struct mcp_out from_server;
    bool listening;    /* to the client */
    bool client_ended; /* no more will come from it */
    bool eof_sent;
    uint64_t err_lost;
};

/* mcp_plan.c: from arguments to what is run. */
int mcp_plan(struct mcp_run *m, struct err *err);

/* mcp_run.c: the steps. */
void mcp_step_failed(struct mcp_run *m, const char *why);
/* No further attempt would end otherwise. */
void mcp_fatal(struct mcp_run *m, int status, const char *why);
void mcp_leave(struct mcp_run *m, int status);
void mcp_linked(struct mcp_run *m); /* there is a connection */
/* It runs, but not as it should. */
void mcp_client_ended(struct mcp_run *m); /* it will say nothing more */
void mcp_server_exited(struct mcp_run *m, bool known, int64_t code, const char *stderr_preview);
void mcp_held(struct mcp_run *m);
void mcp_refused(struct mcp_run *m, const char *about, const char *code, const char *why);
void mcp_attached(struct mcp_run *m);
void mcp_link_lost(struct mcp_run *m, const char *why);
void mcp_released(struct mcp_run *m);
void mcp_server_spoke(struct mcp_run *m); /* it has answered something */
void mcp_client_left(struct mcp_run *m);  /* nobody reads us any more */
void mcp_out_drained(struct mcp_run *m);
void mcp_tell(struct mcp_run *m); /* boxd what to show of us */

void mcp_enter(struct mcp_run *m, enum mcp_step to);
void mcp_set_phase(struct mcp_run *m, enum mcp_phase phase);

/* mcp_start.c: the two steps that are calls. */
void mcp_prepare_box(struct mcp_run *m);
void mcp_start(struct mcp_run *m);
/* Why nothing could be downloaded, perhaps; static, or NULL. */
const char *mcp_download_hint(const struct mcp_run *m);

/* mcp_link.c: the connection. */
void mcp_link_open(struct mcp_run *m);
void mcp_link_hold(struct mcp_run *m);
void mcp_link_attach(struct mcp_run *m);
void mcp_link_release(struct mcp_run *m);
void mcp_link_info(struct mcp_run *m);
void mcp_link_received(struct mcp_run *m);
void mcp_link_stdin_eof(struct mcp_run *m);
int mcp_link_stdin(struct mcp_run *m, const char *data, size_t len);
/* One HTTP call at a time; `done` hears of its end unless it is cancelled. */
void mcp_call(struct mcp_run *m, const char *method, const char *target, const struct buf *body,
              void (*done)(struct mcp_run *m, unsigned status, const struct err *err));
void mcp_call_cancel(struct mcp_run *m);

/* mcp_pipe.c: lines between client and server. */
void mcp_pipe_start(struct mcp_run *m);
/* From here on the client's bytes are ours: no other program can have them any more. */
void mcp_pipe_listen(struct mcp_run *m);
void mcp_pipe_done(struct mcp_run *m);
void mcp_pipe_send(struct mcp_run *m); /* what may be sent now */
/* Before anything else; the book knows them. */
void mcp_pipe_send_first(struct mcp_run *m, const struct buf *lines);
void mcp_pipe_resend(struct mcp_run *m); /* what was sent and may have been lost */
void mcp_pipe_forget(struct mcp_run *m); /* what was sent to a server that is gone */
void mcp_pipe_acked(struct mcp_run *m, uint64_t bytes);
void mcp_pipe_stdout(struct mcp_run *m, const char *data, size_t len);
void mcp_pipe_stderr(struct mcp_run *m, const char *data, size_t len);
void mcp_pipe_note(struct mcp_run *m, const struct buf *line); /* of our own, on stderr */
/* The server has ended in the middle of a line, perhaps. */
void mcp_pipe_cut(struct mcp_run *m);
void mcp_pipe_answer(struct mcp_run *m, const struct buf *answers);
void mcp_pipe_refuse_all(struct mcp_run *m, const char *why);
bool mcp_pipe_idle(const struct mcp_run *m); /* nothing of the client is on its way */

/* One line on standard error, "box: NAME: ...". */
void mcp_say(struct mcp_run *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* mcp_host.c: without a box; does not return on success. */
int mcp_run_on_host(struct mcp_run *m, const char *why, struct err *err);
