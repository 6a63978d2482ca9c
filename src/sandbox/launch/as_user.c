/* SPDX-License-Identifier: Apache-2.0 */

/* The child that becomes another user, and the parent that reads its findings. */

#include "sandbox/launch/as_user.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/fd.h"
#include "base/path.h"
#include "inside/clone.h"
#include "sandbox/host/children.h"

#define GROUPS_MAX 65536 /* the kernel's own bound */
#define NOBODY 65534     /* the kernel's own id for what has none */
#define PATIENCE_MS 5000 /* with file systems and directories of users that do not answer */

struct look {
    const struct as_user *who;
    int dir; /* where the path begins, and is made; -1: it is absolute */
    const char *path;
    bool write;
};

struct answer {
    int error; /* 0 or a negative errno */
    struct as_user_found found;
};

/* A user without a passwd entry gets a single group, in which no other user is. */
static int set_groups_child(const struct as_user *who, gid_t *gid)
{
    *gid = who->gid;
    if (who->groups != NULL)
        return setgroups(who->n_groups, who->groups) < 0 ? -errno : 0;
    const struct passwd *pw = getpwuid(who->uid);
    *gid = pw != NULL ? pw->pw_gid : NOBODY;
    if (pw == NULL)
        return setgroups(0, NULL) < 0 ? -errno : 0;
    return initgroups(pw->pw_name, pw->pw_gid) < 0 ? -errno : 0;
}

static int become_child(const struct as_user *who, gid_t *gid)
{
    int r = set_groups_child(who, gid);
    if (r == 0 && (setresgid(*gid, *gid, *gid) < 0 || setresuid(who->uid, who->uid, who->uid) < 0))
        r = -errno;
    return r; /* leaving uid 0 clears every capability */
}

static bool is_member_child(gid_t gid)
{
    gid_t groups[GROUPS_MAX];
    int n = getgroups(GROUPS_MAX, groups);
    bool found = gid == getegid();
    for (int i = 0; i < n; i++)
        found = found || groups[i] == gid;
    return found;
}

static int look_child(const struct look *l, struct as_user_found *ret)
{
    struct stat st;
    gid_t gid = 0;
    int r = become_child(l->who, &gid);
    if (r < 0)
        return r;
    AUTO_CLOSE int fd =
        l->dir >= 0 ? path_make_beneath(l->dir, l->path) : path_open_unlinked(l->path, O_PATH);
    if (fd < 0)
        return fd;
    if (fstat(fd, &st) < 0)
        return -errno;
    int mode = R_OK | (S_ISDIR(st.st_mode) ? X_OK : 0) | (l->write ? W_OK : 0);
    if (faccessat(fd, "", mode, AT_EMPTY_PATH | AT_EACCESS) < 0)
        return -errno;
    bool member = is_member_child(st.st_gid);
    *ret = (struct as_user_found){st.st_dev, st.st_ino, member, member ? st.st_gid : gid};
    return 0;
}

static _Noreturn void child(const struct look *l, int out)
{
    struct answer a = {0};
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)umask(022);
    a.error = look_child(l, &a.found);
    child_exit(fd_write_all(out, &a, sizeof(a)) < 0);
}

/* A requester learns whether a user may open something, and nothing of what is in there. */
static int look(const struct look *l, struct as_user_found *ret)
{
    struct answer a = {0};
    AUTO_CLOSE int pidfd = -1;
    int out[2];
    siginfo_t info;
    if (pipe2(out, O_CLOEXEC) < 0)
        return -errno;
    AUTO_CLOSE int ours = out[0];
    AUTO_CLOSE int theirs = out[1];
    pid_t pid = clone_process(CLONE_CLEAR_SIGHAND, -1, &pidfd);
    if (pid == 0)
        child(l, theirs);
    if (pid < 0)
        return pid;
    (void)close(TAKE_FD(theirs));
    struct pollfd p = {.fd = ours, .events = POLLIN};
    if (poll(&p, 1, PATIENCE_MS) != 1) {
        (void)pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
        children_add(pid); /* it may take a while to die */
        return -ETIMEDOUT;
    }
    bool told = fd_read_full(ours, &a, sizeof(a)) == (ssize_t)sizeof(a);
    (void)waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED);
    *ret = a.found;
    return told ? a.error : -EIO;
}

int as_user_reach(const struct as_user *who, const char *path, bool write,
                  struct as_user_found *ret)
{
    return look(&(struct look){who, -1, path, write}, ret);
}

int as_user_make(const struct as_user *who, int dir, const char *path, struct as_user_found *ret)
{
    return look(&(struct look){who, dir, path, true}, ret);
}
