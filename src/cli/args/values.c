/* SPDX-License-Identifier: Apache-2.0 */

/* Parses the value of one option into the arguments: numbers, choices, variables, mounts. */

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/box_args_internal.h"
#include "spec/model.h"
#include "spec/spec.h"

int arg_set_flag(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    *(bool *)(void *)((char *)a + o->where) = true;
    return 0;
}

int arg_set_text(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    *(const char **)(void *)((char *)a + o->where) = value;
    return 0;
}

/* Numbers that no int64 holds become the nearest one, so that the rule of the field words the
 * refusal. */
static int set_int(const struct arg_option *o, const char *value, void *member, struct err *err)
{
    int64_t number;
    int r = str_to_i64(value, &number);

    if (r == -ERANGE)
        number = value[0] == '-' ? INT64_MIN : INT64_MAX;
    else if (r < 0)
        return err_set(err, ERR_INVALID, "--%s: '%s' is not a whole number", o->name, value);
    *(int64_t *)member = number;
    return 0;
}

static int set_real(const struct arg_option *o, const char *value, void *member, struct err *err)
{
    if (str_to_double(value, member) < 0)
        return err_set(err, ERR_INVALID, "--%s: '%s' is not a number", o->name, value);
    return 0;
}

static int find_name(const char *const *names, const char *value)
{
    for (int i = 0; names[i] != NULL; i++)
        if (str_eq(names[i], value))
            return i;
    return -1;
}

