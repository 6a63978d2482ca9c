/* SPDX-License-Identifier: Apache-2.0 */

/* Skills out of an uploaded archive: everything that the directory of the archive says is judged
 * before the first byte is written, what comes out is counted again, and the skills found in it are
 * shown or installed. */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <zip.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "base/strv.h"
#include "fetch/fetch_internal.h"
#include "fetch/job.h"
#include "fetch/zipdir.h"
#include "spec/spec.h"

#define CHUNK 65536U
#define ENTRIES_MAX 512U
#define FILE_MAX (16U << 20)
#define TOTAL_MAX (64U << 20)
#define RATIO_MAX 100U
#define DEFAULT_FILENAME "skill.zip"
#define DEFAULT_SUFFIX "upload"
#define DEFAULT_STEM "uploaded-skill"

struct unzip_item {
    char *name; /* owned; as the archive has it, as UTF-8 */
    char *path; /* owned; normalised and relative, the place below the target */
    bool dir, executable;
    uint64_t size;
};

struct unzip {
    struct unzip_item *items; /* owned; in the order of the archive */
    size_t n;
    zip_t *archive; /* owned */
};

static void unzip_done(struct unzip *z)
{
    for (size_t i = 0; i < z->n; i++) {
        free(z->items[i].name);
        free(z->items[i].path);
    }
    free(z->items);
    if (z->archive != NULL)
        zip_discard(z->archive);
}
DEFINE_CLEANUP_DONE(unzip)

static int not_a_zip(struct fetch *f)
{
    return fetch_fail(f, "Uploaded file must be a valid .zip archive");
}

static int open_library(struct fetch *f, const struct zipdir *dir, struct unzip *z)
{
    zip_error_t error;
    zip_error_init(&error);
    zip_source_t *source = zip_source_buffer_create(f->zip, f->zip_len, 0, &error);
    if (source != NULL) {
        z->archive = zip_open_from_source(source, ZIP_RDONLY, &error);
        if (z->archive == NULL)
            zip_source_free(source);
    }
    zip_error_fini(&error);
    if (z->archive == NULL || zip_get_num_entries(z->archive, 0) != (zip_int64_t)dir->n)
        return not_a_zip(f);
    return 0;
}

/* The library reads the archive in its own way; what it sees must be what was judged. */
static int check_library(struct fetch *f, const struct zipdir *dir, const struct unzip *z)
{
    const zip_uint64_t wanted = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    for (size_t i = 0; i < dir->n; i++) {
        zip_stat_t st;
        zip_stat_init(&st);
        if (zip_stat_index(z->archive, i, 0, &st) < 0 || (st.valid & wanted) != wanted ||
            st.size != dir->entries[i].size || st.comp_size != dir->entries[i].compressed ||
            st.comp_method != dir->entries[i].method)
            return not_a_zip(f);
    }
    return 0;
}

/* The name as UTF-8; archives without the mark for it may use the code page of old. */
static int decode_name(struct fetch *f, const struct zipdir_entry *e, const struct unzip *z,
                       size_t index, char **ret)
{
    if (e->name_len == 0 || memchr(e->name, '\0', e->name_len) != NULL)
        return fetch_fail(f, "Archive contains an unsafe empty or NUL path");
    if (utf8_valid(e->name, e->name_len)) {
        *ret = xstrndup(e->name, e->name_len);
        return 0;
    }
    const char *converted =
        e->flags & ZIPDIR_UTF8 ? NULL : zip_get_name(z->archive, index, ZIP_FL_ENC_GUESS);
    if (converted == NULL || !utf8_valid(converted, strlen(converted)))
        return not_a_zip(f);
    *ret = xstrdup(converted);
    return 0;
}

/* Components that no file system takes would fail in the middle of writing. */
static bool too_long(const char *path)
{
    size_t total = strlen(path);
    for (const char *s = path; *s != '\0';) {
        size_t n = strcspn(s, "/");
        if (n > NAME_MAX)
            return true;
        s += n + (s[n] == '/');
    }
    return total >= FETCH_PATH_MAX / 2;
}

static void turn_backslashes(char *path)
{
    for (char *s = path; (s = strchr(s, '\\')) != NULL;)
        *s = '/';
}

static int check_path(struct fetch *f, struct unzip_item *item)
{
    AUTO_FREE char *turned = xstrdup(item->name);
    turn_backslashes(turned);
    size_t len = strlen(turned), first = strcspn(turned, "/");
    item->dir = turned[len - 1] == '/';
    item->path = fetch_normal(turned);
    if (turned[0] == '/' || str_eq(item->path, ".") || str_eq(item->path, "..") ||
        str_starts(item->path, "../") || item->path[0] == '/' || (first >= 2 && turned[1] == ':') ||
        too_long(item->path))
        return fetch_fail(f, "Archive contains an unsafe path: %s", item->name);
    return 0;
}

