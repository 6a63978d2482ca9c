/* SPDX-License-Identifier: Apache-2.0 */

/* Compiles the policy of a profile into a BPF program for an architecture. */

#include "sandbox/seccomp/seccomp.h"

#include <assert.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
#include "sandbox/seccomp/seccomp_internal.h"

/* Generates the BPF program of a system call filter. The shape of the program:
 *
 *     load arch; other than ours -> seccomp_ret_foreign
 *     load nr;   binary search over ranges of numbers with one verdict
 *     leaf:      return, or a list of argument rules that all end in a return
 *
 * Returns of the same verdict are then shared.
 *
 * We generate it ourselves because a library rule is one comparison per argument, unordered, with
 * one default for all: "every ioctl of this type but these two" and "this errno for a wrong family,
 * that one for a wrong type" cannot be said in it. Numbers with the x32 bit are simply larger than
 * any we know, so they get the default like every number of the future.
 */

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half of an argument comes first");

struct seccomp_entry {
    uint32_t nr;
    uint32_t ret;
    const struct seccomp_arg_rule *args;
};

struct nr_range {
    uint32_t start; /* ends where the next one starts */
    uint32_t ret;
    const struct seccomp_arg_rule *args;
};

struct program {
    struct sock_filter *insn; /* borrowed */
    size_t n, cap;            /* n may pass cap: then it did not fit */
};

static void emit(struct program *p, uint16_t code, uint32_t k, uint8_t jt, uint8_t jf)
{
    if (p->n < p->cap)
        p->insn[p->n] = (struct sock_filter)BPF_JUMP(code, k, jt, jf);
    p->n++;
}

