/* SPDX-License-Identifier: Apache-2.0 */

/* The variables of a command: --env NAME=VALUE, --env NAME, and --env-file in Docker's format. */

#include "cli/args/args_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/model.h"
#include "spec/spec.h"

int args_set_variable(char ***env, const char *text, struct err *err)
{
    const char *equals = strchr(text, '=');

    /* The text is not repeated: it may hold a secret. */
    if (equals == NULL || equals == text)
        return err_set(err, ERR_INVALID, "env entries must be NAME=value");
    size_t name_len = (size_t)(equals - text) + 1;
    size_t n = strv_len(*env);
    for (size_t i = 0; i < n; i++) {
        if (strncmp((*env)[i], text, name_len) != 0)
            continue;
        free((*env)[i]);
        (*env)[i] = xstrdup(text);
        return 0;
    }
    if (n >= SPEC_ENV_ENTRIES_MAX)
        return err_set(err, ERR_INVALID, "env must have at most %d entries", SPEC_ENV_ENTRIES_MAX);
    strv_add(env, text);
    return 0;
}

/* "NAME=value", or "NAME" for the value that it has here; where it has none nothing is set. */
static int set_or_pass(char ***env, const char *text, struct err *err)
{
    if (text[0] == '\0')
        return err_set(err, ERR_INVALID, "env entries must be NAME=value or NAME");
    if (strchr(text, '=') != NULL)
        return args_set_variable(env, text, err);
    const char *value = getenv(text);
    if (value == NULL)
        return 0;
    AUTO_FREE char *whole = xasprintf("%s=%s", text, value);
    return args_set_variable(env, whole, err);
}

/* One line as Docker reads it: blanks before it are dropped, # begins a comment, and everything
 * behind the equals sign is the value, quotes and blanks too. */
static int read_env_line(char ***env, const char *line, struct err *err)
{
    line += strspn(line, " \t");
    if (line[0] == '\0' || line[0] == '#')
        return 0;
    size_t name = strcspn(line, "=");
    if (strcspn(line, " \t") < name)
        return err_set(err, ERR_INVALID, "the name of a variable cannot hold a blank");
    return set_or_pass(env, line, err);
}

static int read_env_text(char ***env, const char *text, size_t len, struct err *err)
{
    const char *end = text + len;

    if (memchr(text, '\0', len) != NULL)
        return err_set(err, ERR_INVALID, "the file holds a NUL");
    for (unsigned number = 1; text < end; number++) {
        size_t n = strcspn(text, "\n");
        AUTO_FREE char *line = xstrndup(text, n > 0 && text[n - 1] == '\r' ? n - 1 : n);
        if (!utf8_valid(line, strlen(line)))
            return err_set(err, ERR_INVALID, "line %u is not valid UTF-8", number);
        if (read_env_line(env, line, err) < 0)
            return err_wrap(err, "line %u", number);
        text += n + 1;
    }
    return 0;
}

static int read_env_file(char ***env, const char *path, struct err *err)
{
    AUTO_DONE(buf) struct buf text = BUF_INIT(SPEC_ENV_BYTES_MAX);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    int r = fd < 0 ? -errno : fd_read_to_buf(fd, &text);

    if (r == -ENOBUFS)
        return err_set(err, ERR_INVALID, "--env-file '%s' is larger than %d bytes", path,
                       SPEC_ENV_BYTES_MAX);
    if (r < 0)
        return err_sys(err, -r, "--env-file '%s'", path);
    if (text.len > 0 && read_env_text(env, buf_str(&text), text.len, err) < 0)
        return err_wrap(err, "--env-file '%s'", path);
    return 0;
}

int args_resolve_env(struct args *a, struct err *err)
{
    int r = 0;

    /* As Docker has it: an option says more than a file, wherever it stands. */
    for (size_t i = 0; i < strv_len(a->env_files) && r >= 0; i++)
        r = read_env_file(&a->spec->env, a->env_files[i], err);
    for (size_t i = 0; i < strv_len(a->envs) && r >= 0; i++)
        r = set_or_pass(&a->spec->env, a->envs[i], err);
    if (a->spec->env != NULL)
        a->given |= FIELD_BIT(SPEC_ENV);
    return r;
}
