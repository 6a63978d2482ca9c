/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

/* box-privs that came to us when their boxd was killed: all of them are ours, and after a test that
 * failed some may still wait for the next. */
static inline void end_children(void)
{
    char path[64], list[4096] = "", *save = NULL;
    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
    (void)fd_read_file_at(AT_FDCWD, path, list, sizeof(list));
    for (char *pid = strtok_r(list, " ", &save); pid != NULL; pid = strtok_r(NULL, " ", &save)) {
        uint64_t number = 0;
        if (str_to_u64(pid, &number) == 0 && number > 1)
            (void)kill((pid_t)number, SIGTERM);
    }
    while (waitpid(-1, NULL, 0) > 0)
        ;
}
