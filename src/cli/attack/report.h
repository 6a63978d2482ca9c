/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What `box doctor --attack` has found, and what that means for this host: the judge and the
 * writers, which do no I/O. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct buf;
struct json;

enum attack_state {
    ATTACK_HELD,         /* tried, and refused or stopped */
    ATTACK_BROKEN,       /* tried, and it worked although the receipt promises that it does not */
    ATTACK_NOT_PROMISED, /* tried, and it worked; the receipt says that nothing stands there */
    ATTACK_NOT_TRIED,
    ATTACK_STATE_MAX,
};

/* What the program inside says of one attempt. */
enum attack_found { ATTACK_OK, ATTACK_FAIL, ATTACK_NA };

struct attack_check {
    char id[48]; /* of the test catalogue */
    enum attack_state state;
    char detail[200]; /* what was seen */
    char reason[200]; /* why it was not promised or not tried; "" otherwise */
};

#define ATTACK_CHECKS_MAX 1000

struct attack_report {
    char backend[32], kernel[32];
    uint64_t duration_ms;
    struct attack_check *checks; /* owned */
    size_t n;
    size_t counts[ATTACK_STATE_MAX];
    bool has_escapes; /* the escape corpus came to its end */
};

void attack_report_done(struct attack_report *r);
DEFINE_CLEANUP_DONE(attack_report)

/* One attempt, judged by what the receipt of its session promises. */
void attack_add(struct attack_report *r, const struct json *receipt, const char *id,
                enum attack_found found, const char *detail);

/* The lines of box-attack, which are hostile: they come from inside. Lines that make no sense are
 * ignored. True when the last one was there. */
bool attack_read(struct attack_report *r, const struct json *receipt, const char *text, size_t len);

/* 1: a wall that was promised does not stand; 125: the escapes could not be tried; 0. */
int attack_status(const struct attack_report *r);

/* As "text", "json" or "junit", or as "summary", which is one line. */
int attack_write(const struct attack_report *r, const char *format, struct buf *out);
