/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Allocations whose size we choose: they abort when memory is out. What a peer sizes goes into a
 * buf. */

#include <stddef.h>

void *xmalloc(size_t size) __attribute__((malloc, returns_nonnull));
void *xcalloc(size_t n, size_t size) __attribute__((malloc, returns_nonnull));
void *xreallocarray(void *p, size_t n, size_t size) __attribute__((returns_nonnull));
char *xstrdup(const char *s) __attribute__((malloc, returns_nonnull));
char *xstrndup(const char *s, size_t n) __attribute__((malloc, returns_nonnull));
char *xasprintf(const char *fmt, ...)
    __attribute__((format(printf, 1, 2), malloc, returns_nonnull));

#define xnew(type) ((type *)xcalloc(1, sizeof(type)))
#define xnew_n(type, n) ((type *)xcalloc((n), sizeof(type)))
