/* SPDX-License-Identifier: Apache-2.0 */

/* Keeps the ids of children that no code waits for until they have ended. */

#include "sandbox/host/children.h"

#include <errno.h>
#include <stddef.h>
#include <sys/wait.h>

#include "base/alloc.h"

/* An id stays the child's own until we have reaped it, so none here can mean another process. */
static struct {
    pid_t *pids; /* owned */
    size_t n, room;
} children;

void children_add(pid_t pid)
{
    if (pid <= 0)
        return;
    if (children.n == children.room) {
        children.room = children.room > 0 ? 2 * children.room : 16;
        children.pids = xreallocarray(children.pids, children.room, sizeof(children.pids[0]));
    }
    children.pids[children.n++] = pid;
}

void children_reap(void)
{
    size_t left = 0;
    for (size_t i = 0; i < children.n; i++) {
        pid_t r = waitpid(children.pids[i], NULL, WNOHANG);
        if (r == 0 || (r < 0 && errno == EINTR))
            children.pids[left++] = children.pids[i];
    }
    children.n = left;
}
