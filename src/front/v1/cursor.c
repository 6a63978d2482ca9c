/* SPDX-License-Identifier: Apache-2.0 */

/* Encrypts event and record numbers into opaque cursors for callers with a scope. The number goes,
 * beside a random one, through a Feistel network of four rounds whose function is SHA-256 under a
 * key of this process and the caller's name. So two ids of the same number differ, ids of different
 * numbers cannot be told apart, and a caller cannot use those of another. A text that was not made
 * here decodes to a number that was never used. */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "front/v1/v1_internal.h"
#include "http/codec/crypto.h"

#define ROUNDS 4
#define NAME_MAX_LEN 64

struct halves {
    uint64_t left, right;
};

static uint64_t mix(const struct v1 *v, const char *who, unsigned round, uint64_t half)
{
    char text[V1_CURSOR_KEY + NAME_MAX_LEN + 32], digest[65] = "";
    size_t len = V1_CURSOR_KEY;
    uint64_t out = 0;

    memcpy(text, v->cursor_key, V1_CURSOR_KEY);
    int n = snprintf(text + len, sizeof(text) - len, "%u %016" PRIx64 " %.*s", round, half,
                     NAME_MAX_LEN, who);
    len += n > 0 ? (size_t)n : 0;
    (void)http_sha256_hex(text, len, digest);
    for (size_t i = 0; i < 16 && digest[i] != '\0'; i++)
        out = out << 4 | (uint64_t)(digest[i] <= '9' ? digest[i] - '0' : digest[i] - 'a' + 10);
    return out;
}

void v1_cursor_write(const struct v1 *v, const char *who, uint64_t number,
                     char ret[static V1_CURSOR_SIZE])
{
    struct halves h = {.right = number};

    http_random(&h.left, sizeof(h.left));
    for (unsigned i = 0; i < ROUNDS; i++)
        h = (struct halves){h.right, h.left ^ mix(v, who, i, h.right)};
    (void)str_fmt(ret, V1_CURSOR_SIZE, "%016" PRIx64 "%016" PRIx64, h.left, h.right);
}

/* Sixteen digits, or a text that is no number of ours. */
static bool read_half(const char *text, uint64_t *ret)
{
    *ret = 0;
    for (size_t i = 0; i < 16; i++) {
        const char *digits = "0123456789abcdef",
                   *at = text[i] != '\0' ? strchr(digits, text[i]) : NULL;
        if (at == NULL)
            return false;
        *ret = *ret << 4 | (uint64_t)(at - digits);
    }
    return true;
}

bool v1_cursor_read(const struct v1 *v, const char *who, const char *text, uint64_t *ret)
{
    struct halves h;

    if (strlen(text) != V1_CURSOR_SIZE - 1 || !read_half(text, &h.left) ||
        !read_half(text + 16, &h.right))
        return false;
    for (unsigned i = ROUNDS; i-- > 0;)
        h = (struct halves){h.right ^ mix(v, who, i, h.left), h.left};
    *ret = h.right;
    return true;
}
