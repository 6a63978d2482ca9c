/* SPDX-License-Identifier: Apache-2.0 */

/* Artifacts of a session: trees that are mounted read-only and named by the digest of their
 * content. Nothing is believed of the source: what its manifest lists is copied, what was copied is
 * digested, and only a copy that is complete and right gets its name. The directory of a job is one
 * session's:
 *
 *   tree/<digest>   what the session sees
 *   .tmp-…          what is not finished, which it never sees */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/path.h"
#include "base/sha256.h"
#include "base/str.h"
#include "base/strv.h"
#include "fetch/fetch_internal.h"
#include "fetch/job.h"

/* The manifest ("sha256-tree-v1"): a JSON file that lists the files of a tree with their sizes and
 * digests, and whose own canonical form is what the artifact's digest is over. The text is a
 * stranger's. */

#define ALGORITHM "sha256-tree-v1"
#define MANIFEST_TEXT_MAX (4U << 20)
#define MANIFEST_FILES_MAX 2048U
#define MANIFEST_PATH_MAX 2048U
#define MANIFEST_DEPTH_MAX 64U

struct manifest_file {
    const char *path; /* relative and clean; all are borrowed from the manifest */
    const char *sha256;
    uint64_t size;
    bool executable;
};

struct manifest {
    struct json *root;           /* owned */
    struct manifest_file *files; /* owned; in the order of the text */
    size_t n_files;
    uint64_t bytes; /* of all files */
    char digest[SHA256_HEX + 1];
};

static void manifest_done(struct manifest *m)
{
    json_free(m->root);
    free(m->files);
    *m = (struct manifest){0};
}
DEFINE_CLEANUP_DONE(manifest)

static int wrong(struct err *err, const char *what)
{
    return err_set(err, ERR_INVALID, "Artifact manifest %s", what);
}

/* 64 lower-case hexadecimal digits and nothing else; NULL is none. */
static bool manifest_is_digest(const char *s)
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
        fits = fits && m->bytes + m->files[i].size <= FETCH_ARTIFACTS_MAX;
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
static void compute_digest(struct manifest *m)
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

/* ERR_INVALID with a sentence that clients know. */
static int manifest_parse(const char *text, size_t len, struct manifest *ret, struct err *err)
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
    compute_digest(&m);
    *ret = m;
    m = (struct manifest){0};
    return 0;
}

/* The operations. */

#define TREE FETCH_ARTIFACTS_TREE
#define ARTIFACTS_MAX 256U /* of one session */
#define NAMES_MAX 65536U
#define NAME_DIGITS 16U

int op_make_artifacts(struct fetch *f)
{
    return fetch_make_dirs(f, TREE);
}

static int read_manifest(struct fetch *f, struct manifest *ret)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(MANIFEST_TEXT_MAX);
    struct err err = {0};
    struct stat st;
    int fd = f->source->manifest_fd;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return fetch_fail(f, "Artifact manifest is not a regular file");
    int r = fd_read_to_buf(fd, &text);
    if (r == -ENOBUFS)
        return fetch_fail(f, "Artifact manifest is too large");
    if (r < 0)
        return fetch_fail(f, "Artifact manifest cannot be read: %s", err_errno_text(-r));
    if (manifest_parse(buf_str(&text), text.len, ret, &err) < 0)
        return fetch_fail(f, "%s", err.msg);
    return 0;
}

/* One more of `bytes`, beside what is there. */
static int check_room(struct fetch *f, uint64_t bytes)
{
    AUTO_STRV char **names = NULL;
    uint64_t used = 0;
    int r = fetch_names(f, TREE, ARTIFACTS_MAX, &names);
    if (r < 0 && r != -E2BIG)
        return fetch_fail_sys(f, -r, TREE);
    if (r == -E2BIG || strv_len(names) >= ARTIFACTS_MAX || fetch_tree_bytes(f, TREE, &used) < 0 ||
        used + bytes > FETCH_ARTIFACTS_MAX)
        return fetch_fail(f, "Immutable artifact cache limit reached; acquire a new Box");
    return 0;
}

