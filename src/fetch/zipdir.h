/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The directory of a zip archive, read strictly: what two readers could understand in two ways is
 * refused. No I/O, and nothing is inflated. */

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct zipdir_entry {
    const char *name; /* borrowed from the archive; no NUL at its end, there may be some inside */
    size_t name_len;
    uint16_t flags, method;
    uint32_t attributes; /* external; the upper half is the Unix mode, if any */
    uint32_t crc;        /* of what comes out */
    uint64_t compressed, size, offset;
    uint64_t end; /* of its data in the archive */
};

#define ZIPDIR_ENCRYPTED 0x0041U /* either kind */
#define ZIPDIR_UTF8 0x0800U
#define ZIPDIR_STORED 0U
#define ZIPDIR_DEFLATED 8U

struct zipdir {
    struct zipdir_entry *entries; /* owned */
    size_t n;
};

void zipdir_done(struct zipdir *d);
DEFINE_CLEANUP_DONE(zipdir)

/* -E2BIG for more than `max` entries; -EINVAL for everything that is not one archive from its first
 * entry to its last byte: bytes behind the end, offsets that do not meet, several disks, entries
 * that overlap each other or the directory, headers that call an entry by two names. `data` must
 * outlive *ret. */
int zipdir_read(const uint8_t *data, size_t len, size_t max, struct zipdir *ret);
