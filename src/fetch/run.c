/* SPDX-License-Identifier: Apache-2.0 */

/* The running of one request: error messages, texts of requests and paths for all operations of
 * box-fetch, the table of operations, and the answer. */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/path.h"
#include "base/str.h"
#include "fetch/fetch_internal.h"
#include "fetch/job.h"

#undef fetch_fail /* the definition for analyzers is for its callers */

#define LIST_MAX 16384U
#define LONG_WHY_SHOWN 1000U

/* Clients choose an exception by the first of these names that a message holds, wherever it stands;
 * a file in an archive must not choose for them. Only names that go before the one of our own
 * messages matter. */
static void defuse_class_names(char *text)
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
    defuse_class_names(f->why.data);
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

static char *json_text(const struct json *v)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(FETCH_TEXT_MAX);
    struct jw w = JW_INIT(&out);
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
        *ret = json_text(v);
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

char *fetch_list(char *const *names)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(LIST_MAX);
    for (size_t i = 0; names != NULL && names[i] != NULL; i++) {
        const char *name = *names[i] != '\0' ? names[i] : ".";
        if (buf_printf(&out, "%s%s", i > 0 ? ", " : "", name) < 0)
            return xasprintf("%s, ...", buf_str(&out));
    }
    return buf_take(&out);
}

/* Operations. */

/* Every operation there is. Those on a store take turns, also with the jobs of another boxd that
 * shares it. */
static const struct {
    const char *name;
    fetch_op_fn *run;
    bool locks;
} ops[] = {
    {"list", op_list, true},
    {"get", op_get, true},
    {"create", op_create, true},
    {"update", op_update, true},
    {"delete", op_delete, true},
    {"scan", op_scan, true},
    {"list_files", op_list_files, true},
    {"read_file", op_read_file, true},
    {"write_file", op_write_file, true},
    {"preview_zip", op_preview_zip, true},
    {"install_zip", op_install_zip, true},
    {"make_dir", op_make_dir, false},
    {"read_marker", op_read_marker, false},
    {"measure", op_measure, false},
    {"make_artifacts", op_make_artifacts, true},
    {"add_artifact", op_add_artifact, true},
    {"sweep_artifacts", op_sweep_artifacts, true},
};

/* Removes what earlier jobs left when they were killed. The caller holds the lock. */
static int remove_leftovers(struct fetch *f)
{
    DIR *dir = NULL;
    int r = fetch_open_names(f, "", &dir);
    if (r < 0)
        return fetch_fail_sys(f, -r, "");
    for (const char *name; (name = fetch_next_name(dir)) != NULL;)
        if (str_starts(name, FETCH_TMP_PREFIX) && strlen(name) == FETCH_TMP_LEN &&
            strspn(name + strlen(FETCH_TMP_PREFIX), "0123456789abcdef") == 16)
            (void)path_remove_tree_at(f->root_fd, name);
    (void)closedir(dir);
    return 0;
}

static int take_lock(struct fetch *f)
{
    int r;
    do
        r = flock(f->root_fd, LOCK_EX);
    while (r < 0 && errno == EINTR);
    return r < 0 ? fetch_fail_sys(f, errno, "") : remove_leftovers(f);
}

static int run_op(struct fetch *f, const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
        if (!str_eq(name, ops[i].name))
            continue;
        int r = ops[i].locks ? take_lock(f) : 0;
        if (r == 0)
            r = ops[i].run(f);
        fetch_tmp_done(f);
        if (ops[i].locks)
            (void)flock(f->root_fd, LOCK_UN);
        return r;
    }
    return fetch_fail(f, "unknown operation");
}

static int read_request(struct fetch *f, const struct json *request, const char **ret_op)
{
    const struct json *data = json_get(request, "data");
    *ret_op = json_str(json_get(request, "op"));
    f->root = json_str(json_get(request, "root"));
    f->shared = json_bool(json_get(request, "shared"));
    if (*ret_op == NULL || f->root == NULL || !path_is_clean_absolute(f->root) ||
        json_type(data) != JSON_OBJECT) {
        f->root = "";
        return fetch_fail(f, "malformed request");
    }
    f->data = data;
    return 0;
}

void fetch_write_error(const char *text, const char *class, struct buf *out)
{
    struct jw w = JW_INIT(out);
    buf_reset(out);
    jw_object(&w);
    jw_kstr(&w, "error", text);
    jw_kstr(&w, "class", class);
    jw_object_end(&w);
    (void)jw_end(&w); /* a message always fits */
}

void fetch_run(int root_fd, const struct fetch_input *in, struct buf *out)
{
    struct fetch f = {.root_fd = root_fd,
                      .root = "",
                      .zip = in->zip,
                      .zip_len = in->zip_len,
                      .source = in->source};
    struct err err = {0};
    struct jw w = JW_INIT(out);
    AUTO(json) struct json *request = NULL;
    const char *op = NULL;
    buf_init(&f.why, FETCH_WHY_MAX);
    f.out = &w;
    jw_object(&w);
    jw_kobject(&w, "data");
    int r = json_parse(in->request, in->request_len, &request, &err);
    if (r < 0)
        (void)fetch_fail(&f, "%s", err.msg);
    else
        r = read_request(&f, request, &op);
    if (r == 0)
        r = run_op(&f, op);
    if (r == 0) {
        jw_object_end(&w);
        jw_object_end(&w);
        r = jw_end(&w);
        if (r < 0)
            (void)fetch_fail(&f, "Skill listing exceeds the configured text limit");
    }
    if (r < 0)
        fetch_write_error(f.why.len > 0 ? buf_str(&f.why) : "unknown error", f.why_class, out);
    buf_done(&f.why);
}
