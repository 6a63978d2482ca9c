/* SPDX-License-Identifier: Apache-2.0 */

/* `box config` and `box audit`, which read files of boxd themselves: its settings and where each
 * comes from, and the hash chain of the audit log. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "config/config.h"
#include "policy/audit/audit.h"
#include "policy/policy.h"

#define SETTINGS_MAX (1U << 20)
#define TEXT_MAX 65536U
#define STATUS_BROKEN 1

/* config. */

static void write_settings(const struct config *c, bool explain, struct jw *w)
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

static int print_settings(const struct config *c, bool explain, struct err *err)
{
    static const char *const titles[] = {"SETTING", "VALUE", "SOURCE"};
    AUTO(text_table) struct text_table *t = text_table_new(titles, explain ? 3 : 2);
    struct policy_row row;

    for (size_t i = 0; config_explain(c, i, &row); i++) {
        text_table_cell(t, row.key);
        text_table_cell(t, row.value[0] != '\0' ? row.value : NULL);
        if (explain)
            text_table_cell(t, row.source);
    }
    return text_table_print(t, err);
}

int verb_config(struct app *app, const struct args *args, struct err *err)
{
    AUTO(config) struct config *c = NULL;
    AUTO_DONE(buf) struct buf out = BUF_INIT(SETTINGS_MAX);
    struct jw w = JW_INIT(&out);

    int r = config_load_file(args->config_file, &c, err);
    if (r < 0)
        return r;
    if (!args->json)
        return print_settings(c, args->explain, err);
    write_settings(c, args->explain, &w);
    r = jw_end(&w);
    return r < 0 ? err_sys(err, -r, "write the settings") : text_print_json(&out, err);
}

/* audit. */

/* Full files by their numbers, then the current one; those that were set aside are no part of the
 * chain. The names sort that way. */
static int is_log(const struct dirent *e)
{
    return str_eq(e->d_name, AUDIT_CURRENT) ||
           (str_starts(e->d_name, "audit-") && str_ends(e->d_name, ".log") &&
            !str_starts(e->d_name, "audit-bad-"));
}

/* Where boxd keeps its log. */
static int find_logs(const struct args *args, char ***ret, struct err *err)
{
    AUTO(config) struct config *c = NULL;
    struct dirent **names = NULL;
    int r = config_load_file(args->config_file, &c, err);

    if (r < 0)
        return r;
    AUTO_FREE char *dir = xasprintf("%s/audit", c->state_dir);
    int n = scandir(dir, &names, is_log, alphasort);
    if (n < 0)
        return err_sys(err, errno, "read '%s'", dir);
    for (int i = 0; i < n; i++) {
        strv_push(ret, xasprintf("%s/%s", dir, names[i]->d_name));
        free(names[i]);
    }
    free(names);
    return n > 0 ? 0 : err_set(err, ERR_NOT_FOUND, "there is no audit log in '%s'", dir);
}

static int check_chain(char *const *files, struct audit_chain *chain, struct err *err)
{
    int r = 0;

    for (size_t i = 0; r == 0 && files[i] != NULL; i++) {
        AUTO_CLOSE int fd = open(files[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return err_sys(err, errno, "open '%s'", files[i]);
        r = audit_verify(chain, fd, files[i], err);
    }
    return r;
}

static void write_json(const struct audit_chain *c, bool whole, struct jw *w)
{
    jw_object(w);
    jw_kbool(w, "whole", whole);
    jw_ku64(w, "first", c->first);
    jw_ku64(w, "last", c->last);
    jw_ku64(w, "lost", c->lost);
    jw_kstr(w, "head", c->last > 0 ? c->head : NULL);
    if (c->wanted != NULL)
        jw_kbool(w, "found", c->found);
    if (c->bad_file != NULL) {
        jw_kstr(w, "file", c->bad_file);
        jw_ku64(w, "line", c->bad_line);
        jw_kstr(w, "reason", c->bad_reason);
    }
    jw_object_end(w);
}

static int write_text(const struct audit_chain *c, struct buf *out)
{
    if (c->bad_file != NULL) {
        (void)text_escape(out, c->bad_file, strlen(c->bad_file));
        (void)buf_printf(out, " line %llu: %s\n", (unsigned long long)c->bad_line, c->bad_reason);
        return buf_error(out);
    }
    if (c->last == 0)
        return buf_puts(out, "no records\n");
    uint64_t n = c->last - c->first + 1;
    (void)buf_printf(out, "%llu records, %llu to %llu, each follows from the one before\n",
                     (unsigned long long)n, (unsigned long long)c->first,
                     (unsigned long long)c->last);
    if (c->lost > 0)
        (void)buf_printf(out, "%llu more could not be written at the time\n",
                         (unsigned long long)c->lost);
    if (c->wanted != NULL)
        (void)buf_printf(out, "the record %.16s... is %s\n", c->wanted,
                         c->found ? "among them" : "MISSING");
    (void)buf_printf(out, "head %s\n", c->head);
    return buf_error(out);
}

static int print_result(const struct args *args, const struct audit_chain *c, bool whole,
                        struct err *err)
{
    AUTO_DONE(buf) struct buf out = BUF_INIT(TEXT_MAX);
    struct jw w = JW_INIT(&out);

    if (args->json)
        write_json(c, whole, &w);
    int r = args->json ? jw_end(&w) : write_text(c, &out);
    if (r < 0)
        return err_sys(err, -r, "write the result");
    return args->json ? text_print_json(&out, err) : text_print(&out, err);
}

int verb_audit(struct app *app, const struct args *args, struct err *err)
{
    struct audit_chain chain = {.wanted = args->head};
    char **found = NULL;

    if (!str_eq(args->names[0], "verify"))
        return err_set(err, ERR_INVALID, "unknown word '%s', see 'box help audit'", args->names[0]);
    if (args->head != NULL && strlen(args->head) != AUDIT_HASH_LEN)
        return err_set(err, ERR_INVALID, "--head wants the %u digits of a digest", AUDIT_HASH_LEN);
    int r = args->names[1] == NULL ? find_logs(args, &found, err) : 0;
    if (r == 0)
        r = check_chain(found != NULL ? found : args->names + 1, &chain, err);
    if (r >= 0) {
        bool whole = r == 0 && (chain.wanted == NULL || chain.found);
        r = print_result(args, &chain, whole, err);
        r = r < 0 ? r : whole ? 0 : STATUS_BROKEN;
    }
    strv_free(found);
    return r;
}
