/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A plan says what the kernel will be asked for, in order. backend/native turns a spec into one
 * (purely), box-priv checks it against its own bounds, resolves the sources, and the child executes
 * the operations top to bottom.
 *
 * One flat structure without pointers: it travels in one datagram, and every string is an offset
 * into `strings`. */

#include <stddef.h>
#include <stdint.h>

#include "inside/wire.h"

struct err;

#define PLAN_VERSION 1U
#define PLAN_OPS_MAX 320U
#define PLAN_STRINGS_MAX 65536U
#define PLAN_NAME_LEN 16U /* hex digits */

/* Where commands have further names: the last place in which they are looked for. */
#define PLAN_ALIAS_DIR "/.box/bin"

/* What the environment of programs begins with, and a NULL. */
#define PLAN_ENV_LEN 6
extern const char *const plan_env[PLAN_ENV_LEN + 1];

enum plan_flags {
    PLAN_NET_ON = 1U << 0,
    PLAN_ROOT_WRITABLE = 1U << 1,  /* the root stays writable, and the payload is uid 0 inside */
    PLAN_REQUIRE_LIMITS = 1U << 2, /* refuse rather than run with a limit that cannot be enforced */
    PLAN_GVISOR = 1U << 3,    /* the tree is the root of a gVisor container, whose own program is
                                 box-guest; PID 1 is runsc (gvisor.h) */
    PLAN_AS_CALLER = 1U << 4, /* what is mounted of the allow-list is what `as_uid` could open, and
                                 its files are that user's inside and no other's */
    PLAN_DURABLE = 1U << 5,   /* the storage outlives the sandbox, until it is removed by its name,
                                 and   a later plan of that name takes it over */
    PLAN_FLAGS_ALL = (1U << 6) - 1,
};

enum plan_op_kind {
    PLAN_OP_DIR,     /* directory `target` with `mode` */
    PLAN_OP_SYMLINK, /* `target` -> `source` */
    PLAN_OP_BIND,    /* `source_class`/`source` at `target` */
    PLAN_OP_SCRATCH, /* directory `target` with `mode`, writable, on the root's own tmpfs */
    PLAN_OP_PROC,    /* /proc, read-only, masked */
    PLAN_OP_DEV,     /* /dev with its few nodes, pts and shm */
    PLAN_OP_OVERLAY, /* writable layer from private storage `source` over what is at `target` */
    PLAN_OP_MAX,
};

enum plan_source {
    PLAN_SRC_NONE,
    PLAN_SRC_HOST,    /* a directory of the host image; `source` must be in box-priv's own table */
    PLAN_SRC_ETC,     /* the prepared /etc: `source` is "off" or "on" (the network it is for) */
    PLAN_SRC_PRIVATE, /* directory `source` in this session's own storage, made on demand */
    PLAN_SRC_GUEST,   /* with PLAN_GVISOR: `source` is "program" (box-guest) or "meeting", the
                         directory where boxd waits for this session's */
    PLAN_SRC_ALLOWED, /* `root` is an index into the allow-list, `source` a path relative to it */
    PLAN_SRC_MAX,
};

enum plan_op_flags {
    PLAN_OP_RDONLY = 1U << 0,
    PLAN_OP_NOEXEC = 1U << 1,
    PLAN_OP_OWNED = 1U << 2,       /* DIR, SCRATCH: owned by the payload */
    PLAN_OP_RECURSIVE = 1U << 3,   /* BIND: with its submounts, all made read-only */
    PLAN_OP_OPTIONAL = 1U << 4,    /* BIND: skipped when the source is missing */
    PLAN_OP_LANDLOCK_RW = 1U << 5, /* the second wall lets the payload write here */
    PLAN_OP_OWN_VIEW = 1U << 6,    /* BIND: seen through a file system of the session's own, so that
                                      watches and locks on what all share do not tell of others */
    PLAN_OP_FLAGS_ALL = (1U << 7) - 1,
};

/* BIND: nothing but a directory will do. A mode and no flag, so that a box-priv of before, which
 * looks at neither, goes on serving. */
#define PLAN_BIND_DIR 0700U
/* BIND of the allow-list, read-only: every user may read all of it, so its owner inside does not
 * matter, and it does with the ids that the image has. */
#define PLAN_BIND_PUBLIC 0555U

struct plan_op {
    uint8_t kind;         /* enum plan_op_kind */
    uint8_t source_class; /* enum plan_source */
    uint16_t root;
    uint32_t flags;
    uint32_t mode;    /* of DIR and SCRATCH; of BIND: 0 or a PLAN_BIND_ */
    uint32_t target;  /* offset into strings: absolute path inside */
    uint32_t source;  /* offset into strings */
    uint32_t entries; /* of BIND with PLAN_BIND_DIR: most files, where the kernel can limit them; 0:
                         as many as fit. A box-priv of before does not look at it */
};

struct plan {
    uint32_t version;
    uint32_t flags;
    char name[PLAN_NAME_LEN + 1]; /* names the cgroups and the storage; never chosen by a caller */
    uint8_t pad[7];
    uint32_t uid_index; /* which private range of host ids */
    uint32_t payload_uid, payload_gid;
    uint32_t init_uid, init_gid;
    uint32_t pids;
    uint32_t cpu_quota_us; /* per 100 ms; 0: no limit */
    uint32_t n_rlimits;
    uint64_t memory_bytes;
    uint64_t quota_bytes, quota_inodes; /* 0: no limit on private storage */
    uint64_t root_bytes; /* of the root's tmpfs, which holds /tmp and /dev/shm as well */
    uint32_t root_inodes;
    uint32_t as_uid; /* PLAN_AS_CALLER: never root */
    struct inside_rlimit rlimits[INSIDE_RLIMITS_MAX];
    uint32_t n_ops;
    uint32_t strings_len; /* string 0 is empty */
    struct plan_op ops[PLAN_OPS_MAX];
    char strings[PLAN_STRINGS_MAX];
};

#define PLAN_HEAD_SIZE offsetof(struct plan, strings)

void plan_init(struct plan *p);

/* Building: offsets and operations. A plan that outgrows its bounds is -E2BIG, told once by
 * plan_check(). */
uint32_t plan_string(struct plan *p, const char *s);
struct plan_op *plan_add(struct plan *p, enum plan_op_kind kind, const char *target);

/* Length on the wire (head plus used strings). */
size_t plan_wire_size(const struct plan *p);

/* Everything that can be checked without asking the kernel, for a plan that came from an untrusted
 * requester. `len` is the number of bytes received. */
int plan_check(const struct plan *p, size_t len, struct err *err);

/* The string at an offset; plan_check() has made sure that it is there. */
const char *plan_str(const struct plan *p, uint32_t offset);

/* True for places inside that belong to us: no mount of a caller may cover them. */
int plan_target_reserved(const char *target);
