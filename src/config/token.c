/* SPDX-License-Identifier: Apache-2.0 */

/* Opens and rereads the token file, and wipes old tokens from memory. */

#include "config/token.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/reread_file.h"
#include "base/str.h"

#define TOKEN_MIN 32U
#define TOKEN_MAX 4096U

struct token_file {
    struct reread_file file;
    char *text; /* owned, NULL: none */
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
    reread_file_done(&f->file);
    free(f);
}

const char *token_file_text(const struct token_file *f)
{
    return f->text;
}

/* The first line, whatever its end looks like. */
static int read_text(const struct token_file *f, char **ret, struct err *err)
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
    int r = reread_file_open(&f->file, path, "token_file", err);
    if (r == 0)
        r = read_text(f, &f->text, err);
    if (r < 0)
        return r;
    reread_file_settle(&f->file);
    *ret = TAKE_PTR(f);
    return 0;
}
