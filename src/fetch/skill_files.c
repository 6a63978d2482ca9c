/* SPDX-License-Identifier: Apache-2.0 */

/* The operations that list, read and write the files of one skill. */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/str.h"
#include "base/strv.h"
#include "fetch/fetch_internal.h"
#include "spec/coerce.h"

#define ENTRIES_MAX 10000U
#define SHOWN_MAX 1000
#define SHOWN_DEFAULT 200
#define QUOTED_MAX 100U

/* Which skill, and where in it. */
struct target {
    struct skill skill;
    char *given;  /* owned; the path as the request has it, trimmed */
    char *normal; /* owned; "." is the package itself */
    char *rel;    /* owned; below the store's root */
};

static void target_done(struct target *t)
{
    skill_done(&t->skill);
    free(t->given);
    free(t->normal);
    free(t->rel);
}
DEFINE_CLEANUP_DONE(target)

/* The kernel refuses a link anywhere on the way (ELOOP) and a way out (EXDEV); clients know both as
 * this sentence. */
static int outside(struct fetch *f)
{
    return fetch_fail(f, "path must stay within the skill package root");
}

static int find_target(struct fetch *f, bool path_needed, struct target *t)
{
    AUTO_FREE char *name = NULL;
    int r = fetch_need(f, f->data, "name", &name);
    if (r == 0 && path_needed && json_get(f->data, "path") == NULL)
        r = fetch_fail_key(f, "path");
    if (r == 0)
        r = skill_require(f, name, &t->skill);
    if (r == 0)
        r = fetch_option(f, f->data, "path", &t->given);
    if (r < 0)
        return r;
    if (t->given == NULL || *t->given == '\0') {
        free(t->given);
        t->given = xstrdup(".");
    }
    if (*t->given == '/')
        return fetch_fail(f, "path must be relative to the skill package root");
    t->normal = fetch_normal(t->given);
    if (str_starts(t->normal, ".."))
        return outside(f);
    if (strlen(t->normal) >= FETCH_PATH_MAX)
        return fetch_fail_sys(f, ENAMETOOLONG, "");
    t->rel = fetch_join(t->skill.rel, t->normal);
    AUTO_CLOSE int fd = fetch_open(f, t->rel, O_PATH, 0); /* a link at the end is refused too */
    return fd == -ELOOP || fd == -EXDEV ? outside(f) : 0;
}

static void answer_start(struct fetch *f, const struct target *t)
{
    jw_kobject(f->out, "skill");
    jw_kstr(f->out, "name", t->skill.name);
    jw_object_end(f->out);
}

/* Python's int(text). */
static int text_to_int(struct fetch *f, const char *text, int64_t *ret)
{
    AUTO_FREE char *bare = str_strip(text);
    char plain[24];
    size_t n = 0;
    bool digit = false, bad = false;
    for (const char *s = bare + (*bare == '+'); *s != '\0' && !bad; s++) {
        if (*s == '_') {
            bad = !digit || s[1] == '_' || s[1] == '\0';
            continue;
        }
        digit = *s >= '0' && *s <= '9';
        bad = (!digit && (*s != '-' || s != bare)) || n + 1 >= sizeof(plain);
        if (!bad)
            plain[n++] = *s;
    }
    plain[n] = '\0';
    if (bad || str_to_i64(plain, ret) < 0)
        return fetch_fail(f, "invalid literal for int() with base 10: '%.*s'",
                          (int)utf8_boundary(text, strnlen(text, QUOTED_MAX)), text);
    return 0;
}

static int max_entries(struct fetch *f, int64_t *ret)
{
    const struct json *v = json_get(f->data, "max_entries");
    enum json_type type = json_type(v);
    int r = 0;
    *ret = SHOWN_DEFAULT;
    if (v == NULL)
        return 0;
    if (type == JSON_STRING)
        r = text_to_int(f, json_str(v), ret);
    else if (type == JSON_BOOL)
        *ret = json_bool(v);
    else if (type == JSON_INT)
        *ret = json_int(v);
    else if (type == JSON_REAL)
        *ret = json_real(v) >= SHOWN_MAX ? SHOWN_MAX : json_real(v) < 1 ? 0 : (int64_t)json_real(v);
    else
        r = fetch_fail(f, "int() argument must be a string, a bytes-like object or a real number");
    if (r < 0)
        return r;
    if (*ret <= 0)
        return fetch_fail(f, "max_entries must be a positive integer");
    *ret = *ret < SHOWN_MAX ? *ret : SHOWN_MAX;
    return 0;
}

