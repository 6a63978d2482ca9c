/* SPDX-License-Identifier: Apache-2.0 */

/* The skill store: packages, which are directories with an entry file, and the operations that
 * list, get, create, update, delete and find them. */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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
#define SCAN_DEPTH 2U
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
static struct skill skill_take(struct skill *s)
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

static int skill_check_name(struct fetch *f, const char *name)
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

/* The first of the names (ending with NULL) that is a file in the directory; NULL: none is. */
static const char *first_file(const struct fetch *f, const char *rel, const char *const *names)
{
    for (; *names != NULL; names++) {
        AUTO_FREE char *path = fetch_join(rel, *names);
        if (fetch_type(f, path) == S_IFREG)
            return *names;
    }
    return NULL;
}

/* The name of the entry file; NULL: this is no package. */
static const char *skill_entry(const struct fetch *f, const char *rel)
{
    static const char *const names[] = {ENTRY, "skill.md", NULL};
    return first_file(f, rel, names);
}

static bool is_python_project(const struct fetch *f, const char *rel)
{
    static const char *const files[] = {"requirements.txt", "pyproject.toml", "setup.py",
                                        "setup.cfg", NULL};
    AUTO_FREE char *venv = fetch_join(rel, ".venv");
    return first_file(f, rel, files) != NULL || fetch_is_dir(f, venv);
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
    AUTO_DONE(buf) struct buf text = BUF_INIT(FETCH_TEXT_MAX);
    AUTO_DONE(frontmatter) struct frontmatter fm = {0};
    AUTO_FREE char *root = fetch_path(f, rel);
    struct err err = {0};
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
    *ret = skill_take(&s);
    return 0;
}

static int skill_save(struct fetch *f, const struct skill *s)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(FETCH_TEXT_MAX);
    AUTO_FREE char *path = fetch_join(s->rel, ENTRY);
    const struct frontmatter fm = {
        .name = s->name, .display_name = s->display_name, .description = s->description};
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

void skill_write(const struct fetch *f, const struct skill *s, const char *package_root,
                 const char *source_path)
{
    char created[48], updated[48];
    struct jw *w = f->out;
    AUTO_FREE char *path = package_root == NULL ? fetch_path(f, s->rel) : NULL;
    format_time(&s->created, created);
    format_time(&s->updated, updated);
    jw_kstr(w, "name", s->name);
    jw_kstr(w, "display_name", s->display_name);
    jw_kstr(w, "description", s->description);
    jw_kstrn(w, "instructions", s->instructions, s->instructions_len);
    jw_kstr(w, "package_root", package_root != NULL ? package_root : path);
    jw_kstr(w, "entry_file", s->entry_file);
    jw_kbool(w, "python_project", s->python_project);
    jw_kstr(w, "created_at", created);
    jw_kstr(w, "updated_at", updated);
    if (source_path != NULL)
        jw_kstr(w, "source_path", source_path);
}

void skills_write(const struct fetch *f, const struct skills_found *l)
{
    jw_karray(f->out, "skills");
    for (size_t i = 0; i < l->n; i++) {
        jw_object(f->out);
        skill_write(f, &l->items[i], NULL, NULL);
        jw_object_end(f->out);
    }
    jw_array_end(f->out);
}

struct skill_place {
    char *rel; /* owned */
    unsigned depth;
};

struct queue {
    struct skill_place *items; /* owned */
    size_t first, n, cap;
};

static void queue_done(struct queue *q)
{
    for (size_t i = q->first; i < q->n; i++)
        free(q->items[i].rel);
    free(q->items);
}
DEFINE_CLEANUP_DONE(queue)

static void queue_add(struct queue *q, struct skill_place at)
{
    if (q->n == q->cap) {
        q->cap = q->cap > 0 ? 2 * q->cap : 64;
        q->items = xreallocarray(q->items, q->cap, sizeof(*q->items));
    }
    q->items[q->n++] = at;
}

/* The directories in a directory. One that cannot be read has none. */
static int look_into(struct fetch *f, const struct skill_place *at, struct queue *q)
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
            queue_add(q, (struct skill_place){TAKE_PTR(rel), at->depth + 1});
    }
    return 0;
}

