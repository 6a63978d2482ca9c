/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the policy as a seccomp profile for container engines. Engines hand the profile to
 * libseccomp, which knows no order of rules: each says ALLOW for arguments that no earlier row of
 * the table refuses. It compares 64 bits, the table means the low 32, so every condition is a
 * masked one. */

#include "sandbox/seccomp/seccomp.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "sandbox/seccomp/seccomp_internal.h"

#define ARGS 6
#define BITS 32
#define RANGE_MAX 64U
#define REFUSALS_MAX 128U

#if defined(__x86_64__)
#define ARCH_NAME "SCMP_ARCH_X86_64"
#elif defined(__aarch64__)
#define ARCH_NAME "SCMP_ARCH_AARCH64"
#endif

/* The arguments whose bits under `mask` have these values. */
struct box {
    uint32_t mask[ARGS], value[ARGS];
};

struct writer {
    struct jw *w;
    const char *name; /* of the call */
    struct box refused[REFUSALS_MAX];
    size_t n_refused;
};

static void put_box(struct writer *wr, const struct box *b)
{
    struct jw *w = wr->w;
    jw_object(w);
    jw_karray(w, "names");
    jw_str(w, wr->name);
    jw_array_end(w);
    jw_kstr(w, "action", "SCMP_ACT_ALLOW");
    jw_karray(w, "args");
    for (unsigned i = 0; i < ARGS; i++) {
        if (b->mask[i] == 0)
            continue;
        jw_object(w);
        jw_ku64(w, "index", i);
        jw_ku64(w, "value", b->mask[i]);
        jw_ku64(w, "valueTwo", b->value[i]);
        jw_kstr(w, "op", "SCMP_CMP_MASKED_EQ");
        jw_object_end(w);
    }
    jw_array_end(w);
    jw_object_end(w);
}

/* The box without what the refusals from `at` on cover. Where one overlaps, the box is cut bit by
 * bit: the part in which this bit differs from the refusal is free of it. */
static void put_rest(struct writer *wr, struct box b, size_t at)
{
    if (at == wr->n_refused) {
        put_box(wr, &b);
        return;
    }
    const struct box *no = &wr->refused[at];
    for (unsigned i = 0; i < ARGS; i++)
        if (b.mask[i] & no->mask[i] & (b.value[i] ^ no->value[i])) {
            put_rest(wr, b, at + 1); /* they have nothing in common */
            return;
        }
    for (unsigned i = 0; i < ARGS; i++) {
        for (unsigned bit = 0; bit < BITS; bit++) {
            uint32_t one = 1U << bit;
            if (!(no->mask[i] & one) || (b.mask[i] & one))
                continue;
            struct box part = b;
            part.mask[i] |= one;
            part.value[i] |= ~no->value[i] & one;
            put_rest(wr, part, at + 1);
            b.mask[i] |= one;
            b.value[i] |= no->value[i] & one;
        }
    }
}

typedef void box_fn(struct writer *wr, const struct box *b);

static void refuse(struct writer *wr, const struct box *b)
{
    if (wr->n_refused < REFUSALS_MAX)
        wr->refused[wr->n_refused++] = *b;
    else
        wr->w->error = -E2BIG; /* never wider than the table */
}

static void allow(struct writer *wr, const struct box *b)
{
    put_rest(wr, *b, 0);
}

/* A condition is one box, or several of which one must hold. */
static void each_box(struct writer *wr, const struct seccomp_cond *cond, unsigned n, struct box b,
                     box_fn *fn)
{
    if (n == SECCOMP_CONDS || cond->op == COND_NONE) {
        fn(wr, &b);
        return;
    }
    const struct box before = b;
    unsigned arg = cond->arg;
    switch (cond->op) {
    case COND_EQ:
    case COND_MASKED:
        b.mask[arg] |= cond->op == COND_EQ ? UINT32_MAX : cond->a;
        b.value[arg] |= cond->op == COND_EQ ? cond->a : cond->b;
        each_box(wr, cond + 1, n + 1, b, fn);
        break;
    case COND_ANY:
        for (unsigned bit = 0; bit < BITS; bit++) {
            if (!(cond->a & 1U << bit))
                continue;
            b = before;
            b.mask[arg] |= 1U << bit;
            b.value[arg] |= 1U << bit;
            each_box(wr, cond + 1, n + 1, b, fn);
        }
        break;
    case COND_RANGE:
        for (uint32_t v = cond->a; v <= cond->b && v - cond->a < RANGE_MAX; v++) {
            b = before;
            b.mask[arg] = UINT32_MAX;
            b.value[arg] = v;
            each_box(wr, cond + 1, n + 1, b, fn);
        }
        break;
    case COND_NONE:
        break;
    }
}

/* Up to the row without a condition, which every list ends with. */
static void put_rules(struct writer *wr, const struct seccomp_arg_rule *rules)
{
    wr->n_refused = 0;
    for (;; rules++) {
        bool last = rules->cond[0].op == COND_NONE;
        each_box(wr, rules->cond, 0, (struct box){0},
                 rules->ret == SECCOMP_RET_ALLOW ? allow : refuse);
        if (last)
            return;
    }
}

static void put_names(struct jw *w, const struct seccomp_family *f)
{
    bool allowed = f->inside || f->ret == SECCOMP_RET_ALLOW;
    jw_object(w);
    jw_karray(w, "names");
    for (size_t i = 0; i < SECCOMP_FAMILY_MAX && f->names[i] != NULL; i++)
        jw_str(w, f->names[i]);
    jw_array_end(w);
    jw_kstr(w, "action", allowed ? "SCMP_ACT_ALLOW" : "SCMP_ACT_ERRNO");
    if (!allowed)
        jw_ku64(w, "errnoRet", f->ret & SECCOMP_RET_DATA);
    jw_object_end(w);
}

int seccomp_json(enum seccomp_profile profile, struct buf *ret, struct err *err)
{
#ifndef ARCH_NAME
    return err_set(err, ERR_UNSUPPORTED, "no system call policy for this architecture");
#else
    static struct writer wr;
    struct jw w = JW_INIT(ret);
    wr.w = &w;
    jw_object(&w);
    jw_kstr(&w, "defaultAction", "SCMP_ACT_ERRNO");
    jw_kint(&w, "defaultErrnoRet", ENOSYS);
    jw_karray(&w, "architectures");
    jw_str(&w, ARCH_NAME);
    jw_array_end(&w);
    jw_karray(&w, "syscalls");
    for (const struct seccomp_family *f = seccomp_families; f->names[0] != NULL; f++) {
        if (f->profiles != 0 && !(f->profiles & 1U << profile))
            continue;
        if (f->args == NULL || f->inside) {
            put_names(&w, f);
            continue;
        }
        for (size_t i = 0; i < SECCOMP_FAMILY_MAX && f->names[i] != NULL; i++) {
            wr.name = f->names[i];
            put_rules(&wr, f->args);
        }
    }
    jw_array_end(&w);
    jw_object_end(&w);
    wr.w = NULL;
    if (jw_end(&w) < 0)
        return err_set(err, ERR_LIMIT, "the system call profile is too large");
    return 0;
#endif
}
