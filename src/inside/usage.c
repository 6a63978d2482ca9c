/* SPDX-License-Identifier: Apache-2.0 */

/* Reads what the kernel counts of a sandbox. */

#include "inside/usage.h"

#include <string.h>

#include "base/fd.h"
#include "base/str.h"

#define NO_LIMIT (1ULL << 62) /* v1 says a number like this where there is none */
#define SENT_FIELD 8          /* of a line of /proc/net/dev, behind the name */

void usage_unknown(struct inside_usage *ret)
{
    memset(ret, 0xff, sizeof(*ret));
}

void usage_number(int dirfd, const char *path, uint64_t *ret)
{
    uint64_t n = 0;
    if (fd_read_u64_at(dirfd, path, &n) == 0 && n < NO_LIMIT)
        *ret = n;
}

/* "  eth0: 123 4 0 0 0 0 0 0 567 …" */
static void add_interface(const char *line, struct inside_usage *ret)
{
    uint64_t fields[SENT_FIELD + 1] = {0};
    line += strspn(line, " ");
    const char *at = strchr(line, ':');
    if (at == NULL || strncmp(line, "lo:", 3) == 0)
        return;
    at++;
    for (size_t i = 0; i <= SENT_FIELD; i++) {
        at += strspn(at, " ");
        for (; *at >= '0' && *at <= '9'; at++)
            fields[i] = fields[i] * 10 + (uint64_t)(*at - '0');
    }
    ret->received_bytes += fields[0];
    ret->sent_bytes += fields[SENT_FIELD];
}

void usage_network(int dirfd, const char *path, struct inside_usage *ret)
{
    char text[8192];
    if (fd_read_file_at(dirfd, path, text, sizeof(text)) <= 0)
        return;
    ret->received_bytes = ret->sent_bytes = 0;
    for (char *line = text; *line != '\0';) {
        size_t len = strcspn(line, "\n");
        char *next = line + len + (line[len] == '\n');
        line[len] = '\0';
        add_interface(line, ret);
        line = next;
    }
}
