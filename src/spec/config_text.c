/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the parts of a spec that identify a configuration, as Python's json.dumps() would. */

#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"
#include "spec/model.h"
#include "spec/spec.h"

static uint32_t code_point(const char *s, int len)
{
    uint32_t point = (unsigned char)s[0] & (len == 1 ? 0x7fU : 0x7fU >> len);
    for (int i = 1; i < len; i++)
        point = point << 6 | ((unsigned char)s[i] & 0x3fU);
    return point;
}

/* A string as json.dumps() of Python writes it: everything beyond ASCII escaped. */
static void put_string(struct buf *out, const char *s)
{
    static const char *const shorts[] = {
        ['\b'] = "\\b", ['\f'] = "\\f", ['\n'] = "\\n", ['\r'] = "\\r",
        ['\t'] = "\\t", ['"'] = "\\\"", ['\\'] = "\\\\"};
    if (s == NULL) {
        (void)buf_puts(out, "null");
        return;
    }
    (void)buf_putc(out, '"');
    for (size_t left = strlen(s); left > 0;) {
        bool incomplete;
        int n = utf8_next(s, left, &incomplete);
        uint32_t c = n > 0 ? code_point(s, n) : 0xfffd;
        if (c < ARRAY_SIZE(shorts) && shorts[c] != NULL)
            (void)buf_puts(out, shorts[c]);
        else if (c >= ' ' && c <= '~')
            (void)buf_putc(out, (char)c);
        else if (c < 0x10000)
            (void)buf_printf(out, "\\u%04x", c);
        else
            (void)buf_printf(out, "\\u%04x\\u%04x", 0xd800 | ((c - 0x10000) >> 10),
                             0xdc00 | ((c - 0x10000) & 0x3ff));
        s += n > 0 ? n : -n;
        left -= (size_t)(n > 0 ? n : -n);
    }
    (void)buf_putc(out, '"');
}

/* A number or a truth value as json.dumps() writes it, which is how we write it, too. */
static void put_value(struct buf *out, const struct spec *spec, const struct field *f)
{
    const void *value = (const char *)spec + f->offset;
    struct jw w;
    jw_init(&w, out);
    if (f->kind == FIELD_STR)
        put_string(out, *(char *const *)value);
    else if (f->kind == FIELD_ENUM)
        put_string(out, f->names[*(const int *)value]);
    else if (f->kind == FIELD_BOOL)
        jw_bool(&w, *(const bool *)value);
    else if (f->kind == FIELD_REAL)
        jw_real(&w, *(const double *)value);
    else
        jw_int(&w, *(const int64_t *)value);
}

void spec_config_text(const struct spec *spec, struct buf *out)
{
    static const enum spec_field told[] = {
        /* sorted by name */
        SPEC_CPUS,      SPEC_HOST_PATH, SPEC_HOST_PATH_MODE, SPEC_IMAGE,
        SPEC_MEMORY_MB, SPEC_NETWORK,   SPEC_PIDS_LIMIT,     SPEC_READ_ONLY_ROOTFS,
    };
    for (size_t i = 0; i < ARRAY_SIZE(told); i++) {
        const struct field *f = &spec_model.fields[told[i]];
        (void)buf_printf(out, "%s\"%s\": ", i == 0 ? "{" : ", ", f->name);
        put_value(out, spec, f);
    }
    (void)buf_putc(out, '}');
}