/* Not a byte more than it should be, plus the one that shows it is more. */
static int copy_bytes(int from, int to, const struct manifest_file *file, bool *ret_same)
{
    char chunk[65536], digest[SHA256_HEX + 1];
    struct sha256 s;
    uint64_t copied = 0;
    sha256_init(&s);
    for (ssize_t n; copied <= file->size; copied += (uint64_t)n) {
        n = fd_read_full(from, chunk, sizeof(chunk));
        int r = n <= 0 ? (int)n : fd_write_all(to, chunk, (size_t)n);
        if (r < 0)
            return r;
        if (n == 0)
            break;
        sha256_add(&s, chunk, (size_t)n);
    }
    sha256_hex(&s, digest);
    *ret_same = copied == file->size && str_eq(digest, file->sha256);
    return 0;
}

static int copy_file(struct fetch *f, const struct manifest_file *file, const char *to)
{
    struct stat st;
    bool same = false;
    /* The source may be a fifo, whose other end must not make us wait. */
    AUTO_CLOSE int in = path_open_beneath(f->source->dir_fd, file->path,
                                          O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (in < 0)
        return fetch_fail(f, "Artifact source cannot be read: %s: %s", file->path,
                          err_errno_text(-in));
    if (fstat(in, &st) < 0 || !S_ISREG(st.st_mode))
        return fetch_fail(f, "Artifact source must be a regular file: %s", file->path);
    AUTO_CLOSE int out = fetch_open(f, to, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    int r = out < 0 ? out : copy_bytes(in, out, file, &same);
    if (r < 0 || (same && fchmod(out, file->executable ? 0555 : 0444) < 0))
        return fetch_fail_sys(f, r < 0 ? -r : errno, to);
    return same ? 0 : fetch_fail(f, "Artifact source changed: %s", file->path);
}

static int copy_tree(struct fetch *f, const struct manifest *m, const char *to)
{
    int r = fetch_make_dirs(f, to);
    for (size_t i = 0; i < m->n_files && r == 0; i++) {
        AUTO_FREE char *path = fetch_join(to, m->files[i].path);
        r = fetch_make_parents(f, path);
        if (r == 0)
            r = copy_file(f, &m->files[i], path);
    }
    return r;
}

/* {"content_digest": "sha256:…"} */
int op_add_artifact(struct fetch *f)
{
    AUTO_DONE(manifest) struct manifest m = {0};
    const char *digest = json_str(json_get(f->data, "content_digest"));
    if (f->source == NULL || digest == NULL || !str_starts(digest, "sha256:") ||
        !manifest_is_digest(digest + strlen("sha256:")))
        return fetch_fail(f, "malformed request");
    int r = read_manifest(f, &m);
    if (r == 0 && !str_eq(m.digest, digest + strlen("sha256:")))
        r = fetch_fail(f, "Artifact manifest does not match content_digest");
    if (r == 0)
        r = fetch_make_dirs(f, TREE);
    if (r < 0)
        return r;
    AUTO_FREE char *place = fetch_join(TREE, m.digest);
    if (!fetch_is_dir(f, place)) {
        r = check_room(f, m.bytes);
        if (r == 0)
            r = fetch_tmp(f);
        AUTO_FREE char *part = fetch_join(f->tmp, "tree");
        if (r == 0)
            r = copy_tree(f, &m, part);
        if (r == 0)
            r = fetch_move(f, part, place);
        fetch_tmp_done(f);
    }
    return r;
}

static bool is_kept(const struct json *keep, const char *name)
{
    for (size_t i = 0; i < json_len(keep); i++)
        if (str_eq(json_str(json_at(keep, i)), name))
            return true;
    return false;
}

/* {"keep": [name…]}: the directories of all other sessions go. */
int op_sweep_artifacts(struct fetch *f)
{
    const struct json *keep = json_get(f->data, "keep");
    AUTO_STRV char **names = NULL;
    if (json_type(keep) != JSON_ARRAY)
        return fetch_fail(f, "malformed request");
    int r = fetch_names(f, "", NAMES_MAX, &names);
    if (r < 0)
        return fetch_fail_sys(f, -r, "");
    for (size_t i = 0; names != NULL && names[i] != NULL; i++) {
        bool ours =
            strlen(names[i]) == NAME_DIGITS && strspn(names[i], "0123456789abcdef") == NAME_DIGITS;
        int removed =
            ours && !is_kept(keep, names[i]) ? path_remove_tree_at(f->root_fd, names[i]) : 0;
        if (removed < 0 && r == 0)
            r = fetch_fail_sys(f, -removed, names[i]);
    }
    return r;
}
