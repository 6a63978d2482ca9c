/* SPDX-License-Identifier: Apache-2.0 */

/* Builds and checks plans. */

#include "sandbox/plan/plan.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/path.h"
#include "base/str.h"

/* Set in strings_len by a builder that ran out of room; no honest plan can have it. */
#define PLAN_OVERFLOW UINT32_MAX

const char *const plan_env[PLAN_ENV_LEN + 1] = {
    ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:" PLAN_ALIAS_DIR),
    "HOME=/home/box",
    "USER=box",
    "LOGNAME=box",
    "SHELL=/bin/sh",
    "LC_CTYPE=C.UTF-8", /* not LANG: each program would open all thirteen categories */
    NULL,
};

static const char *const reserved[] = {
    "/proc", "/sys",   "/dev",   "/usr",    "/etc", "/bin",  "/sbin",
    "/lib",  "/lib32", "/lib64", "/libx32", "/run", "/boot", "/.box",
};

void plan_init(struct plan *p)
{
    memset(p, 0, sizeof(*p));
    p->version = PLAN_VERSION;
    p->strings_len = 1;
}

uint32_t plan_string(struct plan *p, const char *s)
{
    size_t len = strlen(s) + 1;
    if (p->strings_len == PLAN_OVERFLOW || len > PLAN_STRINGS_MAX - p->strings_len) {
        p->strings_len = PLAN_OVERFLOW;
        return 0;
    }
    uint32_t at = p->strings_len;
    memcpy(p->strings + at, s, len);
    p->strings_len += (uint32_t)len;
    return at;
}

struct plan_op *plan_add(struct plan *p, enum plan_op_kind kind, const char *target)
{
    static struct plan_op spill; /* written, never read: the overflow is told by plan_check() */
    if (p->n_ops >= PLAN_OPS_MAX) {
        p->strings_len = PLAN_OVERFLOW;
        return &spill;
    }
    struct plan_op *op = &p->ops[p->n_ops++];
    op->kind = (uint8_t)kind;
    op->target = plan_string(p, target);
    return op;
}

size_t plan_wire_size(const struct plan *p)
{
    return PLAN_HEAD_SIZE + (p->strings_len <= PLAN_STRINGS_MAX ? p->strings_len : 0);
}

const char *plan_str(const struct plan *p, uint32_t offset)
{
    return p->strings + offset;
}

int plan_target_reserved(const char *target)
{
    if (str_eq(target, "/"))
        return 1;
    for (size_t i = 0; i < ARRAY_SIZE(reserved); i++) {
        size_t len = strlen(reserved[i]);
        if (strncmp(target, reserved[i], len) == 0 && (target[len] == '\0' || target[len] == '/'))
            return 1;
    }
    return 0;
}

static int check_name(const char *name)
{
    for (size_t i = 0; i < PLAN_NAME_LEN; i++)
        if (!((name[i] >= '0' && name[i] <= '9') || (name[i] >= 'a' && name[i] <= 'f')))
            return -EINVAL;
    return name[PLAN_NAME_LEN] == '\0' ? 0 : -EINVAL;
}

/* A source below a descriptor: relative, clean. The kernel checks again while resolving. */
static int check_relative(const char *path)
{
    char absolute[4096];
    if (*path == '\0')
        return 0;
    if (*path == '/' || str_fmt(absolute, sizeof(absolute), "/%s", path) < 0)
        return -EINVAL;
    return path_is_clean_absolute(absolute) ? 0 : -EINVAL;
}

