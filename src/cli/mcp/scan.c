/* SPDX-License-Identifier: Apache-2.0 */

/* Scans JSON-RPC lines byte by byte for the kind, id and method of each message. */

#include "cli/mcp/scan.h"

#include <string.h>

#include "base/str.h"

enum { FIELD_OTHER, FIELD_IS_ID, FIELD_IS_METHOD, FIELD_IS_RESULT, FIELD_IS_ERROR };
enum { CAPTURE_NOTHING, CAPTURE_KEY, CAPTURE_ID, CAPTURE_METHOD };

static const struct {
    const char *key;
    int field;
} fields[] = {{"id", FIELD_IS_ID},
              {"method", FIELD_IS_METHOD},
              {"result", FIELD_IS_RESULT},
              {"error", FIELD_IS_ERROR}};

void mcp_scan_reset(struct mcp_scan *s)
{
    memset(s, 0, sizeof(*s));
}

static void message_begins(struct mcp_scan *s)
{
    memset(&s->msg, 0, sizeof(s->msg));
    s->n_id = s->n_method = s->n_key = 0;
    s->wants_key = true;
    s->field = FIELD_OTHER;
}

static void put(char *text, size_t *n, size_t size, bool *cut, char c)
{
    if (*n + 1 < size)
        text[(*n)++] = c;
    else
        *cut = true;
    text[*n] = '\0';
}

static void copy(struct mcp_scan *s, char c)
{
    bool cut = false;

    if (s->capture == CAPTURE_KEY)
        put(s->key, &s->n_key, sizeof(s->key), &cut, c);
    else if (s->capture == CAPTURE_ID)
        put(s->msg.id, &s->n_id, sizeof(s->msg.id), &s->msg.id_cut, c);
    else if (s->capture == CAPTURE_METHOD)
        put(s->msg.method, &s->n_method, sizeof(s->msg.method), &s->msg.method_cut, c);
}

static void string_begins(struct mcp_scan *s)
{
    s->in_string = true;
    if (s->depth != s->level || s->level == 0)
        return;
    if (s->wants_key) {
        s->n_key = 0;
        s->key[0] = '\0';
        s->capture = CAPTURE_KEY;
    } else if (s->field == FIELD_IS_METHOD && s->n_method == 0) {
        s->capture = CAPTURE_METHOD;
    } else if (s->field == FIELD_IS_ID && s->n_id == 0) {
        s->capture = CAPTURE_ID;
        copy(s, '"');
    }
}

static void in_string(struct mcp_scan *s, char c)
{
    if (!s->escaped && c == '"') {
        s->in_string = false;
        if (s->capture == CAPTURE_ID)
            copy(s, '"');
        s->capture = CAPTURE_NOTHING;
        return;
    }
    s->escaped = !s->escaped && c == '\\';
    copy(s, c);
}

static void value_begins(struct mcp_scan *s)
{
    s->wants_key = false;
    s->field = FIELD_OTHER;
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        if (str_eq(s->key, fields[i].key))
            s->field = fields[i].field;
    s->msg.has_result = s->msg.has_result || s->field == FIELD_IS_RESULT;
    s->msg.has_error = s->msg.has_error || s->field == FIELD_IS_ERROR;
}

/* A number, or null, which is no id. */
static void in_scalar(struct mcp_scan *s, char c)
{
    if (s->depth != s->level || s->level == 0 || s->wants_key || s->field != FIELD_IS_ID)
        return;
    if (s->n_id == 0 && c == 'n') {
        s->field = FIELD_OTHER;
        return;
    }
    if (s->n_id > 0 && s->msg.id[0] == '"')
        return;
    s->capture = CAPTURE_ID;
    copy(s, c);
    s->capture = CAPTURE_NOTHING;
}

static void opens(struct mcp_scan *s, char c)
{
    if (s->level == 0)
        s->level = c == '[' ? 2 : 1;
    s->depth++;
    if (c == '{' && s->depth == s->level)
        message_begins(s);
}

static void closes(struct mcp_scan *s, char c, mcp_scan_fn *fn, void *arg)
{
    if (s->depth == 0) {
        s->is_junk = true;
        return;
    }
    if (c == '}' && s->depth == s->level)
        fn(arg, &s->msg);
    s->depth--;
}

static void outside_string(struct mcp_scan *s, char c, mcp_scan_fn *fn, void *arg)
{
    bool at_level = s->depth == s->level && s->level > 0;

    switch (c) {
    case '"':
        string_begins(s);
        break;
    case '{':
    case '[':
        opens(s, c);
        break;
    case '}':
    case ']':
        closes(s, c, fn, arg);
        break;
    case ':':
        if (at_level && s->wants_key)
            value_begins(s);
        break;
    case ',':
        if (at_level)
            s->wants_key = true;
        break;
    case ' ':
    case '\t':
    case '\r':
        break;
    default:
        in_scalar(s, c);
        if (s->level == 0)
            s->is_junk = true;
        break;
    }
}

void mcp_scan_feed(struct mcp_scan *s, const char *data, size_t len, mcp_scan_fn *fn, void *arg)
{
    for (size_t i = 0; i < len && !s->is_junk; i++) {
        /* Most of a large line is text that nobody here looks at. */
        if (s->in_string && s->capture == CAPTURE_NOTHING && !s->escaped) {
            while (i < len && data[i] != '"' && data[i] != '\\')
                i++;
            if (i == len)
                return;
        }
        if (s->in_string)
            in_string(s, data[i]);
        else
            outside_string(s, data[i], fn, arg);
    }
}
