/* SPDX-License-Identifier: Apache-2.0 */

/* Reads and checks the envelope of an action request. */

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "front/langbot/langbot_internal.h"
#include "spec/coerce.h"
#include "spec/model.h"

#define SEQ_MAX 256 /* bytes of a seq_id that is given back */
#define NO_SEQ "-1"

/* Whatever it is, the client finds its call by it; only what is of no use to anybody is replaced.
 */
static char *seq_text(const struct json *v)
{
    AUTO_DONE(buf) struct buf out;
    struct jw w;
    buf_init(&out, SEQ_MAX);
    if (v == NULL || json_type(v) == JSON_OBJECT || json_type(v) == JSON_ARRAY)
        return xstrdup(NO_SEQ);
    jw_init(&w, &out);
    jw_value(&w, v);
    return jw_end(&w) < 0 ? xstrdup(NO_SEQ) : xstrdup(buf_str(&out));
}

bool langbot_message_read(const char *text, size_t len, bool code_first,
                          struct langbot_message *ret)
{
    AUTO(json) struct json *root = NULL;
    struct err err = {0};
    *ret = (struct langbot_message){0};
    if (json_parse(text, len, &root, &err) < 0) {
        log_debug(NULL, "a message that is no request: %s; ignoring", err.msg);
        ret->no_memory = err.sys == ENOMEM;
        return false;
    }
    if (json_type(root) != JSON_OBJECT || json_get(root, "action") == NULL ||
        (code_first && json_get(root, "code") != NULL)) {
        log_debug(NULL, "a message that is no request; ignoring");
        return false;
    }
    ret->seq = seq_text(json_get(root, "seq_id"));
    ret->root = TAKE_PTR(root);
    return true;
}

/* Issues in pydantic's shape, collected before their number is known. */
struct issues {
    struct buf text;
    size_t n;
};

static void add(struct issues *i, const char *where, enum issue issue)
{
    i->n++;
    (void)buf_printf(&i->text, "\n%s\n  %s [type=%s]", where, issue_text(issue), issue_type(issue));
}

static void check_context(struct langbot_message *m, struct issues *issues)
{
    const struct json *context = json_get(m->root, "context");
    struct report report = {0};
    struct err err = {0};
    if (json_type(context) == JSON_NULL)
        return;
    if (tenant_context_parse(context, &m->ctx, &report, &err) == 0) {
        m->scoped = true;
        return;
    }
    for (size_t i = 0; i < report.n; i++) {
        const struct report_issue *issue = &report.issues[i];
        issues->n++;
        (void)buf_printf(&issues->text, "\ncontext%s%s\n  %s%s [type=%s]",
                         issue->where[0] != '\0' ? "." : "", issue->where,
                         issue->issue == ISSUE_VALUE ? "Value error, " : "", issue->text,
                         issue_type(issue->issue));
    }
}

int langbot_message_check(struct langbot_message *m, struct buf *problem)
{
    const struct json *seq = json_get(m->root, "seq_id"), *action = json_get(m->root, "action");
    struct issues issues = {.n = 0};
    int64_t number;
    buf_init(&issues.text, problem->max);
    m->data = json_get(m->root, "data");
    m->action = json_str(action);
    enum issue issue = seq == NULL ? ISSUE_MISSING : coerce_int(seq, &number);
    if (issue != ISSUE_NONE)
        add(&issues, "seq_id", issue);
    if (m->action == NULL)
        add(&issues, "action", ISSUE_STRING_TYPE);
    if (m->data == NULL)
        add(&issues, "data", ISSUE_MISSING);
    else if (json_type(m->data) != JSON_OBJECT)
        add(&issues, "data", ISSUE_DICT_TYPE);
    check_context(m, &issues);
    if (issues.n > 0)
        (void)buf_printf(problem, "%zu validation error%s for ActionRequest%s", issues.n,
                         issues.n == 1 ? "" : "s", buf_str(&issues.text));
    buf_done(&issues.text);
    return issues.n > 0 ? -EINVAL : 0;
}

void langbot_message_drop(struct langbot_message *m)
{
    json_free(m->root);
    m->root = NULL;
    m->action = NULL;
    m->data = NULL;
}

void langbot_message_done(struct langbot_message *m)
{
    json_free(m->root);
    free(m->seq);
    tenant_context_done(&m->ctx);
    *m = (struct langbot_message){0};
}