/* A link is shown as what it is: neither a directory nor the size of what it points to. */
static void write_entry(struct fetch *f, int dir_fd, const char *base, const char *name)
{
    struct stat st = {0};
    AUTO_FREE char *path = fetch_join(base, name);
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return;
    jw_object(f->out);
    jw_kstr(f->out, "path", path);
    jw_kstr(f->out, "name", name);
    jw_kbool(f->out, "is_dir", S_ISDIR(st.st_mode));
    if (S_ISDIR(st.st_mode))
        jw_knull(f->out, "size");
    else
        jw_kint(f->out, "size", st.st_size);
    jw_object_end(f->out);
}

int op_list_files(struct fetch *f)
{
    AUTO_DONE(target) struct target t = {0};
    AUTO_STRV char **names = NULL;
    int64_t max = 0, shown = 0;
    bool hidden = coerce_truth(json_get(f->data, "include_hidden")), truncated = false;
    int r = max_entries(f, &max);
    if (r == 0)
        r = find_target(f, false, &t);
    if (r < 0)
        return r;
    AUTO_CLOSE int dir = fetch_open_list(f, t.rel);
    if (dir == -ENOENT || dir == -ENOTDIR)
        return fetch_fail(f, "Skill directory not found: %s", t.given);
    r = dir < 0 ? dir : fetch_names(f, t.rel, ENTRIES_MAX, &names);
    if (r == -E2BIG)
        return fetch_fail(f, "Skill directory exceeds the configured entry limit");
    if (r < 0)
        return fetch_fail_sys(f, -r, t.rel);
    answer_start(f, &t);
    jw_kstr(f->out, "base_path", t.normal);
    jw_karray(f->out, "entries");
    for (size_t i = 0; names != NULL && names[i] != NULL && !truncated; i++) {
        if (names[i][0] == '.' && !hidden)
            continue;
        truncated = shown++ == max;
        if (!truncated)
            write_entry(f, dir, t.normal, names[i]);
    }
    jw_array_end(f->out);
    jw_kbool(f->out, "truncated", truncated);
    return 0;
}

int op_read_file(struct fetch *f)
{
    AUTO_DONE(target) struct target t = {0};
    AUTO_DONE(buf) struct buf text = BUF_INIT(FETCH_TEXT_MAX);
    int r = find_target(f, true, &t);
    if (r < 0)
        return r;
    r = fetch_read_text(f, t.rel, &text, NULL, NULL);
    if (r == -ENOENT)
        return fetch_fail(f, "Skill file not found: %s", t.normal);
    if (r == -EFBIG)
        return fetch_fail(f, "Skill file %s exceeds the %u-byte limit", t.normal, FETCH_TEXT_MAX);
    if (r == -EILSEQ)
        return fetch_fail(f, "Skill file %s is not valid UTF-8 text", t.normal);
    if (r == -ELOOP || r == -EXDEV)
        return outside(f);
    if (r < 0)
        return fetch_fail_sys(f, -r, t.rel);
    answer_start(f, &t);
    jw_kstr(f->out, "path", t.normal);
    jw_kstrn(f->out, "content", buf_str(&text), text.len);
    return 0;
}

int op_write_file(struct fetch *f)
{
    AUTO_DONE(target) struct target t = {0};
    const struct json *content = json_get(f->data, "content");
    int r = find_target(f, true, &t);
    if (r < 0)
        return r;
    if (content != NULL && json_type(content) != JSON_STRING)
        return fetch_fail(f, "content must be a string");
    size_t len = content != NULL ? json_str_len(content) : 0;
    if (len > FETCH_TEXT_MAX)
        return fetch_fail(f, "Skill file %s exceeds the %u-byte limit", t.normal, FETCH_TEXT_MAX);
    if (str_eq(t.normal, "."))
        return fetch_fail_sys(f, EISDIR, t.rel);
    r = fetch_make_parents(f, t.rel);
    if (r == 0)
        r = fetch_write_file(f, t.rel, content != NULL ? json_str(content) : "", len);
    if (r == -ELOOP || r == -EXDEV)
        return outside(f);
    if (r < 0)
        return r;
    answer_start(f, &t);
    jw_kstr(f->out, "path", t.normal);
    jw_ku64(f->out, "bytes_written", len);
    return 0;
}
