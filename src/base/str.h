/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Strings: comparing, parsing numbers, copying with bounds, UTF-8, ids. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

bool str_eq(const char *a, const char *b); /* NULL equals only NULL */
bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);

/* Whole string, decimal, no sign, no blanks. 0, -EINVAL or -ERANGE. */
int str_to_u64(const char *s, uint64_t *ret);
int str_to_i64(const char *s, int64_t *ret);   /* an optional leading '-' */
int str_to_double(const char *s, double *ret); /* finite, C locale, whole string */

/* Copies at most size - 1 bytes; -ENAMETOOLONG when it does not fit (dst is then ""). */
int str_copy(char *dst, size_t size, const char *src);

/* snprintf that fails (-ENAMETOOLONG, dst "") instead of truncating. */
int str_fmt(char *dst, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Python's str.strip() on UTF-8 for the ASCII and Unicode blanks; returns a new string (xstrdup).
 */
char *str_strip(const char *s);

/* The same in place, for text that may hold NUL. */
void str_trim(const char **s, size_t *len);

bool utf8_valid(const char *s, size_t len);

/* The first character of s[0..len), len > 0: its length, or minus the length of the maximal invalid
 * part (what one U+FFFD stands for). *ret_incomplete: the bytes end before the character does. */
int utf8_next(const char *s, size_t len, bool *ret_incomplete);

/* Length of a character by its first byte, and the range of its second byte (RFC 3629 §4); 0 for a
 * byte that starts none. */
unsigned utf8_lead(unsigned char c, unsigned char *lo, unsigned char *hi);
uint32_t utf8_point(const char *s, int n); /* the code point of a valid character of n bytes */

/* Length of the longest prefix of s[0..len) that ends on a character boundary (an incomplete
 * character at the very end is left out; invalid bytes count as characters of their own). */
size_t utf8_boundary(const char *s, size_t len);
/* The code point of the character of n bytes when it must not reach a terminal, 0 otherwise:
 * controls of both sets but NUL, line separators, and the marks that make a line read as what it is
 * not (U+200E, 200F, 202A-202E, 2066-2069). */
unsigned utf8_unsafe(const char *s, int n);

/* Names that become part of a path: [A-Za-z0-9][A-Za-z0-9_-]{0,63}. Refused, never repaired. */
bool id_valid(const char *s);

/* 16 lower-case hex digits from the kernel's random source, NUL-terminated. */
void id_random(char ret[static 17]);

/* FNV-1a, for hash tables only. */
uint64_t str_hash(const char *s);
