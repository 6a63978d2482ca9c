/* SPDX-License-Identifier: Apache-2.0 */

/* A skill package: a directory with an entry file. */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"
#include "fetch/fetch_internal.h"
#include "fetch/frontmatter.h"
#include "spec/spec.h"

#define ENTRY "SKILL.md"
#define NAME_CHARS_MAX 64U
#define LIST_DEPTH 6U
#define LIST_TEXT_MAX (16U << 20)
#define ENTRIES_MAX 10000U
#define PACKAGES_MAX 1000U
#define YEAR_ONE (-62135596800LL) /* what Python's datetime can show */
#define YEAR_LAST 253402300799LL

void skill_done(struct skill *s)
{
    free(s->rel);
    free(s->name);
    free(s->display_name);
    free(s->description);
    free(s->instructions);
    *s = (struct skill){0};
}

void skills_found_done(struct skills_found *l)
{
    for (size_t i = 0; i < l->n; i++)
        skill_done(&l->items[i]);
    free(l->items);
    *l = (struct skills_found){0};
}

/* Leaves nothing that would be freed twice. */
static struct skill take(struct skill *s)
{
    struct skill taken = *s;
    *s = (struct skill){0};
    return taken;
}

/* Letters, digits, hyphens and underscores of any script, and not only the latter two. Returns the
 * number of characters, 0 when there is another one. */
static size_t name_chars(const char *name)
{
    size_t n = 0, len = strlen(name);
    bool letter = false, incomplete = false;
    for (const char *s = name; len > 0; n++) {
        char one[8] = "";
        int size = utf8_next(s, len, &incomplete);
        if (size <= 0)
            return 0;
        memcpy(one, s, (size_t)size);
        if (!skill_name_valid(one))
            return 0;
        letter |= *one != '-' && *one != '_';
        s += size;
        len -= (size_t)size;
    }
    return letter ? n : 0;
}

int skill_check_name(struct fetch *f, const char *name)
{
    if (*name == '\0')
        return fetch_fail(f, "Skill name is required");
    size_t n = name_chars(name);
    if (n == 0)
        return fetch_fail(f,
                          "Skill name can only contain letters, numbers, hyphens and underscores");
    if (n > NAME_CHARS_MAX)
        return fetch_fail(f, "Skill name cannot exceed %u characters", NAME_CHARS_MAX);
    return 0;
}

const char *skill_entry(const struct fetch *f, const char *rel)
{
    static const char *const names[] = {ENTRY, "skill.md"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        AUTO_FREE char *path = fetch_join(rel, names[i]);
        if (fetch_is_file(f, path))
            return names[i];
    }
    return NULL;
}

static bool is_python_project(const struct fetch *f, const char *rel)
{
    static const char *const files[] = {"requirements.txt", "pyproject.toml", "setup.py",
                                        "setup.cfg"};
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        AUTO_FREE char *path = fetch_join(rel, files[i]);
        if (fetch_is_file(f, path))
            return true;
    }
    AUTO_FREE char *venv = fetch_join(rel, ".venv");
    return fetch_is_dir(f, venv);
}

static int entry_error(struct fetch *f, int r, const char *entry, const char *path)
{
    if (r == -EFBIG)
        return fetch_fail(f, "Skill entry file %s exceeds the %u-byte limit", entry,
                          FETCH_TEXT_MAX);
    if (r == -EILSEQ)
        return fetch_fail(f, "Skill entry file %s is not valid UTF-8 text", entry);
    return fetch_fail_sys(f, -r, path);
}

static char *first_of(const char *a, const char *b, const char *c)
{
    return str_strip(a != NULL ? a : b != NULL ? b : c);
}

