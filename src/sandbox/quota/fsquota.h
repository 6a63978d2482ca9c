/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Limits on a directory of the host that the kernel enforces, where its file system can: project
 * quotas of ext4 and XFS, the quota group of a Btrfs subvolume. Everything is done by descriptor,
 * and needs root. Nothing here turns quotas on: that is the administrator's to do.
 *
 * Project quotas count by an id that every file carries. Box has a range of ids of its own. A
 * directory with an id of anybody else's is refused, and so is a subvolume with a limit. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct err;

#define FSQUOTA_FIRST_ID 0x42000000U /* high: ids that people choose are small */
#define FSQUOTA_IDS (1U << 24)
#define FSQUOTA_OWN_IDS (1U << 12) /* of one boxd: instances on a host do not meet by chance */

enum fsquota_kind { FSQUOTA_NONE, FSQUOTA_PROJECT, FSQUOTA_SUBVOLUME, FSQUOTA_KIND_MAX };

struct fsquota {
    enum fsquota_kind kind;
    uint64_t id; /* of the project, or of the subvolume */
};

struct fsquota_use {
    uint64_t max_bytes, max_inodes; /* 0: no limit */
    uint64_t bytes, inodes;
};

/* Whether the kernel would enforce a limit on the directory `fd` (opened for reading). `ret` is
 * what it belongs to now; a project of id 0 is none. ERR_UNSUPPORTED says why not. */
int fsquota_find(int fd, struct fsquota *ret, struct err *err);

bool fsquota_is_ours(const struct fsquota *q); /* an id of the range above */
/* The first project of that instance that nothing belongs to, on the file system of `fd`. */
int fsquota_choose(int fd, const char *tag, struct fsquota *ret, struct err *err);

int fsquota_read(int fd, const struct fsquota *q, struct fsquota_use *ret); /* negative errno */
/* 0 removes a limit. Btrfs limits no inodes, and refuses the call itself in a subvolume that is
 * over its limit: there `fd` is a directory of another one (fsquota_same_volume()). Negative errno.
 */
int fsquota_limit(int fd, const struct fsquota *q, uint64_t bytes, uint64_t inodes);

bool fsquota_same_volume(int fd, int other); /* both are of one Btrfs file system */

/* Puts a file or directory into a project. What is made in a directory belongs to its project.
 * -EUSERS: it is in another that is not ours, or that is in use. */
int fsquota_put(int fd, const struct fsquota *q);

/* Sees to it that all that lies beneath the directory `fd` falls under the limit. `fd` must be in a
 * mount of its own that has nothing mounted in it and opens no devices. With `owner` everything has
 * to be that user's. Takes as long as it takes: for a process of its own. */
int fsquota_cover(int fd, const struct fsquota *q, const uid_t *owner, struct err *err);
