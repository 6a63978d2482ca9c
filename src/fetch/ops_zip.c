/* SPDX-License-Identifier: Apache-2.0 */

/* Skills out of an uploaded archive. */

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "base/strv.h"
#include "fetch/fetch_internal.h"
#include "fetch/unzip.h"
#include "spec/spec.h"

#define PREVIEW_DEPTH 2U
#define DEFAULT_FILENAME "skill.zip"
#define DEFAULT_SUFFIX "upload"
#define DEFAULT_STEM "uploaded-skill"

struct candidate {
    struct skill skill;
    char *source; /* owned; the package below the archive's root, "": the root itself */
    char *target; /* owned; the directory in the store that it would get */
};

struct upload {
    char *root;              /* owned; the archive's root below the store's */
    struct candidate *items; /* owned; by source */
    size_t n;
};

static void upload_done(struct upload *u)
{
    for (size_t i = 0; i < u->n; i++) {
        skill_done(&u->items[i].skill);
        free(u->items[i].source);
        free(u->items[i].target);
    }
    free(u->items);
    free(u->root);
}
DEFINE_CLEANUP_DONE(upload)

/* Of "my skill (2).zip" what may be in a name: "my-skill--2". */
static char *make_stem(const char *filename)
{
    AUTO_FREE char *bare = str_strip(filename);
    char *leaf = bare + (fetch_leaf(bare) - bare);
    char *dot = strrchr(leaf, '.');
    if (dot != NULL && (size_t)(dot - leaf) > strspn(leaf, "."))
        *dot = '\0';
    char *stem = xcalloc(1, strlen(leaf) + 1);
    size_t len = strlen(leaf), n = 0;
    for (const char *s = leaf; len > 0;) {
        bool incomplete = false;
        int size = utf8_next(s, len, &incomplete);
        size_t step = (size_t)(size < 0 ? -size : size);
        char one[8] = "";
        if (size > 0)
            memcpy(one, s, step);
        if (size > 0 && skill_name_valid(one)) {
            memcpy(stem + n, s, step);
            n += step;
        } else {
            stem[n++] = '-';
        }
        s += step;
        len -= step;
    }
    size_t start = strspn(stem, "-_");
    while (n > start && (stem[n - 1] == '-' || stem[n - 1] == '_'))
        n--;
    char *ret = n > start ? xstrndup(stem + start, n - start) : xstrdup(DEFAULT_STEM);
    free(stem);
    return ret;
}

/* A target is one name in the store, whatever the request and the archive put into it. */
static int make_target(struct fetch *f, const char *stem, const char *source, const char *suffix,
                       char **ret)
{
    const char *leaf = fetch_leaf(source);
    bool with_leaf = *leaf != '\0' && !str_eq(leaf, stem);
    AUTO_FREE char *target = xasprintf("%s%s%s%s%s", stem, with_leaf ? "-" : "",
                                       with_leaf ? leaf : "", *suffix != '\0' ? "-" : "", suffix);
    if (strchr(target, '/') != NULL || strlen(target) > NAME_MAX)
        return fetch_fail(f, "Invalid target directory name: %s", target);
    *ret = TAKE_PTR(target);
    return 0;
}

/* An archive of one directory is that directory. */
static int descend(struct fetch *f, struct upload *u)
{
    AUTO_STRV char **names = NULL;
    int r = fetch_names(f, u->root, UNZIP_ENTRIES_MAX, &names);
    if (r < 0)
        return fetch_fail_sys(f, -r, u->root);
    if (strv_len(names) != 1)
        return 0;
    AUTO_FREE char *only = fetch_join(u->root, names[0]);
    if (!fetch_is_dir(f, only))
        return 0;
    free(u->root);
    u->root = TAKE_PTR(only);
    return 0;
}

static int enter_subdir(struct fetch *f, struct upload *u)
{
    AUTO_FREE char *given = NULL;
    int r = fetch_option(f, f->data, "source_subdir", &given);
    if (r < 0 || given == NULL)
        return r;
    AUTO_FREE char *subdir = fetch_slashes(given);
    if (*subdir == '\0')
        return 0;
    AUTO_FREE char *normal = fetch_normal(subdir);
    if (str_starts(normal, "..") || *normal == '/')
        return fetch_fail(f, "source_subdir must stay within the uploaded archive");
    AUTO_FREE char *rel = fetch_join(u->root, normal);
    if (!fetch_is_dir(f, rel))
        return fetch_fail(f, "source_subdir does not exist in the uploaded archive: %s", subdir);
    free(u->root);
    u->root = TAKE_PTR(rel);
    return 0;
}

