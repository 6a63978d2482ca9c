/* SPDX-License-Identifier: Apache-2.0 */

/* Decodes the last part of a process's stderr into valid text. */

#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "session/session_internal.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Valid text, as if somebody had decoded the bytes with replacement. NUL is replaced too: what
 * reads this may take it for the end. */
static void decode(const char *data, size_t len, struct buf *ret)
{
    while (len > 0) {
        bool incomplete;
        int n = utf8_next(data, len, &incomplete);
        size_t used = (size_t)(n > 0 ? n : -n);
        if (n > 0 && *data != '\0')
            (void)buf_append(ret, data, used);
        else
            (void)buf_puts(ret, replacement);
        data += used;
        len -= used;
    }
}

static bool is_inside_character(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Where the last PROCESS_STDERR_CHARS code points of valid text begin. */
static size_t tail(const char *text, size_t len)
{
    size_t at = len;
    for (size_t n = 0; at > 0 && n < PROCESS_STDERR_CHARS; n++)
        do
            at--;
        while (at > 0 && is_inside_character(text[at]));
    return at;
}

void preview_write(const char *data, size_t len, bool cut, struct buf *ret)
{
    AUTO_DONE(buf) struct buf text;
    /* What was cut off may have taken the beginning of a character along. */
    for (int i = 0; cut && i < 3 && len > 0 && is_inside_character(*data); i++) {
        data++;
        len--;
    }
    buf_init(&text, len * (sizeof(replacement) - 1) + 1);
    (void)buf_putc(&text, '|'); /* blanks in front are not stripped */
    decode(data, len, &text);
    AUTO_FREE char *stripped = str_strip(buf_str(&text));
    size_t end = strlen(stripped + 1);
    size_t begin = tail(stripped + 1, end);
    (void)buf_append(ret, stripped + 1 + begin, end - begin);
}