static int set_choice(const struct arg_option *o, const char *const *names, const char *value,
                      int *ret, struct err *err)
{
    AUTO_DONE(buf) struct buf list;
    int found = find_name(names, value);

    buf_init(&list, 256);
    if (found >= 0) {
        *ret = found;
        return 0;
    }
    for (size_t i = 0; names[i] != NULL; i++)
        (void)buf_printf(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    return err_set(err, ERR_INVALID, "--%s: '%s' is not one of %s", o->name, value, buf_str(&list));
}

static int set_bool(const struct arg_option *o, const char *value, void *member, struct err *err)
{
    static const char *const names[] = {"off", "on", NULL};
    int found = 0;
    int r = set_choice(o, names, value, &found, err);

    if (r >= 0)
        *(bool *)member = found == 1;
    return r;
}

/* The row of the spec's own table says what kind of value it is and where it lives. */
int arg_set_field(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    const struct field *f = &spec_model.fields[o->where];
    void *member = (char *)a->spec + f->offset;
    int r = 0;

    switch (f->kind) {
    case FIELD_INT:
        r = set_int(o, value, member, err);
        break;
    case FIELD_REAL:
        r = set_real(o, value, member, err);
        break;
    case FIELD_BOOL:
        r = set_bool(o, value, member, err);
        break;
    case FIELD_ENUM:
        r = set_choice(o, f->names, value, member, err);
        break;
    case FIELD_STR:
        free(*(char **)member);
        *(char **)member = xstrdup(value);
        break;
    case FIELD_ENV:
    case FIELD_STRV:
    case FIELD_LIST:
    case FIELD_TIME:
    default:
        return err_set(err, ERR_SYSTEM, "--%s has no way to set '%s'", o->name, f->name);
    }
    if (r >= 0)
        a->given |= FIELD_BIT(o->where);
    return r;
}

int arg_set_session(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    int r = spec_check_id(value, err);

    return r < 0 ? err_wrap(err, "session '%s'", value) : arg_set_field(o, value, a, err);
}

int args_parse_env(const char *text, struct spec *spec, struct err *err)
{
    const char *equals = strchr(text, '=');

    /* The text is not repeated: it may hold a secret. */
    if (equals == NULL || equals == text)
        return err_set(err, ERR_INVALID, "env entries must be NAME=value");
    size_t name_len = (size_t)(equals - text) + 1;
    size_t n = strv_len(spec->env);
    for (size_t i = 0; i < n; i++) {
        if (strncmp(spec->env[i], text, name_len) != 0)
            continue;
        free(spec->env[i]);
        spec->env[i] = xstrdup(text);
        return 0;
    }
    if (n >= SPEC_ENV_ENTRIES_MAX)
        return err_set(err, ERR_INVALID, "env must have at most %d entries", SPEC_ENV_ENTRIES_MAX);
    strv_add(&spec->env, text);
    return 0;
}

int arg_set_env(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    a->given |= FIELD_BIT(SPEC_ENV);
    return args_parse_env(value, a->spec, err);
}

/* The source as the kernel sees it now. Whether it may be mounted is for boxd to say, which opens
 * it beneath what it allows; this only turns the caller's idea of a path into one that does not
 * depend on the caller's directory. */
static int resolve_source(const char *host, char **ret, struct err *err)
{
    AUTO_FREE char *path = realpath(host, NULL);

    if (path == NULL && (errno == ENOENT || errno == ENOTDIR))
        return err_set(err, ERR_INVALID, "mount source '%s' does not exist", host);
    if (path == NULL)
        return err_sys(err, errno, "mount source '%s'", host);
    /* Readers of a spec trim paths: another directory would be mounted than the one named. */
    AUTO_FREE char *trimmed = str_strip(path);
    if (!str_eq(trimmed, path))
        return err_set(err, ERR_INVALID, "mount source '%s' begins or ends with a blank", path);
    *ret = TAKE_PTR(path);
    return 0;
}

/* From the right, because a path of the host may hold colons. */
int args_parse_mount(const char *text, struct spec *spec, struct err *err)
{
    enum mount_mode mode = MOUNT_RW;
    AUTO_FREE char *host = xstrdup(text);
    AUTO_FREE char *source = NULL;

    if (str_ends(host, ":ro") || str_ends(host, ":rw")) {
        size_t len = strlen(host) - 3;
        mode = host[len + 2] == 'o' ? MOUNT_RO : MOUNT_RW;
        host[len] = '\0';
    }
    char *colon = strrchr(host, ':');
    if (colon == NULL || colon == host || colon[1] != '/')
        return err_set(err, ERR_INVALID,
                       "mount '%s' must be HOST:BOX[:ro|rw], with an absolute path for BOX", text);
    *colon = '\0';
    if (spec->n_extra_mounts >= SPEC_MOUNTS_MAX)
        return err_set(err, ERR_INVALID, "extra_mounts must have at most %d entries",
                       SPEC_MOUNTS_MAX);
    int r = resolve_source(host, &source, err);
    if (r < 0)
        return r;
    spec->extra_mounts =
        xreallocarray(spec->extra_mounts, spec->n_extra_mounts + 1, sizeof(*spec->extra_mounts));
    spec->extra_mounts[spec->n_extra_mounts++] = (struct mount_spec){
        .host_path = TAKE_PTR(source), .mount_path = xstrdup(colon + 1), .mode = mode};
    return 0;
}

int arg_set_mount(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    a->given |= FIELD_BIT(SPEC_EXTRA_MOUNTS);
    return args_parse_mount(value, a->spec, err);
}

int arg_set_host_path(const struct arg_option *o, const char *value, struct args *a,
                      struct err *err)
{
    AUTO_FREE char *path = realpath(value, NULL);

    if (path == NULL)
        return err_sys(err, errno, "--%s '%s'", o->name, value);
    return arg_set_field(o, path, a, err);
}

int arg_add_text(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    strv_add((char ***)(void *)((char *)a + o->where), value);
    return 0;
}

int arg_add_secret(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    int r = arg_add_text(o, value, a, err);
    const char *equals = strchr(value, '=');

    /* argv is ours to write to, and /proc/PID/cmdline shows it. */
    if (equals != NULL)
        memset((char *)(uintptr_t)equals + 1, '*', strlen(equals + 1));
    return r;
}
