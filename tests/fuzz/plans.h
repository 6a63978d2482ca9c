/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Plans as boxd makes them, to be bent by a fuzzer. */

#include <assert.h>
#include <string.h>

#include "backend/native/plan.h"
#include "base/alloc.h"
#include "base/err.h"
#include "sandbox/plan/plan.h"
#include "spec/spec.h"

#define PLANS_COUNT 4U

/* Variant `n` of a session that mounts from the one allowed directory `root`. */
static inline void plans_make(unsigned n, char *root, const char *name, uint32_t uid_index,
                              struct plan *ret)
{
    char *const roots[] = {root, NULL};
    struct err err = {0};
    struct native_facts facts = {
        .dirs = {{"/bin", "usr/bin"}, {"/lib", "usr/lib"}, {"/lib64", "usr/lib64"}},
        .n_dirs = 3,
        .roots = roots};
    AUTO(spec) struct spec *s = spec_new();
    s->session_id = xstrdup("fuzz");
    s->memory_mb = 64;
    if (n % PLANS_COUNT == 1) {
        s->host_path = xasprintf("%s/sub", root);
        s->host_path_mode = MOUNT_RO;
    } else if (n % PLANS_COUNT == 2) {
        s->extra_mounts = xnew(struct mount_spec);
        s->n_extra_mounts = 1;
        s->extra_mounts[0] = (struct mount_spec){.host_path = xasprintf("%s/sub", root),
                                                 .mount_path = xstrdup("/mnt/x"),
                                                 .mode = MOUNT_RW};
    } else if (n % PLANS_COUNT == 3) {
        s->read_only_rootfs = false;
    }
    int r = native_plan(s, &facts, name, uid_index, ret, &err);
    assert(r == 0);
}

/* Applies the bytes as changes: offset (2), length (1), so many bytes; until they end. Half of the
 * offsets fall on the head and the operations in use, half on the strings. */
static inline void plans_bend(struct plan *p, const uint8_t *data, size_t size)
{
    size_t head = offsetof(struct plan, ops) + p->n_ops * sizeof(p->ops[0]);
    while (size > 3) {
        size_t at = (size_t)(data[0] | data[1] << 8), n = data[2] % 9U;
        size_t base = at & 1 ? offsetof(struct plan, strings) : 0;
        size_t span = at & 1 ? (p->strings_len <= PLAN_STRINGS_MAX ? p->strings_len : 64) : head;
        at = base + (at >> 1) % (span > 0 ? span : 1);
        data += 3;
        size -= 3;
        n = n < size ? n : size;
        n = n < sizeof(*p) - at ? n : sizeof(*p) - at;
        memcpy((char *)p + at, data, n);
        data += n;
        size -= n;
    }
}
