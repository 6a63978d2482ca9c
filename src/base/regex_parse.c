/* SPDX-License-Identifier: Apache-2.0 */

/* Parses a pattern and compiles it to a program. */

#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "base/regex_internal.h"
#include "base/str.h"

#define DEPTH_MAX 32U
#define REPEAT_MAX 255U
#define STEPS_MAX 100000U /* of parsing: repeated groups are parsed again and again */

struct parser {
    struct regex *r;
    const char *at, *end;
    unsigned depth, steps;
    struct err *err;
};

static int wrong(struct parser *p, const char *what)
{
    return err_set(p->err, ERR_INVALID, "pattern: %s", what);
}

static int emit(struct parser *p, struct instruction i)
{
    /* The last place is for the match. */
    if (p->r->n >= PROGRAM_MAX - 1)
        return wrong(p, "it is too large");
    p->r->program[p->r->n++] = i;
    return 0;
}

/* Moves what was made since `at` behind a new instruction. */
static int insert(struct parser *p, size_t at, struct instruction i)
{
    int e = emit(p, i);
    if (e < 0)
        return e;
    struct instruction *code = p->r->program;
    memmove(&code[at + 1], &code[at], (p->r->n - 1 - at) * sizeof(*code));
    code[at] = i;
    return 0;
}

/* The next character of the pattern, which must not be at its end. */
static int32_t take(struct parser *p)
{
    int32_t c;

    p->at += regex_char(p->at, (size_t)(p->end - p->at), &c);
    return c;
}

static bool more(const struct parser *p)
{
    return p->at < p->end;
}

static bool next_is(struct parser *p, char c)
{
    if (!more(p) || *p->at != c)
        return false;
    p->at++;
    return true;
}

static int add_range(struct parser *p, int32_t low, int32_t high)
{
    if (p->r->n_ranges >= RANGES_MAX)
        return wrong(p, "it has too many ranges");
    p->r->ranges[p->r->n_ranges++] = (struct range){low, high};
    return 0;
}

/* Classes with a letter; capitals are their opposites. */
static const struct {
    char letter;
    struct range ranges[5];
} classes[] = {
    {'d', {{'0', '9'}, {-1, -1}}},
    {'w', {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {-1, -1}}},
    {'s', {{'\t', '\r'}, {' ', ' '}, {-1, -1}}},
};

/* Adds the ranges of \d and its kin, or their complement. 1: it was such a letter. */
static int add_class(struct parser *p, int32_t letter, bool *ret_negated)
{
    for (size_t i = 0; i < ARRAY_SIZE(classes); i++) {
        if ((letter | 0x20) != classes[i].letter)
            continue;
        bool negated = letter != classes[i].letter;
        int32_t from = 0;
        for (const struct range *g = classes[i].ranges; g->low >= 0; g++) {
            int e = negated && ret_negated == NULL ? add_range(p, from, g->low - 1)
                                                   : add_range(p, g->low, g->high);
            if (e < 0)
                return e;
            from = g->high + 1;
        }
        if (ret_negated != NULL)
            *ret_negated = negated;
        else if (negated && add_range(p, from, 0x10ffff) < 0)
            return -EINVAL;
        return 1;
    }
    return 0;
}

