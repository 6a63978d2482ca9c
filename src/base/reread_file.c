/* SPDX-License-Identifier: Apache-2.0 */

/* Opens a file that boxd reads again while it runs, and follows its replacement. */

#include "base/reread_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"

static int open_it(struct reread_file *f, int flags, struct err *err)
{
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | flags);
    if (fd < 0)
        return err_sys(err, errno, "read %s '%s'", f->what, f->path);
    fd_close_many(&f->fd, 1);
    f->fd = fd;
    return 0;
}

int reread_file_open(struct reread_file *f, const char *path, const char *what, struct err *err)
{
    f->path = xstrdup(path);
    f->what = what;
    f->fd = -1;
    return open_it(f, 0, err);
}

static int follow(struct reread_file *f, struct err *err)
{
    struct stat here, kept;
    if (fstat(f->fd, &kept) < 0)
        return err_sys(err, errno, "look at %s '%s'", f->what, f->path);
    if (stat(f->path, &here) < 0) {
        if (errno == EACCES && kept.st_nlink > 0)
            return 0;
        return err_sys(err, errno, "read %s '%s'", f->what, f->path);
    }
    if (here.st_dev == kept.st_dev && here.st_ino == kept.st_ino)
        return 0;
    if (!S_ISREG(here.st_mode))
        return err_set(err, ERR_INVALID, "%s '%s' is not a file any more", f->what, f->path);
    return open_it(f, O_NONBLOCK, err);
}

int reread_file_again(struct reread_file *f, struct err *err)
{
    int r = follow(f, err);
    if (r == 0 && lseek(f->fd, 0, SEEK_SET) < 0)
        return err_sys(err, errno, "read %s '%s'", f->what, f->path);
    return r;
}

void reread_file_settle(struct reread_file *f)
{
    struct stat st;
    if (f->fd >= 0 && (fstat(f->fd, &st) < 0 || !S_ISREG(st.st_mode)))
        fd_close_many(&f->fd, 1);
}

void reread_file_done(struct reread_file *f)
{
    free(f->path);
    fd_close_many(&f->fd, 1);
}
