/* SPDX-License-Identifier: Apache-2.0 */

/* `box config`: shows the settings that boxd would use, and where each comes from. */

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "config/config.h"
#include "policy/policy.h"

#define TEXT_MAX (1U << 20)

/* As boxd itself would read it: the same file, the same environment. */
static int load(const struct args *args, struct config **ret, struct err *err)
{
    char *argv[] = {(char *)(uintptr_t) "boxd", (char *)(uintptr_t) "--config",
                    (char *)(uintptr_t)args->config_file, NULL};

    return config_load(args->config_file != NULL ? 3 : 1, argv, ret, err);
}

static void write_json(const struct config *c, bool explain, struct jw *w)
{
    struct policy_row row;

    jw_object(w);
    for (size_t i = 0; config_explain(c, i, &row); i++) {
        jw_key(w, row.key);
        if (!explain) {
            jw_str(w, row.value);
            continue;
        }
        jw_object(w);
        jw_kstr(w, "value", row.value);
        jw_kstr(w, "source", row.source);
        jw_kstr(w, "meaning", row.doc);
        jw_object_end(w);
    }
    jw_object_end(w);
}

static int write_table(const struct config *c, bool explain, struct buf *out)
{
    __attribute__((cleanup(cleanup_text_table))) struct text_table *t =
        text_table_new(explain ? 3 : 2);
    struct policy_row row;

    text_table_cell(t, "SETTING");
    text_table_cell(t, "VALUE");
    if (explain)
        text_table_cell(t, "SOURCE");
    for (size_t i = 0; config_explain(c, i, &row); i++) {
        text_table_cell(t, row.key);
        text_table_cell(t, row.value[0] != '\0' ? row.value : NULL);
        if (explain)
            text_table_cell(t, row.source);
    }
    return text_table_write(t, out);
}

int verb_config(struct app *app, const struct args *args, struct err *err)
{
    AUTO(config) struct config *c = NULL;
    AUTO_DONE(buf) struct buf out;
    struct jw w;

    buf_init(&out, TEXT_MAX);
    int r = load(args, &c, err);
    if (r < 0)
        return r;
    if (args->json) {
        jw_init(&w, &out);
        write_json(c, args->explain, &w);
        r = jw_end(&w);
        if (r == 0)
            r = buf_putc(&out, '\n');
    } else {
        r = write_table(c, args->explain, &out);
    }
    return r < 0 ? err_sys(err, -r, "write the settings") : text_print(&out, err);
}
