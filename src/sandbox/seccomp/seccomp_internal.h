/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* How the policy is written down. */

#include <stdbool.h>
#include <stdint.h>

/* Conditions look at the LOW 32 bits of an argument only. That is what the kernel itself looks at:
 * every argument we test is declared int, unsigned or umode_t there (clone cuts its flags to 32
 * bits by hand). A 64-bit comparison would let TIOCSTI | 1 << 32 through (CVE-2019-10063). */
enum seccomp_op {
    COND_NONE,   /* no (further) condition */
    COND_EQ,     /* arg == a */
    COND_MASKED, /* (arg & a) == b */
    COND_ANY,    /* (arg & a) != 0 */
    COND_RANGE,  /* a <= arg <= b, a > 0 */
};

struct seccomp_cond {
    enum seccomp_op op;
    unsigned arg; /* 0 to 5 */
    uint32_t a, b;
};

#define SECCOMP_CONDS 3

/* All conditions must hold. The first rule of a list that matches decides; the last one of a list
 * has no condition. */
struct seccomp_arg_rule {
    struct seccomp_cond cond[SECCOMP_CONDS];
    uint32_t ret; /* SECCOMP_RET_* */
};

#define SECCOMP_FAMILY_MAX 48

/* A row of the policy: system calls that are treated alike. */
struct seccomp_family {
    const struct seccomp_arg_rule *args; /* NULL: `ret`, whatever the arguments */
    uint32_t ret;
    unsigned profiles; /* set of 1 << enum seccomp_profile; 0: all */
    bool inside;       /* the profile of an engine leaves its arguments to our own filter */
    const char *names[SECCOMP_FAMILY_MAX];
};

/* Ends with a row without names. */
extern const struct seccomp_family seccomp_families[];

/* What a call that is not in the table gets, and what a call of a foreign architecture gets. */
extern const uint32_t seccomp_ret_default;
extern const uint32_t seccomp_ret_foreign;
