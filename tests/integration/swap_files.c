/* SPDX-License-Identifier: Apache-2.0 */

/* Runs inside a session: exchanges the directories of ROOT/a/b/c for links of the same name with
 * ".x", at three depths, as fast as it can, until SWAPS exchanges are made and FILE is there. Says
 * "swaps=N".
 *
 *   swap_files ROOT SWAPS FILE */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *const names[3][2] = {{"a", "a.x"}, {"b", "b.x"}, {"c", "c.x"}};

int main(int argc, char **argv)
{
    int dirs[3];
    unsigned long n = 0, least = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;

    if (argc != 4)
        return 2;
    /* Held open, so that each exchange happens in the real one, wherever its name leads just now.
     */
    dirs[0] = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (int i = 1; i < 3; i++)
        dirs[i] = openat(dirs[i - 1], names[i - 1][0], O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dirs[2] < 0)
        return 3;
    /* An even number at each depth: at the end everything is in its place. */
    for (; n < least || access(argv[3], F_OK) < 0; n += 6)
        for (int i = 0; i < 6; i++)
            if (renameat2(dirs[i / 2], names[i / 2][0], dirs[i / 2], names[i / 2][1],
                          RENAME_EXCHANGE) < 0)
                return 4;
    (void)printf("swaps=%lu\n", n);
    return 0;
}
