/* SPDX-License-Identifier: Apache-2.0 */

/* Finds a subordinate id of the user and maps it with newuidmap and newgidmap. */

#include "sandbox/launch/subids.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/clone.h"
#include "sandbox/host/hostcmd.h"

#define FILE_MAX 65536U
#define TOOL_TIMEOUT_MS 10000U

/* The last id of the first range that is the user's: containers of the same user begin at the other
 * end. 0: none. */
static uint32_t find_sub(const char *file, const char *name, const char *number)
{
    static char text[FILE_MAX];
    char *save = NULL;
    if (fd_read_file_at(AT_FDCWD, file, text, sizeof(text)) <= 0)
        return 0;
    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        char *rest = NULL, *who = strtok_r(line, ":", &rest);
        const char *first = strtok_r(NULL, ":", &rest), *count = strtok_r(NULL, ":", &rest);
        uint64_t from = 0, n = 0;
        if (who != NULL && (str_eq(who, name) || str_eq(who, number)) && first != NULL &&
            count != NULL && str_to_u64(first, &from) == 0 && str_to_u64(count, &n) == 0 &&
            from > 0 && n > 0 && from < UINT32_MAX && n < UINT32_MAX - from)
            return (uint32_t)(from + n - 1);
    }
    return 0;
}

static int run_tool(const char *tool, pid_t pid, uint32_t own, uint32_t second)
{
    char target[16], from[16], to[16];
    (void)snprintf(target, sizeof(target), "%d", pid);
    (void)snprintf(from, sizeof(from), "%u", own);
    (void)snprintf(to, sizeof(to), "%u", second);
    const char *const argv[] = {tool, target, "0", from, "1", "1", to, "1", NULL};
    return hostcmd_wait(argv, -1, TOOL_TIMEOUT_MS, NULL);
}

static _Noreturn void map_child(int go_fd)
{
    char byte, number[16];
    (void)snprintf(number, sizeof(number), "%u", getuid());
    if (fd_read_full(go_fd, &byte, 1) != 1)
        child_exit(1);
    const struct passwd *user = getpwuid(getuid());
    const char *name = user != NULL ? user->pw_name : number;
    uint32_t uid = find_sub("/etc/subuid", name, number);
    uint32_t gid = find_sub("/etc/subgid", name, number);
    bool done = uid > 0 && gid > 0 && run_tool("newuidmap", getppid(), getuid(), uid) >= 0 &&
                run_tool("newgidmap", getppid(), getgid(), gid) >= 0;
    child_exit(done ? 0 : 1);
}

void subids_start(struct subids *s)
{
    int ends[2];
    *s = (struct subids){.go_fd = -1};
    if (getuid() == 0 || getuid() != geteuid() || pipe2(ends, O_CLOEXEC) < 0)
        return;
    s->pid = clone_process(0, -1, NULL);
    if (s->pid == 0) {
        (void)close(ends[1]);
        map_child(ends[0]);
    }
    (void)close(ends[0]);
    s->go_fd = ends[1];
}

/* "inside outside count", the second line. */
static bool read_second(uid_t *ret)
{
    char map[256], *save = NULL;
    uint64_t outside = 0;
    if (fd_read_file_at(AT_FDCWD, "/proc/self/uid_map", map, sizeof(map)) <= 0 ||
        strtok_r(map, "\n", &save) == NULL)
        return false;
    char *line = strtok_r(NULL, "\n", &save), *rest = NULL;
    if (line == NULL || strtok_r(line, " ", &rest) == NULL)
        return false;
    const char *word = strtok_r(NULL, " ", &rest);
    if (word == NULL || str_to_u64(word, &outside) < 0)
        return false;
    *ret = (uid_t)outside;
    return true;
}

bool subids_finish(struct subids *s, bool made, uid_t *ret)
{
    AUTO_CLOSE int go = TAKE_FD(s->go_fd);
    int status = -1;
    if (made && go >= 0)
        (void)fd_write_all(go, "", 1);
    fd_close_many(&go, 1);
    if (s->pid > 0)
        while (waitpid(s->pid, &status, 0) < 0 && errno == EINTR)
            ;
    return made && s->pid > 0 && status == 0 && read_second(ret);
}
