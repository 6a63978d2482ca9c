/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the operations share. Their failures are sentences that clients of the store read, word for
 * word, with names of files in them that may be long: they go into a buffer of the job's, not into
 * a struct err. A function that returns a negative errno here has said why, once. */

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json.h"

#define FETCH_WHY_MAX (64U << 10)
#define FETCH_TEXT_MAX (1U << 20) /* bytes of an entry file, and of any file that is read */
#define FETCH_PATH_MAX 4096U
#define FETCH_TMP_PREFIX ".tmp-"
#define FETCH_TMP_LEN 21U /* with 16 digits */

struct fetch_source;

struct fetch {
    int root_fd;      /* borrowed; everything happens below */
    const char *root; /* borrowed; what it is called */
    bool shared;      /* the root also holds the directories of tenants, which are not ours */
    const struct json *data; /* borrowed; of the request */
    const char *zip;         /* borrowed; NULL: none came */
    size_t zip_len;
    const struct fetch_source *source; /* borrowed; NULL: none */
    struct jw *out;              /* borrowed; in the object that answers; operations add members */
    struct buf why;              /* the sentence of a failure */
    const char *why_class;       /* literal; NULL: the usual one */
    char tmp[FETCH_TMP_LEN + 1]; /* our directory for what is not finished; "": not made yet */
    unsigned serial;             /* for names in it */
    size_t scanned;              /* directory entries seen by discovery */
};

/* All return -EINVAL, or the errno given, with the sentence kept. */
int fetch_fail(struct fetch *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int fetch_fail_sys(struct fetch *f, int error, const char *rel); /* error is positive */
int fetch_fail_key(struct fetch *f, const char *key);            /* it is missing */
#if defined(__clang_analyzer__) || defined(BOX_ANALYZER)
#define fetch_fail(...) err_negative((fetch_fail)(__VA_ARGS__)) /* as in base/err.h */
#endif
void fetch_forget(struct fetch *f); /* the failure was expected: on with the next */

/* Texts of the request, as Python's str(value or "") has them. U+0000 is refused. */
int fetch_text(struct fetch *f, const struct json *v, char **ret);
/* The same for a member of `object` that must be there. */
int fetch_need(struct fetch *f, const struct json *object, const char *key, char **ret);
/* The same, trimmed; NULL when the member is missing or null. */
int fetch_option(struct fetch *f, const struct json *object, const char *key, char **ret);

char *fetch_path(const struct fetch *f, const char *rel); /* absolute, for people */
/* As posixpath.normpath(): "a//b/../c/" is "a/c", "" is ".". */
char *fetch_normal(const char *path);
char *fetch_join(const char *dir, const char *name); /* "" is the root */
const char *fetch_leaf(const char *path);            /* what follows the last slash */
/* "a, b, c"; an empty name is a dot, and a list that is too long for a message is cut. */
char *fetch_list(char *const *names);

/* files.c ---------------------------------------------------------------------------------- */

/* Kernel-checked: below the root, no links, no other mounts. Negative errno, nothing is said. */
int fetch_open(const struct fetch *f, const char *rel, int flags, mode_t mode);
int fetch_open_list(const struct fetch *f, const char *rel); /* a directory, for reading it */
int fetch_open_names(const struct fetch *f, const char *rel, DIR **ret);
/* The next name but "." and ".."; NULL at the end, with errno, which is 0 unless reading failed. */
const char *fetch_next_name(DIR *dir);
bool fetch_is_dir(const struct fetch *f, const char *rel);
mode_t fetch_type(const struct fetch *f, const char *rel); /* S_IFREG and so on; 0: none */
/* Every missing directory of the path; those above it. */
int fetch_make_dirs(struct fetch *f, const char *rel);
int fetch_make_parents(struct fetch *f, const char *rel);
/* Names in the directory, sorted as Python sorts them; at most `max`, else -E2BIG. */
int fetch_names(const struct fetch *f, const char *rel, size_t max, char ***ret);
/* A regular file, of at most what the buffer holds: -ENOENT when there is none, -EFBIG, -EILSEQ
 * when it is not UTF-8. Nothing is said. */
int fetch_read_text(const struct fetch *f, const char *rel, struct buf *ret, struct timespec *ctime,
                    struct timespec *mtime);
/* All or nothing: the file has its old content until it has the new one. Keeps the mode of a file
 * that is replaced. The directory must be there. */
int fetch_write_file(struct fetch *f, const char *rel, const void *data, size_t len);
/* The directory for what is not finished, made on first use: ".tmp-<16 hex>". */
int fetch_tmp(struct fetch *f);
void fetch_tmp_done(struct fetch *f);
/* Moves into place; -EEXIST when the place is taken. */
int fetch_move(struct fetch *f, const char *from, const char *to);
int fetch_remove_tree(struct fetch *f, const char *rel);

/* skill.c ---------------------------------------------------------------------------------- */

struct skill {
    char *rel; /* owned; the package below the root, "": the root itself */
    char *name, *display_name, *description, *instructions; /* owned */
    size_t instructions_len;
    const char *entry_file; /* literal */
    bool python_project;
    struct timespec created, updated;
    size_t text_len; /* of the entry file */
};

struct skills_found {
    struct skill *items; /* owned */
    size_t n;
};

void skill_done(struct skill *s);
DEFINE_CLEANUP_DONE(skill)
void skills_found_done(struct skills_found *l);
DEFINE_CLEANUP_DONE(skills_found)

int skill_load(struct fetch *f, const char *rel, struct skill *ret);
/* Members of the answer. `package_root` and `source_path` may be NULL: the skill's own path, and
 * none. */
void skill_write(const struct fetch *f, const struct skill *s, const char *package_root,
                 const char *source_path);
void skills_write(const struct fetch *f, const struct skills_found *l); /* the member `skills` */
/* Directories with an entry file, `rel` and those two levels below, breadth first, by name: at
 * least one. */
int skill_scan(struct fetch *f, const char *rel, char ***ret);
/* The skill of that name; it has to be there. */
int skill_require(struct fetch *f, const char *name, struct skill *ret);

/* Operations ------------------------------------------------------------------------------- */

typedef int fetch_op_fn(struct fetch *f);
fetch_op_fn op_list, op_get, op_create, op_update, op_delete, op_scan;
fetch_op_fn op_list_files, op_read_file, op_write_file;
fetch_op_fn op_preview_zip, op_install_zip;
fetch_op_fn op_make_dir, op_read_marker, op_measure;
fetch_op_fn op_make_artifacts, op_add_artifact, op_sweep_artifacts;

/* host_dir.c: bytes of all files below; -E2BIG when there is too much to be counted. */
int fetch_tree_bytes(struct fetch *f, const char *rel, uint64_t *ret);
