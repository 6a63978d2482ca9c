/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* From an uploaded archive to files: everything its directory says is judged before the first byte
 * is written, and what comes out is counted again. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct fetch;
struct zipdir;

#define UNZIP_ENTRIES_MAX 512U
#define UNZIP_FILE_MAX (16U << 20)
#define UNZIP_TOTAL_MAX (64U << 20)
#define UNZIP_RATIO_MAX 100U

struct unzip_item {
    char *name; /* owned; as the archive has it, as UTF-8 */
    char *path; /* owned; normalised and relative, the place below the target */
    bool dir, executable;
    uint64_t size;
};

struct unzip {
    struct unzip_item *items; /* owned; in the order of the archive */
    size_t n;
    void *archive; /* owned; libzip's */
};

void unzip_done(struct unzip *z);
DEFINE_CLEANUP_DONE(unzip)

/* Opens the archive of the job and judges it; says why not. */
int unzip_open(struct fetch *f, struct unzip *ret);
/* Writes all of it into the directory `rel`, which must be there, new and empty. */
int unzip_extract(struct fetch *f, struct unzip *z, const char *rel);
