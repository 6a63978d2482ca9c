/* SPDX-License-Identifier: Apache-2.0 */

/* Finds the lines of npm's output that say what went wrong. */

#include "cli/mcp/npm_errors.h"

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"

static bool begins_failure(const char *line)
{
    static const char *const words[] = {"ERROR", "Error", "error", "npm error", "npm ERR!"};

    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (str_starts(line, words[i]))
            return true;
    return false;
}

const char *mcp_npm_failure(const char *text)
{
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (begins_failure(line))
            return line;
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return text;
}

static bool says_nothing(const char *line, size_t len)
{
    return strspn(line, " \t\r") >= len || str_starts(line, "npm notice");
}

/* npm says what is wrong first, then what one might do about it, then where its log is, which
 * nobody outside can read. Takes any of these lines; NULL: it is not npm's. */
static const char *first_of_npm(const char *text, const char *line)
{
    static const char *const words[] = {"npm error ", "npm ERR! "};
    const char *word = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (str_starts(line, words[i]))
            word = words[i];
    for (const char *at = text; word != NULL && at < line;) {
        if (str_starts(at, word) && !str_starts(at + strlen(word), "code "))
            return at;
        at = strchr(at, '\n') + 1;
    }
    return word != NULL ? line : NULL;
}

size_t mcp_npm_last(const char *text, const char **ret)
{
    const char *end = text + strlen(text);

    while (end > text) {
        const char *start = end;
        while (start > text && start[-1] != '\n')
            start--;
        if (!says_nothing(start, (size_t)(end - start))) {
            const char *npm = first_of_npm(text, start);
            *ret = npm != NULL ? npm : start;
            return strcspn(*ret, "\n");
        }
        end = start > text ? start - 1 : text;
    }
    *ret = text;
    return 0;
}

const char *mcp_npm_tail(const char *text, unsigned lines)
{
    const char *at = text + strlen(text);

    if (at > text && at[-1] == '\n')
        at--;
    for (; at > text; at--)
        if (at[-1] == '\n' && --lines == 0)
            break;
    return at;
}
