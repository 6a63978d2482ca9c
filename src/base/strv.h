/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A NULL-terminated vector of owned strings, as execve wants it. NULL is the empty vector. */

#include <stddef.h>

size_t strv_len(char *const *v);
void strv_push(char ***v, char *owned);  /* takes ownership of the string */
void strv_add(char ***v, const char *s); /* copies */
char **strv_copy(char *const *v);
void strv_free(char **v);

static inline void cleanup_strv(char ***v)
{
    strv_free(*v);
}
#define AUTO_STRV __attribute__((cleanup(cleanup_strv)))