int skill_load(struct fetch *f, const char *rel, struct skill *ret)
{
    AUTO_DONE(skill) struct skill s = {.rel = xstrdup(rel), .entry_file = skill_entry(f, rel)};
    AUTO_DONE(buf) struct buf text;
    AUTO_DONE(frontmatter) struct frontmatter fm = {0};
    AUTO_FREE char *root = fetch_path(f, rel);
    struct err err = {0};
    buf_init(&text, FETCH_TEXT_MAX);
    if (s.entry_file == NULL)
        return fetch_fail(f, "No " ENTRY " found in %s", root);
    AUTO_FREE char *path = fetch_join(rel, s.entry_file);
    int r = fetch_read_text(f, path, &text, &s.created, &s.updated);
    if (r < 0)
        return entry_error(f, r, s.entry_file, path);
    if (frontmatter_read(buf_str(&text), text.len, &fm, &err) < 0)
        return fetch_fail(f, "%s", err.msg);
    const char *dir_name = fetch_leaf(root);
    s.name = first_of(fm.name, NULL, dir_name);
    s.display_name = first_of(fm.display_name, fm.name, dir_name);
    s.description = first_of(fm.description, NULL, "");
    s.text_len = text.len;
    s.instructions_len = text.len - fm.body;
    s.instructions = xcalloc(1, s.instructions_len + 1); /* a buffer keeps room to grow */
    memcpy(s.instructions, buf_str(&text) + fm.body, s.instructions_len);
    s.python_project = is_python_project(f, rel);
    r = skill_check_name(f, s.name);
    if (r < 0)
        return r;
    *ret = take(&s);
    return 0;
}

int skill_save(struct fetch *f, const struct skill *s)
{
    AUTO_DONE(buf) struct buf text;
    AUTO_FREE char *path = fetch_join(s->rel, ENTRY);
    const struct frontmatter fm = {
        .name = s->name, .display_name = s->display_name, .description = s->description};
    buf_init(&text, FETCH_TEXT_MAX);
    if (frontmatter_write(&fm, s->instructions, s->instructions_len, &text) < 0)
        return entry_error(f, -EFBIG, ENTRY, path);
    return fetch_write_file(f, path, buf_str(&text), text.len);
}

/* As datetime.isoformat() in UTC: without a fraction when there is none. */
static void format_time(const struct timespec *ts, char ret[static 48])
{
    time_t seconds = ts->tv_sec < YEAR_ONE    ? YEAR_ONE
                     : ts->tv_sec > YEAR_LAST ? YEAR_LAST
                                              : ts->tv_sec;
    unsigned micros = (unsigned)(ts->tv_nsec / 1000) % 1000000;
    char fraction[12] = "";
    struct tm tm = {0};
    (void)gmtime_r(&seconds, &tm);
    if (micros > 0)
        (void)snprintf(fraction, sizeof(fraction), ".%06u", micros);
    (void)snprintf(ret, 48, "%04d-%02d-%02dT%02d:%02d:%02d%s+00:00", tm.tm_year + 1900,
                   tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, fraction);
}

void skill_write(const struct fetch *f, struct jw *w, const struct skill *s,
                 const char *package_root, const char *source_path)
{
    char created[48], updated[48];
    AUTO_FREE char *path = package_root == NULL ? fetch_path(f, s->rel) : NULL;
    format_time(&s->created, created);
    format_time(&s->updated, updated);
    jw_object(w);
    jw_kstr(w, "name", s->name);
    jw_kstr(w, "display_name", s->display_name);
    jw_kstr(w, "description", s->description);
    jw_key(w, "instructions");
    jw_strn(w, s->instructions, s->instructions_len);
    jw_kstr(w, "package_root", package_root != NULL ? package_root : path);
    jw_kstr(w, "entry_file", s->entry_file);
    jw_kbool(w, "python_project", s->python_project);
    jw_kstr(w, "created_at", created);
    jw_kstr(w, "updated_at", updated);
    if (source_path != NULL)
        jw_kstr(w, "source_path", source_path);
    jw_object_end(w);
}

struct place {
    char *rel; /* owned */
    unsigned depth;
};

struct queue {
    struct place *items; /* owned */
    size_t first, n, cap;
};

static void queue_done(struct queue *q)
{
    for (size_t i = q->first; i < q->n; i++)
        free(q->items[i].rel);
    free(q->items);
}
DEFINE_CLEANUP_DONE(queue)

static void queue_add(struct queue *q, struct place at)
{
    if (q->n == q->cap) {
        q->cap = q->cap > 0 ? 2 * q->cap : 64;
        q->items = xreallocarray(q->items, q->cap, sizeof(*q->items));
    }
    q->items[q->n++] = at;
}

