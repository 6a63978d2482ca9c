/* SPDX-License-Identifier: Apache-2.0 */

/* Whatever parses is written out again, and what was written must parse: the reader and the emitter
 * agree on what JSON is. */

#include <assert.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err = {0};
    AUTO(json) struct json *root = NULL;

    if (json_parse((const char *)data, size, &root, &err) < 0) {
        assert(root == NULL && err.code != ERR_NONE && err.msg[0] != '\0');
        return 0;
    }

    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, 16 * size + 4096);
    jw_init(&w, &out);
    jw_value(&w, root);
    int r = jw_end(&w);
    assert(r == 0);

    AUTO(json) struct json *again = NULL;
    r = json_parse(out.data, out.len, &again, &err);
    assert(r == 0 && json_type(again) == json_type(root) && json_len(again) == json_len(root));
    return 0;
}
