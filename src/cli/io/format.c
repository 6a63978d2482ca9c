/* SPDX-License-Identifier: Apache-2.0 */

/* Writes objects of boxd by a template. */

#include "cli/io/format.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/io/text.h"

#define OUT_MAX (192U << 20) /* as much as a table may have */
#define VALUE_MAX (32U << 20)
#define TEMPLATE_MAX 8192
#define COLUMNS_MAX 64

struct format {
    char *text;                 /* owned; the template, NULL: JSON */
    char *columns[COLUMNS_MAX]; /* owned; of a table: a template each */
    size_t n_columns;           /* 0: no table */
    struct text_table *table;   /* owned; NULL: no table */
    struct buf out;
};

/* Of Docker; where an object has a member of that name, it counts. */
static const struct {
    const char *word;
    const char *member;
} docker_members[] = {
    {"id", "session_id"}, {"name", "session_id"}, {"names", "session_id"}, {"status", "state"}};

static bool same_word(const char *word, size_t len, const char *member)
{
    size_t i = 0;

    for (; *member != '\0'; member++) {
        while (i < len && word[i] == '_')
            i++;
        if (*member == '_')
            continue;
        if (i == len || tolower((unsigned char)word[i]) != tolower((unsigned char)*member))
            return false;
        i++;
    }
    while (i < len && word[i] == '_')
        i++;
    return i == len;
}

static bool find_loosely(const struct json *object, const char *word, size_t len,
                         const struct json **ret)
{
    for (void *it = json_iter(object); it != NULL; it = json_iter_next(object, it)) {
        if (!same_word(word, len, json_iter_key(it)))
            continue;
        *ret = json_iter_value(it);
        return true;
    }
    return false;
}

/* *ret is NULL for a member that is null. */
static bool find_member(const struct json *v, const char *word, size_t len, const struct json **ret)
{
    AUTO_FREE char *text = xstrndup(word, len);
    uint64_t index;

    if (json_type(v) == JSON_ARRAY && str_to_u64(text, &index) == 0 && index < json_len(v)) {
        *ret = json_at(v, index);
        return true;
    }
    if (json_type(v) != JSON_OBJECT)
        return false;
    if (find_loosely(v, word, len, ret))
        return true;
    for (size_t i = 0; i < ARRAY_SIZE(docker_members); i++)
        if (same_word(word, len, docker_members[i].word))
            return find_loosely(v, docker_members[i].member, strlen(docker_members[i].member), ret);
    return false;
}

static int no_member(const struct json *v, const char *word, size_t len, struct err *err)
{
    AUTO_DONE(buf) struct buf list = BUF_INIT(200);

    for (void *it = json_iter(v); it != NULL; it = json_iter_next(v, it))
        if (buf_printf(&list, "%s.%s", list.len > 0 ? ", " : "", json_iter_key(it)) < 0)
            break;
    if (list.len == 0)
        return err_set(err, ERR_INVALID, "--format: there is no '.%.*s' here", (int)len, word);
    return err_set(err, ERR_INVALID, "--format: there is no '.%.*s' here; there are %s", (int)len,
                   word, buf_str(&list));
}

/* What stands between the braces, without blanks around it. */
struct action {
    const char *path; /* begins with a dot */
    size_t len;
    bool json;
};

/* `at` is behind "{{". *ret_rest is behind "}}". */
static int read_action(const char *at, struct action *ret, const char **ret_rest, struct err *err)
{
    const char *end = strstr(at, "}}");

    if (end == NULL)
        return err_set(err, ERR_INVALID, "--format: '{{' without '}}'");
    *ret_rest = end + 2;
    size_t len = (size_t)(end - at);
    str_trim(&at, &len);
    const char *whole = at;
    size_t whole_len = len;
    *ret = (struct action){.json = len > 5 && strncmp(at, "json ", 5) == 0};
    if (ret->json) {
        at += 5;
        len -= 5;
        str_trim(&at, &len);
    }
    ret->path = at;
    ret->len = len;
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    if (len == 0 || at[0] != '.' || strspn(at, allowed) < len)
        return err_set(err, ERR_INVALID,
                       "--format: '{{%.*s}}' is not understood; {{.NAME}} and {{json .NAME}} are",
                       (int)(whole_len < 80 ? whole_len : 80), whole);
    return 0;
}

static int resolve(const struct json *object, const struct action *a, const struct json **ret,
                   struct err *err)
{
    const char *end = a->path + a->len;
    const char *at = a->path;

    *ret = object;
    while (at < end) {
        at += *at == '.';
        size_t len = 0;
        while (at + len < end && at[len] != '.')
            len++;
        if (len > 0 && !find_member(*ret, at, len, ret))
            return no_member(*ret, at, len, err);
        at += len;
    }
    return 0;
}

static int put_value(const struct json *v, bool as_json, bool escape, struct buf *out)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(VALUE_MAX);

    if (json_type(v) == JSON_STRING && !as_json) {
        if (escape)
            return text_escape(out, json_str(v), json_str_len(v));
        return buf_puts(out, json_str(v));
    }
    if (json_type(v) == JSON_NULL && !as_json)
        return 0;
    struct jw w = JW_INIT(&text);
    jw_value(&w, v);
    int r = jw_end(&w);
    return r < 0 ? r : json_plain(out, buf_str(&text), text.len);
}

/* The template with the values of the object; `escape` those that a terminal would obey. */
static int render(const char *template, const struct json *object, bool escape, struct buf *out,
                  struct err *err)
{
    int r = 0;

