/* SPDX-License-Identifier: Apache-2.0 */

/* Lines of a process and messages over a pipe: what comes out does not depend on how the input was
 * cut, and is always proper text. The first byte says how it is cut. */

#include <assert.h>
#include <string.h>

#include "base/str.h"
/* Private to the relay and to the transport. */
#include "front/langbot/relay.c"
#include "front/langbot/stdio.c"
#include "fuzz.h"

#define OUT_MAX (1U << 20)

static bool line(void *arg, const char *text, size_t len, bool end)
{
    assert(utf8_valid(text, len));
    (void)buf_append(arg, text, len);
    (void)buf_putc(arg, end ? '\n' : '\f');
    return true;
}

static void lines(const char *data, size_t size, size_t step, struct buf *out)
{
    struct buf l;
    size_t at = 0, end = 0;
    buf_init(&l, LANGBOT_MESSAGE_MAX);
    do {
        end = end + step < size ? end + step : size;
        at += lines_feed(&l, data + at, end - at, end == size, line, out);
        assert(at <= end && end - at < 4); /* never more than part of a character is left */
    } while (end < size);
    assert(at == size);
    buf_done(&l);
}

static void message(void *arg, const char *text, size_t len)
{
    (void)buf_append(arg, text, len);
    (void)buf_putc(arg, '\n');
}

static int messages(const char *data, size_t size, size_t step, struct buf *out)
{
    struct unpipe u;
    int r = 0;
    unpipe_init(&u);
    for (size_t at = 0; at < size && r == 0; at += step)
        r = unpipe_feed(&u, data + at, size - at < step ? size - at : step, message, out);
    unpipe_done(&u);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf whole, cut;
    if (size == 0 || size > OUT_MAX / 8)
        return 0;
    const char *text = (const char *)data + 1;
    size_t step = data[0] + 1U;
    buf_init(&whole, OUT_MAX);
    buf_init(&cut, OUT_MAX);
    lines(text, size - 1, size, &whole);
    lines(text, size - 1, step, &cut);
    assert(whole.len == cut.len && memcmp(buf_str(&whole), buf_str(&cut), cut.len) == 0);
    buf_reset(&whole);
    buf_reset(&cut);
    assert(messages(text, size - 1, size, &whole) == messages(text, size - 1, step, &cut));
    assert(whole.len == cut.len && memcmp(buf_str(&whole), buf_str(&cut), cut.len) == 0);
    buf_done(&whole);
    buf_done(&cut);
    return 0;
}
