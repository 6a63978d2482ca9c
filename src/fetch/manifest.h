/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The manifest of an artifact ("sha256-tree-v1"): a JSON file that lists the files of a tree with
 * their sizes and digests, and whose own canonical form is what the artifact's digest is over. No
 * I/O; the text is a stranger's. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/sha256.h"

struct err;
struct json;

#define MANIFEST_TEXT_MAX (4U << 20)
#define MANIFEST_FILES_MAX 2048U
#define MANIFEST_BYTES_MAX (256U << 20) /* of all files */
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

/* ERR_INVALID with a sentence that clients know. */
int manifest_parse(const char *text, size_t len, struct manifest *ret, struct err *err);
void manifest_done(struct manifest *m);
DEFINE_CLEANUP_DONE(manifest)

/* 64 lower-case hexadecimal digits and nothing else; NULL is none. */
bool manifest_is_digest(const char *s);
