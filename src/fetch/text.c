/* SPDX-License-Identifier: Apache-2.0 */

/* Error messages, texts of requests, and paths for the operations of box-fetch. */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"
#include "fetch/fetch_internal.h"

#undef fetch_fail /* what an analyzer is told of it holds for its callers */

#define LIST_MAX 16384U
#define LONG_WHY_SHOWN 1000U

/* Clients choose an exception by the first of these names that a message holds, wherever it stands;
 * a file in an archive must not choose for them. Only names that go before the one of our own
 * messages matter. */
static void defuse(char *text)
{
    static const char *const names[] = {
        "BoxAdmissionError:", "BoxReadinessError:", "BoxCapacityExceededError:"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        for (char *at = text; (at = strstr(at, names[i])) != NULL;)
            at[strlen(names[i]) - 1] = ';';
}

int fetch_fail(struct fetch *f, const char *fmt, ...)
{
    va_list ap;
    buf_reset(&f->why);
    va_start(ap, fmt);
    int r = buf_vprintf(&f->why, fmt, ap);
    va_end(ap);
    if (r < 0) {
        /* A name of an archive may be as long as all of it: its beginning will do. */
        char part[LONG_WHY_SHOWN + 1];
        va_start(ap, fmt);
        (void)vsnprintf(part, sizeof(part), fmt, ap);
        va_end(ap);
        buf_reset(&f->why);
        (void)buf_append(&f->why, part, utf8_boundary(part, strlen(part)));
        (void)buf_puts(&f->why, "\u2026");
    }
    assert(f->why.data != NULL);
    defuse(f->why.data);
    return -EINVAL;
}

int fetch_fail_sys(struct fetch *f, int error, const char *rel)
{
    AUTO_FREE char *path = fetch_path(f, rel);
    (void)fetch_fail(f, "[Errno %d] %s: '%s'", error, err_errno_text(error), path);
    return -error;
}

int fetch_fail_key(struct fetch *f, const char *key)
{
    (void)fetch_fail(f, "'%s'", key);
    f->why_class = "KeyError";
    return -EINVAL;
}

void fetch_forget(struct fetch *f)
{
    buf_reset(&f->why);
    f->why_class = NULL;
}

static char *written(const struct json *v)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, FETCH_TEXT_MAX);
    jw_init(&w, &out);
    jw_value(&w, v);
    return jw_end(&w) < 0 ? xstrdup("") : buf_take(&out);
}

int fetch_text(struct fetch *f, const struct json *v, char **ret)
{
    enum json_type type = json_type(v);
    if (type == JSON_STRING) {
        const char *text = json_str(v);
        if (strlen(text) != json_str_len(v))
            return fetch_fail(f, "embedded null byte");
        *ret = xstrdup(text);
    } else if (type == JSON_NULL || (type == JSON_BOOL && !json_bool(v)) ||
               (type == JSON_INT && json_int(v) == 0)) {
        *ret = xstrdup("");
    } else if (type == JSON_BOOL) {
        *ret = xstrdup("True");
    } else {
        *ret = written(v);
    }
    return 0;
}

int fetch_need(struct fetch *f, const struct json *object, const char *key, char **ret)
{
    const struct json *v = json_get(object, key);
    return v == NULL ? fetch_fail_key(f, key) : fetch_text(f, v, ret);
}

int fetch_option(struct fetch *f, const struct json *object, const char *key, char **ret)
{
    const struct json *v = json_get(object, key);
    AUTO_FREE char *text = NULL;
    if (v == NULL || json_type(v) == JSON_NULL)
        return 0;
    int r = fetch_text(f, v, &text);
    if (r == 0)
        *ret = str_strip(text);
    return r;
}

char *fetch_path(const struct fetch *f, const char *rel)
{
    if (*rel == '\0' || str_eq(rel, "."))
        return xstrdup(f->root);
    return xasprintf("%s/%s", str_eq(f->root, "/") ? "" : f->root, rel);
}

/* Takes the last component off; false when there is none that ".." could take. */
static bool drop_last(char *out, size_t *len, size_t floor)
{
    size_t at = *len;
    while (at > floor && out[at - 1] != '/')
        at--;
    if (*len == floor || (*len - at == 2 && memcmp(out + at, "..", 2) == 0))
        return false;
    *len = at > floor ? at - 1 : floor;
    return true;
}

char *fetch_normal(const char *path)
{
    /* Two slashes at the start are kept, as POSIX wants it, three are one. */
    size_t slashes = strspn(path, "/");
    size_t floor = slashes == 2 ? 2 : slashes > 0 ? 1 : 0;
    char *out = xcalloc(1, strlen(path) + 3);
    size_t len = floor;
    memset(out, '/', floor);
    for (const char *s = path; *s != '\0';) {
        size_t n = strcspn(s, "/");
        bool up = n == 2 && memcmp(s, "..", 2) == 0;
        bool skip = n == 0 || (n == 1 && *s == '.');
        if (up && (drop_last(out, &len, floor) || (floor > 0 && len == floor)))
            skip = true;
        if (!skip) {
            if (len > floor)
                out[len++] = '/';
            memcpy(out + len, s, n);
            len += n;
        }
        s += n + (s[n] == '/');
    }
    out[len] = '\0';
    if (len == 0)
        out[0] = '.';
    return out;
}

char *fetch_join(const char *dir, const char *name)
{
    if (*dir == '\0' || str_eq(dir, "."))
        return xstrdup(name);
    if (*name == '\0' || str_eq(name, "."))
        return xstrdup(dir);
    return xasprintf("%s/%s", dir, name);
}

const char *fetch_leaf(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

char *fetch_slashes(const char *text)
{
    AUTO_FREE char *bare = str_strip(text);
    for (char *s = bare; *s != '\0'; s++)
        if (*s == '\\')
            *s = '/';
    size_t start = strspn(bare, "/");
    size_t len = strlen(bare);
    while (len > start && bare[len - 1] == '/')
        len--;
    return xstrndup(bare + start, len - start);
}

char *fetch_below_root(const struct fetch *f, const char *path)
{
    size_t len = strlen(f->root);
    AUTO_FREE char *normal = fetch_normal(path);
    if (strncmp(normal, f->root, len) != 0 || (normal[len] != '\0' && normal[len] != '/'))
        return NULL;
    return xstrdup(normal[len] == '/' ? normal + len + 1 : "");
}

char *fetch_list(char *const *names)
{
    AUTO_DONE(buf) struct buf out;
    buf_init(&out, LIST_MAX);
    for (size_t i = 0; names != NULL && names[i] != NULL; i++) {
        const char *name = *names[i] != '\0' ? names[i] : ".";
        if (buf_printf(&out, "%s%s", i > 0 ? ", " : "", name) < 0)
            return xasprintf("%s, ...", buf_str(&out));
    }
    return buf_take(&out);
}
