/* SPDX-License-Identifier: Apache-2.0 */

/* Judges the entries of a zip archive, then extracts them by libzip. */

#include "fetch/unzip.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "fetch/fetch_internal.h"
#include "fetch/job.h"
#include "fetch/zipdir.h"

#define CHUNK 65536U

void unzip_done(struct unzip *z)
{
    for (size_t i = 0; i < z->n; i++) {
        free(z->items[i].name);
        free(z->items[i].path);
    }
    free(z->items);
    if (z->archive != NULL)
        zip_discard(z->archive);
    *z = (struct unzip){0};
}

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

static int check_path(struct fetch *f, struct unzip_item *item)
{
    AUTO_FREE char *turned = xstrdup(item->name);
    for (char *s = turned; *s != '\0'; s++)
        if (*s == '\\')
            *s = '/';
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
    if (type != 0 && type != S_IFREG && type != S_IFDIR)
        return fetch_fail(f, "Archive contains a non-regular entry: %s", item->name);
    if (type != 0 && (type == S_IFDIR) != item->dir)
        return fetch_fail(f, "Archive contains a non-regular entry: %s", item->name);
    item->executable = (mode & 0111) != 0;
    return 0;
}

static bool ratio_exceeded(uint64_t size, uint64_t compressed)
{
    return size > 0 && (compressed == 0 || size > compressed * UNZIP_RATIO_MAX);
}

static int check_size(struct fetch *f, const struct zipdir_entry *e, const struct unzip_item *item)
{
    if (item->dir)
        return e->size != 0
                   ? fetch_fail(f, "Archive directory has unexpected content: %s", item->name)
                   : 0;
    if (e->size > UNZIP_FILE_MAX)
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

static int judge(struct fetch *f, const struct zipdir *dir, struct unzip *z)
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
        if (size > UNZIP_TOTAL_MAX)
            return fetch_fail(f, "Archive exceeds the total uncompressed size limit");
    }
    if (ratio_exceeded(size, compressed))
        return fetch_fail(f, "Archive exceeds the aggregate compression ratio limit");
    return 0;
}

int unzip_open(struct fetch *f, struct unzip *ret)
{
    AUTO_DONE(unzip) struct unzip z = {0};
    AUTO_DONE(zipdir) struct zipdir dir = {0};
    if (f->zip == NULL || f->zip_len == 0)
        return fetch_fail(f, "Uploaded file is empty");
    if (f->zip_len > FETCH_ZIP_MAX)
        return fetch_fail(f, "Uploaded archive exceeds the compressed size limit (%u bytes)",
                          FETCH_ZIP_MAX);
    int r = zipdir_read((const uint8_t *)f->zip, f->zip_len, UNZIP_ENTRIES_MAX, &dir);
    if (r == -E2BIG)
        return fetch_fail(f, "Archive contains too many entries (maximum %u)", UNZIP_ENTRIES_MAX);
    if (r < 0)
        return not_a_zip(f);
    r = open_library(f, &dir, &z);
    if (r == 0)
        r = judge(f, &dir, &z);
    if (r == 0)
        r = check_library(f, &dir, &z);
    if (r < 0)
        return r;
    *ret = z;
    z = (struct unzip){0};
    return 0;
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
    const char *leaf = fetch_leaf(path);
    AUTO_FREE char *parent = xstrndup(path, leaf > path ? (size_t)(leaf - path - 1) : 0);
    int r = fetch_make_dirs(f, parent);
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

int unzip_extract(struct fetch *f, struct unzip *z, const char *rel)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < z->n; i++) {
        AUTO_FREE char *path = fetch_join(rel, z->items[i].path);
        r = z->items[i].dir ? fetch_make_dirs(f, path) : extract_file(f, z, i, path);
    }
    return r;
}
