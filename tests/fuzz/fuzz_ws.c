/* SPDX-License-Identifier: Apache-2.0 */

/* The first byte picks the role and how the bytes are cut; the rest are frames. However they are
 * cut, the same events come out, text is UTF-8, and no cap is passed. */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "fuzz.h"
#include "http/codec/ws.h"

#define MESSAGE_MAX 2048 /* small, so that the caps are met */
#define FRAGMENTS_MAX 8

static void check_event(const struct ws_event *e)
{
    assert(e->len <= MESSAGE_MAX);
    if (e->type == WS_EVENT_MESSAGE)
        assert(e->opcode == WS_BINARY || (e->opcode == WS_TEXT && utf8_valid(e->data, e->len)));
    else
        assert(e->len <= WS_CONTROL_MAX);
    if (e->type == WS_EVENT_CLOSE)
        assert(utf8_valid(e->data, e->len) &&
               (e->code == WS_CODE_NONE ||
                ws_close_payload((char[WS_CONTROL_MAX]){0}, e->code, NULL) > 0));
}

/* One piece of input; false after an error, which is the last thing to be written down. */
static bool feed(struct ws_decoder *d, char *data, size_t len, struct buf *log)
{
    for (size_t at = 0;;) {
        struct ws_event e;
        ssize_t used = ws_decode(d, data + at, len - at, &e);
        if (used < 0) {
            assert(used == -EPROTO || used == -EILSEQ || used == -EMSGSIZE);
            assert(buf_printf(log, "!%zd", used) == 0);
            return false;
        }
        at += (size_t)used;
        assert(at <= len && d->message.len <= MESSAGE_MAX);
        if (e.type == WS_EVENT_NONE)
            return true;
        check_event(&e);
        assert(buf_printf(log, "%d:%u:%zu:", (int)e.type, e.code, e.len) == 0);
        assert(buf_append(log, e.data, e.len) == 0);
    }
}

/* Writes down what happens. */
static void run(enum ws_role role, const uint8_t *data, size_t len, size_t step, struct buf *log)
{
    struct ws_decoder d;
    bool good = true;

    ws_decoder_init(&d, role, MESSAGE_MAX, FRAGMENTS_MAX);
    for (size_t pos = 0; pos < len && good; pos += step) {
        size_t n = len - pos < step ? len - pos : step;
        char *copy = malloc(n);
        assert(copy != NULL);
        memcpy(copy, data + pos, n);
        good = feed(&d, copy, n, log);
        free(copy);
    }
    ws_decoder_done(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    enum ws_role role = (data[0] & 1) != 0 ? WS_CLIENT : WS_SERVER;
    size_t step = 1 + (data[0] >> 1);
    AUTO_DONE(buf) struct buf whole;
    AUTO_DONE(buf) struct buf cut;

    buf_init(&whole, 32 * size + 64);
    buf_init(&cut, 32 * size + 64);
    run(role, data + 1, size - 1, size - 1, &whole);
    run(role, data + 1, size - 1, step, &cut);
    assert(whole.len == cut.len);
    assert(whole.len == 0 || memcmp(whole.data, cut.data, whole.len) == 0);
    return 0;
}
