/* SPDX-License-Identifier: Apache-2.0 */

/* Makes the session id of a query by the configured template. */

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "policy/policy_internal.h"
#include "spec/spec.h"

#define NAME_MAX_LEN 64U

/* One piece of a template at *at: text, or the name between braces. */
struct piece {
    const char *text;
    size_t len;
    bool is_name;
};

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* 1 and a piece, 0 at the end, or -EINVAL: a brace that is neither doubled nor around a name. What
 * a host's own formatter would do beyond this (members, indexes, conversions) is not needed, and
 * would be a way into the host. */
static int next_piece(const char **at, struct piece *ret, struct err *err)
{
    const char *s = *at;
    size_t len = strcspn(s, "{}");

    if (*s == '\0')
        return 0;
    if (len > 0) {
        *ret = (struct piece){s, len, false};
        *at = s + len;
        return 1;
    }
    if (s[1] == s[0]) {
        *ret = (struct piece){s, 1, false};
        *at = s + 2;
        return 1;
    }
    for (len = 0; is_name_char(s[1 + len]); len++)
        continue;
    if (s[0] != '{' || len == 0 || len > NAME_MAX_LEN || s[1 + len] != '}')
        return err_set(err, ERR_INVALID,
                       "session id template has a brace that is not part of {name}, {{ or }}");
    *ret = (struct piece){s + 1, len, true};
    *at = s + len + 2;
    return 1;
}

int policy_template_check(const char *template, struct err *err)
{
    struct piece piece;
    int r;

    do
        r = next_piece(&template, &piece, err);
    while (r > 0);
    return r;
}

/* A name that is cut would be the name of another session: what does not fit is remembered. */
struct name {
    struct buf text;
    bool full;
};

static void name_init(struct name *n)
{
    buf_init(&n->text, SPEC_ID_MAX);
    n->full = false;
}

static void name_done(struct name *n)
{
    buf_done(&n->text);
}
DEFINE_CLEANUP_DONE(name)

static bool put(struct name *out, const char *text, size_t len)
{
    if (buf_append(&out->text, text, len) < 0)
        out->full = true;
    return len > 0;
}

static bool put_number(struct name *out, const struct json *v)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(64);
    struct jw w = JW_INIT(&text);

    jw_value(&w, v);
    return put(out, buf_str(&text), text.len);
}

/* A scalar as the host's own language writes it. False: there is nothing to name. */
static bool scalar(const struct json *v, struct name *out)
{
    switch (json_type(v)) {
    case JSON_STRING:
        return put(out, json_str(v), json_str_len(v));
    case JSON_BOOL:
        return json_bool(v) ? put(out, "True", 4) : put(out, "False", 5);
    case JSON_INT:
    case JSON_REAL:
        return put_number(out, v);
    case JSON_NULL:
    case JSON_ARRAY:
    case JSON_OBJECT:
        return false;
    }
    return false;
}

/* What the query says about a name: its variables first, then its own members. */
static bool said(const struct json *query, const char *name, struct name *out)
{
    return scalar(json_get(json_get(query, "variables"), name), out) ||
           scalar(json_get(query, name), out);
}

/* Names with a fallback; the last word is "unknown". */
static const struct {
    const char *name;
    const char *instead[2];
    const char *literal;
} fallbacks[] = {
    {"query_id", {NULL, NULL}, "unknown"},
    {"launcher_type", {NULL, NULL}, "query"},
    {"launcher_id", {"query_id", NULL}, "unknown"},
    {"sender_id", {"launcher_id", "query_id"}, "unknown"},
};

static const struct json *variable(const struct json *query, const char *name)
{
    return json_get(json_get(query, "variables"), name);
}

static void value_of(const struct json *query, const char *name, struct name *out)
{
    for (size_t i = 0; i < ARRAY_SIZE(fallbacks); i++) {
        if (!str_eq(fallbacks[i].name, name))
            continue;
        if (said(query, name, out))
            return;
        for (size_t k = 0; k < 2 && fallbacks[i].instead[k] != NULL; k++)
            if (said(query, fallbacks[i].instead[k], out))
                return;
        (void)put(out, fallbacks[i].literal, strlen(fallbacks[i].literal));
        return;
    }
    /* Other members of the query are not for naming. */
    if (!scalar(variable(query, name), out))
        (void)(str_eq(name, "global") ? put(out, "global", 6) : put(out, "unknown", 7));
}

static bool names_a_launcher(const struct json *query)
{
    AUTO_DONE(name) struct name ignored;

    name_init(&ignored);
    return said(query, "launcher_type", &ignored) || said(query, "launcher_id", &ignored);
}

/* The query's own, where a pipeline has it, or where a plain client puts it. */
static const char *own_template(const struct json *query)
{
    const struct json *agent =
        json_get(json_get(json_get(query, "pipeline_config"), "ai"), "local-agent");
    const char *text = json_str(json_get(query, "session_id_template"));

    if (text == NULL || text[0] == '\0')
        text = json_str(json_get(agent, "box-session-id-template"));
    return text != NULL && text[0] != '\0' ? text : NULL;
}

static int fill(const char *template, const struct json *query, struct name *out, struct err *err)
{
    struct piece piece;
    int r;

    while ((r = next_piece(&template, &piece, err)) > 0) {
        char name[NAME_MAX_LEN + 1];
        if (!piece.is_name) {
            (void)put(out, piece.text, piece.len);
            continue;
        }
        memcpy(name, piece.text, piece.len);
        name[piece.len] = '\0';
        value_of(query, name, out);
    }
    return r;
}

int policy_session_id(const struct policy *p, const struct json *query, char **ret, struct err *err)
{
    const struct policy_settings *s = &p->settings;
    AUTO_DONE(name) struct name name;
    const char *template = s->force_template;

    if (template == NULL)
        template = own_template(query);
    if (template == NULL)
        template = s->session_template != NULL ? s->session_template : POLICY_TEMPLATE_DEFAULT;
    /* Such a query has no chat to share a session with: it gets one of its own. */
    if (str_eq(template, POLICY_TEMPLATE_DEFAULT) && !names_a_launcher(query))
        template = "{query_id}";
    name_init(&name);
    int r = fill(template, query, &name, err);
    if (r < 0)
        return r;
    if (name.full)
        return err_set(err, ERR_INVALID, "session_id must be at most %d bytes", SPEC_ID_MAX);
    if (memchr(buf_str(&name.text), '\0', name.text.len) != NULL)
        return err_set(err, ERR_INVALID, "session_id must not contain NUL");
    *ret = buf_take(&name.text);
    return 0;
}

char *policy_query_id(const struct json *query)
{
    AUTO_DONE(name) struct name name;

    name_init(&name);
    if (!scalar(json_get(query, "query_id"), &name))
        (void)scalar(variable(query, "query_id"), &name);
    return buf_take(&name.text);
}
