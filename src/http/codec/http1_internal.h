/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Classes of bytes that the parts of the HTTP/1.1 codec share. */

#include <stdbool.h>
#include <stdint.h>

#define HTTP1_C_TOKEN 1u /* of a method or header name */
#define HTTP1_C_TEXT 2u  /* of a header value: blanks, visible ASCII, bytes above 0x7f */

extern const uint8_t http1_bytes[256];

static inline bool http1_is_token(char c)
{
    return (http1_bytes[(unsigned char)c] & HTTP1_C_TOKEN) != 0;
}

static inline bool http1_is_text(char c)
{
    return (http1_bytes[(unsigned char)c] & HTTP1_C_TEXT) != 0;
}

/* Value of a hexadecimal digit, -1 for anything else. */
static inline int http1_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}
