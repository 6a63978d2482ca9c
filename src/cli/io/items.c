/* SPDX-License-Identifier: Apache-2.0 */

/* Walks the text of a JSON list and parses one object at a time. */

#include "cli/io/items.h"

#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

static void skip(struct items *it, const char *bytes)
{
    while (it->at < it->end && *it->at != '\0' && strchr(bytes, *it->at) != NULL)
        it->at++;
}

static bool take(struct items *it, char c)
{
    skip(it, " \t\r\n");
    if (it->at == it->end || *it->at != c)
        return false;
    it->at++;
    return true;
}

int items_init(struct items *it, const char *text, size_t len, const char *key, struct err *err)
{
    const char *found = memmem(text, len, key, strlen(key));

    *it = (struct items){.at = found, .end = text + len};
    if (found != NULL) {
        it->at += strlen(key);
        if (take(it, '"') && take(it, ':') && take(it, '['))
            return 0;
    }
    return err_set(err, ERR_BACKEND, "the answer of boxd has no list '%s'", key);
}

/* Past the string that starts at p. */
static const char *past_string(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++)
        p += *p == '\\' && p + 1 < end;
    return p < end ? p + 1 : end;
}

/* Past the object that starts at p. What is wrong inside is for the parser to find. */
static const char *past_object(const char *p, const char *end)
{
    size_t depth = 0;

    while (p < end) {
        char c = *p;
        p = c == '"' ? past_string(p, end) : p + 1;
        depth += c == '{';
        if (c == '}' && --depth == 0)
            break;
    }
    return p;
}

int items_next(struct items *it, struct json **ret, struct err *err)
{
    skip(it, " \t\r\n,");
    if (it->at < it->end && *it->at == ']')
        return 0;
    if (it->at == it->end || *it->at != '{')
        return err_set(err, ERR_BACKEND, "a list of boxd holds something else than objects");
    const char *start = it->at;
    it->at = past_object(start, it->end);
    int r = json_parse(start, (size_t)(it->at - start), ret, err);
    return r < 0 ? err_wrap(err, "list of boxd") : 1;
}