/* The same place twice, or something below what is a file. */
static int check_clash(struct fetch *f, const struct unzip *z, const struct unzip_item *item)
{
    for (size_t i = 0; i < z->n; i++) {
        const struct unzip_item *other = &z->items[i];
        size_t mine = strlen(item->path), theirs = strlen(other->path);
        bool same = str_eq(item->path, other->path);
        bool below = !other->dir && mine > theirs && item->path[theirs] == '/' &&
                     memcmp(item->path, other->path, theirs) == 0;
        bool above = !item->dir && theirs > mine && other->path[mine] == '/' &&
                     memcmp(item->path, other->path, mine) == 0;
        if (same || below || above)
            return fetch_fail(f, "Archive contains a duplicate path: %s", item->name);
    }
    return 0;
}

static int check_kind(struct fetch *f, const struct zipdir_entry *e, struct unzip_item *item)
{
    mode_t mode = e->attributes >> 16, type = mode & S_IFMT;
    if (type == S_IFLNK)
        return fetch_fail(f, "Archive contains a symbolic link: %s", item->name);
    if (type != 0 && type != (item->dir ? S_IFDIR : S_IFREG))
        return fetch_fail(f, "Archive contains a non-regular entry: %s", item->name);
    item->executable = (mode & 0111) != 0;
    return 0;
}

static bool ratio_exceeded(uint64_t size, uint64_t compressed)
{
    return size > 0 && (compressed == 0 || size > compressed * RATIO_MAX);
}

static int check_size(struct fetch *f, const struct zipdir_entry *e, const struct unzip_item *item)
{
    if (item->dir)
        return e->size != 0
                   ? fetch_fail(f, "Archive directory has unexpected content: %s", item->name)
                   : 0;
    if (e->size > FILE_MAX)
        return fetch_fail(f, "Archive entry exceeds the uncompressed size limit: %s", item->name);
    if (ratio_exceeded(e->size, e->compressed))
        return fetch_fail(f, "Archive entry exceeds the compression ratio limit: %s", item->name);
    if (e->flags & ZIPDIR_ENCRYPTED)
        return fetch_fail(f, "Archive entry is encrypted: %s", item->name);
    if (e->method != ZIPDIR_STORED && e->method != ZIPDIR_DEFLATED)
        return fetch_fail(f, "Archive entry uses an unsupported compression method: %s",
                          item->name);
    return 0;
}

static int judge_entries(struct fetch *f, const struct zipdir *dir, struct unzip *z)
{
    uint64_t compressed = 0, size = 0;
    z->items = xnew_n(struct unzip_item, dir->n + 1);
    for (size_t i = 0; i < dir->n; i++) {
        const struct zipdir_entry *e = &dir->entries[i];
        struct unzip_item item = {.size = e->size};
        int r = decode_name(f, e, z, i, &item.name);
        if (r == 0)
            r = check_path(f, &item);
        if (r == 0)
            r = check_clash(f, z, &item);
        if (r == 0)
            r = check_kind(f, e, &item);
        if (r == 0)
            r = check_size(f, e, &item);
        z->items[z->n++] = item; /* freed with the others */
        if (r < 0)
            return r;
        compressed += e->compressed;
        size += e->size;
        if (compressed > FETCH_ZIP_MAX)
            return fetch_fail(f, "Archive exceeds the compressed size limit");
        if (size > TOTAL_MAX)
            return fetch_fail(f, "Archive exceeds the total uncompressed size limit");
    }
    if (ratio_exceeded(size, compressed))
        return fetch_fail(f, "Archive exceeds the aggregate compression ratio limit");
    return 0;
}

/* Opens the archive of the job and judges it. */
static int unzip_open(struct fetch *f, struct unzip *z)
{
    AUTO_DONE(zipdir) struct zipdir dir = {0};
    if (f->zip == NULL || f->zip_len == 0)
        return fetch_fail(f, "Uploaded file is empty");
    if (f->zip_len > FETCH_ZIP_MAX)
        return fetch_fail(f, "Uploaded archive exceeds the compressed size limit (%u bytes)",
                          FETCH_ZIP_MAX);
    int r = zipdir_read((const uint8_t *)f->zip, f->zip_len, ENTRIES_MAX, &dir);
    if (r == -E2BIG)
        return fetch_fail(f, "Archive contains too many entries (maximum %u)", ENTRIES_MAX);
    if (r < 0)
        return not_a_zip(f);
    r = open_library(f, &dir, z);
    if (r == 0)
        r = judge_entries(f, &dir, z);
    return r < 0 ? r : check_library(f, &dir, z);
}

