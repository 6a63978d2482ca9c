/* SPDX-License-Identifier: Apache-2.0 */

/* Checks the name of a skill. */

#include <string.h>

#include "base/str.h"
#include "spec/alnum.h"
#include "spec/spec.h"

#define SKILL_NAME_CHARS_MAX 64

static bool is_alnum(uint32_t c)
{
    size_t low = 0;
    size_t high = alnum_n_ranges;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c < alnum_ranges[middle].first)
            high = middle;
        else if (c > alnum_ranges[middle].last)
            low = middle + 1;
        else
            return true;
    }
    return false;
}

/* One character of text that is known to be valid UTF-8. */
static uint32_t next_char(const unsigned char **s)
{
    unsigned char lead = *(*s)++;
    size_t more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    uint32_t c = more == 0 ? lead : lead & (0x3fU >> more);

    for (; more > 0; more--)
        c = c << 6 | (*(*s)++ & 0x3f);
    return c;
}

bool skill_name_valid(const char *name)
{
    const unsigned char *s = (const unsigned char *)name;
    size_t n = 0;

    if (name[0] == '\0' || !utf8_valid(name, strlen(name)))
        return false;
    while (*s != '\0') {
        uint32_t c = next_char(&s);
        if (++n > SKILL_NAME_CHARS_MAX || !(c == '-' || c == '_' || is_alnum(c)))
            return false;
    }
    return true;
}
