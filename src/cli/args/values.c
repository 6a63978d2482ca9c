/* SPDX-License-Identifier: Apache-2.0 */

/* Reads the values of options as people write them: sizes, times, variables, mounts, fields of the
 * spec. */

#include "cli/args/args_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/model.h"
#include "spec/spec.h"

static int set_flag(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    *(bool *)(void *)((char *)a + o->where) = true;
    return 0;
}

static int set_text(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    *(const char **)(void *)((char *)a + o->where) = value;
    return 0;
}

/* One of the words that help shows for the value: "text|json|junit". */
static int set_choice_text(const struct arg_option *o, const char *value, struct args *a,
                           struct err *err)
{
    AUTO_DONE(buf) struct buf list = BUF_INIT(256);
    size_t len = strlen(value);

    for (const char *word = o->value; word != NULL;) {
        size_t n = strcspn(word, "|");
        if (n == len && memcmp(word, value, n) == 0)
            return set_text(o, value, a, err);
        (void)buf_printf(&list, "%s%.*s", list.len > 0 ? ", " : "", (int)n, word);
        word = word[n] == '|' ? word + n + 1 : NULL;
    }
    return err_set(err, ERR_INVALID, "--%s: '%s' is not one of %s", o->name, value, buf_str(&list));
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

static int set_choice(const struct arg_option *o, const char *const *names, const char *value,
                      int *ret, struct err *err)
{
    AUTO_DONE(buf) struct buf list = BUF_INIT(256);

    for (int i = 0; names[i] != NULL; i++) {
        if (str_eq(names[i], value)) {
            *ret = i;
            return 0;
        }
        (void)buf_printf(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    }
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
static int set_field(const struct arg_option *o, const char *value, struct args *a, struct err *err)
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

/* Sizes and times, as people write them. */

struct unit {
    const char *name;
    double factor;
};

/* The number that text begins with, without a sign or an exponent; *ret_rest is what follows. */
static bool read_number(const char *text, double *ret, const char **ret_rest)
{
    size_t len = strspn(text, "0123456789.");
    AUTO_FREE char *number = xstrndup(text, len);

    *ret_rest = text + len;
    return len > 0 && len < 20 && str_to_double(number, ret) == 0;
}

/* The factor of the unit that the first `len` bytes of a text are, in either case; 0: none. */
static double find_unit(const struct unit *units, size_t n, const char *text, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(units[i].name) == len && strncasecmp(units[i].name, text, len) == 0)
            return units[i].factor;
    return 0;
}

#define KIB 1024.0
#define MIB (1024.0 * KIB)

/* "512m", "1.5g", "2GiB": a field in MiB. As Docker has it a number without a unit is bytes, and
 * every unit is a power of 1024. Never more than was asked for. */
static int set_size(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    static const struct unit units[] = {
        {"", 1},           {"b", 1},           {"k", KIB},         {"kb", KIB},
        {"kib", KIB},      {"m", MIB},         {"mb", MIB},        {"mib", MIB},
        {"g", KIB * MIB},  {"gb", KIB * MIB},  {"gib", KIB * MIB}, {"t", MIB * MIB},
        {"tb", MIB * MIB}, {"tib", MIB * MIB},
    };
    const char *unit;
    double number = 0, factor = 0;

    if (read_number(value, &number, &unit))
        factor = find_unit(units, ARRAY_SIZE(units), unit, strlen(unit));
    if (factor == 0)
        return err_set(err, ERR_INVALID, "--%s: '%s' is not a size such as 512m or 1.5g", o->name,
                       value);
    double mib = number * factor / MIB;
    if (mib < 1 && number > 0)
        return err_set(err, ERR_INVALID, "--%s: '%s' is less than 1 MiB; write %.40s%s", o->name,
                       value, unit[0] == '\0' ? value : "512", unit[0] == '\0' ? "m for MiB" : "m");
    const struct field *f = &spec_model.fields[o->where];
    *(int64_t *)(void *)((char *)a->spec + f->offset) =
        mib < (double)(INT64_MAX / 2) ? (int64_t)mib : INT64_MAX;
    a->given |= FIELD_BIT(o->where);
    return 0;
}

/* "30s", "5m", "1h30m", or whole seconds without a unit: a field in seconds. */
static int set_time(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    static const struct unit units[] = {{"ms", 0.001}, {"s", 1},    {"sec", 1},  {"m", 60},
                                        {"min", 60},   {"h", 3600}, {"d", 86400}};
    const char *at = value;
    double total = 0, number = 0;
    int64_t plain;

    /* A bare number has the field's own rules for its size and sign. */
    if (str_to_i64(value, &plain) != -EINVAL)
        return set_field(o, value, a, err);
    do {
        size_t len = 0;
        double factor = 0;
        if (read_number(at, &number, &at)) {
            len = strcspn(at, "0123456789.");
            factor = find_unit(units, ARRAY_SIZE(units), at, len);
        }
        if (factor == 0)
            return err_set(err, ERR_INVALID,
                           "--%s: '%s' is not a time such as 30, 30s, 5m or 1h30m", o->name, value);
        total += number * factor;
        at += len;
    } while (*at != '\0');
    if (total > (double)SPEC_TIMEOUT_MAX)
        total = (double)SPEC_TIMEOUT_MAX + 1; /* the rule of the field words the refusal */
    if (total != (double)(int64_t)total)
        return err_set(err, ERR_INVALID, "--%s: '%s' is not a whole number of seconds", o->name,
                       value);
    AUTO_FREE char *seconds = xasprintf("%lld", (long long)total);
    return set_field(o, seconds, a, err);
}

static int set_session(const struct arg_option *o, const char *value, struct args *a,
                       struct err *err)
{
    int r = spec_check_id(value, err);

    return r < 0 ? err_wrap(err, "session '%s'", value) : set_field(o, value, a, err);
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

/* "HOST:BOX[:ro|rw]", split from the right, because a path of the host may hold colons. HOST is
 * resolved with realpath(3); it must exist. Appends to the spec's extra mounts. */
static int add_mount(const struct arg_option *o, const char *text, struct args *a, struct err *err)
{
    struct spec *spec = a->spec;
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
    a->given |= FIELD_BIT(SPEC_EXTRA_MOUNTS);
    spec->extra_mounts =
        xreallocarray(spec->extra_mounts, spec->n_extra_mounts + 1, sizeof(*spec->extra_mounts));
    spec->extra_mounts[spec->n_extra_mounts++] = (struct mount_spec){
        .host_path = TAKE_PTR(source), .mount_path = xstrdup(colon + 1), .mode = mode};
    return 0;
}

static int set_host_path(const struct arg_option *o, const char *value, struct args *a,
                         struct err *err)
{
    AUTO_FREE char *path = realpath(value, NULL);

    if (path == NULL)
        return err_sys(err, errno, "--%s '%s'", o->name, value);
    return set_field(o, path, a, err);
}

static int add_text(const struct arg_option *o, const char *value, struct args *a, struct err *err)
{
    strv_add((char ***)(void *)((char *)a + o->where), value);
    return 0;
}

static int add_secret(const struct arg_option *o, const char *value, struct args *a,
                      struct err *err)
{
    int r = add_text(o, value, a, err);
    const char *equals = strchr(value, '=');

    /* argv is ours to write to, and /proc/PID/cmdline shows it. */
    if (equals != NULL)
        memset((char *)(uintptr_t)equals + 1, '*', strlen(equals + 1));
    return r;
}

arg_set_fn *const arg_setters[ARG_KIND_MAX] = {
    [ARG_FLAG] = set_flag,       [ARG_TEXT] = set_text,           [ARG_CHOICE] = set_choice_text,
    [ARG_LIST] = add_text,       [ARG_SECRETS] = add_secret,      [ARG_FIELD] = set_field,
    [ARG_SESSION] = set_session, [ARG_HOST_PATH] = set_host_path, [ARG_MOUNT] = add_mount,
    [ARG_SIZE] = set_size,       [ARG_TIME] = set_time,
};
