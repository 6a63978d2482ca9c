/* SPDX-License-Identifier: Apache-2.0 */

/* One parser for each kind of setting: flags, numbers, choices, texts, paths. */

#include "policy/policy_value.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "policy/policy_internal.h"
#include "spec/coerce.h"

/* NULL when it is no text, or one that C would take for a shorter one. */
static const char *text_of(const struct json *v)
{
    const char *s = json_str(v);

    return s != NULL && strlen(s) == json_str_len(v) ? s : NULL;
}

static int show(struct buf *shown, const char *text, struct err *err)
{
    return buf_puts(shown, text) < 0 ? err_set(err, ERR_LIMIT, "is too long") : 0;
}

static int show_number(struct buf *shown, int64_t n)
{
    return buf_printf(shown, "%lld", (long long)n);
}

static int set_bool(bool on, void *dst, struct buf *shown)
{
    *(bool *)dst = on;
    return buf_puts(shown, on ? "true" : "false");
}

int value_enabled(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                  struct err *err)
{
    static const char *const no[] = {"", "0", "false", "no", "off"};
    bool on = json_type(v->json) != JSON_BOOL || json_bool(v->json);

    if (text_of(v->json) != NULL) {
        AUTO_FREE char *word = str_strip(text_of(v->json));
        for (size_t i = 0; i < ARRAY_SIZE(no); i++)
            on = on && strcasecmp(word, no[i]) != 0;
    }
    return set_bool(on, dst, shown);
}

int value_bool(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
               struct err *err)
{
    bool on;

    if (coerce_bool(v->json, &on) != ISSUE_NONE)
        return err_set(err, ERR_INVALID, "must be true or false");
    return set_bool(on, dst, shown);
}

int value_gate(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
               struct err *err)
{
    bool on = false;

    (void)coerce_bool(v->json, &on);
    return set_bool(on, dst, shown);
}

int value_int(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
              struct err *err)
{
    int64_t n;

    if (coerce_int(v->json, &n) != ISSUE_NONE || n < s->min || n > s->max)
        return err_set(err, ERR_INVALID, "must be a number from %lld to %lld", (long long)s->min,
                       (long long)s->max);
    *(int64_t *)dst = n;
    return show_number(shown, n);
}

int value_clamped(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                  struct err *err)
{
    int64_t n = 0;

    if (coerce_int(v->json, &n) != ISSUE_NONE)
        (void)str_to_i64(s->text, &n);
    n = n < s->min ? s->min : n;
    n = n > s->max ? s->max : n;
    *(int64_t *)dst = n;
    return show_number(shown, n);
}

int value_quota(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                struct err *err)
{
    struct policy_settings *to = &v->policy->settings;
    int r = quota_parse(v->json, &to->has_quota, &to->workspace_quota_mb, err);

    return r < 0 || !to->has_quota ? r : show_number(shown, to->workspace_quota_mb);
}

int value_choice(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                 struct err *err)
{
    int choice;

    if (coerce_enum(v->json, s->names, &choice) != ISSUE_NONE)
        return err_set(err, ERR_INVALID, "must be %s or %s", s->names[0], s->names[1]);
    *(int *)dst = choice;
    return show(shown, s->names[choice], err);
}

int value_text(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
               struct err *err)
{
    if (text_of(v->json) == NULL)
        return err_set(err, ERR_INVALID, "must be text");
    AUTO_FREE char *text = str_strip(text_of(v->json));
    if (text[0] == '\0')
        return 0;
    int r = show(shown, text, err);
    *(char **)dst = TAKE_PTR(text);
    return r;
}

int value_template(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                   struct err *err)
{
    int r = value_text(s, v, dst, shown, err);

    return r == 0 && *(char **)dst != NULL ? policy_template_check(*(char **)dst, err) : r;
}

int value_path(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
               struct err *err)
{
    const struct policy_settings *have = &v->policy->settings;
    const char *base = v->options->cwd;

    if (text_of(v->json) == NULL)
        return err_set(err, ERR_INVALID, "must be a path");
    AUTO_FREE char *text = str_strip(text_of(v->json));
    if (text[0] == '\0')
        return 0;
    /* In the nested shape what is relative lies below host_root, which the table has before. */
    if (dst == &have->default_workspace && have->host_root != NULL && !v->flat)
        base = have->host_root;
    AUTO_FREE char *plain = policy_plain_path(base, text);
    *(char **)dst = v->options->resolve != NULL ? v->options->resolve(plain) : TAKE_PTR(plain);
    return show(shown, *(char **)dst, err);
}

static void add_path(const char *item, const struct value *v, char ***list)
{
    AUTO_FREE char *text = str_strip(item);

    if (text[0] != '\0')
        strv_push(list, policy_plain_path(v->options->cwd, text));
}

/* A list, or one text with commas. */
static int add_paths(const struct value *v, char ***list)
{
    if (text_of(v->json) != NULL) {
        AUTO_FREE char *copy = xstrdup(text_of(v->json));
        char *save = NULL;
        for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save))
            add_path(item, v, list);
        return 0;
    }
    bool ok = json_type(v->json) == JSON_ARRAY;
    for (size_t i = 0; i < json_len(v->json) && ok; i++) {
        const char *item = text_of(json_at(v->json, i));
        ok = item != NULL;
        if (ok)
            add_path(item, v, list);
    }
    return ok ? 0 : -1;
}

int value_paths(const struct setting *s, const struct value *v, void *dst, struct buf *shown,
                struct err *err)
{
    if (add_paths(v, dst) < 0)
        return err_set(err, ERR_INVALID, "must be a list of paths");
    if (strv_len(*(char ***)dst) > POLICY_ROOTS_MAX)
        return err_set(err, ERR_LIMIT, "may have at most %d entries", POLICY_ROOTS_MAX);
    v->policy->flat = v->flat;
    return 0;
}
