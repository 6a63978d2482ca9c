/* SPDX-License-Identifier: Apache-2.0 */

/* Checks that text which comes in pieces is valid UTF-8. */

#include "http/codec/ws.h"

#include <string.h>

/* First bytes and what may follow them, RFC 3629 §4: no overlong forms, no surrogates, nothing
 * above U+10FFFF. */
static const struct {
    uint8_t first, last;
    struct ws_utf8 then;
} leads[] = {
    {0xc2, 0xdf, {1, 0x80, 0xbf}}, {0xe0, 0xe0, {2, 0xa0, 0xbf}}, {0xe1, 0xec, {2, 0x80, 0xbf}},
    {0xed, 0xed, {2, 0x80, 0x9f}}, {0xee, 0xef, {2, 0x80, 0xbf}}, {0xf0, 0xf0, {3, 0x90, 0xbf}},
    {0xf1, 0xf3, {3, 0x80, 0xbf}}, {0xf4, 0xf4, {3, 0x80, 0x8f}},
};

static bool lead(struct ws_utf8 *u, uint8_t c)
{
    for (size_t i = 0; i < sizeof(leads) / sizeof(leads[0]); i++) {
        if (c >= leads[i].first && c <= leads[i].last) {
            *u = leads[i].then;
            return true;
        }
    }
    return false;
}

/* Length of the ASCII prefix, to a multiple of 32 bytes: most text is all of it. */
static size_t ascii_blocks(const char *s, size_t len)
{
    size_t i = 0;

    for (; len - i >= 32; i += 32) {
        uint64_t v[4];
        memcpy(v, s + i, sizeof(v));
        if (((v[0] | v[1] | v[2] | v[3]) & 0x8080808080808080ULL) != 0)
            break;
    }
    return i;
}

bool ws_utf8_feed(struct ws_utf8 *u, const char *s, size_t len)
{
    size_t i = 0;

    while (i < len) {
        uint8_t c = (uint8_t)s[i];
        if (u->need > 0) {
            if (c < u->low || c > u->high)
                return false;
            *u = (struct ws_utf8){(uint8_t)(u->need - 1), 0x80, 0xbf};
        } else if (c < 0x80) {
            i += ascii_blocks(s + i, len - i);
            while (i < len && (uint8_t)s[i] < 0x80)
                i++;
            continue;
        } else if (!lead(u, c)) {
            return false;
        }
        i++;
    }
    return true;
}
