/* SPDX-License-Identifier: Apache-2.0 */

/* Opens and rereads the two files that hold tokens, and wipes old tokens from memory. */

#include "config/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "config/config_file.h"
#include "http/codec/crypto.h"
#include "policy/authz.h"

/* A file that is read again while we serve, by a daemon that has less rights than it had when it
 * started. The file is kept open: one that only root may read can be written anew in its place also
 * when we are root no more. One that is put in its place by rename must be readable by the user we
 * are. */
struct reread_file {
    char *path;       /* owned */
    const char *what; /* its setting, for messages; static */
    int fd;           /* owned, -1: not open, or it was no file and is not looked at again */
};

static int reread_file_reopen(struct reread_file *f, int flags, struct err *err)
{
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | flags);
    if (fd < 0)
        return err_sys(err, errno, "read %s '%s'", f->what, f->path);
    fd_close_many(&f->fd, 1);
    f->fd = fd;
    return 0;
}

/* Opens it for the first time, whatever it is. */
static int reread_file_open(struct reread_file *f, const char *path, const char *what,
                            struct err *err)
{
    f->path = xstrdup(path);
    f->what = what;
    f->fd = -1;
    return reread_file_reopen(f, 0, err);
}

static int reread_file_follow(struct reread_file *f, struct err *err)
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
    return reread_file_reopen(f, O_NONBLOCK, err);
}

/* Has `fd` be what stands at the path now, at its beginning. Where we may not look at the path any
 * more, a file that was replaced is known by having no name left. */
static int reread_file_again(struct reread_file *f, struct err *err)
{
    int r = reread_file_follow(f, err);
    if (r == 0 && lseek(f->fd, 0, SEEK_SET) < 0)
        return err_sys(err, errno, "read %s '%s'", f->what, f->path);
    return r;
}

/* A pipe was read to its end and is closed; a file stays open. */
static void reread_file_settle(struct reread_file *f)
{
    struct stat st;
    if (f->fd >= 0 && (fstat(f->fd, &st) < 0 || !S_ISREG(st.st_mode)))
        fd_close_many(&f->fd, 1);
}

static void reread_file_done(struct reread_file *f)
{
    free(f->path);
    fd_close_many(&f->fd, 1);
}

/* The one token that all clients share. */

#define TOKEN_MIN 32U
#define TOKEN_MAX 4096U

struct token_file {
    struct reread_file file;
    char *text; /* owned, NULL: none */
};

static void wipe(char *text)
{
    if (text != NULL)
        explicit_bzero(text, strlen(text));
    free(text);
}

void token_file_free(struct token_file *f)
{
    if (f == NULL)
        return;
    wipe(f->text);
    reread_file_done(&f->file);
    free(f);
}

const char *token_file_text(const struct token_file *f)
{
    return f != NULL ? f->text : NULL;
}

/* The first line, whatever its end looks like. */
static int read_token(const struct token_file *f, char **ret, struct err *err)
{
    char text[TOKEN_MAX + 2];
    ssize_t n = fd_read_full(f->file.fd, text, sizeof(text) - 1);
    if (n < 0 || n > (ssize_t)TOKEN_MAX)
        return err_sys(err, n < 0 ? (int)-n : E2BIG, "read token_file '%s'", f->file.path);
    text[n] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    int r = 0;
    if (strlen(text) < TOKEN_MIN)
        r = err_set(err, ERR_INVALID, "the token in '%s' must have at least %u characters",
                    f->file.path, TOKEN_MIN);
    else
        *ret = xstrdup(text);
    explicit_bzero(text, sizeof(text));
    return r;
}

int token_file_check(struct token_file *f, struct err *err)
{
    AUTO_FREE char *text = NULL;
    if (f->file.fd < 0)
        return 0;
    int r = reread_file_again(&f->file, err);
    if (r == 0)
        (void)read_token(f, &text, err);
    if (str_eq(text, f->text)) {
        wipe(TAKE_PTR(text));
        return 0;
    }
    wipe(f->text);
    f->text = TAKE_PTR(text);
    return 1;
}

int token_file_open(const char *path, struct token_file **ret, struct err *err)
{
    AUTO(token_file) struct token_file *f = xnew(struct token_file);
    int r = reread_file_open(&f->file, path, "token_file", err);
    if (r == 0)
        r = read_token(f, &f->text, err);
    if (r < 0)
        return r;
    reread_file_settle(&f->file);
    *ret = TAKE_PTR(f);
    return 0;
}

/* Tokens with scopes. */

