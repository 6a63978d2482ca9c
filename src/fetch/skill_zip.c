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
#define ZLIB_CONST
#include <zlib.h>

#include "base/alloc.h"
#include "base/buf.h"
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
    const struct zipdir_entry *entry; /* borrowed from the directory */
};

struct unzip {
    struct zipdir dir;
    struct unzip_item *items; /* owned; in the order of the archive */
    size_t n;
};

static void unzip_done(struct unzip *z)
{
    for (size_t i = 0; i < z->n; i++) {
        free(z->items[i].name);
        free(z->items[i].path);
    }
    free(z->items);
    zipdir_done(&z->dir);
}
DEFINE_CLEANUP_DONE(unzip)

static int not_a_zip(struct fetch *f)
{
    return fetch_fail(f, "Uploaded file must be a valid .zip archive");
}

/* The upper half of code page 437, which archives of old have in their names. */
static const char code_page_437[] = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒ"
                                    "áíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐"
                                    "└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀"
                                    "αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u00a0";

static char *from_code_page(const char *name, size_t len)
{
    const char *upper[128], *at = code_page_437;
    struct buf b;
    buf_init(&b, 3 * len + 1);
    for (size_t i = 0; i < ARRAY_SIZE(upper); i++) {
        bool incomplete = false;
        upper[i] = at;
        at += utf8_next(at, sizeof(code_page_437) - 1 - (size_t)(at - code_page_437), &incomplete);
    }
    assert(*at == '\0');
    for (size_t i = 0; i < len; i++) {
        unsigned c = (unsigned char)name[i];
        const char *from = c < 128 ? &name[i] : upper[c - 128];
        const char *end = c < 128 ? from + 1 : c == 255 ? at : upper[c - 127];
        (void)buf_append(&b, from, (size_t)(end - from));
    }
    return buf_take(&b);
}

/* The name as UTF-8; archives without the mark for it may use the code page of old. */
static int decode_name(struct fetch *f, const struct zipdir_entry *e, char **ret)
{
    if (e->name_len == 0 || memchr(e->name, '\0', e->name_len) != NULL)
        return fetch_fail(f, "Archive contains an unsafe empty or NUL path");
    bool valid = utf8_valid(e->name, e->name_len);
    if (!valid && e->flags & ZIPDIR_UTF8)
        return not_a_zip(f);
    *ret = valid ? xstrndup(e->name, e->name_len) : from_code_page(e->name, e->name_len);
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

static int judge_entries(struct fetch *f, struct unzip *z)
{
    uint64_t compressed = 0, size = 0;
    z->items = xnew_n(struct unzip_item, z->dir.n + 1);
    for (size_t i = 0; i < z->dir.n; i++) {
        const struct zipdir_entry *e = &z->dir.entries[i];
        struct unzip_item item = {.entry = e};
        int r = decode_name(f, e, &item.name);
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
    if (f->zip == NULL || f->zip_len == 0)
        return fetch_fail(f, "Uploaded file is empty");
    if (f->zip_len > FETCH_ZIP_MAX)
        return fetch_fail(f, "Uploaded archive exceeds the compressed size limit (%u bytes)",
                          FETCH_ZIP_MAX);
    int r = zipdir_read((const uint8_t *)f->zip, f->zip_len, ENTRIES_MAX, &z->dir);
    if (r == -E2BIG)
        return fetch_fail(f, "Archive contains too many entries (maximum %u)", ENTRIES_MAX);
    if (r < 0)
        return not_a_zip(f);
    return judge_entries(f, z);
}

/* Where an entry goes, and what has come out of it. */
struct unzip_out {
    const struct unzip_item *item; /* borrowed */
    int fd;                        /* borrowed */
    uint64_t total;
    uLong crc;
};

static int size_changed(struct fetch *f, const struct unzip_item *item)
{
    return fetch_fail(f, "Archive entry size changed while extracting: %s", item->name);
}

static int unzip_put(struct fetch *f, struct unzip_out *out, const uint8_t *data, size_t len)
{
    out->total += len;
    if (out->total > out->item->entry->size)
        return size_changed(f, out->item);
    out->crc = crc32(out->crc, data, (uInt)len);
    int r = fd_write_all(out->fd, data, len);
    return r < 0 ? fetch_fail_sys(f, -r, out->item->path) : 0;
}

/* All of the entry's bytes are one deflated stream that ends with them. */
static int unzip_inflate(struct fetch *f, struct unzip_out *out, const uint8_t *data)
{
    static uint8_t chunk[CHUNK];
    z_stream s = {.next_in = data, .avail_in = (uInt)out->item->entry->compressed};
    if (inflateInit2(&s, -MAX_WBITS) != Z_OK)
        return fetch_fail_sys(f, ENOMEM, out->item->path);
    int r = 0, state = Z_OK;
    while (r == 0 && state == Z_OK) {
        s.next_out = chunk;
        s.avail_out = sizeof(chunk);
        state = inflate(&s, Z_NO_FLUSH);
        r = unzip_put(f, out, chunk, sizeof(chunk) - s.avail_out);
    }
    if (r == 0 && state == Z_BUF_ERROR) /* the stream goes on behind the last byte */
        r = size_changed(f, out->item);
    else if (r == 0 && (state != Z_STREAM_END || s.avail_in > 0))
        r = not_a_zip(f);
    (void)inflateEnd(&s);
    return r;
}

static int copy_out(struct fetch *f, const struct unzip_item *item, int fd)
{
    const struct zipdir_entry *e = item->entry;
    struct unzip_out out = {.item = item, .fd = fd, .crc = crc32(0, NULL, 0)};
    const uint8_t *data = (const uint8_t *)f->zip + e->end - e->compressed;
    int r = e->method == ZIPDIR_STORED ? unzip_put(f, &out, data, (size_t)e->compressed)
                                       : unzip_inflate(f, &out, data);
    if (r == 0 && out.total < e->size)
        r = size_changed(f, item);
    return r == 0 && out.crc != e->crc ? not_a_zip(f) : r;
}

static int extract_file(struct fetch *f, const struct unzip_item *item, const char *path)
{
    int r = fetch_make_parents(f, path);
    if (r < 0)
        return r;
    AUTO_CLOSE int fd = fetch_open(f, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fetch_fail_sys(f, -fd, path);
    r = copy_out(f, item, fd);
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
        r = z->items[i].dir ? fetch_make_dirs(f, path) : extract_file(f, &z->items[i], path);
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
