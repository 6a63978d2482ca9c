/* SPDX-License-Identifier: Apache-2.0 */

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

#include "sandbox/seccomp/seccomp_internal.h"

#include "base/alloc.h"
#include "base/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half of an argument comes first");

struct range {
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

static void emit_leaf(struct program *p, const struct range *range)
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
static void emit_search(struct program *p, const struct range *ranges, size_t n)
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
static size_t add_range(struct range *ranges, size_t n, struct range add)
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

int seccomp_bpf_build(uint32_t arch, const struct seccomp_entry *entries, size_t n,
                      struct sock_filter *out, size_t cap)
{
    struct program p = {.insn = out, .cap = cap};
    AUTO_FREE struct range *ranges = xnew_n(struct range, 2 * n + 1);
    size_t n_ranges = 0;
    uint32_t next = 0;

    for (size_t i = 0; i < n; i++) {
        const struct seccomp_entry *e = &entries[i];
        assert(e->nr >= next);
        if (e->nr > next)
            n_ranges = add_range(ranges, n_ranges, (struct range){next, seccomp_ret_default, NULL});
        n_ranges = add_range(ranges, n_ranges, (struct range){e->nr, e->ret, e->args});
        next = e->nr + 1;
    }
    n_ranges = add_range(ranges, n_ranges, (struct range){next, seccomp_ret_default, NULL});

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
