/* SPDX-License-Identifier: Apache-2.0 */

/* `box cp`: copies one file into a session or out of it. */

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

#define CHUNK (256U << 10)
#define PROBLEM_MAX (64U << 10)

/* One file on its way, in or out. */
struct copy {
    struct app *app;
    struct http_call *call; /* NULL: over */
    int fd;                 /* owned, unless it is a standard stream; of this side */
    char *draft, *place;    /* owned or NULL; out: written there, then renamed */
    unsigned status;
    struct buf problem;
    struct loop_io io; /* in: waits for a pipe or terminal */
    bool pollable, sent_all;
    int error; /* negative: of this side's file */
    bool failed;
    struct err err;
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

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void put_escaped(struct buf *out, const char *text)
{
    assert(text != NULL);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
                     strchr("-._~/", c) != NULL;
        (void)buf_printf(out, plain ? "%c" : "%%%02X", c);
    }
}

static void put_target(struct buf *out, const char *session, const char *path)
{
    (void)buf_puts(out, "/v1/sessions/");
    put_escaped(out, session);
    (void)buf_puts(out, "/files?path=");
    put_escaped(out, path);
}

static void on_head(struct http_call *call, const struct http1_head *head, void *arg)
{
    ((struct copy *)arg)->status = head->status;
}

static void on_body(struct http_call *call, const char *data, size_t len, void *arg)
{
    struct copy *c = arg;

    if (c->status > 299 || c->place == NULL)
        (void)buf_append(&c->problem, data, len);
    else if (c->error == 0)
        c->error = fd_write_all(c->fd, data, len);
}

static void on_done(struct http_call *call, const struct err *err, void *arg)
{
    struct copy *c = arg;

    c->call = NULL;
    loop_io_stop(&c->io);
    if (err != NULL) {
        c->failed = true;
        c->err = *err;
    }
    loop_quit(c->app->loop);
}

/* In. */

static void feed(struct copy *c);

static void on_readable(struct loop_io *io, uint32_t events)
{
    struct copy *c = container_of(io, struct copy, io);

    loop_io_stop(io);
    feed(c);
}

static void feed(struct copy *c)
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
        feed(c);
}

static const struct http_call_handlers handlers = {
    .head = on_head, .body = on_body, .writable = on_writable, .done = on_done};

static int begin(struct copy *c, const char *method, const char *target, struct err *err)
{
    struct app_headers headers = app_headers(c->app);
    struct http_call_opts opts = {.method = method,
                                  .target = target,
                                  .headers = headers.list,
                                  .flags = c->place == NULL ? HTTP_CALL_STREAM : 0};
    struct err cause = {0};

    buf_init(&c->problem, PROBLEM_MAX);
    if (http_client_call(c->app->client, &opts, &handlers, c, &c->call, &cause) < 0)
        return app_unreachable(c->app, &cause, err);
    return 0;
}

/* Waits for the end; what went wrong there, or here. */
static int await(struct copy *c, const char *local, struct err *err)
{
    int r = app_wait(c->app, err);

    if (c->call != NULL)
        http_call_cancel(TAKE_PTR(c->call));
    if (r < 0)
        return r;
    if (c->error < 0)
        return err_sys(err, -c->error, "'%s'", local);
    if (c->status > 299)
        return app_problem(c->status, &c->problem, err);
    if (c->failed)
        return app_unreachable(c->app, &c->err, err);
    return 0;
}

static int open_source(struct copy *c, const char *path, mode_t *ret_mode, struct err *err)
{
    struct stat st;

    c->fd = str_eq(path, "-") ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (c->fd < 0 || fstat(c->fd, &st) < 0)
        return err_sys(err, errno, "'%s'", path);
    if (S_ISDIR(st.st_mode))
        return err_set(err, ERR_INVALID, "'%s' is a directory; box cp copies one file", path);
    c->pollable = !S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode);
    *ret_mode = S_ISREG(st.st_mode) ? st.st_mode & 0777 : 0;
    return 0;
}

static int copy_in(struct copy *c, const char *local, const char *session, const char *path,
                   struct err *err)
{
    AUTO_DONE(buf) struct buf target;
    AUTO_FREE char *whole = xstrdup(path);
    mode_t mode = 0;
    buf_init(&target, 4 * 8192);
    int r = open_source(c, local, &mode, err);

    if (r < 0)
        return r;
    if (str_ends(path, "/")) {
        free(whole);
        whole = xasprintf("%s%s", path, str_eq(local, "-") ? "stdin" : last_part(local));
    }
    put_target(&target, session, whole);
    if (mode != 0)
        (void)buf_printf(&target, "&mode=%o", (unsigned)mode);
    r = begin(c, "PUT", buf_str(&target), err);
    if (r < 0)
        return r;
    feed(c);
    return await(c, local, err);
}

/* Out. */

static int open_place(struct copy *c, const char *local, const char *path, struct err *err)
{
    struct stat st;
    char id[17];

    if (str_eq(local, "-")) {
        c->place = xstrdup("-");
        c->fd = STDOUT_FILENO;
        return 0;
    }
    bool dir = stat(local, &st) == 0 && S_ISDIR(st.st_mode);
    c->place = dir ? xasprintf("%s/%s", local, last_part(path)) : xstrdup(local);
    if (!dir && stat(local, &st) == 0 && !S_ISREG(st.st_mode)) {
        c->fd = open(local, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        return c->fd < 0 ? err_sys(err, errno, "'%s'", local) : 0;
    }
    id_random(id);
    c->draft = xasprintf("%s.%s.tmp", c->place, id);
    c->fd = open(c->draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return c->fd < 0 ? err_sys(err, errno, "'%s'", c->place) : 0;
}

static int copy_out(struct copy *c, const char *session, const char *path, const char *local,
                    struct err *err)
{
    AUTO_DONE(buf) struct buf target;

    buf_init(&target, 4 * 8192);
    put_target(&target, session, path);
    int r = open_place(c, local, path, err);
    if (r == 0)
        r = begin(c, "GET", buf_str(&target), err);
    if (r == 0)
        r = await(c, local, err);
    if (r < 0 || c->draft == NULL)
        return r;
    if (rename(c->draft, c->place) < 0)
        return err_sys(err, errno, "'%s'", c->place);
    free(TAKE_PTR(c->draft));
    return 0;
}

int verb_cp(struct app *app, const struct args *args, struct err *err)
{
    AUTO_FREE char *from = NULL;
    AUTO_FREE char *to = NULL;
    const char *from_path = NULL, *to_path = NULL;
    const char *src = args->names[0], *dst = args->names[1];
    struct copy c = {.app = app, .fd = -1};

    if (is_inside(src, &from, &from_path) == is_inside(dst, &to, &to_path))
        return err_set(err, ERR_INVALID, "box cp wants one of SRC and DST as SESSION:PATH%s",
                       from != NULL ? ", not both" : "");
    int r = app_connect(app, APP_RUNNING, err);
    if (r >= 0 && to != NULL)
        r = copy_in(&c, src, to, to_path, err);
    else if (r >= 0)
        r = copy_out(&c, from, from_path, dst, err);
    copy_done(&c);
    return r;
}
