/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* `box mcp run`: a stdio server in a session of its own, in front of a client that does not know.
 * The server's process belongs to boxd; this program is a client of boxd that can lose its
 * connection and come back. run.c has the states, pipe.c the connection to boxd and the lines
 * between the client and the server; what is run was decided before (cli/mcp/plan.h). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/list.h"
#include "cli/io/pipe.h"
#include "cli/mcp/plan.h"
#include "cli/mcp/requests.h"
#include "loop/loop.h"

#define MCP_STATUS_FAILED 1 /* the server could not be kept running */

struct app;
struct args;
struct http_call;
struct json;
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
struct client_line {
    STAILQ_ENTRY(client_line) entry;
    uint64_t end; /* once it is sent: behind its last byte, as boxd counts */
    size_t len;
    bool booked; /* the book of requests has it already */
    bool again;  /* boxd may have written it before the connection was lost */
    char data[]; /* with its newline */
};

struct client_lines {
    STAILQ_HEAD(, client_line) list;
    size_t bytes;
};

/* Output of the server, cut into lines. */
struct server_output {
    struct buf part;      /* of the line that is not whole yet */
    bool passing;         /* that line was too long to be kept, and is passed on as it comes */
    struct mcp_scan scan; /* of that line */
    enum mcp_verdict verdict;
};

/* How the next answer is waited for. */
struct mcp_awake {
    bool possible;   /* there is a processor beside ours */
    uint64_t until;  /* when we would have gone to sleep; 0: no answer was waited for */
    bool in_time;    /* the answer came before */
    unsigned misses; /* in a row */
    unsigned asleep; /* so many requests are not worth a try */
};

/* A tool call that named a path of this host which is not in the box. */
#define MCP_NAMED_MAX 16U /* the oldest makes way */
struct mcp_named {
    char id[MCP_ID_MAX];
    char *hint; /* owned; NULL: free */
};

typedef void mcp_call_fn(struct mcp_run *m, unsigned status, const struct err *err);

struct mcp_run {
    struct app *app;         /* borrowed */
    const struct args *args; /* borrowed */
    struct mcp_plan plan;
    struct mcp_prepared prepared; /* what the script of the plan found inside */

    /* States. */
    enum mcp_step step;
    enum mcp_phase phase;
    enum mcp_status status;
    struct loop_timer timer; /* of WAIT, of LINK, of LEAVE */
    struct loop_timer start_timer;
    uint64_t link_delay_ns;
    unsigned link_failures;
    uint64_t working_since; /* 0: the server has not answered yet */
    unsigned restarts;
    char error[MCP_ERROR_MAX]; /* "": none */
    int exit_status;
    bool was_linked; /* there was a boxd at some time */
    bool is_prepared, has_session;
    bool was_held;                  /* boxd has made the session as the plan has it */
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
    bool opening;           /* on_opened() will be called */
    struct http_call *call; /* under way; NULL: none */
    struct buf answer;
    unsigned call_status;
    mcp_call_fn *call_done;

    /* Client and server. */
    struct mcp_requests book;
    struct mcp_awake awake;
    struct mcp_tools tools;
    struct intake in;
    struct sink out, err_out;
    struct loop_io out_gone;
    int out_copy;    /* owned; -1: none */
    struct buf line; /* of the client, not whole yet */
    struct mcp_scan line_scan;
    bool line_too_long;
    struct client_lines waiting, sent;
    struct server_output from_server;
    struct mcp_named named[MCP_NAMED_MAX];
    unsigned next_named;
    bool listening;    /* to the client */
    bool client_ended; /* it will send nothing more */
    bool eof_sent;
    uint64_t err_lost;
};

/* run.c: the states. */
void mcp_leave(struct mcp_run *m, int status);
void mcp_linked(struct mcp_run *m); /* there is a connection */
void mcp_link_lost(struct mcp_run *m, const char *why);
void mcp_boxd_said(struct mcp_run *m, const struct json *message);
void mcp_server_spoke(struct mcp_run *m); /* it has answered a request */
void mcp_client_ended(struct mcp_run *m); /* it will send nothing more */
void mcp_out_drained(struct mcp_run *m);
/* One line on standard error, "box: NAME: ...". */
void mcp_say(struct mcp_run *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* pipe.c: the connection to boxd. Nothing is sent while there is none. */
void mcp_link_open(struct mcp_run *m);
void mcp_link_hold(struct mcp_run *m);
void mcp_link_attach(struct mcp_run *m);
void mcp_link_release(struct mcp_run *m);
void mcp_link_info(struct mcp_run *m); /* what `box mcp ls` shows */
/* One HTTP call at a time; `done` hears of its end unless it is cancelled. */
void mcp_call(struct mcp_run *m, const char *method, const char *target, const struct buf *body,
              mcp_call_fn *done);
void mcp_call_cancel(struct mcp_run *m);

/* pipe.c: lines between client and server. */
void mcp_pipe_start(struct mcp_run *m);
/* From here on we read the client's bytes: no other program can have them any more. */
void mcp_pipe_listen(struct mcp_run *m);
void mcp_pipe_done(struct mcp_run *m);
/* A server is there. A new one gets the handshake first; the same one gets again what boxd had not
 * acknowledged before the connection was lost. */
void mcp_pipe_attached(struct mcp_run *m, bool same);
/* The server is gone, perhaps in the middle of a line. Answers each request that it had with `why`.
 */
void mcp_pipe_server_gone(struct mcp_run *m, const char *why);
void mcp_pipe_refuse_all(struct mcp_run *m, const char *why);
void mcp_pipe_acked(struct mcp_run *m, uint64_t bytes);
void mcp_pipe_note(struct mcp_run *m, const struct buf *line); /* of our own, on stderr */
bool mcp_pipe_idle(const struct mcp_run *m); /* no line of the client is on its way */

/* explain.c: errors of tools that the box has to do with. */
#define MCP_EXPLAIN_MAX (64U << 10) /* bytes of a line that is looked at */
void mcp_explain_asked(struct mcp_run *m, const char *line, size_t len); /* before it is sent */
/* A line of the server, newline and all. True: *ret is to be passed on in its place. */
bool mcp_explain_answer(struct mcp_run *m, const char *line, size_t len, struct buf *ret);
void mcp_explain_done(struct mcp_run *m);
