/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Reads a head whose bytes are all there: http1_scan() and http1_parse() in one. */

#include "http/codec/http1.h"

/* Returns as http1_scan(), or the errors of http1_parse(). */
static inline ssize_t http1_head(enum http1_role role, const char *data, size_t len, size_t max,
                                 struct http1_head *ret)
{
    struct http1_scan scan = {0};
    ssize_t n = http1_scan(&scan, data, len, max);
    if (n <= 0)
        return n;
    int r = http1_parse(role, data, (size_t)n, ret);
    return r < 0 ? r : n;
}