static int extract(struct fetch *f, struct upload *u)
{
    AUTO_DONE(unzip) struct unzip z = {0};
    int r = unzip_open(f, &z);
    if (r == 0)
        r = fetch_tmp(f);
    if (r < 0)
        return r;
    u->root = fetch_join(f->tmp, "extracted");
    r = fetch_make_dirs(f, u->root);
    if (r == 0)
        r = unzip_extract(f, &z, u->root);
    if (r == 0)
        r = descend(f, u);
    return r < 0 ? r : enter_subdir(f, u);
}

static int by_source(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return strcmp(x->source, y->source);
}

static int name_targets(struct fetch *f, struct upload *u)
{
    AUTO_FREE char *filename = NULL, *suffix = NULL;
    const struct json *v = json_get(f->data, "target_suffix");
    int r = fetch_option(f, f->data, "filename", &filename);
    if (r == 0 && v != NULL)
        r = fetch_text(f, v, &suffix);
    AUTO_FREE char *stem = make_stem(filename != NULL ? filename : DEFAULT_FILENAME);
    for (size_t i = 0; r == 0 && i < u->n; i++)
        r = make_target(f, stem, u->items[i].source, suffix != NULL ? suffix : DEFAULT_SUFFIX,
                        &u->items[i].target);
    return r;
}

static int find_candidates(struct fetch *f, struct upload *u)
{
    AUTO_STRV char **found = NULL;
    int r = extract(f, u);
    if (r == 0)
        r = skill_discover(f, u->root, PREVIEW_DEPTH, &found);
    if (r < 0)
        return r;
    if (strv_len(found) == 0) {
        AUTO_FREE char *root = fetch_path(f, u->root);
        return fetch_fail(f, "No SKILL.md found in %s or its subdirectories (max depth: %u)", root,
                          PREVIEW_DEPTH);
    }
    assert(found != NULL);
    u->items = xnew_n(struct candidate, strv_len(found));
    for (size_t i = 0; found[i] != NULL; i++) {
        const char *below = found[i] + strlen(u->root);
        r = skill_load(f, found[i], &u->items[u->n].skill);
        if (r < 0)
            return r;
        u->items[u->n++].source = xstrdup(*below == '/' ? below + 1 : below);
    }
    qsort(u->items, u->n, sizeof(*u->items), by_source);
    return name_targets(f, u);
}

int op_preview_zip(struct fetch *f)
{
    AUTO_DONE(upload) struct upload u = {0};
    int r = find_candidates(f, &u);
    if (r < 0)
        return r;
    jw_object(f->out);
    jw_key(f->out, "skills");
    jw_array(f->out);
    for (size_t i = 0; i < u.n; i++) {
        AUTO_FREE char *target = fetch_path(f, u.items[i].target);
        skill_write(f, f->out, &u.items[i].skill, target, u.items[i].source);
    }
    jw_array_end(f->out);
    jw_object_end(f->out);
    return 0;
}

static void add_wanted(char ***wanted, const char *text)
{
    AUTO_FREE char *normal = fetch_slashes(text);
    for (size_t i = 0; *wanted != NULL && (*wanted)[i] != NULL; i++)
        if (str_eq((*wanted)[i], normal))
            return;
    strv_push(wanted, TAKE_PTR(normal));
}

static int wanted_list(struct fetch *f, const struct json *list, char ***ret)
{
    size_t n = json_type(list) == JSON_ARRAY ? json_len(list) : 0;
    if (n > UNZIP_ENTRIES_MAX)
        return fetch_fail(f, "too many source_paths (maximum %u)", UNZIP_ENTRIES_MAX);
    for (size_t i = 0; i < n; i++) {
        AUTO_FREE char *text = NULL;
        int r = fetch_text(f, json_at(list, i), &text);
        if (r < 0)
            return r;
        add_wanted(ret, text);
    }
    return 0;
}

