/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The probe runs inside a sandbox and tries what must not work there. One line per check:
 *
 *     ID ok|FAIL|n/a detail
 *
 * and one at the end, "# N checks, N failed", without which it did not come to its end.
 *
 * IDs are those of the test catalogue, with a part after a dot where a check has several. It is
 * static and needs nothing from the sandbox but /proc. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum probe_ns { NS_CGROUP, NS_IPC, NS_MNT, NS_NET, NS_PID, NS_TIME, NS_USER, NS_UTS, NS_MAX };

extern const char *const probe_ns_names[NS_MAX];

struct probe_options {
    uint64_t host_ns[NS_MAX];    /* inode numbers, 0: unknown */
    const char *secret_reversed; /* must be found nowhere; NULL: none */
    const char *root_prefix[8];  /* paths that may show as the root of a mount */
    const char *host_address[8]; /* where box listens on the host, and the port */
    unsigned port;
    uint64_t limit;    /* of what an abuse takes: bytes, pieces, µs in 100 ms */
    unsigned walk_sec; /* how long a walk over files may take; 0: as long as it takes */
    const char *mode;
    const void *arg;    /* of the mode's row */
    unsigned first_fds; /* set of descriptors 3 to 31 that were open at start */
};

enum probe_state { PROBE_OK, PROBE_FAIL, PROBE_NA };

void probe_report(const char *id, enum probe_state state, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* One that is either in order or not. */
#define CHECK(id, ok, ...) probe_report(id, (ok) ? PROBE_OK : PROBE_FAIL, __VA_ARGS__)

/* Result of something tried in a child: the return value, a negative errno, or one of these. */
#define PROBE_SIGNAL(sig) (-(1000L + (sig)))
#define PROBE_BLOCKED (-2000L)
#define PROBE_EXITED (-3000L)

/* Name of such a result: "EPERM", "SIGSYS", "blocks", "exits", "success". */
const char *probe_result_name(long result);

/* Runs fn in a child, so that whatever succeeds against expectation stays without consequences. A
 * child that sleeps for half a second is killed. */
long probe_forked(long (*fn)(const void *arg), const void *arg);

/* Reports a result that must be one of the errnos, or of what is above, negated (ends with 0). */
void probe_expect(const char *id, long result, const int *want);
#define EXPECT(id, result, ...) probe_expect(id, result, (const int[]){__VA_ARGS__, 0})

/* Whole small file, NUL-terminated; length or a negative errno. */
ssize_t probe_read(const char *path, char *buf, size_t size);

/* The value of "Name:\t<value>" in a status file; "" when absent. */
void probe_status(const char *path, const char *name, char *ret, size_t size);

uint64_t probe_ns_inode(const char *name); /* of the calling process; 0 when unknown */

struct probe_mount {
    const char *root, *target, *options, *propagation, *type, *source, *super;
};

/* Calls fn for each line of this process's mountinfo; 0 or a negative errno. */
int probe_mounts_each(void (*fn)(const struct probe_mount *m, void *arg), void *arg);

/* What the program can be asked for by name; each table ends with a row without one. */
struct probe_mode {
    const char *name;
    void (*run)(const struct probe_options *opt);
    bool summary; /* a last line with the number of checks */
    const void *arg;
};
extern const struct probe_mode probe_identity_modes[], probe_kernel_modes[], probe_files_modes[],
    probe_beyond_modes[], probe_posture_modes[], abuse_modes[];

/* The modes of which "all" consists. */
void probe_identity(const struct probe_options *opt);
void probe_kernel(const struct probe_options *opt);
void probe_files(const struct probe_options *opt);
