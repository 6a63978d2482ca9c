/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the audit log share: its state, and where a line belongs. */

#include "policy/audit/audit.h"

#define AUDIT_NAME_MAX 64

struct audit {
    int dir_fd;  /* owned */
    int lock_fd; /* owned */
    int fd;      /* owned; the current file */
    struct audit_options options;
    uint64_t seq;   /* of the last record */
    uint64_t first; /* of the first record in the current file; 0: it is empty */
    char head[AUDIT_HASH_LEN + 1];
    uint64_t size;     /* of the current file */
    uint64_t reserved; /* up to here the disk space is ours */
    bool no_reserve;   /* the file system cannot */
    bool full;         /* the last reservation or write failed */
    bool torn;         /* what a failed write left could not be removed yet */
    int error;         /* errno of the last failure, 0: none */
    uint64_t lost, lost_untold;
};

/* What one line says about its place in the chain. */
struct audit_place {
    uint64_t seq;
    uint64_t lost;
    char prev[AUDIT_HASH_LEN + 1];
};

/* audit_read.c: 0 or -EBADMSG. */
int audit_line_place(const char *line, size_t len, struct audit_place *ret);
extern const char audit_no_head[]; /* what the first record of all carries */

/* audit.c: the name of the file that holds the record of that number, or those that follow it. 0:
 * none. */
int audit_file_of(const struct audit *a, uint64_t number, char ret[static AUDIT_NAME_MAX]);
