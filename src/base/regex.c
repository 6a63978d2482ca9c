/* SPDX-License-Identifier: Apache-2.0 */

/* Matches text with a compiled pattern, all alternatives at once. */

#include "base/regex.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/regex_internal.h"
#include "base/str.h"

size_t regex_char(const char *s, size_t len, int32_t *ret)
{
    static const unsigned char first_bits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    bool incomplete;
    int n = utf8_next(s, len, &incomplete);

    if (n < 0) {
        *ret = 0xfffd;
        return (size_t)-n;
    }
    *ret = (unsigned char)s[0] & first_bits[n];
    for (int i = 1; i < n; i++)
        *ret = *ret << 6 | ((unsigned char)s[i] & 0x3f);
    return (size_t)n;
}

static int32_t fold(const struct regex *r, int32_t c)
{
    return r->fold && c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
}

static bool is_word(int32_t c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

static bool in_class(const struct regex *r, const struct instruction *i, int32_t c)
{
    for (uint32_t k = 0; k < i->count; k++) {
        const struct range *g = &r->ranges[(uint32_t)i->value + k];
        if (c >= g->low && c <= g->high)
            return true;
    }
    return false;
}

static bool accepts(const struct regex *r, const struct instruction *i, int32_t c)
{
    if (c == REGEX_END)
        return false;
    if (i->op == OP_ANY)
        return true;
    if (i->op == OP_CHAR)
        return fold(r, i->value) == fold(r, c);
    bool in = in_class(r, i, c);
    if (!in && r->fold && c >= 'A' && c <= 'Z')
        in = in_class(r, i, c + ('a' - 'A'));
    if (!in && r->fold && c >= 'a' && c <= 'z')
        in = in_class(r, i, c - ('a' - 'A'));
    return in != i->negated;
}

static void queue(struct regex *r, size_t place)
{
    if (r->queued[place] == r->round)
        return;
    r->queued[place] = r->round;
    r->next.list[r->next.n++] = (uint16_t)place;
}

/* Follows everything that needs no character from one place, between `previous` and c. */
static bool follow(struct regex *r, size_t from, int32_t c)
{
    size_t depth = 0;

    r->stack[depth++] = (uint16_t)from;
    while (depth > 0) {
        size_t at = r->stack[--depth];
        const struct instruction *i = &r->program[at];
        if (r->seen[at] == r->round)
            continue;
        r->seen[at] = r->round;
        r->work++;
        bool on = false;
        switch (i->op) {
        case OP_MATCH:
            return true;
        case OP_JUMP:
        case OP_SPLIT:
            r->stack[depth++] = (uint16_t)(at + (size_t)(int64_t)i->value);
            on = i->op == OP_SPLIT;
            break;
        case OP_BEGIN:
            on = r->previous == REGEX_END;
            break;
        case OP_FINISH:
            on = c == REGEX_END;
            break;
        case OP_WORD:
            on = is_word(r->previous) != is_word(c);
            break;
        case OP_CHAR:
        case OP_ANY:
        case OP_CLASS:
            if (accepts(r, i, c))
                queue(r, at + 1);
            break;
        }
        if (on)
            r->stack[depth++] = (uint16_t)(at + 1);
    }
    return false;
}

bool regex_feed(struct regex *r, int32_t c)
{
    bool found = false;

    /* Rounds are told apart by a number that must not come around. */
    if (++r->round == 0) {
        memset(r->seen, 0, sizeof(r->seen));
        memset(r->queued, 0, sizeof(r->queued));
        r->round = 1;
    }
    r->next.n = 0;
    for (size_t i = 0; i < r->waiting.n && !found; i++)
        found = follow(r, r->waiting.list[i], c);
    if (!found)
        found = follow(r, 0, c); /* a match may begin anywhere */
    struct places swap = r->waiting;
    r->waiting = r->next;
    r->next = swap;
    r->previous = c;
    return found;
}

void regex_begin(struct regex *r)
{
    r->waiting.n = 0;
    r->previous = REGEX_END;
}

uint64_t regex_work(const struct regex *r)
{
    return r->work;
}

int regex_skip_to(const struct regex *r)
{
    return r->waiting.n == 0 ? r->first : -1;
}

void regex_skipped(struct regex *r, int32_t last)
{
    r->previous = last;
}

/* Only where the program begins with a plain character is the first byte known. */
static int first_byte(const struct regex *r)
{
    const struct instruction *i = &r->program[0];
    bool letter = (i->value >= 'A' && i->value <= 'Z') || (i->value >= 'a' && i->value <= 'z');

    return i->op == OP_CHAR && i->value < 0x80 && !(r->fold && letter) ? i->value : -1;
}

int regex_new(const char *pattern, size_t len, unsigned flags, struct regex **ret, struct err *err)
{
    AUTO(regex) struct regex *r = xnew(struct regex);

    r->fold = (flags & REGEX_IGNORE_CASE) != 0;
    int e = regex_compile(r, pattern, len, flags, err);
    if (e < 0)
        return e;
    r->waiting.list = xnew_n(uint16_t, r->n);
    r->next.list = xnew_n(uint16_t, r->n);
    r->first = first_byte(r);
    regex_begin(r);
    *ret = TAKE_PTR(r);
    return 0;
}

void regex_free(struct regex *r)
{
    if (r == NULL)
        return;
    free(r->waiting.list);
    free(r->next.list);
    free(r);
}
