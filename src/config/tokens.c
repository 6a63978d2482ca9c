/* SPDX-License-Identifier: Apache-2.0 */

/* Opens and rereads the file of tokens with scopes, when its time or digest has changed. */

#include "config/tokens.h"

#include <errno.h>
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
#include "base/reread_file.h"
#include "base/str.h"
#include "config/config_yaml.h"
#include "http/codec/crypto.h"
#include "policy/authz.h"

#define SETTLED_SEC 2
#define FILE_MAX (4U << 20)
#define DIGEST_SIZE 65

struct tokens_file {
    struct reread_file file;
    struct authz *scopes;     /* owned, NULL: none */
    struct stat seen;         /* when it was read last */
    char digest[DIGEST_SIZE]; /* of what was read, "": it was not good */
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
    return f->scopes;
}

static int look(const struct tokens_file *f, struct stat *ret, struct err *err)
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
    AUTO_DONE(buf) struct buf text;

    buf_init(&text, FILE_MAX);
    int r = fd_read_to_buf(f->file.fd, &text);
    if (r >= 0)
        r = http_sha256_hex(buf_str(&text), text.len, ret);
    if (text.len > 0)
        explicit_bzero(text.data, text.len);
    if (r >= 0 && lseek(f->file.fd, 0, SEEK_SET) < 0)
        r = -errno;
    return r < 0 ? err_sys(err, -r, "read tokens_file '%s'", f->file.path) : 0;
}

static int parse(const struct tokens_file *f, struct authz **ret, struct err *err)
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
    int r = look(f, &now, err);

    if (r < 0 || is_as_seen(f, &now))
        return r;
    f->seen = now;
    r = digest_of(f, digest, err);
    if (r < 0 || str_eq(digest, f->digest))
        return r;
    r = parse(f, &scopes, err);
    if (r < 0)
        return r;
    (void)str_copy(f->digest, sizeof(f->digest), digest);
    authz_free(f->scopes);
    f->scopes = TAKE_PTR(scopes);
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
