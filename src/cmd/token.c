/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/token.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/alloc.h"
#include "util/err.h"
#include "util/fd.h"
#include "util/str.h"

#define TOKEN_MIN 32U
#define TOKEN_MAX 4096U

struct token_file {
    char *path; /* owned */
    char *text; /* owned, NULL: none */
    int fd;     /* owned, -1: it was no file, and is not looked at again */
};

static void forget(char *text)
{
    if (text != NULL)
        explicit_bzero(text, strlen(text));
    free(text);
}

void token_file_free(struct token_file *f)
{
    if (f == NULL)
        return;
    forget(f->text);
    free(f->path);
    fd_close_many(&f->fd, 1);
    free(f);
}

const char *token_file_text(const struct token_file *f)
{
    return f->text;
}

static int open_file(const char *path, int flags, int *ret, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | flags);
    if (fd < 0)
        return err_sys(err, errno, "read token_file '%s'", path);
    fd_close_many(ret, 1);
    *ret = fd;
    return 0;
}

/* The first line, whatever its end looks like. */
static int read_text(const struct token_file *f, char **ret, struct err *err)
{
    char text[TOKEN_MAX + 2];
    /* Of something that is no file there is no other place to read from. */
    if (lseek(f->fd, 0, SEEK_SET) < 0 && errno != ESPIPE)
        return err_sys(err, errno, "read token_file '%s'", f->path);
    ssize_t n = fd_read_full(f->fd, text, sizeof(text) - 1);
    if (n < 0 || n > (ssize_t)TOKEN_MAX)
        return err_sys(err, n < 0 ? (int)-n : E2BIG, "read token_file '%s'", f->path);
    text[n] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    int r = 0;
    if (strlen(text) < TOKEN_MIN)
        r = err_set(err, ERR_INVALID, "the token in '%s' must have at least %u characters", f->path,
                    TOKEN_MIN);
    else
        *ret = xstrdup(text);
    explicit_bzero(text, sizeof(text));
    return r;
}

/* Has f->fd be what stands at the path now. Where we may not look at the path any more, a file that
 * was replaced is known by having no name left. */
static int follow(struct token_file *f, struct err *err)
{
    struct stat here, kept;
    if (fstat(f->fd, &kept) < 0)
        return err_sys(err, errno, "look at token_file '%s'", f->path);
    if (stat(f->path, &here) < 0) {
        if (errno == EACCES && kept.st_nlink > 0)
            return 0;
        return err_sys(err, errno, "read token_file '%s'", f->path);
    }
    if (here.st_dev == kept.st_dev && here.st_ino == kept.st_ino)
        return 0;
    if (!S_ISREG(here.st_mode))
        return err_set(err, ERR_INVALID, "token_file '%s' is not a file any more", f->path);
    return open_file(f->path, O_NONBLOCK, &f->fd, err);
}

int token_file_check(struct token_file *f, struct err *err)
{
    AUTO_FREE char *text = NULL;
    if (f->fd < 0)
        return 0;
    int r = follow(f, err);
    if (r == 0)
        (void)read_text(f, &text, err);
    if (str_eq(text, f->text)) {
        if (text != NULL)
            explicit_bzero(text, strlen(text));
        return 0;
    }
    forget(f->text);
    f->text = TAKE_PTR(text);
    return 1;
}

int token_file_open(const char *path, struct token_file **ret, struct err *err)
{
    AUTO(token_file) struct token_file *f = xnew(struct token_file);
    struct stat st;
    f->fd = -1;
    f->path = xstrdup(path);
    int r = open_file(path, 0, &f->fd, err);
    if (r == 0)
        r = read_text(f, &f->text, err);
    if (r < 0)
        return r;
    /* A pipe that somebody filled for us has said all it has to say. */
    if (fstat(f->fd, &st) < 0 || !S_ISREG(st.st_mode))
        fd_close_many(&f->fd, 1);
    *ret = TAKE_PTR(f);
    return 0;
}
