/* SPDX-License-Identifier: Apache-2.0 */

/* A manifest as somebody wrote it: what is taken names files that can only lie below the tree, and
 * adds up. */

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/path.h"
#include "fuzz.h"

/* The parser is private to the operations. */
#include "fetch/artifact.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    AUTO_DONE(manifest) struct manifest m = {0};
    struct err err = {0};
    uint64_t bytes = 0;
    if (manifest_parse((const char *)data, size, &m, &err) < 0) {
        assert(err.code != ERR_NONE && err.msg[0] != '\0' && m.root == NULL && m.files == NULL);
        return 0;
    }
    assert(manifest_is_digest(m.digest) && m.n_files <= MANIFEST_FILES_MAX);
    for (size_t i = 0; i < m.n_files; i++) {
        AUTO_FREE char *absolute = xasprintf("/%s", m.files[i].path);
        assert(path_is_clean_absolute(absolute) && manifest_is_digest(m.files[i].sha256));
        bytes += m.files[i].size;
    }
    assert(bytes == m.bytes && bytes <= FETCH_ARTIFACTS_MAX);
    return 0;
}
