/* SPDX-License-Identifier: Apache-2.0 */

/* Matches paths against glob patterns with braces, classes and "**". */

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/regex.h"
#include "base/str.h"
#include "base/strv.h"
#include "inside/files/files_internal.h"

/* Alternatives in braces multiply; this many patterns are enough for people. */
#define ALTERNATIVES_MAX 64U

struct globs {
    char **patterns; /* owned; without braces, and each with a leading "**" */
};

/* The end of the group that opens at s[0], or NULL. */
static const char *group_end(const char *s)
{
    unsigned depth = 0;
    for (; *s != '\0'; s++) {
        if (*s == '\\' && s[1] != '\0')
            s++;
        else if (*s == '{')
            depth++;
        else if (*s == '}' && --depth == 0)
            return s;
    }
    return NULL;
}

static bool expand(struct globs *g, const char *pattern);

/* pattern[0..open) x one of the alternatives x what follows the group. */
static bool expand_group(struct globs *g, const char *pattern, const char *open, const char *end)
{
    bool fits = true;
    unsigned depth = 0;
    const char *from = open + 1;
    for (const char *s = from; fits; s++) {
        if (*s == '\\' && s + 1 < end) {
            s++;
            continue;
        }
        if (s == end || (*s == ',' && depth == 0)) {
            size_t head = (size_t)(open - pattern), len = (size_t)(s - from);
            char *one = xcalloc(1, head + len + strlen(end + 1) + 1);
            memcpy(one, pattern, head);
            memcpy(one + head, from, len);
            memcpy(one + head + len, end + 1, strlen(end + 1));
            fits = expand(g, one);
            free(one);
            from = s + 1;
        }
        if (s == end)
            break;
        depth += (*s == '{') - (*s == '}');
    }
    return fits;
}

static bool expand(struct globs *g, const char *pattern)
{
    for (const char *s = pattern; *s != '\0'; s++) {
        if (*s == '\\' && s[1] != '\0') {
            s++;
            continue;
        }
        const char *end = *s == '{' ? group_end(s) : NULL;
        if (end != NULL && memchr(s, ',', (size_t)(end - s)) != NULL)
            return expand_group(g, pattern, s, end);
    }
    if (strv_len(g->patterns) >= ALTERNATIVES_MAX)
        return false;
    strv_add(&g->patterns, pattern);
    return true;
}

struct globs *globs_new(const char *pattern)
{
    struct globs *g = xnew(struct globs);
    while (str_starts(pattern, "./") || pattern[0] == '/')
        pattern += pattern[0] == '/' ? 1 : 2;
    if (expand(g, pattern))
        return g;
    globs_free(g);
    return NULL;
}

void globs_free(struct globs *g)
{
    if (g == NULL)
        return;
    strv_free(g->patterns);
    free(g);
}

/* [a-z], [!a-z]: whether c is in it. *s is behind it afterwards; one that never ends is a '['. */
static bool in_class(const char **s, const char *end, int32_t c)
{
    const char *at = *s + 1;
    bool negated = at < end && (*at == '!' || *at == '^'), found = false;
    int32_t low, high;
    at += negated;
    for (const char *first = at; at < end && (*at != ']' || at == first);) {
        if (*at == '\\' && at + 1 < end)
            at++;
        at += regex_char(at, (size_t)(end - at), &low);
        high = low;
        if (at + 1 < end && at[0] == '-' && at[1] != ']') {
            at++;
            at += regex_char(at, (size_t)(end - at), &high);
        }
        found = found || (c >= low && c <= high);
    }
    if (at >= end) {
        *s += 1;
        return c == '[';
    }
    *s = at + 1;
    return found != negated;
}

/* One character of the name against what stands at the pattern; both move on. */
static bool match_one(const char **p, const char *p_end, const char **s, const char *s_end)
{
    int32_t c, want;
    *s += regex_char(*s, (size_t)(s_end - *s), &c);
    if (**p == '?') {
        *p += 1;
        return true;
    }
    if (**p == '[')
        return in_class(p, p_end, c);
    if (**p == '\\' && *p + 1 < p_end)
        *p += 1;
    *p += regex_char(*p, (size_t)(p_end - *p), &want);
    return c == want;
}

/* One component. Only the last star is ever tried again, so the work is at most one length times
 * the other. */
static bool match_name(const char *p, const char *p_end, const char *s, const char *s_end)
{
    const char *star = NULL, *back = NULL;
    while (s < s_end) {
        const char *p_now = p, *s_now = s;
        if (p < p_end && *p == '*') {
            star = ++p;
            back = s;
            continue;
        }
        if (p < p_end && match_one(&p_now, p_end, &s_now, s_end)) {
            p = p_now;
            s = s_now;
            continue;
        }
        if (star == NULL)
            return false;
        int32_t ignored;
        back += regex_char(back, (size_t)(s_end - back), &ignored);
        p = star;
        s = back;
    }
    while (p < p_end && *p == '*')
        p++;
    return p == p_end;
}

static const char *component_end(const char *s)
{
    return s + strcspn(s, "/");
}

static const char *next_component(const char *s)
{
    s = component_end(s);
    return s + strspn(s, "/");
}

/* The same over components, where "**" is the star. There is one in front of every pattern. */
static bool match_path(const char *p, const char *s)
{
    const char *star = p, *back = s;
    while (*s != '\0') {
        const char *p_end = component_end(p);
        if (p_end - p == 2 && memcmp(p, "**", 2) == 0) {
            p = next_component(p);
            star = p;
            back = s;
            if (*p == '\0')
                return true;
            continue;
        }
        if (*p != '\0' && match_name(p, p_end, s, component_end(s))) {
            p = next_component(p);
            s = next_component(s);
            continue;
        }
        back = next_component(back);
        p = star;
        s = back;
    }
    while (str_eq(p, "**") || str_starts(p, "**/"))
        p = next_component(p);
    return *p == '\0';
}

bool globs_match(const struct globs *g, const char *path)
{
    for (size_t i = 0; g->patterns != NULL && g->patterns[i] != NULL; i++)
        if (match_path(g->patterns[i], path))
            return true;
    return false;
}
