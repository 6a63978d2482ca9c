/* SPDX-License-Identifier: Apache-2.0 */

/* `box cp`: copies a file into a session or out of it, or passes a tar archive on. */

#include "cli/copy/copy_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "http/client/client.h"
#include "http/codec/http1.h"
#include "spec/spec.h"

#define CHUNK (256U << 10)
#define PROBLEM_MAX (64U << 10)

/* One file on its way, in or out. */
struct copy {
    struct app *app;
    int fd;              /* owned, unless it is a standard stream; of this side */
    int error;           /* negative: of this side's file */
    char *draft, *place; /* owned or NULL; out: written there, then renamed */

    /* In. */
    struct http_call *call; /* NULL: over */
    unsigned status;
    struct buf problem;
    struct loop_io io; /* waits for a pipe or terminal */
    bool pollable, sent_all;
    struct err err; /* why the call failed, if it did */
};

static void copy_done(struct copy *c)
{
    loop_io_stop(&c->io);
    if (c->fd > STDERR_FILENO)
        (void)close(c->fd);
    if (c->draft != NULL)
        (void)unlink(c->draft);
    free(c->draft);
    free(c->place);
    buf_done(&c->problem);
}
DEFINE_CLEANUP_DONE(copy)

/* "SESSION:PATH". A name with a slash before the colon is a file of this side. */
static bool is_inside(const char *text, char **ret_session, const char **ret_path)
{
    const char *colon = strchr(text, ':');
    const char *slash = strchr(text, '/');

    if (colon == NULL || colon == text || colon[1] == '\0' || (slash != NULL && slash < colon))
        return false;
    *ret_session = xstrndup(text, (size_t)(colon - text));
    *ret_path = colon + 1;
    return true;
}

const char *copy_last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

void copy_put_escaped(struct buf *out, const char *text)
{
    assert(text != NULL);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
                     strchr("-._~/", c) != NULL;
        (void)buf_printf(out, plain ? "%c" : "%%%02X", c);
    }
}

void copy_put_target(struct buf *out, const char *session, const char *what, const char *path)
{
    (void)buf_puts(out, "/v1/sessions/");
    copy_put_escaped(out, session);
    (void)buf_printf(out, "/files?%s=", what);
    copy_put_escaped(out, path);
}

/* In. */

static void on_head(struct http_call *call, const struct http1_head *head, void *arg)
{
    ((struct copy *)arg)->status = head->status;
}

static void on_body(struct http_call *call, const char *data, size_t len, void *arg)
{
    (void)buf_append(&((struct copy *)arg)->problem, data, len);
}

static void on_done(struct http_call *call, const struct err *err, void *arg)
{
    struct copy *c = arg;

    c->call = NULL;
    loop_io_stop(&c->io);
    if (err != NULL)
        c->err = *err;
    loop_quit(c->app->loop);
}

static void copy_feed(struct copy *c);

static void on_readable(struct loop_io *io, uint32_t events)
{
    struct copy *c = container_of(io, struct copy, io);

    loop_io_stop(io);
    copy_feed(c);
}

static void copy_feed(struct copy *c)
{
    static char data[CHUNK];

    while (c->call != NULL && !c->sent_all && !http_call_full(c->call)) {
        ssize_t n = read(c->fd, data, sizeof(data));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            /* What was sent is no file: the call is taken back, and nothing of it is kept. */
            c->error = -errno;
            http_call_cancel(TAKE_PTR(c->call));
            loop_quit(c->app->loop);
            return;
        }
        c->sent_all = n == 0;
        c->app->patience.bytes += (uint64_t)n;
        int r = n > 0 ? http_call_send(c->call, data, (size_t)n) : http_call_send_end(c->call);
        if (r < 0)
            return; /* the answer says why */
        if (!c->sent_all && c->pollable) {
            (void)loop_io_start(c->app->loop, &c->io, c->fd, EPOLLIN, on_readable);
            return;
        }
    }
}

static void on_writable(struct http_call *call, void *arg)
{
    struct copy *c = arg;

    if (c->io.loop == NULL)
        copy_feed(c);
}

static int send_file(struct copy *c, const char *target, const char *local, struct err *err)
{
    static const struct http_call_handlers handlers = {
        .head = on_head, .body = on_body, .writable = on_writable, .done = on_done};
    struct app_headers headers = app_headers(c->app);
    const struct http_call_opts opts = {
        .method = "PUT", .target = target, .headers = headers.list, .flags = HTTP_CALL_STREAM};
    struct err cause = {0};

    buf_init(&c->problem, PROBLEM_MAX);
    if (http_client_call(c->app->client, &opts, &handlers, c, &c->call, &cause) < 0)
        return app_unreachable(c->app, &cause, err);
    copy_feed(c);
    int r = app_wait(c->app, err);
    if (c->call != NULL)
        http_call_cancel(TAKE_PTR(c->call));
    if (r < 0)
        return r;
    if (c->error < 0)
        return err_sys(err, -c->error, "'%s'", local);
    if (c->status > 299)
        return app_problem(c->status, &c->problem, err);
    return c->err.code != ERR_NONE ? app_unreachable(c->app, &c->err, err) : 0;
}

int copy_fd_in(struct app *app, int fd, const char *local, const struct copy_place *to,
               struct err *err)
{
    AUTO_DONE(copy) struct copy c = {.app = app, .fd = fd};
    AUTO_DONE(buf) struct buf target = BUF_INIT(4 * 8192);
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "'%s'", local);
    c.pollable = !S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode);
    copy_put_target(&target, to->session, "path", to->path);
    if (S_ISREG(st.st_mode) && (st.st_mode & 0777) != 0)
        (void)buf_printf(&target, "&mode=%o", (unsigned)st.st_mode & 0777U);
    return send_file(&c, buf_str(&target), local, err);
}