static int check_op(const struct plan *p, const struct plan_op *op, struct err *err)
{
    if (op->kind >= PLAN_OP_MAX || op->source_class >= PLAN_SRC_MAX ||
        (op->flags & ~(unsigned)PLAN_OP_FLAGS_ALL) || op->target >= p->strings_len ||
        op->source >= p->strings_len || (op->mode & ~01777U))
        return err_set(err, ERR_INVALID, "plan: operation out of range");
    const char *target = plan_str(p, op->target);
    const char *source = plan_str(p, op->source);
    if (!path_is_clean_absolute(target))
        return err_set(err, ERR_INVALID, "plan: target '%.200s' is not a clean absolute path",
                       target);
    if (op->kind == PLAN_OP_BIND && op->source_class == PLAN_SRC_NONE)
        return err_set(err, ERR_INVALID, "plan: bind without a source");
    if (op->kind == PLAN_OP_OVERLAY && op->source_class != PLAN_SRC_PRIVATE)
        return err_set(err, ERR_INVALID, "plan: overlay on storage that is not private");
    /* These belong to the host and to all sessions alike, and on a writable root the payload is
     * shown as their owner. */
    if ((op->source_class == PLAN_SRC_HOST || op->source_class == PLAN_SRC_ETC) &&
        !(op->flags & PLAN_OP_RDONLY))
        return err_set(err, ERR_DENIED, "plan: the image must be read-only");
    if (op->source_class == PLAN_SRC_PRIVATE && !id_valid(source))
        return err_set(err, ERR_INVALID, "plan: private source '%.80s'", source);
    if (op->source_class == PLAN_SRC_GUEST &&
        (!(p->flags & PLAN_GVISOR) || !(op->flags & PLAN_OP_RDONLY)))
        return err_set(err, ERR_DENIED, "plan: box-guest is for gVisor, and read-only");
    if (op->source_class == PLAN_SRC_ALLOWED && check_relative(source) < 0)
        return err_set(err, ERR_INVALID, "plan: source '%.200s' is not a clean relative path",
                       source);
    if (op->source_class == PLAN_SRC_ALLOWED && plan_target_reserved(target))
        return err_set(err, ERR_DENIED, "mount target '%.200s' is reserved", target);
    return 0;
}

int plan_check(const struct plan *p, size_t len, struct err *err)
{
    if (len < PLAN_HEAD_SIZE || p->version != PLAN_VERSION)
        return err_set(err, ERR_INVALID, "plan: wrong version or length");
    if (p->strings_len == PLAN_OVERFLOW)
        return err_set(err, ERR_LIMIT, "too many mounts, or paths too long in all");
    if (p->strings_len == 0 || p->strings_len > PLAN_STRINGS_MAX ||
        len != PLAN_HEAD_SIZE + p->strings_len || p->strings[0] != '\0' ||
        p->strings[p->strings_len - 1] != '\0')
        return err_set(err, ERR_INVALID, "plan: wrong string area");
    if (check_name(p->name) < 0)
        return err_set(err, ERR_INVALID, "plan: bad name");
    if ((p->flags & ~(unsigned)PLAN_FLAGS_ALL) || p->n_ops > PLAN_OPS_MAX ||
        p->n_rlimits > INSIDE_RLIMITS_MAX)
        return err_set(err, ERR_INVALID, "plan: out of range");
    /* runsc insists on being uid 0, which on a writable root the program is as well: they then
     * share an id, and what keeps them apart is gVisor's kernel. */
    bool shared = (p->flags & PLAN_GVISOR) && p->payload_uid == 0 && p->payload_gid == 0;
    if (p->payload_uid > 65533 || p->payload_gid > 65533 || p->init_uid > 65533 ||
        p->init_gid > 65533 ||
        (!shared && (p->payload_uid == p->init_uid || p->payload_gid == p->init_gid)))
        return err_set(err, ERR_INVALID, "plan: bad ids");
    if (p->pids == 0 || p->memory_bytes == 0 || p->root_bytes == 0 || p->root_inodes == 0)
        return err_set(err, ERR_INVALID, "plan: missing limits");
    if ((p->flags & PLAN_AS_CALLER) ? p->as_uid == 0 : p->as_uid != 0)
        return err_set(err, ERR_INVALID, "plan: bad caller");
    bool proc = (p->flags & PLAN_GVISOR) != 0; /* which has its own */
    for (uint32_t i = 0; i < p->n_ops; i++) {
        int r = check_op(p, &p->ops[i], err);
        if (r < 0)
            return r;
        proc = proc || p->ops[i].kind == PLAN_OP_PROC;
    }
    /* The limit of user namespaces inside is written through it. */
    return proc ? 0 : err_set(err, ERR_INVALID, "plan: no /proc");
}
