/* SPDX-License-Identifier: Apache-2.0 */

/* What a LangBot client, and what a managed process sends: envelopes of actions, messages over a
 * pipe, lines of output. What comes out keeps to what the rest of the front relies on. The first
 * byte says which, the second how the input is cut. */

#include <assert.h>
#include <string.h>

#include "fuzz.h"
#include "rpc/rpc_internal.h"
#include "util/err.h"
#include "util/str.h"

#define PROBLEM_MAX (16U * 1024)

static void try_message(const char *text, size_t len, bool code_first)
{
    AUTO_DONE(buf) struct buf problem;
    AUTO(json) struct json *seq = NULL;
    struct rpc_message m;
    struct err err = {0};
    buf_init(&problem, PROBLEM_MAX);
    if (!rpc_message_read(text, len, code_first, &m)) {
        assert(m.root == NULL && m.seq == NULL);
        return;
    }
    /* The client finds its call by it, whatever it was. */
    int r = json_parse(m.seq, strlen(m.seq), &seq, &err);
    assert(r == 0 && json_type(seq) != JSON_OBJECT && json_type(seq) != JSON_ARRAY);
    if (rpc_message_check(&m, &problem) == 0) {
        assert(m.action != NULL && json_type(m.data) == JSON_OBJECT);
        assert(!m.scoped || (m.ctx.instance_uuid[0] != '\0' && m.ctx.workspace_uuid[0] != '\0'));
        (void)rpc_action_find(m.action);
    } else {
        assert(problem.len > 0 && utf8_valid(problem.data, problem.len));
    }
    rpc_message_drop(&m);
    rpc_message_done(&m);
}

static void on_message(void *arg, const char *text, size_t len)
{
    size_t *n = arg;
    (*n)++;
    assert(len <= RPC_MESSAGE_MAX);
    try_message(text, len, true);
}

/* Cut at every `step` bytes it is the same as at once. */
static void try_pipe(const char *text, size_t len, size_t step)
{
    struct rpc_unpipe whole, pieces;
    size_t n = 0, m = 0;
    int r = 0, q = 0;
    rpc_unpipe_init(&whole);
    rpc_unpipe_init(&pieces);
    r = rpc_unpipe_feed(&whole, text, len, on_message, &n);
    for (size_t at = 0; at < len && q == 0; at += step)
        q = rpc_unpipe_feed(&pieces, text + at, len - at < step ? len - at : step, on_message, &m);
    assert(r == q && n == m);
    rpc_unpipe_done(&whole);
    rpc_unpipe_done(&pieces);
}

struct lines {
    struct buf text;
    size_t n, stop; /* wants no more after every `stop` messages */
};

static bool on_line(void *arg, const char *text, size_t len, bool line)
{
    struct lines *l = arg;
    assert(len <= RPC_MESSAGE_MAX && utf8_valid(text, len) && memchr(text, '\n', len) == NULL);
    (void)buf_append(&l->text, text, len);
    if (line)
        (void)buf_putc(&l->text, '\n');
    return ++l->n % l->stop != 0;
}

static void feed_all(const char *text, size_t len, size_t step, size_t stop, struct lines *ret)
{
    struct rpc_lines l;
    *ret = (struct lines){.stop = stop};
    buf_init(&ret->text, 64U << 20);
    rpc_lines_init(&l);
    for (size_t at = 0, end = 0; at < len;) {
        end = end + step < len ? end + step : len;
        size_t used = rpc_lines_feed(&l, text + at, end - at, end == len, on_line, ret);
        assert(used <= end - at);
        /* At the end nothing is held back, except by whoever wants no more. */
        assert(end < len || used > 0);
        at += used;
    }
    (void)rpc_lines_feed(&l, "", 0, true, on_line, ret);
    rpc_lines_done(&l);
}

static void try_lines(const char *text, size_t len, size_t step)
{
    struct lines whole, pieces;
    feed_all(text, len, len, SIZE_MAX, &whole);
    feed_all(text, len, step, step, &pieces);
    assert(whole.text.len == pieces.text.len &&
           (whole.text.len == 0 || memcmp(whole.text.data, pieces.text.data, whole.text.len) == 0));
    buf_done(&whole.text);
    buf_done(&pieces.text);
}

/* What is written to a pipe is read from it again. */
static void on_same(void *arg, const char *text, size_t len)
{
    const struct buf *want = arg;
    assert(len == want->len && memcmp(text, want->data, len) == 0);
}

static void try_round_trip(const char *text, size_t len)
{
    AUTO_DONE(buf) struct buf message;
    AUTO_DONE(buf) struct buf out;
    AUTO(json) struct json *root = NULL;
    struct rpc_unpipe u;
    struct err err = {0};
    struct jw w;
    buf_init(&message, RPC_MESSAGE_MAX);
    buf_init(&out, RPC_MESSAGE_MAX * 2U);
    if (json_parse(text, len, &root, &err) < 0 || json_type(root) != JSON_OBJECT ||
        json_get(root, "type") != NULL)
        return;
    jw_init(&w, &message);
    jw_value(&w, root);
    if (jw_end(&w) < 0)
        return;
    int r = rpc_pipe_write(message.data, message.len, &out);
    assert(r == 0);
    rpc_unpipe_init(&u);
    r = rpc_unpipe_feed(&u, out.data, out.len, on_same, &message);
    assert(r == 0);
    rpc_unpipe_done(&u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 2;
    size_t len = size - 2, step = (size_t)data[1] + 1;
    switch (data[0]) {
    case 'm':
        try_message(text, len, data[1] & 1);
        break;
    case 'p':
        try_pipe(text, len, step);
        break;
    case 'l':
        try_lines(text, len, step);
        break;
    default:
        try_round_trip(text, len);
        break;
    }
    return 0;
}
