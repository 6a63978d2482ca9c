/* SPDX-License-Identifier: Apache-2.0 */

/* Compiles the policy of a profile into a BPF program for an architecture. */

#include "sandbox/seccomp/seccomp.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
#include "sandbox/seccomp/seccomp_internal.h"

#include <assert.h>
#include <seccomp.h>
#include <stdlib.h>

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

int seccomp_resolve(uint32_t arch, const char *name)
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

int seccomp_compile_for(uint32_t arch, enum seccomp_profile profile, struct sock_filter **ret,
                        size_t *n, struct err *err)
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