#define SETTLED_SEC 2
#define TOKENS_FILE_MAX (4U << 20)
#define DIGEST_SIZE 65

struct tokens_file {
    struct reread_file file;
    struct authz *scopes;                  /* owned, NULL: none */
    const struct authz_sessions *sessions; /* borrowed */
    struct stat seen;                      /* when it was read last */
    char digest[DIGEST_SIZE];              /* of what was read, "": it was not good */
};

void tokens_file_free(struct tokens_file *f)
{
    if (f == NULL)
        return;
    authz_free(f->scopes);
    reread_file_done(&f->file);
    free(f);
}

const struct authz *tokens_file_scopes(const struct tokens_file *f)
{
    return f != NULL ? f->scopes : NULL;
}

void tokens_file_set_sessions(struct tokens_file *f, const struct authz_sessions *sessions)
{
    if (f == NULL)
        return;
    f->sessions = sessions;
    if (f->scopes != NULL)
        authz_set_sessions(f->scopes, sessions);
}

static int check_mode(const struct tokens_file *f, struct stat *ret, struct err *err)
{
    if (fstat(f->file.fd, ret) < 0)
        return err_sys(err, errno, "look at tokens_file '%s'", f->file.path);
    if (!S_ISREG(ret->st_mode) || (ret->st_mode & S_IRWXO) != 0)
        return err_set(err, ERR_DENIED,
                       "tokens_file '%s' must be a file that others cannot use (chmod 600)",
                       f->file.path);
    return 0;
}

/* Times of files go by ticks: one that was written a moment ago may be written again unnoticed. */
static bool is_as_seen(const struct tokens_file *f, const struct stat *now)
{
    const struct stat *was = &f->seen;

    return f->digest[0] != '\0' && was->st_dev == now->st_dev && was->st_ino == now->st_ino &&
           was->st_size == now->st_size && was->st_ctim.tv_sec == now->st_ctim.tv_sec &&
           was->st_ctim.tv_nsec == now->st_ctim.tv_nsec &&
           time(NULL) - now->st_ctim.tv_sec > SETTLED_SEC;
}

static int digest_of(const struct tokens_file *f, char ret[static DIGEST_SIZE], struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(TOKENS_FILE_MAX);

    int r = fd_read_to_buf(f->file.fd, &text);
    if (r >= 0)
        r = http_sha256_hex(buf_str(&text), text.len, ret);
    if (text.len > 0)
        explicit_bzero(text.data, text.len);
    if (r >= 0 && lseek(f->file.fd, 0, SEEK_SET) < 0)
        r = -errno;
    return r < 0 ? err_sys(err, -r, "read tokens_file '%s'", f->file.path) : 0;
}

static int parse_scopes(const struct tokens_file *f, struct authz **ret, struct err *err)
{
    AUTO(json) struct json *tokens = NULL;
    int r = config_yaml_read(f->file.fd, f->file.path, &tokens, err);

    if (r == 0 && authz_parse(tokens, ret, err) < 0)
        return err_wrap(err, "tokens_file '%s'", f->file.path);
    return r;
}

/* 1 when it is another one than before. */
static int read_again(struct tokens_file *f, struct err *err)
{
    AUTO(authz) struct authz *scopes = NULL;
    char digest[DIGEST_SIZE];
    struct stat now;
    int r = check_mode(f, &now, err);

    if (r < 0 || is_as_seen(f, &now))
        return r;
    f->seen = now;
    r = digest_of(f, digest, err);
    if (r < 0 || str_eq(digest, f->digest))
        return r;
    r = parse_scopes(f, &scopes, err);
    if (r < 0)
        return r;
    (void)str_copy(f->digest, sizeof(f->digest), digest);
    authz_free(f->scopes);
    f->scopes = TAKE_PTR(scopes);
    authz_set_sessions(f->scopes, f->sessions);
    return 1;
}

int tokens_file_open(const char *path, struct tokens_file **ret, struct err *err)
{
    AUTO(tokens_file) struct tokens_file *f = xnew(struct tokens_file);
    int r = reread_file_open(&f->file, path, "tokens_file", err);

    if (r == 0)
        r = read_again(f, err);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(f);
    return 0;
}

int tokens_file_check(struct tokens_file *f, struct err *err)
{
    int r = reread_file_again(&f->file, err);

    if (r == 0)
        r = read_again(f, err);
    if (r >= 0)
        return r;
    bool told = f->scopes == NULL;
    authz_free(TAKE_PTR(f->scopes));
    f->digest[0] = '\0';
    return told ? 0 : 1;
}
