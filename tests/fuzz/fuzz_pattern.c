/* SPDX-License-Identifier: Apache-2.0 */

/* A flag byte, a pattern to the first newline, then lines of text. Whatever compiles costs at most
 * pattern times text, and finds the same whether or not bytes are skipped. */

#include <assert.h>
#include <string.h>

#include "base/err.h"
#include "base/regex.h"
#include "fuzz.h"
#include "policy/outputs.h"

static size_t count_lines(struct regex *r, const char *text, size_t len)
{
    size_t n = 0;
    while (len > 0) {
        const char *end = memchr(text, '\n', len);
        size_t line = end != NULL ? (size_t)(end - text) : len;
        bool found = false;
        regex_begin(r);
        for (size_t at = 0; at < line && !found;) {
            int32_t c;
            at += regex_char(text + at, line - at, &c);
            found = regex_feed(r, c);
        }
        n += found || regex_feed(r, REGEX_END);
        line += end != NULL;
        text += line;
        len -= line;
    }
    return n;
}

static void on_match(void *arg, const struct grep_match *match)
{
    assert(match->len <= GREP_LINE_MAX);
    ++*(size_t *)arg;
}

static size_t search(const struct grep_options *options, const char *text, size_t len)
{
    const struct outputs_options keep = {.dir_fd = -1, .max_bytes = 65536, .each_bytes = 65536};
    AUTO(outputs) struct outputs *o = NULL;
    AUTO(output_grep) struct output_grep *g = NULL;
    char id[OUTPUT_ID_SIZE];
    size_t n = 0;
    int r = outputs_new(&keep, &o, NULL);
    assert(r == 0);
    struct output *out = output_new(o, "f", NULL);
    output_append(out, text, len);
    output_finish(out, id);
    r = output_grep_new(o, &(struct output_ref){"f", id}, options, &g, NULL);
    assert(r == 0);
    while (output_grep_step(g, 7, on_match, &n, NULL) > 0)
        continue;
    output_grep_free(g);
    g = NULL;
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *pattern = (const char *)data + 1;
    const char *end = size > 1 ? memchr(pattern, '\n', size - 1) : NULL;
    struct err err = {0};
    AUTO(regex) struct regex *r = NULL;

    if (end == NULL || size > 8192)
        return 0;
    struct grep_options options = {.pattern = pattern,
                                   .pattern_len = (size_t)(end - pattern),
                                   .flags = data[0] & (REGEX_LITERAL | REGEX_IGNORE_CASE)};
    size_t len = size - 2 - options.pattern_len;
    if (regex_new(pattern, options.pattern_len, options.flags, &r, &err) < 0) {
        assert(err.code == ERR_INVALID && err.msg[0] != '\0');
        return 0;
    }
    size_t want = count_lines(r, end + 1, len);
    assert(regex_work(r) <= 1024 * (2 * (uint64_t)len + 2));
    size_t got = search(&options, end + 1, len);
    assert(got == (want < GREP_MATCHES_MAX ? want : GREP_MATCHES_MAX));
    return 0;
}
