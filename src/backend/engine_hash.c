/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "backend/engine_internal.h"
#include "http/crypto.h"
#include "util/json.h"
#include "util/str.h"

/* Row F18: the first 16 hex digits of the SHA-256 of json.dumps(…, sort_keys=True) over what the
 * container was made from, so that whoever looks at labels sees drift. */

#define TEXT_MAX ((SPEC_PATH_MAX + SPEC_IMAGE_MAX) * 6U + 1024U) /* worst case of escaping */

static uint32_t code_point(const char *s, int len)
{
    uint32_t point = (unsigned char)s[0] & (len == 1 ? 0x7fU : 0x7fU >> len);
    for (int i = 1; i < len; i++)
        point = point << 6 | ((unsigned char)s[i] & 0x3fU);
    return point;
}

/* As json.dumps() of Python writes a string: everything beyond ASCII escaped. */
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

void engine_config_hash(const struct spec *spec, char ret[ENGINE_HASH_LEN + 1])
{
    AUTO_DONE(buf) struct buf text;
    char digest[65] = "";
    struct jw number;
    buf_init(&text, TEXT_MAX);
    (void)buf_puts(&text, "{\"cpus\": ");
    jw_init(&number, &text);
    jw_real(&number, spec->cpus);
    (void)buf_puts(&text, ", \"host_path\": ");
    put_string(&text, spec->host_path);
    (void)buf_printf(
        &text, ", \"host_path_mode\": \"%s\", \"image\": ", mount_mode_names[spec->host_path_mode]);
    put_string(&text, spec->image);
    (void)buf_printf(&text,
                     ", \"memory_mb\": %lld, \"network\": \"%s\", \"pids_limit\": %lld, "
                     "\"read_only_rootfs\": %s}",
                     (long long)spec->memory_mb, network_names[spec->network],
                     (long long)spec->pids_limit, spec->read_only_rootfs ? "true" : "false");
    (void)http_sha256_hex(text.data, text.len, digest);
    (void)snprintf(ret, ENGINE_HASH_LEN + 1, "%.*s", ENGINE_HASH_LEN, digest);
}
