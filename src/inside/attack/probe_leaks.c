/* SPDX-License-Identifier: Apache-2.0 */

/* C08: the launcher has a secret in its environment and a descriptor too many; neither may be found
 * here. The secret is told backwards, since our own command line is one of the places to search. */

#include "probe.h"
#include "probe_mounts.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static bool contains(const char *path, const char *secret)
{
    static char text[1 << 16];
    ssize_t n = probe_read(path, text, sizeof(text));

    return n > 0 && memmem(text, (size_t)n, secret, strlen(secret));
}

static void search_processes(const char *secret)
{
    static const char *const files[] = {"environ", "cmdline", "mountinfo", "comm"};
    char path[300], where[300] = "";
    unsigned n = 0, hits = 0;
    const struct dirent *e;
    DIR *d = opendir("/proc");

    while (d && (e = readdir(d))) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        n++;
        for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
            (void)snprintf(path, sizeof(path), "/proc/%s/%s", e->d_name, files[i]);
            if (contains(path, secret) && hits++ == 0)
                (void)snprintf(where, sizeof(where), "%s", path);
        }
    }
    if (d)
        (void)closedir(d);
    probe_report("C08.secret", n > 0 && hits == 0 ? PROBE_OK : PROBE_FAIL,
                 "%u processes, %u places %s", n, hits, where);
}

void probe_leaks(const struct probe_options *opt)
{
    char secret[128] = "";
    size_t len = opt->secret_reversed ? strlen(opt->secret_reversed) : 0;

    probe_report("C08.fds", opt->first_fds == 0 ? PROBE_OK : PROBE_FAIL,
                 "set of descriptors above 2: %#x", opt->first_fds);
    if (len < 8 || len >= sizeof(secret)) {
        probe_report("C08.secret", PROBE_NA, "none given");
        return;
    }
    for (size_t i = 0; i < len; i++)
        secret[i] = opt->secret_reversed[len - 1 - i];
    search_processes(secret);
}
