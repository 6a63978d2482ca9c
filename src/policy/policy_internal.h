/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the policy share: its settings, profiles and mount roots. */

#include "policy/policy.h"
#include "spec/profile.h"

struct policy_root {
    char *given; /* owned; as spelled, absolute */
    char *real;  /* owned; as it resolved at start */
};

struct policy {
    struct policy_settings settings;
    struct policy_root *roots; /* owned */
    size_t n_roots;
    bool flat;                /* the allow-list has its older name in messages */
    struct profile *profiles; /* owned, sorted by name; what it points to, too */
    size_t n_profiles;
    struct policy_source *sources; /* owned; one per setting, in the order of the table */
};

/* Where the value of a setting came from, and what it is in words. */
struct policy_source {
    char *value; /* owned */
    char *where; /* owned */
};

/* policy_settings.c */
int policy_read_settings(struct policy *p, const struct policy_options *options, struct err *err);
void policy_settings_done(struct policy *p);

/* policy.c: absolute, without ".", ".." and empty components; owned. */
char *policy_plain_path(const char *base, const char *path);
