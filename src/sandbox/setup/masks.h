/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Kernel information in /proc and /sys that tells something about the host, or lets a program
 * change something there. Every backend hides it: a sandbox finds these empty. */

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

/* All of /sys but the control group, for builders that cannot leave /sys out. What a file system
 * has in /sys/fs goes by its name; what a kernel does not have is skipped. */
#define SANDBOX_MASKED_SYS                                                                         \
    "block", "bus", "class", "dev", "devices", "firmware", "hypervisor", "kernel", "module",       \
    "power", "fs/aufs", "fs/bcache", "fs/bcachefs", "fs/bpf", "fs/btrfs", "fs/ceph", "fs/cifs",    \
    "fs/ecryptfs", "fs/erofs", "fs/exfat", "fs/ext4", "fs/f2fs", "fs/fuse", "fs/gfs2", "fs/jfs",   \
    "fs/nfs", "fs/nilfs2", "fs/ntfs3", "fs/ocfs2", "fs/orangefs", "fs/pstore", "fs/resctrl",       \
    "fs/selinux", "fs/smackfs", "fs/tmpfs", "fs/ubifs", "fs/virtiofs", "fs/xfs", "fs/zfs"
/* clang-format on */
