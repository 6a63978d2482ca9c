/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a sandbox uses, as the kernel counts. box-priv reads it from outside, box-guest from inside
 * of its container. */

#include <stdint.h>

#define INSIDE_UNKNOWN UINT64_MAX

/* Each may be INSIDE_UNKNOWN; a limit is, too, where there is none. */
struct inside_usage {
    uint64_t cpu_ns;
    uint64_t memory_bytes, memory_max;
    uint64_t pids, pids_max;
    uint64_t disk_bytes, disk_max;
    uint64_t received_bytes, sent_bytes; /* by all network interfaces but the loopback */
};

void usage_unknown(struct inside_usage *ret); /* all of it */
/* Reads a number of the kernel's, or leaves it unknown. */
void usage_number(int dirfd, const char *path, uint64_t *ret);
/* `path` is /proc/net/dev of its network. */
void usage_network(int dirfd, const char *path, struct inside_usage *ret);
