/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Patterns from strangers, matched in time that grows with pattern times text and never more: all
 * alternatives advance together, nothing is tried again. So there are no references to groups and
 * no looking around; what remains is
 *
 *   x  .  [a-z]  [^a-z]  \d \D \w \W \s \S \b  \t \n \r \\  ^  $  x* x+ x? x{2} x{2,} x{2,5}
 *   (x)  (?:x)  x|y
 *
 * Only whether a line holds a match is told. Characters are code points; a broken byte is U+FFFD.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct err;
struct regex;

#define REGEX_PATTERN_MAX 1024U /* bytes */
#define REGEX_END (-1)          /* the end of the line, for regex_feed() */

enum regex_flag {
    REGEX_LITERAL = 1U << 0,     /* nothing in the pattern has a meaning of its own */
    REGEX_IGNORE_CASE = 1U << 1, /* of ASCII letters */
};

/* The first character of s[0..len), len > 0, and how many bytes it has. */
size_t regex_char(const char *s, size_t len, int32_t *ret);

/* ERR_INVALID says what is wrong with the pattern. */
int regex_new(const char *pattern, size_t len, unsigned flags, struct regex **ret, struct err *err);
void regex_free(struct regex *r);
DEFINE_CLEANUP(regex)

void regex_begin(struct regex *r); /* a new line */
/* The next character of the line, at last REGEX_END. True as soon as there is a match; the rest of
 * the line need not be fed. */
bool regex_feed(struct regex *r, int32_t c);

uint64_t regex_work(const struct regex *r); /* states visited so far, over all lines */
/* While nothing but a fresh start is under way, bytes up to the next of this one can be skipped.
 * -1: nothing can be. */
int regex_skip_to(const struct regex *r);
void regex_skipped(struct regex *r, int32_t last); /* the last character that was skipped */
