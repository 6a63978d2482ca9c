/* SPDX-License-Identifier: Apache-2.0 */

/* Runs a fuzz target over every file of a corpus directory: what a fuzzer once found stays found,
 * in builds without libFuzzer too. */

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

static int replay_file(int dirfd, const char *name)
{
    struct stat st;
    int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st) < 0)
        return -1;
    /* Exactly as large as the input, so that a sanitizer sees one byte too many. */
    uint8_t *data = malloc(st.st_size > 0 ? (size_t)st.st_size : 1);
    int r = data != NULL && read(fd, data, (size_t)st.st_size) == st.st_size ? 0 : -1;
    if (r == 0)
        (void)LLVMFuzzerTestOneInput(data, (size_t)st.st_size);
    free(data);
    (void)close(fd);
    return r;
}

int main(int argc, char *argv[])
{
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    unsigned n = 0;

    if (dir == NULL) {
        (void)fprintf(stderr, "usage: %s CORPUS_DIRECTORY\n", argv[0]);
        return 2;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        if (replay_file(dirfd(dir), e->d_name) < 0) {
            (void)fprintf(stderr, "cannot replay %s\n", e->d_name);
            return 1;
        }
        n++;
    }
    (void)closedir(dir);
    (void)printf("%u inputs replayed\n", n);
    return n > 0 ? 0 : 1;
}
