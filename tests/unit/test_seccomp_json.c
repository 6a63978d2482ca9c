/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/seccomp/seccomp.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "sandbox/seccomp/seccomp_internal.h"

/* The profile that engines get, judged as libseccomp does, against the table itself. */

#define ARGS 6
#define ROUNDS 200

static struct json *profile;

static int setup(void **state)
{
    struct buf text;
    struct err err = {0};
    buf_init(&text, 1U << 20);
    assert_int_equal(seccomp_json(SECCOMP_DEFAULT, &text, &err), 0);
    assert_int_equal(json_parse(text.data, text.len, &profile, &err), 0);
    assert_true(text.len < 256U << 10);
    buf_done(&text);
    return 0;
}

static int teardown(void **state)
{
    json_free(profile);
    return 0;
}

static bool names_it(const struct json *rule, const char *name)
{
    const struct json *names = json_get(rule, "names");
    for (size_t i = 0; i < json_len(names); i++)
        if (str_eq(json_str(json_at(names, i)), name))
            return true;
    return false;
}

static bool holds(const struct json *cond, const uint64_t *args)
{
    uint64_t arg = args[json_int(json_get(cond, "index"))];
    assert_string_equal(json_str(json_get(cond, "op")), "SCMP_CMP_MASKED_EQ");
    return (arg & (uint64_t)json_int(json_get(cond, "value"))) ==
           (uint64_t)json_int(json_get(cond, "valueTwo"));
}

static bool profile_allows(const char *name, const uint64_t *args)
{
    const struct json *rules = json_get(profile, "syscalls");
    for (size_t i = 0; i < json_len(rules); i++) {
        const struct json *rule = json_at(rules, i), *conds = json_get(rule, "args");
        bool all = true;
        if (!names_it(rule, name) || !str_eq(json_str(json_get(rule, "action")), "SCMP_ACT_ALLOW"))
            continue;
        for (size_t k = 0; k < json_len(conds); k++)
            all = all && holds(json_at(conds, k), args);
        if (all)
            return true;
    }
    return false;
}

static bool cond_holds(const struct seccomp_cond *c, const uint64_t *args)
{
    uint32_t arg = (uint32_t)args[c->arg];
    switch (c->op) {
    case COND_NONE:
        return true;
    case COND_EQ:
        return arg == c->a;
    case COND_MASKED:
        return (arg & c->a) == c->b;
    case COND_ANY:
        return (arg & c->a) != 0;
    case COND_RANGE:
        return arg >= c->a && arg <= c->b;
    }
    return false;
}

static bool table_allows(const struct seccomp_family *f, const uint64_t *args)
{
    if (f->args == NULL || f->inside)
        return f->inside || f->ret == SECCOMP_RET_ALLOW;
    for (const struct seccomp_arg_rule *r = f->args;; r++) {
        bool all = true;
        for (int i = 0; i < SECCOMP_CONDS && r->cond[i].op != COND_NONE; i++)
            all = all && cond_holds(&r->cond[i], args);
        if (all)
            return r->ret == SECCOMP_RET_ALLOW;
    }
}

static uint64_t next_random(void)
{
    static uint64_t x = 88172645463325252ULL;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

/* Near what the rules mention, since that is where they could go wrong. */
static uint64_t interesting(const struct seccomp_family *f, unsigned arg)
{
    uint64_t r = next_random();
    size_t n = 1;
    for (const struct seccomp_arg_rule *rule = f->args; rule->cond[0].op != COND_NONE; rule++)
        n++;
    const struct seccomp_arg_rule *rule = &f->args[r % n];
    uint64_t v = 0;
    for (int i = 0; i < SECCOMP_CONDS; i++)
        if (rule->cond[i].op != COND_NONE && rule->cond[i].arg == arg)
            v = rule->cond[i].op == COND_MASKED ? rule->cond[i].b : rule->cond[i].a;
    switch (r >> 60) {
    case 0:
        return v | 1ULL << 32; /* the kernel cuts it off, and so must we */
    case 1:
        return v ^ 1ULL << (r >> 20 & 31);
    case 2:
        return v + 1;
    case 3:
        return next_random();
    case 4:
        return v | (next_random() & 0xffff0000);
    default:
        return v;
    }
}

/* How often the table allows it, out of *tries. */
static unsigned compare(const struct seccomp_family *f, const char *name, unsigned *tries)
{
    unsigned allowed = 0;
    for (int round = 0; round < (f->args != NULL ? ROUNDS : 1); round++) {
        uint64_t args[ARGS] = {0};
        for (unsigned a = 0; f->args != NULL && a < ARGS; a++)
            args[a] = interesting(f, a);
        bool want = table_allows(f, args);
        if (profile_allows(name, args) != want)
            fail_msg("%s(%llx, %llx, %llx): %s", name, (unsigned long long)args[0],
                     (unsigned long long)args[1], (unsigned long long)args[2],
                     want ? "refused" : "allowed");
        allowed += want;
        ++*tries;
    }
    return allowed;
}

static void the_profile_allows_what_the_table_allows(void **state)
{
    unsigned allowed = 0, tries = 0;
    for (const struct seccomp_family *f = seccomp_families; f->names[0] != NULL; f++) {
        if (f->profiles != 0 && !(f->profiles & 1U << SECCOMP_DEFAULT))
            continue;
        for (size_t i = 0; i < SECCOMP_FAMILY_MAX && f->names[i] != NULL; i++)
            allowed += compare(f, f->names[i], &tries);
    }
    assert_true(allowed > 1000 && tries - allowed > 1000);
}

static void what_is_not_in_the_table_is_refused(void **state)
{
    static const char *const names[] = {
        "clone3",  "openat2",    "io_uring_setup", "keyctl",       "userfaultfd",
        "add_key", "move_mount", "fsopen",         "memfd_secret", "process_madvise"};
    const uint64_t args[ARGS] = {0};
    assert_string_equal(json_str(json_get(profile, "defaultAction")), "SCMP_ACT_ERRNO");
    assert_int_equal(json_int(json_get(profile, "defaultErrnoRet")), ENOSYS);
    assert_int_equal(json_len(json_get(profile, "architectures")), 1);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        assert_false(profile_allows(names[i], args));
}

/* box-guest makes namespaces for programs; in their own filter nothing of that is allowed. */
static void only_what_box_guest_needs_besides_is_left_to_the_filter(void **state)
{
    const uint64_t args[ARGS] = {0};
    for (const struct seccomp_family *f = seccomp_families; f->names[0] != NULL; f++) {
        for (size_t i = 0; f->inside && f->args == NULL && f->names[i] != NULL; i++)
            assert_true(str_eq(f->names[i], "unshare") || str_eq(f->names[i], "setns"));
    }
    assert_true(profile_allows("unshare", args) && profile_allows("setns", args));
    assert_false(profile_allows("mount", args) || profile_allows("pivot_root", args));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_profile_allows_what_the_table_allows),
        cmocka_unit_test(what_is_not_in_the_table_is_refused),
        cmocka_unit_test(only_what_box_guest_needs_besides_is_left_to_the_filter),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
