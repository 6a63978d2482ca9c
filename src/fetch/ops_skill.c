/* SPDX-License-Identifier: Apache-2.0 */

/* Operations on skills: list, get, create, update, delete, scan. */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "base/strv.h"
#include "fetch/fetch_internal.h"

#define SCAN_DEPTH 2U

static void answer_skill(struct fetch *f, const struct skill *s)
{
    jw_object(f->out);
    jw_key(f->out, "skill");
    if (s != NULL)
        skill_write(f, f->out, s, NULL, NULL);
    else
        jw_null(f->out);
    jw_object_end(f->out);
}

int op_list(struct fetch *f)
{
    AUTO_DONE(skills_found) struct skills_found l = {0};
    int r = skill_list(f, &l);
    if (r < 0)
        return r;
    jw_object(f->out);
    jw_key(f->out, "skills");
    jw_array(f->out);
    for (size_t i = 0; i < l.n; i++)
        skill_write(f, f->out, &l.items[i], NULL, NULL);
    jw_array_end(f->out);
    jw_object_end(f->out);
    return 0;
}

int op_get(struct fetch *f)
{
    AUTO_FREE char *name = NULL;
    AUTO_DONE(skill) struct skill s = {0};
    int r = fetch_need(f, f->data, "name", &name);
    if (r == 0)
        r = skill_find(f, name, &s);
    if (r < 0 && f->why.len > 0)
        return r;
    answer_skill(f, r == 0 ? &s : NULL);
    return 0;
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
    *ret = fetch_below_root(f, path);
    if (*ret == NULL)
        return fetch_fail(f, "package_root must stay within the Workspace skill root");
    if (!fetch_is_dir(f, *ret))
        return fetch_fail(f, "Directory does not exist: %s", path);
    return 0;
}

/* What the request says about a field; nothing or blanks leave what was imported. */
static int create_field(struct fetch *f, const struct json *skill, const char *key, char **field)
{
    const struct json *v = json_get(skill, key);
    AUTO_FREE char *text = NULL;
    if (v == NULL || json_type(v) == JSON_NULL)
        return 0;
    int r = fetch_text(f, v, &text);
    if (r < 0)
        return r;
    AUTO_FREE char *bare = str_strip(text);
    if (*bare == '\0' && *field != NULL)
        return 0;
    free(*field);
    *field = TAKE_PTR(text);
    return 0;
}

/* Instructions may hold anything that JSON can say, U+0000 too. */
static int instructions_field(struct fetch *f, const struct json *skill, bool keep_on_blank,
                              struct skill *s)
{
    const struct json *v = json_get(skill, "instructions");
    AUTO_FREE char *text = NULL;
    if (v == NULL || (keep_on_blank && json_type(v) == JSON_NULL))
        return 0;
    if (json_type(v) != JSON_STRING) {
        int r = fetch_text(f, v, &text);
        if (r < 0)
            return r;
    }
    const char *from = text != NULL ? text : json_str(v);
    size_t len = text != NULL ? strlen(text) : json_str_len(v);
    AUTO_FREE char *bare = str_strip(from);
    if (keep_on_blank && *bare == '\0' && strlen(from) == len && s->instructions != NULL)
        return 0;
    free(s->instructions);
    s->instructions = xcalloc(1, len + 1);
    memcpy(s->instructions, from, len);
    s->instructions_len = len;
    return 0;
}

/* Writes the entry file, and shows what the store makes of it. */
static int save_and_answer(struct fetch *f, const struct skill *s, const char *otherwise)
{
    AUTO_DONE(skill) struct skill stored = {0};
    int r = skill_save(f, s);
    if (r == 0)
        r = skill_find(f, s->name, &stored);
    if (r == -ENOENT && f->why.len == 0)
        return fetch_fail(f, "%s", otherwise);
    if (r == 0)
        answer_skill(f, &stored);
    return r;
}

/* A new directory gets its entry file before it gets its name: a job that is killed leaves no half
 * of a skill. */
static int create_new(struct fetch *f, struct skill *s, const char *otherwise)
{
    AUTO_DONE(skill) struct skill there = {0};
    AUTO_FREE char *path = fetch_path(f, s->name);
    s->rel = xstrdup(s->name);
    if (fetch_is_dir(f, s->rel)) {
        /* Somebody put files there first, or a broken package: it becomes this skill. */
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
    if (r == 0)
        r = skill_find(f, s->name, &there);
    if (r == -ENOENT && f->why.len == 0)
        return fetch_fail(f, "%s", otherwise);
    if (r == 0)
        answer_skill(f, &there);
    return r;
}

static int fill_new(struct fetch *f, const struct json *skill, struct skill *s)
{
    int r = create_field(f, skill, "display_name", &s->display_name);
    if (r == 0)
        r = create_field(f, skill, "description", &s->description);
    if (r == 0)
        r = instructions_field(f, skill, true, s);
    if (r == 0 && s->instructions == NULL)
        s->instructions = xstrdup("");
    return r;
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
    if (r == 0)
        return fetch_fail(f, "Skill with name \"%s\" already exists", name);
    if (f->why.len > 0)
        return r;
    r = package_root_of(f, skill, &package);
    if (r == 0 && package != NULL)
        r = skill_load(f, package, &s);
    if (r < 0)
        return r;
    free(s.name);
    s.name = xstrdup(name);
    r = fill_new(f, skill, &s);
    if (r < 0)
        return r;
    AUTO_FREE char *otherwise = xasprintf("Failed to create skill \"%s\"", name);
    return package != NULL ? save_and_answer(f, &s, otherwise) : create_new(f, &s, otherwise);
}

/* Fields that are missing keep what they had; null empties one. */
static int update_field(struct fetch *f, const struct json *skill, const char *key, char **field)
{
    const struct json *v = json_get(skill, key);
    AUTO_FREE char *text = NULL;
    int r = v == NULL ? 0 : fetch_text(f, v, &text);
    if (r < 0 || text == NULL)
        return r;
    free(*field);
    *field = TAKE_PTR(text);
    return 0;
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
    AUTO_FREE char *rel = fetch_below_root(f, path);
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
        r = update_field(f, skill, "display_name", &s.display_name);
    if (r == 0)
        r = update_field(f, skill, "description", &s.description);
    if (r == 0)
        r = instructions_field(f, skill, false, &s);
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
    if (r < 0)
        return r;
    jw_object(f->out);
    jw_kstr(f->out, "deleted", name);
    jw_object_end(f->out);
    return 0;
}

int op_scan(struct fetch *f)
{
    AUTO_FREE char *path = NULL, *rel = NULL;
    AUTO_STRV char **found = NULL;
    AUTO_DONE(skill) struct skill s = {0};
    int r = fetch_need(f, f->data, "path", &path);
    if (r < 0)
        return r;
    rel = fetch_below_root(f, path);
    if (rel == NULL)
        return fetch_fail(f, "scan path must stay within the Workspace skill root");
    if (!fetch_is_dir(f, rel))
        return fetch_fail(f, "Directory does not exist: %s", path);
    r = skill_discover(f, rel, SCAN_DEPTH, &found);
    if (r < 0)
        return r;
    AUTO_FREE char *shown = fetch_path(f, rel);
    if (strv_len(found) == 0)
        return fetch_fail(f, "No SKILL.md found in %s or its subdirectories (max depth: %u)", shown,
                          SCAN_DEPTH);
    if (strv_len(found) > 1) {
        AUTO_STRV char **paths = NULL;
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
        skill_write(f, f->out, &s, NULL, NULL);
    return r;
}
