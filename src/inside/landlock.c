/* SPDX-License-Identifier: Apache-2.0 */

/* Builds a ruleset that fits the kernel's Landlock version, and applies it. */

#include "inside/landlock.h"

#include "base/cleanup.h"
#include "base/compat.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#define FS_READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define FS_CHANGE                                                                                  \
    (LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |                               \
     LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |  \
     LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_SYM |   \
     LANDLOCK_ACCESS_FS_REFER | LANDLOCK_ACCESS_FS_TRUNCATE)
#define FS_DEVICE_NODES (LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_BLOCK)

/* The rights that mean something for a file; the kernel refuses a rule on a file with others. */
#define FS_OF_FILES                                                                                \
    (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |   \
     LANDLOCK_ACCESS_FS_TRUNCATE | LANDLOCK_ACCESS_FS_IOCTL_DEV)

#define FS_ABI_1                                                                                   \
    ((FS_READ | FS_CHANGE | FS_DEVICE_NODES | LANDLOCK_ACCESS_FS_EXECUTE) &                        \
     ~(LANDLOCK_ACCESS_FS_REFER | LANDLOCK_ACCESS_FS_TRUNCATE))

static const uint64_t class_access[LANDLOCK_ACCESS_MAX] = {
    [LANDLOCK_RO] = FS_READ,
    [LANDLOCK_RO_EXEC] = FS_READ | LANDLOCK_ACCESS_FS_EXECUTE,
    [LANDLOCK_RW] = FS_READ | FS_CHANGE | LANDLOCK_ACCESS_FS_EXECUTE,
    [LANDLOCK_RW_NOEXEC] = FS_READ | FS_CHANGE,
    [LANDLOCK_DEV] = FS_READ | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_TRUNCATE |
                     LANDLOCK_ACCESS_FS_IOCTL_DEV,
};

int landlock_abi(void)
{
    long abi =
        syscall(SYS_landlock_create_ruleset, NULL, (size_t)0, LANDLOCK_CREATE_RULESET_VERSION);
    return abi < 0 ? 0 : (int)abi;
}

/* Asking for more than the kernel knows is EINVAL, so ask for what its version has. A version newer
 * than ours is asked for what we know. */
static struct compat_landlock_ruleset_attr handled(int abi, unsigned flags)
{
    struct compat_landlock_ruleset_attr attr = {.handled_access_fs = FS_ABI_1};
    if (abi >= 2)
        attr.handled_access_fs |= LANDLOCK_ACCESS_FS_REFER;
    if (abi >= 3)
        attr.handled_access_fs |= LANDLOCK_ACCESS_FS_TRUNCATE;
    if (abi >= 4 && (flags & LANDLOCK_NO_TCP))
        attr.handled_access_net = LANDLOCK_ACCESS_NET_BIND_TCP | LANDLOCK_ACCESS_NET_CONNECT_TCP;
    if (abi >= 5)
        attr.handled_access_fs |= LANDLOCK_ACCESS_FS_IOCTL_DEV;
    if (abi >= 6 && (flags & LANDLOCK_SCOPED))
        attr.scoped = LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL;
    return attr;
}

static int add_fd(int ruleset, int fd, uint64_t access)
{
    struct landlock_path_beneath_attr attr = {.allowed_access = access, .parent_fd = fd};
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode))
        attr.allowed_access &= FS_OF_FILES;
    if (syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &attr, 0) < 0)
        return -errno;
    return 0;
}

static int add_rule(int ruleset, const struct landlock_path *rule, uint64_t access)
{
    if (!rule->path)
        return add_fd(ruleset, rule->fd, access);

    AUTO_CLOSE int fd = open(rule->path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT && rule->optional ? 0 : -errno;
    return add_fd(ruleset, fd, access);
}

int landlock_build(const struct landlock_path *rules, size_t n, unsigned flags)
{
    int abi = landlock_abi();
    struct compat_landlock_ruleset_attr attr = handled(abi, flags);
    if (abi == 0)
        return -EOPNOTSUPP;

    AUTO_CLOSE int ruleset = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr), 0);
    if (ruleset < 0)
        return -errno;
    for (size_t i = 0; i < n; i++) {
        int r =
            add_rule(ruleset, &rules[i], class_access[rules[i].access] & attr.handled_access_fs);
        if (r < 0)
            return r;
    }
    return TAKE_FD(ruleset);
}

int landlock_restrict(int ruleset_fd)
{
    if (syscall(SYS_landlock_restrict_self, ruleset_fd, 0) < 0)
        return -errno;
    return 0;
}