/* The directories in a directory. One that cannot be read has none. */
static int look_into(struct fetch *f, const struct place *at, struct queue *q)
{
    AUTO_STRV char **names = NULL;
    int r = fetch_names(f, at->rel, ENTRIES_MAX - f->scanned, &names);
    if (r == -E2BIG)
        return fetch_fail(f, "Skill discovery exceeded the configured entry limit");
    if (r < 0)
        return 0;
    f->scanned += strv_len(names);
    for (size_t i = 0; names != NULL && names[i] != NULL; i++) {
        bool top = *at->rel == '\0';
        if (top && ((f->shared && str_eq(names[i], "tenants")) || str_eq(names[i], f->tmp)))
            continue;
        AUTO_FREE char *rel = fetch_join(at->rel, names[i]);
        if (fetch_is_dir(f, rel))
            queue_add(q, (struct place){TAKE_PTR(rel), at->depth + 1});
    }
    return 0;
}

int skill_discover(struct fetch *f, const char *rel, unsigned max_depth, char ***ret)
{
    AUTO_DONE(queue) struct queue q = {0};
    AUTO_STRV char **found = NULL;
    size_t n = 0;
    f->scanned = 0;
    queue_add(&q, (struct place){xstrdup(rel), 0});
    while (q.first < q.n) {
        struct place at = q.items[q.first++];
        AUTO_FREE char *owned = at.rel;
        int r = 0;
        if (skill_entry(f, at.rel) != NULL) {
            if (n++ == PACKAGES_MAX)
                return fetch_fail(f, "Skill discovery exceeded the configured package limit");
            strv_push(&found, TAKE_PTR(owned));
        } else if (at.depth < max_depth) {
            r = look_into(f, &at, &q);
        }
        if (r < 0)
            return r;
    }
    *ret = TAKE_PTR(found);
    return 0;
}

/* By the texts that clients see, the latest first; equal ones stay in the order of discovery. */
static void sort_latest_first(struct skills_found *l)
{
    for (size_t i = 1; i < l->n; i++) {
        struct skill s = l->items[i];
        char mine[48], other[48];
        size_t at = i;
        format_time(&s.updated, mine);
        for (; at > 0; at--) {
            format_time(&l->items[at - 1].updated, other);
            if (strcmp(other, mine) >= 0)
                break;
            l->items[at] = l->items[at - 1];
        }
        l->items[at] = s;
    }
}

int skill_list(struct fetch *f, struct skills_found *ret)
{
    AUTO_STRV char **found = NULL;
    AUTO_DONE(skills_found) struct skills_found l = {0};
    size_t total = 0;
    int r = skill_discover(f, "", LIST_DEPTH, &found);
    if (r < 0)
        return r;
    l.items = xnew_n(struct skill, strv_len(found) + 1);
    for (size_t i = 0; found != NULL && found[i] != NULL; i++) {
        if (skill_load(f, found[i], &l.items[l.n]) < 0) {
            fetch_forget(f); /* one bad package does not hide the others */
            continue;
        }
        total += l.items[l.n++].text_len;
        if (total > LIST_TEXT_MAX)
            return fetch_fail(f, "Skill listing exceeds the configured text limit");
    }
    sort_latest_first(&l);
    *ret = l;
    l = (struct skills_found){0};
    return 0;
}

int skill_find(struct fetch *f, const char *name, struct skill *ret)
{
    AUTO_DONE(skills_found) struct skills_found l = {0};
    int r = skill_list(f, &l);
    for (size_t i = 0; r == 0 && i < l.n; i++) {
        if (!str_eq(l.items[i].name, name))
            continue;
        *ret = take(&l.items[i]);
        return 0;
    }
    return r < 0 ? r : -ENOENT;
}

int skill_require(struct fetch *f, const char *name, struct skill *ret)
{
    int r = skill_find(f, name, ret);
    return r == -ENOENT && f->why.len == 0 ? fetch_fail(f, "Skill \"%s\" not found", name) : r;
}
