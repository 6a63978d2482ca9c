/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Prints a plan: one line per fact, for golden files and people. */

#include <errno.h>

#include "base/buf.h"
#include "base/str.h"
#include "sandbox/plan/plan.h"

static const char *const plan_op_names[PLAN_OP_MAX] = {
    [PLAN_OP_DIR] = "dir",         [PLAN_OP_SYMLINK] = "symlink", [PLAN_OP_BIND] = "bind",
    [PLAN_OP_SCRATCH] = "scratch", [PLAN_OP_PROC] = "proc",       [PLAN_OP_DEV] = "dev",
    [PLAN_OP_OVERLAY] = "overlay",
};

static const char *const plan_source_names[PLAN_SRC_MAX] = {
    [PLAN_SRC_NONE] = "-",          [PLAN_SRC_HOST] = "host",   [PLAN_SRC_ETC] = "etc",
    [PLAN_SRC_PRIVATE] = "private", [PLAN_SRC_GUEST] = "guest", [PLAN_SRC_ALLOWED] = "allowed",
};

/* Not 0 when something did not fit. */
static inline int plan_print_op(const struct plan *p, const struct plan_op *op, struct buf *out)
{
    static const struct {
        unsigned flag;
        const char *name;
    } flags[] = {
        {PLAN_OP_RDONLY, "ro"},         {PLAN_OP_NOEXEC, "noexec"},
        {PLAN_OP_OWNED, "owned"},       {PLAN_OP_RECURSIVE, "rec"},
        {PLAN_OP_OPTIONAL, "optional"}, {PLAN_OP_LANDLOCK_RW, "landlock-rw"},
        {PLAN_OP_OWN_VIEW, "own-view"},
    };
    int bad = buf_printf(out, "%s %s", plan_op_names[op->kind], plan_str(p, op->target));
    if (op->source_class == PLAN_SRC_ALLOWED)
        bad |= buf_printf(out, " allowed[%u]:%s", op->root, plan_str(p, op->source));
    else if (op->source_class != PLAN_SRC_NONE || op->source != 0)
        bad |=
            buf_printf(out, " %s:%s", plan_source_names[op->source_class], plan_str(p, op->source));
    if (op->mode != 0)
        bad |= buf_printf(out, " mode=%o", op->mode);
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
        if (op->flags & flags[i].flag)
            bad |= buf_printf(out, " %s", flags[i].name);
    return bad | buf_putc(out, '\n');
}

static inline int plan_print(const struct plan *p, struct buf *out)
{
    int bad = buf_printf(out, "flags%s%s%s%s\n", p->flags & PLAN_NET_ON ? " net-on" : "",
                         p->flags & PLAN_ROOT_WRITABLE ? " root-writable" : "",
                         p->flags & PLAN_REQUIRE_LIMITS ? " require-limits" : "",
                         p->flags & PLAN_GVISOR ? " gvisor" : "");
    bad |= buf_printf(out, "ids payload=%u:%u init=%u:%u\n", p->payload_uid, p->payload_gid,
                      p->init_uid, p->init_gid);
    bad |=
        buf_printf(out, "limits memory=%llu pids=%u cpu=%u/100000 quota=%llu/%llu root=%llu/%u\n",
                   (unsigned long long)p->memory_bytes, p->pids, p->cpu_quota_us,
                   (unsigned long long)p->quota_bytes, (unsigned long long)p->quota_inodes,
                   (unsigned long long)p->root_bytes, p->root_inodes);
    for (uint32_t i = 0; i < p->n_rlimits; i++)
        bad |= buf_printf(out, "rlimit %u %llu %llu\n", p->rlimits[i].resource,
                          (unsigned long long)p->rlimits[i].soft,
                          (unsigned long long)p->rlimits[i].hard);
    for (uint32_t i = 0; i < p->n_ops; i++)
        bad |= plan_print_op(p, &p->ops[i], out);
    return bad == 0 ? 0 : -ENOBUFS;
}
