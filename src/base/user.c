/* SPDX-License-Identifier: Apache-2.0 */

/* Reads the id map of the calling process from /proc. */

#include "base/user.h"

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"

bool user_is_host_root(void)
{
    char map[128];
    return geteuid() == 0 &&
           fd_read_file_at(AT_FDCWD, "/proc/self/uid_map", map, sizeof(map)) > 0 &&
           strstr(map, "4294967295") != NULL;
}

/* Lines of "inside outside count". */
uid_t user_outer_id(void)
{
    char map[4096], *save = NULL;
    if (fd_read_file_at(AT_FDCWD, "/proc/self/uid_map", map, sizeof(map)) <= 0)
        return geteuid();
    for (char *line = strtok_r(map, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        uint64_t numbers[3] = {0};
        char *rest = NULL;
        size_t n = 0;
        for (char *word = strtok_r(line, " ", &rest); word != NULL && n < 3;
             word = strtok_r(NULL, " ", &rest))
            if (str_to_u64(word, &numbers[n++]) < 0)
                return geteuid();
        if (geteuid() >= numbers[0] && geteuid() - numbers[0] < numbers[2])
            return (uid_t)(numbers[1] + geteuid() - numbers[0]);
    }
    return geteuid();
}
