/* SPDX-License-Identifier: Apache-2.0 */

/* C10: what covers the files of /proc, what /dev/null, the terminal and the working directory
 * really are. Cheap, so that it can be asked again and again while somebody swaps names. */

#include "probe.h"
#include "probe_mounts.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define DEVPTS_MAGIC 0x1cd1
#define PTS_MAJOR 136

struct masks {
    unsigned files, dirs, wrong;
    char first[200];
};

static bool is_null_device(const struct stat *st)
{
    return S_ISCHR(st->st_mode) && st->st_rdev == makedev(1, 3);
}

static bool is_empty_dir(const char *path)
{
    unsigned n = 0;
    DIR *d = opendir(path);

    if (!d)
        return false;
    while (readdir(d))
        n++;
    (void)closedir(d);
    return n == 2;
}

static void look(const struct probe_mount *m, void *arg)
{
    struct masks *found = arg;
    struct stat st = {0};
    bool right = false;

    if (strncmp(m->target, "/proc/", 6) != 0)
        return;
    if (lstat(m->target, &st) == 0 && S_ISDIR(st.st_mode)) {
        right = is_empty_dir(m->target);
        found->dirs++;
    } else {
        right = is_null_device(&st);
        found->files++;
    }
    if (!right && found->wrong++ == 0)
        (void)snprintf(found->first, sizeof(found->first), "%s", m->target);
}

static void terminal(void)
{
    struct stat st;
    struct statfs fs;

    if (!isatty(STDIN_FILENO)) {
        probe_report("C10.tty", PROBE_NA, "no terminal");
        return;
    }
    if (fstat(STDIN_FILENO, &st) < 0 || fstatfs(STDIN_FILENO, &fs) < 0 ||
        fs.f_type != DEVPTS_MAGIC || !S_ISCHR(st.st_mode) || major(st.st_rdev) != PTS_MAJOR)
        probe_report("C10.tty", PROBE_FAIL, "not a pts");
    else
        probe_report("C10.tty", PROBE_OK, "pts %u", minor(st.st_rdev));
}

void probe_masks(const struct probe_options *opt)
{
    struct masks found = {0};
    struct stat st = {0};
    char cwd[4096] = "";
    bool null_is_right = lstat("/dev/null", &st) == 0 && is_null_device(&st);

    (void)probe_mounts_each(look, &found);
    probe_report("C10.masks", found.wrong == 0 && found.files >= 10 ? PROBE_OK : PROBE_FAIL,
                 "%u files, %u directories, %u wrong %s", found.files, found.dirs, found.wrong,
                 found.first);
    probe_report("C10.null", null_is_right ? PROBE_OK : PROBE_FAIL, "mode %o rdev %u:%u",
                 st.st_mode, major(st.st_rdev), minor(st.st_rdev));
    terminal();
    if (!getcwd(cwd, sizeof(cwd)))
        probe_report("C10.cwd", PROBE_FAIL, "%s", strerrorname_np(errno));
    else
        probe_report("C10.cwd",
                     cwd[0] == '/' && strncmp(cwd, "/proc", 5) != 0 ? PROBE_OK : PROBE_FAIL, "%s",
                     cwd);
}
