/* SPDX-License-Identifier: Apache-2.0 */

/* Writes text of files, and the reason why a result was cut, into answers of tools. */

#include "agent/tools_internal.h"
#include "base/json.h"
#include "base/str.h"

void tool_write_cut(struct jw *w, uint32_t cut)
{
    const char *name = files_cut_name(cut);

    jw_kbool(w, "truncated", name != NULL);
    jw_kstr(w, "truncated_by", name);
}

void tool_text(struct buf *out, const char *text, size_t len)
{
    static const char replacement[] = "\xef\xbf\xbd";

    for (size_t at = 0; at < len;) {
        size_t good = at;
        bool incomplete;
        int n = 1;
        while (good < len && (n = utf8_next(text + good, len - good, &incomplete)) > 0)
            good += (size_t)n;
        (void)buf_append(out, text + at, good - at);
        at = good;
        if (at < len) {
            (void)buf_puts(out, replacement);
            at += (size_t)-n;
        }
    }
}
