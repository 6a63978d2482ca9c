/* SPDX-License-Identifier: Apache-2.0 */

/* Regular expressions in time that grows with pattern and text alone: no backtracking. */

#include "base/regex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"

#define PROGRAM_MAX 1024U
#define RANGES_MAX 1024U

enum op {
    OP_CHAR,  /* value: code point */
    OP_ANY,   /* anything but the end */
    OP_CLASS, /* value: first range, count: how many */
    OP_SPLIT, /* goes on behind itself and at `value` */
    OP_JUMP,  /* goes on at `value` */
    OP_BEGIN,
    OP_FINISH,
    OP_WORD, /* between a word and no word */
    OP_MATCH,
};

/* Places are relative, so that code can be moved while it is made. */
struct instruction {
    enum op op;
    int32_t value;
    uint32_t count;
    bool negated;
};

struct char_range {
    int32_t low, high;
};

/* A set of places that is emptied at once. */
struct place_set {
    uint16_t *list; /* owned */
    size_t n;
};

struct regex {
    struct instruction program[PROGRAM_MAX];
    size_t n;
    struct char_range ranges[RANGES_MAX];
    size_t n_ranges;
    bool fold;
    int first; /* the byte every match begins with, -1: there are several */

    struct place_set waiting; /* where threads stand before the next character */
    struct place_set next;
    uint16_t stack[2 * PROGRAM_MAX + 1]; /* each place is visited once and pushes two at most */
    uint32_t seen[PROGRAM_MAX];          /* the round in which a place was last visited */
    uint32_t queued[PROGRAM_MAX];
    uint32_t round;
    int32_t previous; /* REGEX_END at the beginning of a line */
    uint64_t work;
};

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
    p->r->ranges[p->r->n_ranges++] = (struct char_range){low, high};
    return 0;
}

/* Classes with a letter; capitals are their opposites. */
static const struct {
    char letter;
    struct char_range ranges[5];
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
        for (const struct char_range *g = classes[i].ranges; g->low >= 0; g++) {
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

static int regex_compile(struct regex *r, const char *pattern, size_t len, unsigned flags,
                         struct err *err)
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

/* Matches text with a compiled pattern, all alternatives at once. */

size_t regex_char(const char *s, size_t len, int32_t *ret)
{
    bool incomplete;
    int n = utf8_next(s, len, &incomplete);

    *ret = n < 0 ? 0xfffd : (int32_t)utf8_point(s, n);
    return (size_t)abs(n);
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
        const struct char_range *g = &r->ranges[(uint32_t)i->value + k];
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
    struct place_set swap = r->waiting;
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
