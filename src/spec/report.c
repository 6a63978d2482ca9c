/* SPDX-License-Identifier: Apache-2.0 */

/* Collects the issues of a request, and writes them as one error or in pydantic's shape. */

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "spec/model_internal.h"

static size_t put(char *dst, size_t size, size_t used, const char *s, size_t len)
{
    for (size_t i = 0; i < len && used + 1 < size; i++) {
        char c = s[i];
        bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                     c == '_' || c == '.' || c == '-';
        dst[used++] = plain ? c : '?';
    }
    dst[used] = '\0';
    return used;
}

static size_t write_place(const struct place *p, char *dst, size_t size)
{
    char number[24];
    size_t used = p->up ? write_place(p->up, dst, size) : 0;
    const char *step = p->key;

    if (!step) {
        (void)str_fmt(number, sizeof(number), "%zu", p->index);
        step = number;
    }
    if (used > 0)
        used = put(dst, size, used, ".", 1);
    return put(dst, size, used, step, strlen(step));
}

bool report_add(struct report *report, const struct place *place, enum issue issue, const char *fmt,
                ...)
{
    report->n_total++;
    if (report->n == REPORT_ISSUES_MAX)
        return false;

    struct report_issue *entry = &report->issues[report->n++];
    entry->issue = issue;
    entry->where[0] = '\0';
    if (place)
        (void)write_place(place, entry->where, sizeof(entry->where));
    if (fmt) {
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(entry->text, sizeof(entry->text), fmt, ap);
        va_end(ap);
    } else {
        (void)str_copy(entry->text, sizeof(entry->text), issue_text(issue));
    }
    return false;
}

int report_fail(const struct report *report, struct err *err)
{
    assert(report->n > 0);
    const struct report_issue *first = &report->issues[0];
    return err_set(err, ERR_INVALID, "%s%s", first->issue == ISSUE_VALUE ? "Value error, " : "",
                   first->text);
}

int report_fail_plain(const struct report *report, struct err *err)
{
    assert(report->n > 0);
    const struct report_issue *first = &report->issues[0];
    if (first->where[0] == '\0' || first->issue == ISSUE_VALUE)
        return err_set(err, ERR_INVALID, "%s", first->text);
    return err_set(err, ERR_INVALID, "%s: %s", first->where, first->text);
}

int report_write(const struct report *report, const char *model, struct buf *out)
{
    int r = buf_printf(out, "%zu validation error%s for %s", report->n_total,
                       report->n_total == 1 ? "" : "s", model);

    for (size_t i = 0; i < report->n && r >= 0; i++) {
        const struct report_issue *issue = &report->issues[i];
        r = buf_printf(out, "%s%s\n  %s%s [type=%s]", issue->where[0] ? "\n" : "", issue->where,
                       issue->issue == ISSUE_VALUE ? "Value error, " : "", issue->text,
                       issue_type(issue->issue));
    }
    return r;
}
