/* SPDX-License-Identifier: Apache-2.0 */

/* Adds to a tool's error what the box has to do with it: a path of the host that the call named, a
 * directory that is read-only, a port of the host's loopback. Answers that are no errors, and lines
 * that are long, pass as they are. */

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/text.h"
#include "cli/mcp/failure.h"
#include "cli/mcp_run/run.h"

#define WORDS_MAX 32U /* strings of the arguments that are looked at */
#define HEAD_MAX 40U  /* bytes of a text that says at its beginning that it is an error */

static bool line_holds(const char *line, size_t len, const char *word)
{
    return memmem(line, len, word, strlen(word)) != NULL;
}

/* The id as it would stand in the text; "": none that fits. */
static void id_text(const struct json *message, char ret[MCP_ID_MAX])
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(MCP_ID_MAX - 1);
    const struct json *id = json_get(message, "id");
    struct jw w = JW_INIT(&text);

    ret[0] = '\0';
    if (id == NULL || json_type(id) == JSON_NULL)
        return;
    jw_value(&w, id);
    if (jw_end(&w) == 0)
        (void)str_copy(ret, MCP_ID_MAX, buf_str(&text));
}

/* The first string below `v` that is a path of this host which is not in the box. */
static char *hint_of(const struct mcp_run *m, const struct json *v, unsigned *words)
{
    char *hint = NULL;

    if (json_type(v) == JSON_STRING && (*words)++ < WORDS_MAX) {
        const char *text = json_str(v);
        return mcp_path_hint(str_starts(text, "file:///") ? text + strlen("file://") : text,
                             &m->plan, m->args->spec);
    }
    if (json_type(v) == JSON_ARRAY)
        for (size_t i = 0; i < json_len(v) && hint == NULL && *words < WORDS_MAX; i++)
            hint = hint_of(m, json_at(v, i), words);
    if (json_type(v) == JSON_OBJECT)
        for (void *it = json_iter(v); it != NULL && hint == NULL; it = json_iter_next(v, it))
            hint = hint_of(m, json_iter_value(it), words);
    return hint;
}

void mcp_explain_asked(struct mcp_run *m, const char *line, size_t len)
{
    AUTO(json) struct json *message = NULL;
    unsigned words = 0;
    char id[MCP_ID_MAX];

    if (len > MCP_EXPLAIN_MAX || !line_holds(line, len, "tools/call") ||
        !line_holds(line, len, "\"/") || json_parse(line, len, &message, NULL) < 0)
        return;
    id_text(message, id);
    char *hint = id[0] != '\0'
                     ? hint_of(m, json_get(json_get(message, "params"), "arguments"), &words)
                     : NULL;
    if (hint == NULL)
        return;
    struct mcp_named *n = &m->named[m->next_named++ % MCP_NAMED_MAX];
    free(n->hint);
    n->hint = hint;
    (void)str_copy(n->id, sizeof(n->id), id);
}

/* What is known about the call of that id, once; owned, or NULL. */
static char *take_named(struct mcp_run *m, const char *id)
{
    for (size_t i = 0; i < MCP_NAMED_MAX; i++)
        if (m->named[i].hint != NULL && str_eq(m->named[i].id, id))
            return TAKE_PTR(m->named[i].hint);
    return NULL;
}

void mcp_explain_done(struct mcp_run *m)
{
    for (size_t i = 0; i < MCP_NAMED_MAX; i++)
        free(m->named[i].hint);
}

/* Some servers do not mark their errors: "Database error: ...". */
static bool is_error(const struct json *result)
{
    const struct json *content = json_get(result, "content");
    const char *text = json_str(json_get(json_at(content, 0), "text"));
    char head[HEAD_MAX];

    if (json_type(content) != JSON_ARRAY)
        return false;
    text_cut(head, sizeof(head), text != NULL ? text : "");
    return json_bool(json_get(result, "isError")) || strcasestr(head, "error") != NULL;
}

static void put_text(struct jw *w, const char *hint)
{
    AUTO_FREE char *text = xasprintf("box: %s", hint);

    jw_object(w);
    jw_kstr(w, "type", "text");
    jw_kstr(w, "text", text);
    jw_object_end(w);
}

/* The result, with one text more in its content. */
static void put_result(struct jw *w, const struct json *result, const char *hint)
{
    jw_object(w);
    for (void *it = json_iter(result); it != NULL; it = json_iter_next(result, it)) {
        const struct json *v = json_iter_value(it);
        jw_key(w, json_iter_key(it));
        if (!str_eq(json_iter_key(it), "content")) {
            jw_value(w, v);
            continue;
        }
        jw_array(w);
        for (size_t i = 0; i < json_len(v); i++)
            jw_value(w, json_at(v, i));
        put_text(w, hint);
        jw_array_end(w);
    }
    jw_object_end(w);
}

static void put_error(struct jw *w, const struct json *error, const char *hint)
{
    const char *message = json_str(json_get(error, "message"));
    AUTO_FREE char *text = xasprintf("%s; box: %s", message != NULL ? message : "", hint);

    jw_object(w);
    for (void *it = json_iter(error); it != NULL; it = json_iter_next(error, it))
        if (!str_eq(json_iter_key(it), "message"))
            jw_kvalue(w, json_iter_key(it), json_iter_value(it));
    jw_kstr(w, "message", text);
    jw_object_end(w);
}

static void put_answer(const struct json *message, const char *hint, struct buf *ret)
{
    struct jw w = JW_INIT(ret);

    jw_object(&w);
    for (void *it = json_iter(message); it != NULL; it = json_iter_next(message, it)) {
        jw_key(&w, json_iter_key(it));
        if (str_eq(json_iter_key(it), "result"))
            put_result(&w, json_iter_value(it), hint);
        else if (str_eq(json_iter_key(it), "error"))
            put_error(&w, json_iter_value(it), hint);
        else
            jw_value(&w, json_iter_value(it));
    }
    jw_object_end(&w);
    if (jw_end(&w) < 0)
        buf_reset(ret);
    else
        (void)buf_putc(ret, '\n');
}

bool mcp_explain_answer(struct mcp_run *m, const char *line, size_t len, struct buf *ret)
{
    AUTO(json) struct json *message = NULL;
    char id[MCP_ID_MAX];

    if (len > MCP_EXPLAIN_MAX || (!line_holds(line, len, "rror") && m->next_named == 0) ||
        json_parse(line, len, &message, NULL) < 0)
        return false;
    id_text(message, id);
    AUTO_FREE char *named = take_named(m, id); /* its answer has come, whatever it is */
    if (!is_error(json_get(message, "result")) &&
        json_type(json_get(message, "error")) != JSON_OBJECT)
        return false;
    AUTO_FREE char *text = xstrndup(line, len);
    AUTO_FREE char *hint = mcp_failure_hint(text, &m->plan, m->args->spec);
    if (id[0] == '\0' || (named == NULL && hint == NULL))
        return false;
    put_answer(message, named != NULL ? named : hint, ret);
    mcp_say(m, "%s", named != NULL ? named : hint);
    return ret->len > 0;
}