/* What the library says at the end of an entry: its content is not what the header announced, or
 * its bytes are damaged. */
static int read_error(struct fetch *f, zip_file_t *file, const struct unzip_item *item)
{
    int code = zip_error_code_zip(zip_file_get_error(file));
    if (code == ZIP_ER_INCONS || code == ZIP_ER_EOF)
        return fetch_fail(f, "Archive entry size changed while extracting: %s", item->name);
    return not_a_zip(f);
}

static int copy_out(struct fetch *f, zip_file_t *file, const struct unzip_item *item, int fd)
{
    static char chunk[CHUNK];
    uint64_t total = 0;
    for (;;) {
        zip_int64_t n = zip_fread(file, chunk, sizeof(chunk));
        if (n < 0)
            return read_error(f, file, item);
        total += (uint64_t)n;
        if (total > item->size || (n == 0 && total < item->size))
            return fetch_fail(f, "Archive entry size changed while extracting: %s", item->name);
        if (n == 0)
            return 0;
        int r = fd_write_all(fd, chunk, (size_t)n);
        if (r < 0)
            return fetch_fail_sys(f, -r, item->path);
    }
}

static int extract_file(struct fetch *f, struct unzip *z, size_t index, const char *path)
{
    const struct unzip_item *item = &z->items[index];
    int r = fetch_make_parents(f, path);
    if (r < 0)
        return r;
    AUTO_CLOSE int fd = fetch_open(f, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fetch_fail_sys(f, -fd, path);
    zip_file_t *file = zip_fopen_index(z->archive, index, 0);
    if (file == NULL)
        return not_a_zip(f);
    r = copy_out(f, file, item, fd);
    (void)zip_fclose(file);
    if (r == 0 && fchmod(fd, item->executable ? 0755 : 0644) < 0)
        r = fetch_fail_sys(f, errno, path);
    return r;
}

/* Writes all of it into the directory `rel`, which is there, new and empty. */
static int unzip_extract(struct fetch *f, struct unzip *z, const char *rel)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < z->n; i++) {
        AUTO_FREE char *path = fetch_join(rel, z->items[i].path);
        r = z->items[i].dir ? fetch_make_dirs(f, path) : extract_file(f, z, i, path);
    }
    return r;
}

/* The skills in it. */

struct skill_candidate {
    struct skill skill;
    char *source; /* owned; the package below the archive's root, "": the root itself */
    char *target; /* owned; the directory in the store that it would get */
};

struct skill_upload {
    char *root;                    /* owned; the archive's root below the store's */
    struct skill_candidate *items; /* owned; by source */
    size_t n;
};

static void skill_upload_done(struct skill_upload *u)
{
    for (size_t i = 0; i < u->n; i++) {
        skill_done(&u->items[i].skill);
        free(u->items[i].source);
        free(u->items[i].target);
    }
    free(u->items);
    free(u->root);
}
DEFINE_CLEANUP_DONE(skill_upload)

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

/* Python's strip() and then no slash at either end, every backslash turned over. */
static char *trim_slashes(const char *text)
{
    AUTO_FREE char *bare = str_strip(text);
    turn_backslashes(bare);
    size_t start = strspn(bare, "/");
    size_t len = strlen(bare);
    while (len > start && bare[len - 1] == '/')
        len--;
    return xstrndup(bare + start, len - start);
}

