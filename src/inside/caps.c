/* SPDX-License-Identifier: Apache-2.0 */

/* Reduces the capability sets and locks the secure bits. */

#include "inside/caps.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* uid 0 is an ordinary user, a change of uid gives nothing, and none of this can be undone. */
#define SECUREBITS                                                                                 \
    (SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |                               \
     SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |       \
     SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED)

static int drop_bounding(uint64_t keep)
{
    /* The kernel may know more capabilities than our headers: it says EINVAL after its last. */
    for (unsigned cap = 0; cap < 64; cap++) {
        if (keep & UINT64_C(1) << cap)
            continue;
        int held = prctl(PR_CAPBSET_READ, cap, 0, 0, 0);
        if (held < 0 && errno == EINVAL)
            return 0;
        if (held < 0)
            return -errno;
        if (held && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
            return -errno;
    }
    return 0;
}

/* Kernels without ambient capabilities do not exist for us, so any error is one. */
static int clear_ambient(void)
{
    return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 ? -errno : 0;
}

/* Clears the inheritable set or, with `inheritable`, makes it what is kept. */
static int reduce_sets(uint64_t keep, bool inheritable)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    if (syscall(SYS_capget, &header, data) < 0)
        return -errno;
    for (unsigned i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
        uint32_t part = (uint32_t)(keep >> 32 * i);
        data[i].permitted &= part;
        data[i].effective &= part;
        data[i].inheritable = inheritable ? data[i].permitted : 0;
    }
    return syscall(SYS_capset, &header, data) < 0 ? -errno : 0;
}

int caps_lock_securebits(void)
{
    int bits = prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);
    if (bits < 0)
        return -errno;
    if (bits == SECUREBITS)
        return 0;
    return prctl(PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0) < 0 ? -errno : 0;
}

static int keep_caps(uint64_t mask, bool inheritable)
{
    int r;

    /* CAP_SETPCAP may be among those that go: what needs it comes first. */
    r = drop_bounding(mask);
    if (r < 0)
        return r;
    r = clear_ambient();
    if (r < 0)
        return r;
    return reduce_sets(mask, inheritable);
}

int caps_keep(uint64_t mask)
{
    return keep_caps(mask, false);
}

int caps_keep_over_exec(uint64_t mask)
{
    int r = keep_caps(mask, true);
    for (unsigned cap = 0; r == 0 && cap < 64; cap++) {
        if ((mask & UINT64_C(1) << cap) &&
            prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0) < 0)
            r = -errno;
    }
    return r;
}

int caps_drop_all(void)
{
    int r;
    r = caps_lock_securebits();
    if (r < 0)
        return r;
    r = caps_keep(0);
    if (r < 0)
        return r;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0;
}

int caps_are_none(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    if (syscall(SYS_capget, &header, data) < 0)
        return -errno;
    for (unsigned i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
        if ((data[i].permitted | data[i].effective | data[i].inheritable) != 0)
            return -EPERM;
    return 0;
}
