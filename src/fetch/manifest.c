/* SPDX-License-Identifier: Apache-2.0 */

/* Parses the manifest of an artifact, and computes its digest. */

#include "fetch/manifest.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

#define ALGORITHM "sha256-tree-v1"

static int wrong(struct err *err, const char *what)
{
    return err_set(err, ERR_INVALID, "Artifact manifest %s", what);
}

bool manifest_is_digest(const char *s)
{
    return s != NULL && strlen(s) == SHA256_HEX && strspn(s, "0123456789abcdef") == SHA256_HEX;
}

/* Exactly these members: the parser has refused those that are there twice. */
static bool has_only(const struct json *object, const char *const *names, size_t n)
{
    if (json_type(object) != JSON_OBJECT || json_len(object) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (json_get(object, names[i]) == NULL)
            return false;
    return true;
}

/* Relative, without "." and "..", empty parts, backslashes and NUL, and nothing that no file system
 * would take. */
static bool is_safe(const struct json *v)
{
    const char *path = json_str(v);
    unsigned depth = 0;
    if (path == NULL || strlen(path) != json_str_len(v) || strlen(path) > MANIFEST_PATH_MAX ||
        strchr(path, '\\') != NULL)
        return false;
    for (const char *s = path;; s++) {
        size_t n = strcspn(s, "/");
        if (n == 0 || n > NAME_MAX || ++depth > MANIFEST_DEPTH_MAX || (n == 1 && s[0] == '.') ||
            (n == 2 && s[0] == '.' && s[1] == '.'))
            return false;
        s += n;
        if (*s == '\0')
            return true;
    }
}

static int read_file(const struct json *v, struct manifest_file *ret, struct err *err)
{
    static const char *const members[] = {"path", "size", "sha256", "executable"};
    const struct json *path = json_get(v, "path"), *size = json_get(v, "size"),
                      *sha256 = json_get(v, "sha256"), *executable = json_get(v, "executable");
    if (!has_only(v, members, ARRAY_SIZE(members)))
        return wrong(err, "contains an invalid file entry");
    if (!is_safe(path))
        return wrong(err, "contains an unsafe path");
    if (json_type(size) != JSON_INT || json_int(size) < 0)
        return wrong(err, "contains an invalid file size");
    if (!manifest_is_digest(json_str(sha256)) || json_str_len(sha256) != SHA256_HEX)
        return wrong(err, "contains an invalid file digest");
    if (json_type(executable) != JSON_BOOL)
        return wrong(err, "contains an invalid file mode");
    *ret = (struct manifest_file){.path = json_str(path),
                                  .sha256 = json_str(sha256),
                                  .size = (uint64_t)json_int(size),
                                  .executable = json_bool(executable)};
    return 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool has_twice(const struct manifest *m)
{
    AUTO_FREE const char **paths = xnew_n(const char *, m->n_files + 1);
    bool twice = false;
    for (size_t i = 0; i < m->n_files; i++)
        paths[i] = m->files[i].path;
    qsort(paths, m->n_files, sizeof(*paths), by_path);
    for (size_t i = 1; i < m->n_files; i++)
        twice = twice || str_eq(paths[i - 1], paths[i]);
    return twice;
}

static int read_files(struct manifest *m, struct err *err)
{
    const struct json *files = json_get(m->root, "files"),
                      *total = json_get(m->root, "total_bytes");
    if (json_type(files) != JSON_ARRAY || json_len(files) > MANIFEST_FILES_MAX)
        return wrong(err, "contains too many files");
    m->files = xnew_n(struct manifest_file, json_len(files) + 1);
    bool fits = true;
    for (size_t i = 0; i < json_len(files); i++) {
        int r = read_file(json_at(files, i), &m->files[i], err);
        if (r < 0)
            return r;
        m->n_files++;
        /* Neither is over INT64_MAX, and then there is no next sum. */
        fits = fits && m->bytes + m->files[i].size <= MANIFEST_BYTES_MAX;
        m->bytes = fits ? m->bytes + m->files[i].size : m->bytes;
    }
    if (has_twice(m))
        return wrong(err, "contains an unsafe path");
    if (!fits || json_type(total) != JSON_INT || json_int(total) != (int64_t)m->bytes)
        return wrong(err, "contains an invalid total size");
    return 0;
}

static void add_text(struct sha256 *s, const char *text)
{
    sha256_add(s, text, strlen(text));
}

/* A string as Python's json.dumps(ensure_ascii=False) writes it. A backslash was refused. */
static void add_string(struct sha256 *s, const char *text)
{
    static const char named[] = "\b\f\n\r\t\"", letters[] = "bfnrt\"";
    add_text(s, "\"");
    for (const char *at = text; *at != '\0'; at++) {
        const char *name = strchr(named, *at);
        char escaped[8] = {'\\', name != NULL ? letters[name - named] : 'u'};
        if (name == NULL && (unsigned char)*at >= ' ') {
            sha256_add(s, at, 1);
            continue;
        }
        if (name == NULL)
            (void)snprintf(escaped, sizeof(escaped), "\\u%04x", (unsigned)(unsigned char)*at);
        add_text(s, escaped);
    }
    add_text(s, "\"");
}

/* The digest is over the text that Python's json.dumps() writes of it with sorted keys and without
 * blanks. */
static void digest(struct manifest *m)
{
    struct sha256 s;
    char number[32];
    sha256_init(&s);
    add_text(&s, "{\"algorithm\":\"" ALGORITHM "\",\"files\":[");
    for (size_t i = 0; i < m->n_files; i++) {
        const struct manifest_file *f = &m->files[i];
        add_text(&s, i > 0 ? ",{\"executable\":" : "{\"executable\":");
        add_text(&s, f->executable ? "true,\"path\":" : "false,\"path\":");
        add_string(&s, f->path);
        add_text(&s, ",\"sha256\":\"");
        add_text(&s, f->sha256);
        (void)snprintf(number, sizeof(number), "\",\"size\":%llu}", (unsigned long long)f->size);
        add_text(&s, number);
    }
    (void)snprintf(number, sizeof(number), "],\"total_bytes\":%llu}", (unsigned long long)m->bytes);
    add_text(&s, number);
    sha256_hex(&s, m->digest);
}

int manifest_parse(const char *text, size_t len, struct manifest *ret, struct err *err)
{
    static const char *const members[] = {"algorithm", "files", "total_bytes"};
    AUTO_DONE(manifest) struct manifest m = {0};
    struct err ignored = {0};
    if (len > MANIFEST_TEXT_MAX)
        return wrong(err, "is too large");
    if (json_parse(text, len, &m.root, &ignored) < 0)
        return wrong(err, "is invalid JSON");
    if (!has_only(m.root, members, ARRAY_SIZE(members)))
        return wrong(err, "has an invalid shape");
    const struct json *algorithm = json_get(m.root, "algorithm");
    if (!str_eq(json_str(algorithm), ALGORITHM) || json_str_len(algorithm) != strlen(ALGORITHM))
        return wrong(err, "uses an unsupported algorithm");
    int r = read_files(&m, err);
    if (r < 0)
        return r;
    digest(&m);
    *ret = m;
    m = (struct manifest){0};
    return 0;
}

void manifest_done(struct manifest *m)
{
    json_free(m->root);
    free(m->files);
    *m = (struct manifest){0};
}
