/* SPDX-License-Identifier: Apache-2.0 */

/* `box audit`: checks the hash chain of the audit log's files. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

#define TEXT_MAX 65536U
#define STATUS_BROKEN 1

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
    char *argv[] = {(char *)(uintptr_t) "boxd", (char *)(uintptr_t) "--config",
                    (char *)(uintptr_t)args->config_file, NULL};
    AUTO(config) struct config *c = NULL;
    struct dirent **names = NULL;
    int r = config_load(args->config_file != NULL ? 3 : 1, argv, &c, err);

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

static int check(char *const *files, struct audit_chain *chain, struct err *err)
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
    int r = 0;

    if (c->bad_file != NULL) {
        r = text_escape(out, c->bad_file, strlen(c->bad_file));
        return r < 0 ? r
                     : buf_printf(out, " line %llu: %s\n", (unsigned long long)c->bad_line,
                                  c->bad_reason);
    }
    if (c->last == 0)
        return buf_puts(out, "no records\n");
    uint64_t n = c->last - c->first + 1;
    r = buf_printf(out, "%llu records, %llu to %llu, each follows from the one before\n",
                   (unsigned long long)n, (unsigned long long)c->first,
                   (unsigned long long)c->last);
    if (r == 0 && c->lost > 0)
        r = buf_printf(out, "%llu more could not be written at the time\n",
                       (unsigned long long)c->lost);
    if (r == 0 && c->wanted != NULL)
        r = buf_printf(out, "the record %.16s... is %s\n", c->wanted,
                       c->found ? "among them" : "MISSING");
    return r < 0 ? r : buf_printf(out, "head %s\n", c->head);
}

static int report(const struct args *args, const struct audit_chain *c, bool whole, struct err *err)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    int r;

    buf_init(&out, TEXT_MAX);
    if (args->json) {
        jw_init(&w, &out);
        write_json(c, whole, &w);
        r = jw_end(&w);
        if (r == 0)
            r = buf_putc(&out, '\n');
    } else {
        r = write_text(c, &out);
    }
    return r < 0 ? err_sys(err, -r, "write the result") : text_print(&out, err);
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
        r = check(found != NULL ? found : args->names + 1, &chain, err);
    if (r >= 0) {
        bool whole = r == 0 && (chain.wanted == NULL || chain.found);
        r = report(args, &chain, whole, err);
        r = r < 0 ? r : whole ? 0 : STATUS_BROKEN;
    }
    strv_free(found);
    return r;
}
