/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The state of a choice of backends: its candidates, the probe, and sweeps and lists under way. */

#include "backend/backend.h"
#include "backend/choice.h"
#include "base/err.h"
#include "loop/loop.h"
#include "spec/spec.h"

/*   UNTRIED ──► PROBING ──► UP ──► UNTRIED (it failed somebody)
 *      ▲            └─────► DOWN ──► PROBING
 */
enum candidate_state {
    CANDIDATE_UNTRIED,
    CANDIDATE_PROBING,
    CANDIDATE_UP,
    CANDIDATE_DOWN,
    CANDIDATE_STATE_MAX,
};

/* A sandbox that proves a backend: made, used, removed. */
struct choice_probe {
    struct loop *loop;
    struct backend *backend; /* NULL when it is not under way */
    const struct choice_candidate *def;
    struct spec *spec; /* owned */
    struct sandbox *sandbox;
    struct exec *exec;
    struct loop_timer timer;
    struct err err;
    bool made; /* there was a sandbox */
    bool late; /* whoever waits has been told; the rest is tidying up */
    void (*done)(struct choice_probe *p, const struct err *err);
};
/* `done` runs from the loop, once. */
void choice_probe_start(struct choice_probe *p, struct backend *b);
bool choice_probe_busy(const struct choice_probe *p);
/* The backend goes, and takes the sandbox along. */
void choice_probe_drop(struct choice_probe *p);

struct candidate {
    const struct choice_candidate *def; /* borrowed */
    struct choice *choice;              /* borrowed */
    struct backend *backend;            /* owned; NULL: not made yet, or it cannot be */
    enum candidate_state state;
    struct err why;  /* it is DOWN */
    uint64_t proven; /* when it was last seen to work */
    uint64_t fell;   /* when it went DOWN */
    bool ran;        /* a command has run in a sandbox that proved it */
    bool refuted;    /* in the last such sandbox none ran: that one can be made proves nothing */
    bool swept;      /* what was left there is gone, or going */
    bool pinging;    /* it is being asked whether it is there */
    struct choice_probe probe;
};

struct waiting; /* somebody who waits for the end of a round */

struct choice {
    struct backend base;
    struct backend_ops ops; /* the name is that of the one that serves */
    struct loop *loop;
    struct choice_options options;
    struct candidate list[CHOICE_MAX];
    size_t n;
    struct candidate *serving; /* NULL: none */
    char *only;                /* owned; name of the only one that may, "": any */
    bool round;                /* they are being tried, in order */
    size_t at;
    struct waiting *waiting, **waiting_end;
    struct loop_defer step, tell;
    struct loop_timer retry;
    uint64_t pause_ns;               /* before the next round */
    uint64_t quiet_till;             /* calls begin no round before */
    struct err why;                  /* nothing serves */
    bool sweeping;                   /* the daemon wants what was left to go */
    struct choice_listing *listings; /* owned; under way */
    struct choice_sweep *sweeps;     /* the same way */
};

bool choice_eligible(const struct choice *c, const struct candidate *k);
/* The one that serves has to run a command before it is said of it that it can. */
void choice_prove(struct choice *c);
/* The only one that may serve; NULL: there are several, or none. */
struct candidate *choice_sole(struct choice *c);

/* choice_list.c */
int choice_list(struct backend *b, const char *const *labels, backend_found_fn *each,
                backend_done_fn *done, void *arg, struct err *err);
void choice_listings_free(struct choice *c); /* without a word */

/* choice_sweep.c */
int choice_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err);
void choice_sweep_late(struct candidate *k); /* it serves: what is left there goes */
void choice_sweeps_free(struct choice *c);   /* without a word */

/* choice_doctor.c */
int choice_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err);
