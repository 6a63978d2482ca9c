/* SPDX-License-Identifier: Apache-2.0 */

/* box-fetch: one job with files that strangers may have made, then the end. See fetch/job.h. */

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/path.h"
#include "base/str.h"
#include "fetch/job.h"
#include "inside/clone.h"

struct fetch_options {
    const char *make;
    const char *manifest; /* "": nothing is copied from elsewhere */
    uint64_t seconds;
};

static int parse_options(int argc, char **argv, struct fetch_options *o, struct err *err)
{
    static const struct option table[] = {
        {"make", required_argument, NULL, 'm'},
        {"manifest", required_argument, NULL, 'f'},
        {"seconds", required_argument, NULL, 's'},
        {0},
    };
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, "", table, NULL)) != -1) {
        if (c == 'm')
            o->make = optarg;
        else if (c == 'f')
            o->manifest = optarg;
        else if (c != 's' || str_to_u64(optarg, &o->seconds) < 0 || o->seconds == 0 ||
                 o->seconds > FETCH_SECONDS_MAX)
            return err_set(err, ERR_INVALID, "box-fetch is started by boxd, not by hand");
    }
    if (optind < argc)
        return err_set(err, ERR_INVALID, "box-fetch is started by boxd, not by hand");
    return 0;
}

/* Opened while we can still go there; looked at afterwards. Opening a fifo does not wait for its
 * other end. */
static int open_manifest(const char *name, struct fetch_source *ret, struct err *err)
{
    ret->dir_fd = FETCH_SOURCE_FD;
    ret->manifest_fd = path_open_beneath(FETCH_MANIFEST_FD, name,
                                         O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (ret->manifest_fd < 0)
        return err_sys(err, -ret->manifest_fd, "Artifact manifest '%.200s'", name);
    (void)close(FETCH_MANIFEST_FD);
    return 0;
}

/* Everything that can be done wrong is done before the first byte is read. */
static int prepare(const struct fetch_options *o, struct fetch_source *source, int *ret_dir,
                   struct err *err)
{
    bool copies = o->manifest[0] != '\0';
    unsigned last = copies ? FETCH_MANIFEST_FD : FETCH_DIR_FD;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    /* Nothing that we may call later can take it back. */
    (void)alarm((unsigned)o->seconds);
    (void)sigaction(SIGALRM, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    if (syscall(SYS_close_range, last + 1, ~0U, 0) < 0)
        return err_sys(err, errno, "close what is not ours");
    (void)umask(022);
    AUTO_CLOSE int dir = fetch_open_dir(FETCH_DIR_FD, o->make, err);
    if (dir < 0)
        return dir;
    (void)close(FETCH_DIR_FD);
    int r = copies ? open_manifest(o->manifest, source, err) : 0;
    if (r == 0)
        r = fetch_confine(dir, copies ? source : NULL, err);
    if (r < 0)
        return r;
    *ret_dir = TAKE_FD(dir);
    return 0;
}

/* The request is one line; what follows is the archive, of which one byte more than there may be is
 * kept, so that it is seen to be too long. */
static int read_input(struct buf *all, struct fetch_input *ret, struct err *err)
{
    int r = fd_read_to_buf(STDIN_FILENO, all);
    if (r < 0 && r != -ENOBUFS)
        return err_sys(err, -r, "read the request");
    const char *end = all->len > 0 ? memchr(all->data, '\n', all->len) : NULL;
    if (end == NULL || (size_t)(end - all->data) > FETCH_REQUEST_MAX)
        return err_set(err, ERR_INVALID, "malformed request");
    size_t n = (size_t)(end - all->data), rest = all->len - n - 1;
    *ret = (struct fetch_input){.request = all->data,
                                .request_len = n,
                                .zip = rest > 0 ? end + 1 : NULL,
                                .zip_len = rest <= FETCH_ZIP_MAX ? rest : FETCH_ZIP_MAX + 1};
    return 0;
}

static int run(int argc, char **argv, struct buf *out, struct err *err)
{
    struct fetch_options o = {.make = "", .manifest = "", .seconds = FETCH_SECONDS};
    struct fetch_source source = {-1, -1};
    struct fetch_input in;
    AUTO_CLOSE int dir = -1;
    AUTO_DONE(buf) struct buf all = BUF_INIT(FETCH_REQUEST_MAX + FETCH_ZIP_MAX + 2);
    int r = parse_options(argc, argv, &o, err);
    if (r == 0)
        r = prepare(&o, &source, &dir, err);
    if (r == 0)
        r = read_input(&all, &in, err);
    if (r == 0) {
        in.source = source.dir_fd >= 0 ? &source : NULL;
        fetch_run(dir, &in, out);
    }
    return r;
}

int main(int argc, char **argv)
{
    static struct buf out = {.max = FETCH_ANSWER_MAX};
    struct err err = {0};
    int r = run(argc, argv, &out, &err);
    if (r < 0)
        fetch_write_error(err.msg, NULL, &out);
    if (fd_write_all(STDOUT_FILENO, buf_str(&out), out.len) < 0)
        r = -EPIPE;
    /* No exit handlers: those of a sanitizer would ask for system calls that are gone. */
    child_exit(r < 0 ? 1 : 0);
}
