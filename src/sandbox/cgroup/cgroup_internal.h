/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The parts of cgroup.c that can be tested without a cgroup. */

#include "sandbox/cgroup/cgroup.h"

/* Where the hierarchies are mounted, "" where one is not. */
struct cgroup_mounts {
    char v2[256];
    char v1[CGROUP_CONTROLLERS][256];
};

/* From the text of /proc/self/mountinfo, which is taken apart in place. Only whole hierarchies
 * count; of several mounts the first. */
void cgroup_read_mounts(char *mountinfo, struct cgroup_mounts *ret);

/* `list` has words with commas or blanks between them. */
bool cgroup_has_word(const char *list, const char *word);

/* Writes a limit and reads it back: a value that the kernel has rounded up past the request is an
 * error. */
int cgroup_set_limit(int dirfd, const char *file, uint64_t value, struct err *err);
