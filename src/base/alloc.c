/* SPDX-License-Identifier: Apache-2.0 */

/* Wrappers of malloc and its kin that abort the process when memory is out. */

#include "base/alloc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Sessions outlive the daemon: dying here loses less than an error path that never ran. */
static void out_of_memory(void) __attribute__((noreturn));
static void out_of_memory(void)
{
    static const char text[] = "out of memory\n";

    (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
    abort();
}

void *xmalloc(size_t size)
{
    void *p = malloc(size > 0 ? size : 1);

    if (!p)
        out_of_memory();
    return p;
}

void *xcalloc(size_t n, size_t size)
{
    void *p = n && size ? calloc(n, size) : calloc(1, 1);

    if (!p)
        out_of_memory();
    return p;
}

void *xreallocarray(void *p, size_t n, size_t size)
{
    void *grown = n && size ? reallocarray(p, n, size) : realloc(p, 1);

    if (!grown)
        out_of_memory();
    return grown;
}

char *xstrdup(const char *s)
{
    return xstrndup(s, strlen(s));
}

char *xstrndup(const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *copy = malloc(len + 1);

    if (!copy)
        out_of_memory();
    memcpy(copy, s, len);
    copy[len] = '\0';
    return copy;
}

char *xasprintf(const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    int r = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (r < 0)
        out_of_memory();
    return text;
}