/* What a backslash and a character stand for; -1: nothing that we know. */
static int32_t escaped(int32_t c)
{
    static const char letters[] = "tnrfv", meant[] = "\t\n\r\f\v";
    const char *at = c > 0 && c < 0x80 ? strchr(letters, (char)c) : NULL;

    if (at != NULL)
        return meant[at - letters];
    bool known = c >= 0x80 || !((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'));
    return known ? c : -1;
}

/* One character of a bracket, or a class: *ret is -1 then. */
static int bracket_item(struct parser *p, int32_t *ret)
{
    if (!more(p))
        return wrong(p, "[ is not closed");
    *ret = take(p);
    if (*ret != '\\')
        return 0;
    if (!more(p))
        return wrong(p, "it ends with a backslash");
    int32_t c = take(p);
    int e = add_class(p, c, NULL);
    *ret = e == 0 ? escaped(c) : -1;
    if (e == 0 && *ret < 0)
        return wrong(p, "it has a backslash before a letter that means nothing here");
    return e < 0 ? e : 0;
}

static int bracket(struct parser *p)
{
    struct instruction i = {.op = OP_CLASS, .value = (int32_t)p->r->n_ranges};

    i.negated = next_is(p, '^');
    for (bool first = true; first || !next_is(p, ']'); first = false) {
        int32_t low, high;
        int e = bracket_item(p, &low);
        if (e < 0)
            return e;
        if (low < 0)
            continue;
        high = low;
        if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            e = bracket_item(p, &high);
            if (e < 0)
                return e;
            if (high < low)
                return wrong(p, "it has a range with its ends the wrong way round");
        }
        e = add_range(p, low, high);
        if (e < 0)
            return e;
    }
    i.count = (uint32_t)p->r->n_ranges - (uint32_t)i.value;
    return emit(p, i);
}

static int backslash(struct parser *p)
{
    struct instruction i = {.op = OP_CLASS, .value = (int32_t)p->r->n_ranges};

    if (!more(p))
        return wrong(p, "it ends with a backslash");
    int32_t c = take(p);
    if (c == 'b')
        return emit(p, (struct instruction){.op = OP_WORD});
    int e = add_class(p, c, &i.negated);
    if (e < 0)
        return e;
    if (e > 0) {
        i.count = (uint32_t)p->r->n_ranges - (uint32_t)i.value;
        return emit(p, i);
    }
    int32_t meant = escaped(c);
    if (meant < 0)
        return wrong(p, "it has a backslash before a letter or digit that means nothing here");
    return emit(p, (struct instruction){.op = OP_CHAR, .value = meant});
}

static int alternatives(struct parser *p);

static int group(struct parser *p)
{
    if (next_is(p, '?') && !next_is(p, ':'))
        return wrong(p, "groups that begin with (? are not known, except (?:");
    if (++p->depth > DEPTH_MAX)
        return wrong(p, "its groups are too deep");
    int e = alternatives(p);
    p->depth--;
    if (e == 0 && !next_is(p, ')'))
        e = wrong(p, "( is not closed");
    return e;
}

static int atom(struct parser *p)
{
    int32_t c = take(p);

    switch (c) {
    case '.':
        return emit(p, (struct instruction){.op = OP_ANY});
    case '^':
        return emit(p, (struct instruction){.op = OP_BEGIN});
    case '$':
        return emit(p, (struct instruction){.op = OP_FINISH});
    case '[':
        return bracket(p);
    case '(':
        return group(p);
    case '\\':
        return backslash(p);
    case '*':
    case '+':
    case '?':
        return wrong(p, "there is nothing to repeat");
    case '{':
        if (more(p) && *p->at >= '0' && *p->at <= '9')
            return wrong(p, "there is nothing to repeat");
        return emit(p, (struct instruction){.op = OP_CHAR, .value = c});
    default:
        return emit(p, (struct instruction){.op = OP_CHAR, .value = c});
    }
}

static bool number(struct parser *p, unsigned *ret)
{
    const char *start = p->at;

    *ret = 0;
    while (more(p) && *p->at >= '0' && *p->at <= '9' && *ret <= REPEAT_MAX)
        *ret = *ret * 10 + (unsigned)(*p->at++ - '0');
    return p->at > start;
}

struct repeat {
    unsigned min, max; /* max 0: without end */
};

/* 1 and what stands behind an atom; 0: nothing. "{" that counts nothing is a character. */
static int repetition(struct parser *p, struct repeat *ret)
{
    const char *start = p->at;

    if (next_is(p, '*'))
        *ret = (struct repeat){0, 0};
    else if (next_is(p, '+'))
        *ret = (struct repeat){1, 0};
    else if (next_is(p, '?'))
        *ret = (struct repeat){0, 1};
    else if (next_is(p, '{') && number(p, &ret->min)) {
        ret->max = ret->min;
        if (next_is(p, ',') && !number(p, &ret->max))
            ret->max = 0;
        else if (ret->max < ret->min || ret->max == 0)
            return wrong(p, "it has a number of repeats that cannot be");
        if (!next_is(p, '}'))
            return wrong(p, "{ is not closed");
    } else {
        p->at = start;
        return 0;
    }
    if (ret->min > REPEAT_MAX || ret->max > REPEAT_MAX)
        return wrong(p, "it repeats too often");
    (void)next_is(p, '?'); /* as few as possible: the same lines match */
    return 1;
}

/* What was made since `at` may be left out. */
static int optional(struct parser *p, size_t at)
{
    return insert(p, at,
                  (struct instruction){.op = OP_SPLIT, .value = (int32_t)(p->r->n - at) + 1});
}

/* What was made since `at` is done any number of times. */
static int star(struct parser *p, size_t at)
{
    int32_t len = (int32_t)(p->r->n - at);
    int e = insert(p, at, (struct instruction){.op = OP_SPLIT, .value = len + 2});

    return e < 0 ? e : emit(p, (struct instruction){.op = OP_JUMP, .value = -(len + 1)});
}

/* Makes the atom once more from its text. */
static int again(struct parser *p, const char *text, size_t *ret_at)
{
    const char *here = p->at;

    if (++p->steps > STEPS_MAX)
        return wrong(p, "it is too large");
    *ret_at = p->r->n;
    p->at = text;
    int e = atom(p);
    p->at = here;
    return e;
}

static int repeat(struct parser *p, const char *text, size_t at, const struct repeat *times)
{
    int e = 0;

    for (unsigned i = 1; e == 0 && i < times->min; i++)
        e = again(p, text, &at);
    if (e == 0 && times->max == 0) {
        if (times->min > 0)
            e = again(p, text, &at);
        return e < 0 ? e : star(p, at);
    }
    if (e == 0 && times->min == 0)
        e = optional(p, at);
    for (unsigned i = times->min > 0 ? times->min : 1; e == 0 && i < times->max; i++) {
        e = again(p, text, &at);
        if (e == 0)
            e = optional(p, at);
    }
    return e;
}

static int sequence(struct parser *p)
{
    while (more(p) && *p->at != '|' && *p->at != ')') {
        const char *text = p->at;
        size_t at = p->r->n;
        struct repeat times;
        if (++p->steps > STEPS_MAX)
            return wrong(p, "it is too large");
        int e = atom(p);
        if (e < 0)
            return e;
        e = repetition(p, &times);
        if (e > 0)
            e = repeat(p, text, at, &times);
        if (e < 0)
            return e;
    }
    return 0;
}

static int alternatives(struct parser *p)
{
    size_t at = p->r->n;
    int e = sequence(p);

    while (e == 0 && next_is(p, '|')) {
        int32_t len = (int32_t)(p->r->n - at);
        e = insert(p, at, (struct instruction){.op = OP_SPLIT, .value = len + 2});
        size_t jump = p->r->n;
        if (e == 0)
            e = emit(p, (struct instruction){.op = OP_JUMP});
        if (e == 0)
            e = sequence(p);
        if (e == 0)
            p->r->program[jump].value = (int32_t)(p->r->n - jump);
    }
    return e;
}

static int literal(struct parser *p)
{
    int e = 0;

    while (e == 0 && more(p))
        e = emit(p, (struct instruction){.op = OP_CHAR, .value = take(p)});
    return e;
}

int regex_compile(struct regex *r, const char *pattern, size_t len, unsigned flags, struct err *err)
{
    struct parser p = {.r = r, .at = pattern, .end = pattern + len, .err = err};

    if (len == 0 || len > REGEX_PATTERN_MAX)
        return wrong(&p, len == 0 ? "it is empty" : "it is too long");
    int e = (flags & REGEX_LITERAL) != 0 ? literal(&p) : alternatives(&p);
    if (e == 0 && more(&p))
        e = wrong(&p, "there is a ) too many");
    if (e == 0)
        r->program[r->n++] = (struct instruction){.op = OP_MATCH};
    return e;
}
