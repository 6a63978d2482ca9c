/* SPDX-License-Identifier: Apache-2.0 */

/* Compares a session with a spec that asks for it again, and names the field that differs. */

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "session/session_internal.h"
#include "spec/model.h"
#include "spec/spec.h"

static const void *member(const struct spec *spec, const struct field *f)
{
    return (const char *)spec + f->offset;
}

static bool same_value(const struct spec *a, const struct spec *b, const struct field *f)
{
    const void *x = member(a, f), *y = member(b, f);
    if (f->kind == FIELD_STR)
        return str_eq(*(char *const *)x, *(char *const *)y);
    if (f->kind == FIELD_INT)
        return *(const int64_t *)x == *(const int64_t *)y;
    if (f->kind == FIELD_REAL)
        return *(const double *)x == *(const double *)y;
    if (f->kind == FIELD_BOOL)
        return *(const bool *)x == *(const bool *)y;
    return *(const int *)x == *(const int *)y;
}

/* As Python writes a float, which is how clients know it. */
static void real_text(double value, char *ret, size_t size)
{
    AUTO_DONE(buf) struct buf text;
    struct jw w;
    buf_init(&text, size);
    jw_init(&w, &text);
    jw_real(&w, value);
    (void)snprintf(ret, size, "%s", buf_str(&text));
}

/* Python's spelling, because clients of the LangBot wire know these sentences. What is too long for
 * one is cut off. */
static void value_text(const struct spec *spec, const struct field *f, char *ret, size_t size)
{
    const void *value = member(spec, f);
    if (f->kind == FIELD_STR) {
        const char *text = *(char *const *)value;
        (void)snprintf(ret, size, "%s", text != NULL ? text : "None");
    } else if (f->kind == FIELD_INT) {
        (void)snprintf(ret, size, "%lld", (long long)*(const int64_t *)value);
    } else if (f->kind == FIELD_REAL) {
        real_text(*(const double *)value, ret, size);
    } else if (f->kind == FIELD_BOOL) {
        (void)snprintf(ret, size, "%s", *(const bool *)value ? "True" : "False");
    } else {
        (void)snprintf(ret, size, "%s", f->names[*(const int *)value]);
    }
}

int session_check_same(const struct session *s, const struct spec *want, uint64_t given,
                       struct err *err)
{
    static const enum spec_field compared[] = {
        SPEC_NETWORK,
        SPEC_IMAGE,
        SPEC_HOST_PATH,
        SPEC_HOST_PATH_MODE,
        SPEC_MOUNT_PATH,
        SPEC_PERSISTENT,
        SPEC_CPUS,
        SPEC_MEMORY_MB,
        SPEC_PIDS_LIMIT,
        SPEC_READ_ONLY_ROOTFS,
        SPEC_WORKSPACE_QUOTA_MB,
    };
    for (size_t i = 0; i < ARRAY_SIZE(compared); i++) {
        const struct field *f = &spec_model.fields[compared[i]];
        char have[256];
        if (!(given & FIELD_BIT(compared[i])) || same_value(s->spec, want, f))
            continue;
        value_text(s->spec, f, have, sizeof(have));
        return err_set(err, ERR_CONFLICT, "Box session %s already exists with %s=%s",
                       s->spec->session_id, f->name, have);
    }
    if (want->own.env_locked && !s->spec->own.env_locked)
        return err_set(err, ERR_CONFLICT,
                       "Box session %s already exists with an environment that is not locked; "
                       "delete it, or choose another name",
                       s->spec->session_id);
    return 0;
}

/* Mounts are a set: order and repetition do not matter, and one that is switched off is none. Most
 * come in the order they came in before, so each is looked for at its own place first. */
static bool mounts_within(const struct spec *a, const struct spec *b)
{
    for (size_t i = 0; i < a->n_extra_mounts; i++) {
        const struct mount_spec *x = &a->extra_mounts[i];
        bool found = x->mode == MOUNT_NONE;
        for (size_t k = 0; k < b->n_extra_mounts && !found; k++) {
            const struct mount_spec *y = &b->extra_mounts[(i + k) % b->n_extra_mounts];
            found = x->mode == y->mode && str_eq(x->host_path, y->host_path) &&
                    str_eq(x->mount_path, y->mount_path) &&
                    str_eq(x->content_digest, y->content_digest) &&
                    str_eq(x->manifest_path, y->manifest_path);
        }
        if (!found)
            return false;
    }
    return true;
}

bool session_same_mounts(const struct spec *a, const struct spec *b)
{
    return mounts_within(a, b) && mounts_within(b, a);
}
