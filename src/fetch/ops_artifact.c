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
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "fetch/fetch_internal.h"
#include "fetch/job.h"
#include "fetch/manifest.h"

#define TREE FETCH_ARTIFACTS_TREE
#define ARTIFACTS_MAX 256U /* of one session */
#define NAMES_MAX 65536U
#define NAME_DIGITS 16U

static void answer(struct fetch *f)
{
    jw_object(f->out);
    jw_object_end(f->out);
}

int op_make_artifacts(struct fetch *f)
{
    int r = fetch_make_dirs(f, TREE);
    if (r == 0)
        answer(f);
    return r;
}

static int read_manifest(struct fetch *f, struct manifest *ret)
{
    AUTO_DONE(buf) struct buf text;
    struct err err = {0};
    struct stat st;
    buf_init(&text, MANIFEST_TEXT_MAX);
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
        used + bytes > MANIFEST_BYTES_MAX)
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
    /* Never waits for whoever has the other end of a fifo. */
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
        AUTO_FREE char *dir = xstrndup(path, (size_t)(fetch_leaf(path) - path - 1));
        r = fetch_make_dirs(f, dir);
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
    if (r == 0)
        answer(f);
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
    if (r == 0)
        answer(f);
    return r;
}
