/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The mount table of this process, for the checks that look at mounts. */

#include <stdbool.h>

struct probe_options;

struct probe_mount {
    const char *root, *target, *options, *propagation, *type, *source, *super;
};

/* Calls fn for each line of mountinfo; 0 or a negative errno. */
int probe_mounts_each(void (*fn)(const struct probe_mount *m, void *arg), void *arg);

/* C04, C07 and C08: what the mounts, the environment and the descriptors give away. */
void probe_mounts(const struct probe_options *opt);
void probe_leaks(const struct probe_options *opt);
