/* SPDX-License-Identifier: Apache-2.0 */

/* Reads mountinfo line by line, and checks what the mounts give away. */

#include "probe_mounts.h"

#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One line: id parent major:minor root target options [optional...] - type source super */
static bool parse_line(char *line, struct probe_mount *m)
{
    char *fields[6], *rest = line, *tail = strstr(line, " - ");

    if (!tail)
        return false;
    *tail = '\0';
    for (size_t i = 0; i < 6; i++) {
        fields[i] = strsep(&rest, " ");
        if (!fields[i])
            return false;
    }
    tail += 3;
    *m = (struct probe_mount){
        .root = fields[3],
        .target = fields[4],
        .options = fields[5],
        .propagation = rest ? rest : "",
        .type = strsep(&tail, " "),
        .source = strsep(&tail, " "),
        .super = tail,
    };
    return m->super != NULL;
}

int probe_mounts_each(void (*fn)(const struct probe_mount *m, void *arg), void *arg)
{
    static char text[1 << 16];
    char *rest = text, *line;
    ssize_t n = probe_read("/proc/self/mountinfo", text, sizeof(text));

    if (n < 0)
        return (int)n;
    while ((line = strsep(&rest, "\n"))) {
        struct probe_mount m;
        if (parse_line(line, &m))
            fn(&m, arg);
    }
    return 0;
}

/* Is it one of a,b,c? */
static bool probe_mount_has(const char *options, const char *word)
{
    size_t len = strlen(word);

    for (const char *p = options; (p = strstr(p, word)); p += len) {
        if ((p == options || p[-1] == ',') && (p[len] == ',' || p[len] == '\0'))
            return true;
    }
    return false;
}

struct findings {
    const struct probe_options *opt;
    unsigned cgroups, loose, roots;
    char cgroup[200], loose_at[200], root[400];
};

static bool below(const char *path, const char *dir)
{
    size_t len = strlen(dir);

    return strncmp(path, dir, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

/* A part of a filesystem that is mounted shows its path there. Public parts may. */
static bool root_is_public(const struct probe_mount *m, const struct probe_options *opt)
{
    static const char *const dirs[] = {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc"};

    if (strcmp(m->root, "/") == 0)
        return true;
    /* /dev/null over a file of /proc, and the like: by type or because the target says so. */
    if (strcmp(m->type, "devtmpfs") == 0 || strcmp(m->type, "proc") == 0 ||
        strncmp(m->target, "/dev/", 5) == 0 || strncmp(m->target, "/proc/", 6) == 0)
        return true;
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        if (below(m->root, dirs[i]))
            return true;
    }
    for (size_t i = 0; opt->root_prefix[i]; i++) {
        if (below(m->root, opt->root_prefix[i]))
            return true;
    }
    return false;
}

static void judge(const struct probe_mount *m, void *arg)
{
    struct findings *f = arg;
    bool tight = probe_mount_has(m->options, "nosuid") && probe_mount_has(m->options, "nodev");

    if (strncmp(m->type, "cgroup", 6) == 0 && f->cgroups++ == 0)
        (void)snprintf(f->cgroup, sizeof(f->cgroup), "%s", m->target);
    /* A device that was bound in is of no use with nodev; what it may be is C05's affair. */
    if (probe_mount_has(m->options, "rw") && strncmp(m->target, "/dev/", 5) != 0 && !tight &&
        f->loose++ == 0)
        (void)snprintf(f->loose_at, sizeof(f->loose_at), "%s %s", m->target, m->options);
    if (!root_is_public(m, f->opt) && f->roots++ == 0)
        (void)snprintf(f->root, sizeof(f->root), "%s at %s", m->root, m->target);
}

void probe_mounts(const struct probe_options *opt)
{
    struct findings f = {.opt = opt};

    if (probe_mounts_each(judge, &f) < 0) {
        probe_report("C07", PROBE_FAIL, "no mountinfo");
        return;
    }
    probe_report("C04", f.cgroups == 0 ? PROBE_OK : PROBE_FAIL, "%u cgroup mounts %s", f.cgroups,
                 f.cgroup);
    probe_report("C07.flags", f.loose == 0 ? PROBE_OK : PROBE_FAIL,
                 "%u writable mounts without nosuid and nodev %s", f.loose, f.loose_at);
    probe_report("C07.root", f.roots == 0 ? PROBE_OK : PROBE_FAIL, "%u host paths %s", f.roots,
                 f.root);
}
