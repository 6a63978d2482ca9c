/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The program that a pattern is compiled to, and the state of a match. */

#include "base/regex.h"

#define PROGRAM_MAX 1024U
#define RANGES_MAX 1024U

enum op {
    OP_CHAR,  /* value: code point */
    OP_ANY,   /* anything but the end */
    OP_CLASS, /* value: first range, count: how many */
    OP_SPLIT, /* goes on behind itself and at `value` */
    OP_JUMP,  /* goes on at `value` */
    OP_BEGIN,
    OP_FINISH,
    OP_WORD, /* between a word and no word */
    OP_MATCH,
};

/* Places are relative, so that code can be moved while it is made. */
struct instruction {
    enum op op;
    int32_t value;
    uint32_t count;
    bool negated;
};

struct range {
    int32_t low, high;
};

/* A set of places that is emptied at once. */
struct places {
    uint16_t *list; /* owned */
    size_t n;
};

struct regex {
    struct instruction program[PROGRAM_MAX];
    size_t n;
    struct range ranges[RANGES_MAX];
    size_t n_ranges;
    bool fold;
    int first; /* the byte every match begins with, -1: there are several */

    struct places waiting; /* where threads stand before the next character */
    struct places next;
    uint16_t stack[2 * PROGRAM_MAX + 1]; /* each place is visited once and pushes two at most */
    uint32_t seen[PROGRAM_MAX];          /* the round in which a place was last visited */
    uint32_t queued[PROGRAM_MAX];
    uint32_t round;
    int32_t previous; /* REGEX_END at the beginning of a line */
    uint64_t work;
};

/* regex_parse.c */
int regex_compile(struct regex *r, const char *pattern, size_t len, unsigned flags,
                  struct err *err);