static void emit_load(struct program *p, size_t offset)
{
    emit(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void emit_ret(struct program *p, uint32_t ret)
{
    emit(p, BPF_RET | BPF_K, ret, 0, 0);
}

/* The conditional jumps of a condition that must, when it fails, pass the rest of its rule are
 * emitted with the mark below and patched when the length of the rule is known. */
#define FAIL 0xff

static void emit_cond(struct program *p, const struct seccomp_cond *c)
{
    switch (c->op) {
    case COND_EQ:
        emit(p, BPF_JMP | BPF_JEQ | BPF_K, c->a, 0, FAIL);
        break;
    case COND_MASKED:
        emit(p, BPF_ALU | BPF_AND | BPF_K, c->a, 0, 0);
        emit(p, BPF_JMP | BPF_JEQ | BPF_K, c->b, 0, FAIL);
        break;
    case COND_ANY:
        emit(p, BPF_JMP | BPF_JSET | BPF_K, c->a, 0, FAIL);
        break;
    case COND_RANGE:
        emit(p, BPF_JMP | BPF_JGE | BPF_K, c->a, 0, FAIL);
        emit(p, BPF_JMP | BPF_JGT | BPF_K, c->b, FAIL, 0);
        break;
    case COND_NONE:
    default:
        assert(c->op != COND_NONE);
    }
}

static void patch_fail(struct program *p, size_t from)
{
    for (size_t i = from; i < p->n && i < p->cap; i++) {
        struct sock_filter *insn = &p->insn[i];
        size_t distance = p->n - i - 1;
        if (BPF_CLASS(insn->code) != BPF_JMP)
            continue;
        assert(distance < FAIL);
        if (insn->jt == FAIL)
            insn->jt = (uint8_t)distance;
        if (insn->jf == FAIL)
            insn->jf = (uint8_t)distance;
    }
}

static void emit_leaf(struct program *p, const struct nr_range *range)
{
    int loaded = -1; /* argument that the accumulator holds on every way to this rule */

    if (!range->args) {
        emit_ret(p, range->ret);
        return;
    }
    for (const struct seccomp_arg_rule *rule = range->args;; rule++) {
        size_t from = p->n, i = 0;
        for (; i < SECCOMP_CONDS && rule->cond[i].op != COND_NONE; i++) {
            const struct seccomp_cond *c = &rule->cond[i];
            if ((int)c->arg != loaded)
                emit_load(p, offsetof(struct seccomp_data, args) + c->arg * sizeof(uint64_t));
            emit_cond(p, c);
            loaded = c->op == COND_MASKED ? -1 : (int)c->arg;
        }
        emit_ret(p, rule->ret);
        patch_fail(p, from);
        if (i == 0)
            return;
        if (i > 1)
            loaded = -1; /* the next rule is reached from several conditions */
    }
}

/* Emits the search over ranges[0..n). The number is in the accumulator. */
static void emit_search(struct program *p, const struct nr_range *ranges, size_t n)
{
    size_t left = n / 2, at = p->n, len;

    if (n == 1) {
        emit_leaf(p, ranges);
        return;
    }
    emit(p, BPF_JMP | BPF_JGE | BPF_K, ranges[left].start, 0, 0);
    emit_search(p, ranges, left);
    len = p->n - at - 1;
    if (len <= UINT8_MAX) {
        if (at < p->cap)
            p->insn[at].jt = (uint8_t)len;
    } else {
        /* Too far for a conditional jump: go over a long one. All jumps are relative, so the left
         * half may move. */
        emit(p, 0, 0, 0, 0);
        if (p->n <= p->cap) {
            memmove(&p->insn[at + 2], &p->insn[at + 1], len * sizeof(p->insn[0]));
            p->insn[at].jf = 1;
            p->insn[at + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JA, (uint32_t)len, 0, 0);
        }
    }
    emit_search(p, ranges + left, n - left);
}

/* Adds [start, ...) unless the range before it has the same verdict anyway. */
static size_t add_range(struct nr_range *ranges, size_t n, struct nr_range add)
{
    if (n > 0 && !add.args && !ranges[n - 1].args && ranges[n - 1].ret == add.ret)
        return n;
    ranges[n] = add;
    return n + 1;
}

static bool is_cond(const struct sock_filter *insn)
{
    return BPF_CLASS(insn->code) == BPF_JMP && BPF_OP(insn->code) != BPF_JA;
}

/* Where a jump to the return at `to` may go as well: the last return of the same verdict that is
 * within its reach. */
static size_t shared_return(const struct program *p, size_t from, size_t to)
{
    size_t end = from + 1 + UINT8_MAX;
    if (BPF_CLASS(p->insn[to].code) != BPF_RET)
        return to;
    for (size_t i = end < p->n ? end : p->n - 1; i > to; i--)
        if (p->insn[i].code == p->insn[to].code && p->insn[i].k == p->insn[to].k)
            return i;
    return to;
}

/* Removes what no way leads to. Jumps go forward only, so one pass finds it. */
static bool drop_unreachable(struct program *p)
{
    AUTO_FREE size_t *at = xnew_n(size_t, p->n + 1); /* first: reached; then: the new place */
    size_t n = 0;
    at[0] = 1;
    for (size_t i = 0; i < p->n; i++) {
        const struct sock_filter *insn = &p->insn[i];
        if (at[i] == 0 || BPF_CLASS(insn->code) == BPF_RET)
            continue;
        if (is_cond(insn))
            at[i + 1 + insn->jt] = at[i + 1 + insn->jf] = 1;
        else
            at[i + 1 + (BPF_CLASS(insn->code) == BPF_JMP ? insn->k : 0)] = 1;
    }
    for (size_t i = 0; i < p->n; i++) {
        bool reached = at[i] != 0;
        at[i] = reached ? n : SIZE_MAX;
        n += reached;
    }
    for (size_t i = 0; i < p->n; i++) {
        struct sock_filter insn = p->insn[i];
        if (at[i] == SIZE_MAX)
            continue;
        if (is_cond(&insn)) {
            insn.jt = (uint8_t)(at[i + 1 + insn.jt] - at[i] - 1);
            insn.jf = (uint8_t)(at[i + 1 + insn.jf] - at[i] - 1);
        } else if (BPF_CLASS(insn.code) == BPF_JMP) {
            insn.k = (uint32_t)(at[i + 1 + insn.k] - at[i] - 1);
        }
        p->insn[at[i]] = insn;
    }
    bool dropped = n < p->n;
    p->n = n;
    return dropped;
}

/* The kernel checks, translates and compiles the program for every exec, which takes as long as it
 * is: returns that say the same become one where a jump can reach it. */
static void share_returns(struct program *p)
{
    do {
        for (size_t i = 0; i < p->n; i++) {
            struct sock_filter *insn = &p->insn[i];
            if (!is_cond(insn))
                continue;
            insn->jt = (uint8_t)(shared_return(p, i, i + 1 + insn->jt) - i - 1);
            insn->jf = (uint8_t)(shared_return(p, i, i + 1 + insn->jf) - i - 1);
        }
    } while (drop_unreachable(p));
}

/* Compiles entries (sorted by nr, no duplicates) for one architecture (AUDIT_ARCH_*). Returns the
 * number of instructions, or -E2BIG. */
static int seccomp_bpf_build(uint32_t arch, const struct seccomp_entry *entries, size_t n,
                             struct sock_filter *out, size_t cap)
{
    struct program p = {.insn = out, .cap = cap};
    AUTO_FREE struct nr_range *ranges = xnew_n(struct nr_range, 2 * n + 1);
    size_t n_ranges = 0;
    uint32_t next = 0;

    for (size_t i = 0; i < n; i++) {
        const struct seccomp_entry *e = &entries[i];
        assert(e->nr >= next);
        if (e->nr > next)
            n_ranges =
                add_range(ranges, n_ranges, (struct nr_range){next, seccomp_ret_default, NULL});
        n_ranges = add_range(ranges, n_ranges, (struct nr_range){e->nr, e->ret, e->args});
        next = e->nr + 1;
    }
    n_ranges = add_range(ranges, n_ranges, (struct nr_range){next, seccomp_ret_default, NULL});

    emit_load(&p, offsetof(struct seccomp_data, arch));
    emit(&p, BPF_JMP | BPF_JEQ | BPF_K, arch, 1, 0);
    emit_ret(&p, seccomp_ret_foreign);
    emit_load(&p, offsetof(struct seccomp_data, nr));
    emit_search(&p, ranges, n_ranges);
    if (p.n > cap)
        return -E2BIG;
    share_returns(&p);
    return (int)p.n;
}

/* Names that the libseccomp of an older Debian does not know. From 424 on, numbers are the same on
 * every architecture. */
static const struct {
    const char *name;
    uint32_t arch; /* 0: all */
    int nr;
} newer[] = {
    {"uretprobe", SCMP_ARCH_X86_64, 335},
    {"uprobe", SCMP_ARCH_X86_64, 336},
    {"fchmodat2", 0, 452},
    {"map_shadow_stack", 0, 453},
    {"mseal", 0, 462},
};

/* The number of a name of the table on one architecture (AUDIT_ARCH_*), or < 0 when it has no such
 * call (aarch64 has no open, for one). */
static int seccomp_resolve(uint32_t arch, const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(newer); i++) {
        if (str_eq(newer[i].name, name))
            return newer[i].arch == 0 || newer[i].arch == arch ? newer[i].nr : -1;
    }

    int nr = seccomp_syscall_resolve_name_arch(arch, name);
    assert(nr != __NR_SCMP_ERROR); /* a typing error in the table */
    return nr;
}

static int compare_entries(const void *a, const void *b)
{
    const struct seccomp_entry *x = a, *y = b;

    return (x->nr > y->nr) - (x->nr < y->nr);
}

static size_t collect(enum seccomp_profile profile, uint32_t arch, struct seccomp_entry *ret)
{
    size_t n = 0;

    for (const struct seccomp_family *f = seccomp_families; f->names[0]; f++) {
        if (f->profiles != 0 && !(f->profiles & 1u << profile))
            continue;
        for (size_t i = 0; i < SECCOMP_FAMILY_MAX && f->names[i]; i++) {
            int nr = seccomp_resolve(arch, f->names[i]);
            if (nr >= 0)
                ret[n++] =
                    (struct seccomp_entry){.nr = (uint32_t)nr, .ret = f->ret, .args = f->args};
        }
    }
    qsort(ret, n, sizeof(*ret), compare_entries);
    return n;
}

static size_t count_names(void)
{
    size_t n = 0;

    for (const struct seccomp_family *f = seccomp_families; f->names[0]; f++) {
        for (size_t i = 0; i < SECCOMP_FAMILY_MAX && f->names[i]; i++)
            n++;
    }
    return n;
}

static int seccomp_compile_for(uint32_t arch, enum seccomp_profile profile,
                               struct sock_filter **ret, size_t *n, struct err *err)
{
    AUTO_FREE struct seccomp_entry *entries = xnew_n(struct seccomp_entry, count_names());
    AUTO_FREE struct sock_filter *prog = xnew_n(struct sock_filter, BPF_MAXINSNS);
    int len;

    assert(profile < SECCOMP_PROFILE_MAX);
    if (arch != SCMP_ARCH_X86_64 && arch != SCMP_ARCH_AARCH64)
        return err_set(err, ERR_UNSUPPORTED, "no system call policy for architecture %#x", arch);

    len = seccomp_bpf_build(arch, entries, collect(profile, arch, entries), prog, BPF_MAXINSNS);
    assert(len > 0); /* the table is ours; it fits ten times over */
    *ret = TAKE_PTR(prog);
    *n = (size_t)len;
    return 0;
}

int seccomp_compile(enum seccomp_profile profile, struct sock_filter **ret, size_t *n,
                    struct err *err)
{
    /* The tokens of libseccomp are the AUDIT_ARCH_* values. */
    return seccomp_compile_for(seccomp_arch_native(), profile, ret, n, err);
}
