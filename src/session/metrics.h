/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What has happened since boxd was started, in plain integers: one thread, so no lock. They are
 * incremented where things happen; front/v1/metrics.c writes them for Prometheus. Gauges are not
 * kept here: front/v1/metrics.c reads them off the objects themselves.
 *
 * Nothing that a peer can choose becomes a label. */

#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/err.h"
#include "base/hist.h"

/* Why a session is gone. */
enum metrics_end {
    METRICS_DELETED, /* on request */
    METRICS_EXPIRED, /* idle for too long */
    METRICS_LOST,    /* the sandbox died by itself */
    METRICS_END_MAX,
};

/* Execs that have no outcome of their own. */
enum metrics_exec {
    METRICS_EXEC_ABANDONED = OUTCOME_KIND_MAX, /* the caller did not wait for its end */
    METRICS_EXEC_FAILED,                       /* it could not be started */
    METRICS_EXEC_MAX,
};

/* Counters by two names and a number. Names must live for ever: those of routes and actions. */
struct metrics_cell {
    const char *a, *b; /* a NULL: free */
    unsigned n;
    uint64_t count;
};

#define METRICS_CELLS 1024U /* a power of two; what finds no room is counted as `rest` */

struct metrics_cells {
    struct metrics_cell cells[METRICS_CELLS];
    size_t used;
    uint64_t rest;
};

struct metrics {
    uint64_t started_real;
    uint64_t sessions_created, sessions_adopted;
    uint64_t sessions_ended[METRICS_END_MAX];
    uint64_t sessions_failed; /* could not be made */
    struct hist session_create;

    uint64_t execs[METRICS_EXEC_MAX]; /* by outcome */
    uint64_t execs_running;           /* the one gauge: there is no list of them */
    struct hist exec;
    uint64_t output_bytes[2]; /* of execs, by enum exec_stream */

    uint64_t processes_started, processes_exited;
    uint64_t process_bytes; /* of their stdout */

    struct metrics_cells http; /* method, pattern, status */
    struct hist http_seconds;
    uint64_t http_bytes;
    uint64_t ws_opened;
    struct metrics_cells rpc; /* action, "ok" or the code of the error */
    struct hist langbot_seconds;
    uint64_t refused[ERR_CODE_MAX]; /* by the policy or a scope */
};

void metrics_count(struct metrics_cells *t, const char *a, const char *b, unsigned n);