/* Directories with an entry file below and including `rel`, breadth first, by name. */
static int skill_discover(struct fetch *f, const char *rel, unsigned max_depth, char ***ret)
{
    AUTO_DONE(queue) struct queue q = {0};
    AUTO_STRV char **found = NULL;
    size_t n = 0;
    f->scanned = 0;
    queue_add(&q, (struct skill_place){xstrdup(rel), 0});
    while (q.first < q.n) {
        struct skill_place at = q.items[q.first++];
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

int skill_scan(struct fetch *f, const char *rel, char ***ret)
{
    AUTO_FREE char *shown = fetch_path(f, rel);
    int r = skill_discover(f, rel, SCAN_DEPTH, ret);
    if (r == 0 && *ret == NULL)
        r = fetch_fail(f, "No SKILL.md found in %s or its subdirectories (max depth: %u)", shown,
                       SCAN_DEPTH);
    return r;
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

static int skill_list(struct fetch *f, struct skills_found *ret)
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

/* 1: the skill of that name, moved out of the list; 0: there is none. */
static int skill_find(struct fetch *f, const char *name, struct skill *ret)
{
    AUTO_DONE(skills_found) struct skills_found l = {0};
    int r = skill_list(f, &l);
    for (size_t i = 0; r == 0 && i < l.n; i++) {
        if (!str_eq(l.items[i].name, name))
            continue;
        *ret = skill_take(&l.items[i]);
        return 1;
    }
    return r;
}

int skill_require(struct fetch *f, const char *name, struct skill *ret)
{
    int r = skill_find(f, name, ret);
    if (r == 0)
        return fetch_fail(f, "Skill \"%s\" not found", name);
    return r < 0 ? r : 0;
}

/* Operations. */

static void answer_skill(struct fetch *f, const struct skill *s)
{
    if (s == NULL) {
        jw_knull(f->out, "skill");
        return;
    }
    jw_kobject(f->out, "skill");
    skill_write(f, s, NULL, NULL);
    jw_object_end(f->out);
}

int op_list(struct fetch *f)
{
    AUTO_DONE(skills_found) struct skills_found l = {0};
    int r = skill_list(f, &l);
    if (r == 0)
        skills_write(f, &l);
    return r;
}

int op_get(struct fetch *f)
{
    AUTO_FREE char *name = NULL;
    AUTO_DONE(skill) struct skill s = {0};
    int r = fetch_need(f, f->data, "name", &name);
    if (r == 0)
        r = skill_find(f, name, &s);
    if (r < 0)
        return r;
    answer_skill(f, r > 0 ? &s : NULL);
    return 0;
}

/* The path below the root that an absolute path names, by its text; NULL: it is elsewhere. */
static char *below_root(const struct fetch *f, const char *path)
{
    size_t len = strlen(f->root);
    AUTO_FREE char *normal = fetch_normal(path);
    if (strncmp(normal, f->root, len) != 0 || (normal[len] != '\0' && normal[len] != '/'))
        return NULL;
    return xstrdup(normal[len] == '/' ? normal + len + 1 : "");
}

/* The object with the fields of a skill. */
static int skill_member(struct fetch *f, const struct json **ret)
{
    const struct json *v = json_get(f->data, "skill");
    if (v == NULL)
        return fetch_fail_key(f, "skill");
    if (json_type(v) != JSON_OBJECT)
        return fetch_fail(f, "skill must be an object");
    *ret = v;
    return 0;
}

/* The path below the root that a request names by an absolute path; NULL: it names none. */
static int package_root_of(struct fetch *f, const struct json *skill, char **ret)
{
    AUTO_FREE char *path = NULL;
    int r = fetch_option(f, skill, "package_root", &path);
    if (r < 0 || path == NULL || *path == '\0')
        return r;
    *ret = below_root(f, path);
    if (*ret == NULL)
        return fetch_fail(f, "package_root must stay within the Workspace skill root");
    if (!fetch_is_dir(f, *ret))
        return fetch_fail(f, "Directory does not exist: %s", path);
    return 0;
}

/* One text of a skill, as the request has it. A member that is missing leaves what is there; with
 * `keep`, for a new skill, null and blanks leave what was imported. Else null empties it. */
static int text_field(struct fetch *f, const struct json *skill, const char *key, bool keep,
                      char **field)
{
    const struct json *v = json_get(skill, key);
    AUTO_FREE char *text = NULL;
    if (v == NULL || (keep && json_type(v) == JSON_NULL))
        return 0;
    int r = fetch_text(f, v, &text);
    if (r < 0)
        return r;
    AUTO_FREE char *bare = str_strip(text);
    if (keep && *bare == '\0' && *field != NULL)
        return 0;
    free(*field);
    *field = TAKE_PTR(text);
    return 0;
}

/* Instructions may hold anything that JSON can say, U+0000 too. */
static int instructions_field(struct fetch *f, const struct json *skill, bool keep, struct skill *s)
{
    const struct json *v = json_get(skill, "instructions");
    AUTO_FREE char *text = NULL;
    if (v == NULL || (keep && json_type(v) == JSON_NULL))
        return 0;
    if (json_type(v) != JSON_STRING) {
        int r = fetch_text(f, v, &text);
        if (r < 0)
            return r;
    }
    const char *from = text != NULL ? text : json_str(v);
    size_t len = text != NULL ? strlen(text) : json_str_len(v);
    AUTO_FREE char *bare = str_strip(from);
    if (keep && *bare == '\0' && strlen(from) == len && s->instructions != NULL)
        return 0;
    free(s->instructions);
    s->instructions = xcalloc(1, len + 1);
    memcpy(s->instructions, from, len);
    s->instructions_len = len;
    return 0;
}

static int fill_skill(struct fetch *f, const struct json *skill, bool keep, struct skill *s)
{
    int r = text_field(f, skill, "display_name", keep, &s->display_name);
    if (r == 0)
        r = text_field(f, skill, "description", keep, &s->description);
    return r < 0 ? r : instructions_field(f, skill, keep, s);
}

/* Shows what the store makes of a skill that was written; `otherwise`: it does not find it. */
static int answer_stored(struct fetch *f, const char *name, const char *otherwise)
{
    AUTO_DONE(skill) struct skill stored = {0};
    int r = skill_find(f, name, &stored);
    if (r == 0)
        return fetch_fail(f, "%s", otherwise);
    if (r > 0)
        answer_skill(f, &stored);
    return r < 0 ? r : 0;
}

static int save_and_answer(struct fetch *f, const struct skill *s, const char *otherwise)
{
    int r = skill_save(f, s);
    return r < 0 ? r : answer_stored(f, s->name, otherwise);
}

/* A new directory gets its entry file before it gets its name: a job that is killed leaves no half
 * of a skill. */
static int create_new(struct fetch *f, struct skill *s, const char *otherwise)
{
    AUTO_DONE(skill) struct skill there = {0};
    AUTO_FREE char *path = fetch_path(f, s->name);
    s->rel = xstrdup(s->name);
    if (fetch_is_dir(f, s->rel)) {
        /* The directory holds other files, or a broken package: it becomes this skill. */
        if (skill_entry(f, s->rel) != NULL && skill_load(f, s->rel, &there) == 0)
            return fetch_fail(f, "Skill directory already exists: %s", path);
        fetch_forget(f);
        return save_and_answer(f, s, otherwise);
    }
    int r = fetch_tmp(f);
    if (r < 0)
        return r;
    free(s->rel);
    s->rel = fetch_join(f->tmp, "new");
    r = fetch_make_dirs(f, s->rel);
    if (r == 0)
        r = skill_save(f, s);
    if (r == 0)
        r = fetch_move(f, s->rel, s->name);
    if (r == -EEXIST)
        return fetch_fail(f, "Skill directory already exists: %s", path);
    return r < 0 ? r : answer_stored(f, s->name, otherwise);
}

int op_create(struct fetch *f)
{
    const struct json *skill = NULL;
    AUTO_FREE char *name = NULL, *package = NULL;
    AUTO_DONE(skill) struct skill s = {0}, same = {0};
    int r = skill_member(f, &skill);
    if (r == 0)
        r = fetch_option(f, skill, "name", &name);
    if (r == 0)
        r = skill_check_name(f, name != NULL ? name : "");
    if (r < 0)
        return r;
    r = skill_find(f, name, &same);
    if (r != 0)
        return r < 0 ? r : fetch_fail(f, "Skill with name \"%s\" already exists", name);
    r = package_root_of(f, skill, &package);
    if (r == 0 && package != NULL)
        r = skill_load(f, package, &s);
    if (r < 0)
        return r;
    free(s.name);
    s.name = xstrdup(name);
    r = fill_skill(f, skill, true, &s);
    if (r < 0)
        return r;
    if (s.instructions == NULL)
        s.instructions = xstrdup("");
    AUTO_FREE char *otherwise = xasprintf("Failed to create skill \"%s\"", name);
    return package != NULL ? save_and_answer(f, &s, otherwise) : create_new(f, &s, otherwise);
}

static int check_unchanged(struct fetch *f, const struct json *skill, const struct skill *s)
{
    AUTO_FREE char *name = NULL, *path = NULL;
    int r = fetch_option(f, skill, "name", &name);
    if (r == 0)
        r = fetch_option(f, skill, "package_root", &path);
    if (r < 0)
        return r;
    if (name != NULL && *name != '\0' && !str_eq(name, s->name))
        return fetch_fail(f, "Renaming skills is not supported");
    if (path == NULL || *path == '\0')
        return 0;
    AUTO_FREE char *rel = below_root(f, path);
    if (rel == NULL || !str_eq(rel, s->rel))
        return fetch_fail(f, "Updating package_root is not supported; recreate the skill to "
                             "import a different package");
    return 0;
}

int op_update(struct fetch *f)
{
    const struct json *skill = NULL;
    AUTO_FREE char *name = NULL;
    AUTO_DONE(skill) struct skill s = {0};
    int r = fetch_need(f, f->data, "name", &name);
    if (r == 0)
        r = skill_member(f, &skill);
    if (r == 0)
        r = skill_require(f, name, &s);
    if (r == 0)
        r = check_unchanged(f, skill, &s);
    if (r == 0)
        r = fill_skill(f, skill, false, &s);
    if (r < 0)
        return r;
    AUTO_FREE char *otherwise = xasprintf("Skill \"%s\" not found after update", name);
    return save_and_answer(f, &s, otherwise);
}

int op_delete(struct fetch *f)
{
    AUTO_FREE char *name = NULL;
    AUTO_DONE(skill) struct skill s = {0};
    int r = fetch_need(f, f->data, "name", &name);
    if (r == 0)
        r = skill_require(f, name, &s);
    if (r < 0)
        return r;
    assert(s.rel != NULL);
    if (*s.rel == '\0')
        return fetch_fail(f, "Only managed skills under the Box skills root can be deleted");
    AUTO_FREE char *top = xstrndup(s.rel, strcspn(s.rel, "/"));
    r = fetch_remove_tree(f, top);
    if (r == 0)
        jw_kstr(f->out, "deleted", name);
    return r;
}

int op_scan(struct fetch *f)
{
    AUTO_FREE char *path = NULL, *rel = NULL;
    AUTO_STRV char **found = NULL;
    AUTO_DONE(skill) struct skill s = {0};
    int r = fetch_need(f, f->data, "path", &path);
    if (r < 0)
        return r;
    rel = below_root(f, path);
    if (rel == NULL)
        return fetch_fail(f, "scan path must stay within the Workspace skill root");
    if (!fetch_is_dir(f, rel))
        return fetch_fail(f, "Directory does not exist: %s", path);
    r = skill_scan(f, rel, &found);
    if (r < 0)
        return r;
    if (strv_len(found) > 1) {
        AUTO_STRV char **paths = NULL;
        AUTO_FREE char *shown = fetch_path(f, rel);
        for (size_t i = 0; found[i] != NULL; i++)
            strv_push(&paths, fetch_path(f, found[i]));
        AUTO_FREE char *list = fetch_list(paths);
        return fetch_fail(f,
                          "Multiple skill directories found in %s. Please choose a more specific "
                          "path: %s",
                          shown, list);
    }
    r = skill_load(f, found[0], &s);
    if (r == 0)
        skill_write(f, &s, NULL, NULL);
    return r;
}
