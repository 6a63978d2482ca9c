/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a program can try to have too much of. Each mode runs alone and stops at a bound above the
 * limit that it is told, so that a host whose walls do not stand is not hurt either. */

#include "probe.h"

/* Takes memory of one kind: "hog-anon" and so on. False when there is no such mode. */
bool abuse_hog(const char *mode, const struct probe_options *opt);

void abuse_forks(const struct probe_options *opt); /* E01 */
void abuse_spin(const struct probe_options *opt);  /* E05 */
void abuse_files(const struct probe_options *opt); /* E08 */
void abuse_write(
    const struct probe_options *opt); /* F01: a file, preallocation, a file without a name */
void abuse_fallocate(const struct probe_options *opt);
void abuse_unlinked(const struct probe_options *opt);

/* These say nothing: what becomes of the session is seen from outside. */
void abuse_flood(const struct probe_options *opt);    /* E06: more output than anybody keeps */
void abuse_wedge(const struct probe_options *opt);    /* E10: against the session's supervisor */
void abuse_stubborn(const struct probe_options *opt); /* E11: never ends by itself */

/* A child that may try for so long; the calls that it uses for its report. */
#define ABUSE_SEC 8
struct abuse_slot {
    uint64_t held; /* bytes or pieces so far */
    int error;     /* positive errno that stopped it; 0: it reached its bound */
    bool done;     /* it came to an end of its own */
};
/* Runs fn(arg, slot) in a child of its own and reports: FAIL when it has reached its bound. */
void abuse_child(const char *id, const char *unit, uint64_t scale, const struct probe_options *opt,
                 void (*fn)(const void *arg, volatile struct abuse_slot *slot), const void *arg);