static int copy_in(struct app *app, const char *local, const struct copy_place *to, struct err *err)
{
    AUTO_FREE char *whole = str_ends(to->path, "/")
                                ? xasprintf("%s%s", to->path, copy_last_part(local))
                                : xstrdup(to->path);
    AUTO_CLOSE int fd = open(local, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, errno, "'%s'", local);
    if (S_ISDIR(st.st_mode))
        return err_set(err, ERR_INVALID, "'%s' is a directory; add -r to copy all of it", local);
    return copy_fd_in(app, TAKE_FD(fd), local, &(struct copy_place){to->session, whole}, err);
}

/* Out. */

static int open_place(struct copy *c, const char *local, const char *path, struct err *err)
{
    struct stat st;
    char id[17];

    bool dir = stat(local, &st) == 0 && S_ISDIR(st.st_mode);
    c->place = dir ? xasprintf("%s/%s", local, copy_last_part(path)) : xstrdup(local);
    if (!dir && stat(local, &st) == 0 && !S_ISREG(st.st_mode)) {
        c->fd = open(local, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        return c->fd < 0 ? err_sys(err, errno, "'%s'", local) : 0;
    }
    id_random(id);
    c->draft = xasprintf("%s.%s.tmp", c->place, id);
    c->fd = open(c->draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return c->fd < 0 ? err_sys(err, errno, "'%s'", c->place) : 0;
}

static void on_bytes(void *arg, const char *data, size_t len)
{
    struct copy *c = arg;

    c->app->patience.bytes += len;
    if (c->error == 0)
        c->error = fd_write_all(c->fd, data, len);
}

/* All of a file inside to c->fd. */
static int receive_file(struct copy *c, const struct copy_place *from, const char *local,
                        struct err *err)
{
    AUTO_DONE(buf) struct buf target = BUF_INIT(4 * 8192);

    copy_put_target(&target, from->session, "path", from->path);
    const struct app_request req = {
        .method = "GET", .target = buf_str(&target), .bytes = on_bytes, .arg = c};
    buf_init(&c->problem, PROBLEM_MAX);
    int r = app_send(c->app, &req, &c->problem, err);
    return r == 0 && c->error < 0 ? err_sys(err, -c->error, "'%s'", local) : r;
}

int copy_fd_out(struct app *app, int fd, const char *local, const struct copy_place *from,
                struct err *err)
{
    AUTO_DONE(copy) struct copy c = {.app = app, .fd = fd};

    return receive_file(&c, from, local, err);
}

static int copy_out(struct app *app, const struct copy_place *from, const char *local,
                    struct err *err)
{
    AUTO_DONE(copy) struct copy c = {.app = app, .fd = -1};
    int r = open_place(&c, local, from->path, err);

    if (r == 0)
        r = receive_file(&c, from, local, err);
    if (r < 0 || c.draft == NULL)
        return r;
    if (rename(c.draft, c.place) < 0)
        return err_sys(err, errno, "'%s'", c.place);
    free(TAKE_PTR(c.draft));
    return 0;
}

/* Archives. */

/* As `box exec SESSION tar ...`: the archive is our standard input or output. */
static int run_tar(struct app *app, const struct copy_place *at, bool in, struct err *err)
{
    const char *slash = strrchr(at->path, '/');
    AUTO_FREE char *dir = in                  ? xstrdup(at->path)
                          : slash == NULL     ? xstrdup(".")
                          : slash == at->path ? xstrdup("/")
                                              : xstrndup(at->path, (size_t)(slash - at->path));
    AUTO_FREE char *name = xasprintf("./%s", copy_last_part(at->path));
    char tar[] = "tar", to[] = "-C", mode[] = "-xf", archive[] = "-";
    char *words[] = {tar, to, dir, mode, archive, in ? NULL : name, NULL};
    AUTO_DONE(args) struct args args = {.verb = VERB_EXEC, .interactive = in, .command = words};

    if (!in)
        mode[1] = 'c';
    args.spec = spec_new();
    free(args.spec->session_id);
    args.spec->session_id = xstrdup(at->session);
    strv_add(&args.names, at->session);
    if (isatty(in ? STDIN_FILENO : STDOUT_FILENO))
        return err_set(err, ERR_INVALID,
                       "- is a tar archive on standard %s, which is a terminal; redirect it",
                       in ? "input" : "output");
    return verb_command(app, &args, err);
}

int verb_cp(struct app *app, const struct args *args, struct err *err)
{
    AUTO_FREE char *from = NULL;
    AUTO_FREE char *to = NULL;
    const char *from_path = NULL, *to_path = NULL;
    const char *src = args->names[0], *dst = args->names[1];

    if (is_inside(src, &from, &from_path) == is_inside(dst, &to, &to_path))
        return err_set(err, ERR_INVALID, "box cp wants one of SRC and DST as SESSION:PATH%s",
                       from != NULL ? ", not both" : "");
    const struct copy_place place = {from != NULL ? from : to, from != NULL ? from_path : to_path};
    const char *local = from != NULL ? dst : src;
    assert(place.path != NULL);
    if (spec_check_id(place.session, err) < 0)
        return err_wrap(err, "session '%s'", place.session);
    if (str_eq(local, "-"))
        return run_tar(app, &place, to != NULL, err);
    int r = app_connect(app, DAEMON_RUNNING, err);
    if (r < 0)
        return r;
    app_patience_start(app, "copying");
    if (args->recursive)
        r = to != NULL ? copy_tree_in(app, local, &place, err)
                       : copy_tree_out(app, &place, local, err);
    else
        r = to != NULL ? copy_in(app, local, &place, err) : copy_out(app, &place, local, err);
    app_patience_stop(app);
    return r;
}