/* An archive of one directory is that directory. */
static int descend(struct fetch *f, struct skill_upload *u)
{
    AUTO_STRV char **names = NULL;
    int r = fetch_names(f, u->root, ENTRIES_MAX, &names);
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

static int enter_subdir(struct fetch *f, struct skill_upload *u)
{
    AUTO_FREE char *given = NULL;
    int r = fetch_option(f, f->data, "source_subdir", &given);
    if (r < 0 || given == NULL)
        return r;
    AUTO_FREE char *subdir = trim_slashes(given);
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

static int extract_upload(struct fetch *f, struct skill_upload *u)
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
    const struct skill_candidate *x = a, *y = b;
    return strcmp(x->source, y->source);
}

static int name_targets(struct fetch *f, struct skill_upload *u)
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

static int find_candidates(struct fetch *f, struct skill_upload *u)
{
    AUTO_STRV char **found = NULL;
    int r = extract_upload(f, u);
    if (r == 0)
        r = skill_scan(f, u->root, &found);
    if (r < 0)
        return r;
    assert(found != NULL);
    u->items = xnew_n(struct skill_candidate, strv_len(found));
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
    AUTO_DONE(skill_upload) struct skill_upload u = {0};
    int r = find_candidates(f, &u);
    if (r < 0)
        return r;
    jw_karray(f->out, "skills");
    for (size_t i = 0; i < u.n; i++) {
        AUTO_FREE char *target = fetch_path(f, u.items[i].target);
        jw_object(f->out);
        skill_write(f, &u.items[i].skill, target, u.items[i].source);
        jw_object_end(f->out);
    }
    jw_array_end(f->out);
    return 0;
}

static void add_wanted(char ***wanted, const char *text)
{
    AUTO_FREE char *normal = trim_slashes(text);
    for (size_t i = 0; *wanted != NULL && (*wanted)[i] != NULL; i++)
        if (str_eq((*wanted)[i], normal))
            return;
    strv_push(wanted, TAKE_PTR(normal));
}

static int wanted_list(struct fetch *f, const struct json *list, char ***ret)
{
    size_t n = json_type(list) == JSON_ARRAY ? json_len(list) : 0;
    if (n > ENTRIES_MAX)
        return fetch_fail(f, "too many source_paths (maximum %u)", ENTRIES_MAX);
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
    AUTO_FREE char *normal = one != NULL ? trim_slashes(one) : NULL;
    if (normal != NULL && *normal != '\0')
        add_wanted(ret, normal);
    return r;
}

static char *list_sources(const struct skill_upload *u)
{
    AUTO_STRV char **names = NULL;
    for (size_t i = 0; i < u->n; i++)
        strv_add(&names, u->items[i].source);
    return fetch_list(names);
}

/* Marks what is to be installed, in the order of the request. */
static int select_candidates(struct fetch *f, struct skill_upload *u,
                             const struct skill_candidate **ret, size_t *ret_n)
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

static int check_targets(struct fetch *f, const struct skill_candidate *const *chosen, size_t n)
{
    struct stat st;
    for (size_t i = 0; i < n; i++) {
        AUTO_FREE char *path = fetch_path(f, chosen[i]->target);
        for (size_t k = 0; k < i; k++)
            if (str_eq(chosen[k]->target, chosen[i]->target))
                return fetch_fail(f, "Duplicate target directory selected: %s", path);
        if (fstatat(f->root_fd, chosen[i]->target, &st, AT_SYMLINK_NOFOLLOW) == 0)
            return fetch_fail(f, "Skill directory already exists: %s", path);
    }
    return 0;
}

/* What failed stays said. */
static void roll_back(struct fetch *f, const struct skill_candidate *const *chosen, size_t n)
{
    AUTO_FREE char *why = xstrdup(buf_str(&f->why));
    for (size_t i = 0; i < n; i++)
        (void)fetch_remove_tree(f, chosen[i]->target);
    (void)fetch_fail(f, "%s", why);
}

static int install_skill(struct fetch *f, const struct skill_upload *u,
                         const struct skill_candidate *c, struct skill *ret)
{
    AUTO_FREE char *from = fetch_join(u->root, c->source);
    AUTO_FREE char *path = fetch_path(f, c->target);
    int r = fetch_move(f, from, c->target);
    if (r == -EEXIST)
        return fetch_fail(f, "Skill directory already exists: %s", path);
    if (r < 0)
        return r;
    r = skill_load(f, c->target, ret);
    if (r < 0)
        roll_back(f, &c, 1);
    return r;
}

int op_install_zip(struct fetch *f)
{
    AUTO_DONE(skill_upload) struct skill_upload u = {0};
    AUTO_DONE(skills_found) struct skills_found installed = {0};
    size_t n = 0;
    int r = find_candidates(f, &u);
    if (r < 0)
        return r;
    AUTO_FREE const struct skill_candidate **chosen =
        xnew_n(const struct skill_candidate *, u.n + 1);
    r = select_candidates(f, &u, chosen, &n);
    if (r == 0)
        r = check_targets(f, chosen, n);
    if (r < 0)
        return r;
    installed.items = xnew_n(struct skill, n + 1);
    for (; installed.n < n; installed.n++) {
        r = install_skill(f, &u, chosen[installed.n], &installed.items[installed.n]);
        if (r < 0) {
            roll_back(f, chosen, installed.n);
            return r;
        }
    }
    skills_write(f, &installed);
    return 0;
}