/* What the request names, each once. */
static int wanted_sources(struct fetch *f, char ***ret)
{
    AUTO_FREE char *one = NULL;
    int r = wanted_list(f, json_get(f->data, "source_paths"), ret);
    if (r == 0)
        r = fetch_option(f, f->data, "source_path", &one);
    AUTO_FREE char *normal = one != NULL ? fetch_slashes(one) : NULL;
    if (normal != NULL && *normal != '\0')
        add_wanted(ret, normal);
    return r;
}

static char *list_sources(const struct upload *u)
{
    AUTO_STRV char **names = NULL;
    for (size_t i = 0; i < u->n; i++)
        strv_add(&names, u->items[i].source);
    return fetch_list(names);
}

/* Marks what is to be installed, in the order of the request. */
static int select_candidates(struct fetch *f, struct upload *u, const struct candidate **ret,
                             size_t *ret_n)
{
    AUTO_STRV char **wanted = NULL;
    AUTO_FREE char *available = list_sources(u);
    int r = wanted_sources(f, &wanted);
    if (r < 0)
        return r;
    if (wanted == NULL && u->n == 1) {
        ret[(*ret_n)++] = &u->items[0];
        return 0;
    }
    if (wanted == NULL)
        return fetch_fail(f, "Multiple skills found. Please choose one or more source_paths: %s",
                          available);
    for (size_t i = 0; wanted[i] != NULL; i++) {
        size_t at = 0;
        for (; at < u->n && !str_eq(u->items[at].source, wanted[i]); at++)
            ;
        if (at == u->n)
            return fetch_fail(f, "Invalid source_path \"%s\". Available: %s", wanted[i], available);
        ret[(*ret_n)++] = &u->items[at];
    }
    return 0;
}

static int check_targets(struct fetch *f, const struct candidate *const *chosen, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        AUTO_FREE char *path = fetch_path(f, chosen[i]->target);
        for (size_t k = 0; k < i; k++)
            if (str_eq(chosen[k]->target, chosen[i]->target))
                return fetch_fail(f, "Duplicate target directory selected: %s", path);
        if (fetch_exists(f, chosen[i]->target))
            return fetch_fail(f, "Skill directory already exists: %s", path);
    }
    return 0;
}

static int install(struct fetch *f, const struct upload *u, const struct candidate *c,
                   struct skill *ret)
{
    AUTO_FREE char *from = fetch_join(u->root, c->source);
    AUTO_FREE char *path = fetch_path(f, c->target);
    int r = fetch_move(f, from, c->target);
    if (r == -EEXIST)
        return fetch_fail(f, "Skill directory already exists: %s", path);
    if (r < 0)
        return r;
    r = skill_load(f, c->target, ret);
    if (r < 0) {
        AUTO_FREE char *why = xstrdup(buf_str(&f->why));
        (void)fetch_remove_tree(f, c->target);
        (void)fetch_fail(f, "%s", why);
    }
    return r;
}

static void roll_back(struct fetch *f, const struct candidate *const *chosen, size_t n)
{
    AUTO_FREE char *why = xstrdup(buf_str(&f->why));
    for (size_t i = 0; i < n; i++)
        (void)fetch_remove_tree(f, chosen[i]->target);
    (void)fetch_fail(f, "%s", why);
}

int op_install_zip(struct fetch *f)
{
    AUTO_DONE(upload) struct upload u = {0};
    AUTO_DONE(skills_found) struct skills_found installed = {0};
    size_t n = 0;
    int r = find_candidates(f, &u);
    if (r < 0)
        return r;
    AUTO_FREE const struct candidate **chosen = xnew_n(const struct candidate *, u.n + 1);
    r = select_candidates(f, &u, chosen, &n);
    if (r == 0)
        r = check_targets(f, chosen, n);
    if (r < 0)
        return r;
    installed.items = xnew_n(struct skill, n + 1);
    for (; installed.n < n; installed.n++) {
        r = install(f, &u, chosen[installed.n], &installed.items[installed.n]);
        if (r < 0) {
            roll_back(f, chosen, installed.n);
            return r;
        }
    }
    jw_object(f->out);
    jw_key(f->out, "skills");
    jw_array(f->out);
    for (size_t i = 0; i < n; i++)
        skill_write(f, f->out, &installed.items[i], NULL, NULL);
    jw_array_end(f->out);
    jw_object_end(f->out);
    return 0;
}
