/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The state of a choice of backends and of its candidates, and the proof of one. */

#include "backend/backend.h"
#include "backend/choice.h"
#include "base/err.h"
#include "base/list.h"
#include "loop/loop.h"

/* Proves a backend by doing: makes a sandbox, runs a process in it, and removes it. */
struct backend_probe {
    struct loop *loop;   /* borrowed */
    const char *image;   /* of the sandbox; NULL: the default */
    const char *program; /* NULL: a process that reports how it is confined */
    void (*done)(struct backend_probe *p, const struct err *err);

    struct backend *backend; /* NULL when it is not under way */
    struct spec *spec;       /* owned */
    struct sandbox *sandbox;
    struct exec *exec;
    struct loop_timer timer;
    struct err err;
    bool made; /* there was a sandbox */
    bool late; /* done() has run; the rest is tidying up */
};

/* `done` runs from the loop, once; after a time-out the sandbox may still be on its way out. */
void probe_start(struct backend_probe *p, struct backend *b);
bool probe_busy(const struct backend_probe *p);
/* The backend goes, and takes the sandbox along. */
void probe_drop(struct backend_probe *p);

/*   UNTRIED ──► PROBING ──► UP ──► UNTRIED (a creation failed)
 *      ▲            └─────► DOWN ──► PROBING
 */
enum candidate_state {
    CANDIDATE_UNTRIED,
    CANDIDATE_PROBING,
    CANDIDATE_UP,
    CANDIDATE_DOWN,
    CANDIDATE_STATE_MAX,
};

struct choice_member {
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
    struct backend_probe probe;
};

struct choice {
    struct backend base;
    struct backend_ops ops; /* the name is that of the one that serves */
    struct loop *loop;
    struct choice_options options;
    struct choice_member list[CHOICE_MAX];
    size_t n;
    struct choice_member *serving; /* NULL: none */
    char *only;                    /* owned; name of the only one that may, "": any */
    bool round;                    /* they are being tried, in order */
    size_t at;
    TAILQ_HEAD(, waiting) waiting;
    struct loop_defer step;
    struct loop_timer retry;
    uint64_t pause_ns;           /* before the next round */
    uint64_t quiet_till;         /* calls begin no round before */
    struct err why;              /* nothing serves */
    bool sweeping;               /* the daemon wants what was left to go */
    LIST_HEAD(, errand) errands; /* owned; under way */
};

bool choice_eligible(const struct choice *c, const struct choice_member *k); /* it may serve */
/* The one that serves has to run a command before it is said of it that it can. */
void choice_demand_proof(struct choice *c);

/* choice_doctor.c */
int choice_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err);