    while (r >= 0 && *template != '\0') {
        const char *open = strstr(template, "{{");
        size_t literal = open != NULL ? (size_t)(open - template) : strlen(template);
        const struct json *value = NULL;
        struct action a;
        r = buf_append(out, template, literal);
        template += literal;
        if (r < 0)
            break;
        if (open == NULL)
            return 0;
        if (read_action(open + 2, &a, &template, err) < 0 || resolve(object, &a, &value, err) < 0)
            return err_code_errno(ERR_INVALID);
        r = put_value(value, a.json, escape, out);
    }
    return r < 0 ? err_sys(err, -r, "--format") : 0;
}

/* "\t" and "\n" as they are written on a command line. */
static char *unescape(const char *text)
{
    char *copy = xstrdup(text);
    char *to = copy;

    for (const char *from = copy; *from != '\0'; from++) {
        bool escape = from[0] == '\\' && (from[1] == 't' || from[1] == 'n');
        *to++ = !escape ? *from : from[1] == 't' ? '\t' : '\n';
        from += escape;
    }
    *to = '\0';
    return copy;
}

/* The title of a column: the last word of each path in it. */
static char *make_title(const char *template)
{
    struct buf title = BUF_INIT(TEMPLATE_MAX + 1);
    struct action a;

    while (*template != '\0') {
        if (!str_starts(template, "{{")) {
            (void)buf_putc(&title, *template ++);
            continue;
        }
        if (read_action(template + 2, &a, &template, NULL) < 0)
            break;
        size_t word = a.len;
        while (word > 0 && a.path[word - 1] != '.')
            word--;
        for (; word < a.len; word++)
            (void)buf_putc(&title,
                           a.path[word] == '_' ? ' ' : (char)toupper((unsigned char)a.path[word]));
    }
    return buf_take(&title);
}

static int begin_table(struct format *f, const char *template, struct err *err)
{
    char *titles[COLUMNS_MAX] = {NULL};
    bool more = true;

    for (const char *at = template; more; f->n_columns++) {
        if (f->n_columns == COLUMNS_MAX)
            return err_set(err, ERR_INVALID, "--format: a table has at most %d columns",
                           COLUMNS_MAX);
        size_t len = strcspn(at, "\t");
        f->columns[f->n_columns] = xstrndup(at, len);
        more = at[len] == '\t';
        at += len + more;
    }
    for (size_t i = 0; i < f->n_columns; i++)
        titles[i] = make_title(f->columns[i]);
    f->table = text_table_new((const char *const *)titles, f->n_columns);
    for (size_t i = 0; i < f->n_columns; i++)
        free(titles[i]);
    return 0;
}

/* What is wrong with it is told before boxd is asked. */
static int check_template(const char *template, struct err *err)
{
    struct action a;

    if (strlen(template) > TEMPLATE_MAX)
        return err_set(err, ERR_INVALID, "--format: more than %d bytes", TEMPLATE_MAX);
    if (!utf8_valid(template, strlen(template)))
        return err_set(err, ERR_INVALID, "--format: not valid UTF-8");
    if (strstr(template, "{{") == NULL)
        return err_set(err, ERR_INVALID,
                       "--format: '%.80s' is none of json, table and a template such as {{.Name}}",
                       template);
    while ((template = strstr(template, "{{")) != NULL)
        if (read_action(template + 2, &a, &template, err) < 0)
            return err_code_errno(ERR_INVALID);
    return 0;
}

int format_new(const char *text, bool stream, struct format **ret, struct err *err)
{
    AUTO(format) struct format *f = xnew(struct format);
    bool table = str_starts(text, "table");

    buf_init(&f->out, OUT_MAX);
    if (table && stream)
        return err_set(err, ERR_INVALID, "--format: a stream has no table; use json or a template");
    if (!str_eq(text, "json")) {
        f->text =
            unescape(table ? text + strlen("table") + strspn(text + strlen("table"), " ") : text);
        int r = check_template(f->text, err);
        if (r >= 0 && table)
            r = begin_table(f, f->text, err);
        if (r < 0)
            return r;
    }
    *ret = TAKE_PTR(f);
    return 0;
}

void format_free(struct format *f)
{
    if (f == NULL)
        return;
    for (size_t i = 0; i < f->n_columns; i++)
        free(f->columns[i]);
    text_table_free(f->table);
    buf_done(&f->out);
    free(f->text);
    free(f);
}

int format_add(struct format *f, const struct json *object, struct err *err)
{
    int r = 0;

    for (size_t i = 0; i < f->n_columns && r >= 0; i++) {
        AUTO_DONE(buf) struct buf cell = BUF_INIT(VALUE_MAX);
        r = render(f->columns[i], object, false, &cell, err);
        if (r >= 0)
            text_table_cell(f->table, buf_str(&cell));
    }
    if (f->table != NULL || r < 0)
        return r;
    if (f->text == NULL)
        r = put_value(object, true, true, &f->out);
    else if (render(f->text, object, true, &f->out, err) < 0)
        return err_code_errno(err->code);
    if (r >= 0)
        r = buf_putc(&f->out, '\n');
    return r < 0 ? err_sys(err, -r, "--format") : 0;
}

int format_print(struct format *f, struct err *err)
{
    if (f->table != NULL)
        return text_table_print(f->table, err);
    int r = text_print(&f->out, err);
    f->out.len = 0;
    return r;
}

bool format_is_own_table(const char *text)
{
    return text == NULL || str_eq(text, "table");
}
