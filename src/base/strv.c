/* SPDX-License-Identifier: Apache-2.0 */

/* Adds to, copies and frees NULL-terminated vectors of strings. */

#include "base/strv.h"

#include <stdlib.h>

#include "base/alloc.h"

size_t strv_len(char *const *v)
{
    size_t n = 0;

    while (v && v[n])
        n++;
    return n;
}

void strv_push(char ***v, char *owned)
{
    size_t n = strv_len(*v);

    *v = xreallocarray(*v, n + 2, sizeof(char *));
    (*v)[n] = owned;
    (*v)[n + 1] = NULL;
}

void strv_add(char ***v, const char *s)
{
    strv_push(v, xstrdup(s));
}

char **strv_copy(char *const *v)
{
    size_t n = strv_len(v);
    char **copy = xnew_n(char *, n + 1);

    for (size_t i = 0; i < n; i++)
        copy[i] = xstrdup(v[i]);
    return copy;
}

void strv_free(char **v)
{
    for (size_t i = 0; v && v[i]; i++)
        free(v[i]);
    free(v);
}
