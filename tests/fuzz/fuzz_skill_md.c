/* SPDX-License-Identifier: Apache-2.0 */

/* SKILL.md as somebody wrote it: what is understood is written again, and reads the same. */

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
#include "fetch/frontmatter.h"
#include "fuzz.h"

/* A blank value is not written. */
static bool is_written(const char *text)
{
    AUTO_FREE char *bare = text != NULL ? str_strip(text) : xstrdup("");
    return *bare != '\0';
}

static bool same(const char *before, const char *after)
{
    return is_written(before) ? str_eq(before, after) : after == NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_DONE(frontmatter) struct frontmatter fm = {0}, again = {0};
    AUTO_DONE(buf) struct buf out;
    struct err err = {0};
    const char *text = (const char *)data;
    buf_init(&out, 16 * size + 4096);
    if (!utf8_valid(text, size))
        return 0; /* refused before */
    if (frontmatter_read(text, size, &fm, &err) < 0) {
        assert(err.code != ERR_NONE && err.msg[0] != '\0');
        return 0;
    }
    assert(fm.body <= size);
    int r = frontmatter_write(&fm, text + fm.body, size - fm.body, &out);
    assert(r == 0);
    if (!is_written(fm.name) && !is_written(fm.display_name) && !is_written(fm.description))
        return 0; /* without a block, what follows may look like one */
    r = frontmatter_read(out.data, out.len, &again, &err);
    assert(r == 0);
    assert(same(fm.name, again.name) && same(fm.display_name, again.display_name) &&
           same(fm.description, again.description));
    return 0;
}
