/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* An attack under way, for the sources that make it: sessions and commands in them, and the steps.
 */

#include "cli/attack/attack.h"
#include "cli/attack/host.h"

struct app;
struct args;
struct err;

#define ATTACK_CAPTURE_BYTES 65536

/* What the session for abuses asks for: little, so that its ends are reached soon. */
#define SMALL_MEMORY_MB 128
#define SMALL_PIDS 48
#define SMALL_CPUS 0.5
#define SMALL_DISK_MB 32

struct place {
    char id[32];
    char *program;        /* owned; path of box-attack inside; NULL: there is no such session */
    struct json *receipt; /* owned */
};

struct attack {
    struct app *app;
    const struct args *args;
    struct attack_host host;
    struct attack_report report;
    struct place usual; /* as sessions are here by default; the neighbour of the other */
    struct place small; /* with small limits */
    uint64_t begin;
};

/* Time for new attempts, 0: it is over. */
uint64_t attack_left_ns(const struct attack *a);

/* A session as they are by default, or one with small limits, as far as boxd grants them: with
 * box-attack in it and with its receipt. Where it cannot be had, it is removed again. */
int attack_open_usual(struct attack *a, struct err *err);
int attack_open_small(struct attack *a, struct err *err);
/* Nothing happens while a signal waits to be taken, and where there is no session. */
void attack_remove(struct attack *a, struct place *p);

struct order {
    const char *mode;
    unsigned timeout_sec;
    uint64_t limit; /* that an abuse is told */
};

/* Runs one mode of box-attack; *ret is what boxd says of its end. */
int attack_run(struct attack *a, const struct place *p, struct order o, struct json **ret,
               struct err *err);

/* Everything that is tried. Fails only where a signal ends it. */
int attack_steps(struct attack *a, struct err *err);
