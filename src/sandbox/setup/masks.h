/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Kernel information in /proc that says something about the host, or lets one do something to it:
 * what a sandbox finds empty, whoever builds it. */

/* clang-format off */
#define SANDBOX_MASKED_FILES                                                                       \
    "keys",       "key-users",  "timer_list",        "kallsyms",      "kcore",         "kmsg",     \
    "iomem",      "ioports",    "vmallocinfo",       "slabinfo",      "pagetypeinfo",              \
    "interrupts", "softirqs",   "zoneinfo",          "buddyinfo",     "vmstat",        "cmdline",  \
    "config.gz",  "modules",    "locks",             "schedstat",     "sched_debug",               \
    "latency_stats", "diskstats", "partitions",      "swaps",         "consoles",      "misc",     \
    "devices",    "crypto",     "kpagecount",        "kpageflags",    "kpagecgroup",               \
    "sysrq-trigger", "mtrr",    "bootconfig",        "allocinfo",     "version",                   \
    "version_signature"

#define SANDBOX_MASKED_DIRS                                                                        \
    "acpi", "scsi", "irq", "bus", "fs", "driver", "sysvipc", "tty", "asound"
/* clang-format on */
