/* SPDX-License-Identifier: Apache-2.0 */

/* The report of `box doctor --attack` for people, for programs and for CI. */

#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/attack/attack.h"
#include "cli/io/text.h"

/* As people read them. */
static const char *const words[ATTACK_STATE_MAX] = {
    [ATTACK_HELD] = "held",
    [ATTACK_BROKEN] = "BROKEN",
    [ATTACK_NOT_PROMISED] = "not promised",
    [ATTACK_NOT_TRIED] = "not tried",
};

int attack_write_summary(const struct attack_report *r, struct buf *out)
{
    return buf_printf(out,
                      "%zu checks on %s in %.1f s: %zu held, %zu broken, %zu not promised, %zu not "
                      "tried\n",
                      r->n, r->backend[0] != '\0' ? r->backend : "no backend",
                      (double)r->duration_ms / 1000, r->counts[ATTACK_HELD],
                      r->counts[ATTACK_BROKEN], r->counts[ATTACK_NOT_PROMISED],
                      r->counts[ATTACK_NOT_TRIED]);
}

static void put_check(const struct attack_check *c, struct buf *out)
{
    (void)buf_printf(out, "  %-12s  %-22s ", words[c->state], c->id);
    (void)text_escape(out, c->detail, strlen(c->detail));
    if (c->reason[0] != '\0') {
        (void)buf_puts(out, c->detail[0] != '\0' ? "; " : "");
        (void)text_escape(out, c->reason, strlen(c->reason));
    }
    while (out->len > 0 && out->data[out->len - 1] == ' ')
        out->len--;
    (void)buf_putc(out, '\n');
}

int attack_write_text(const struct attack_report *r, struct buf *out)
{
    const char *title = "", *group = "";

    for (size_t i = 0; i < r->n; i++) {
        const struct attack_check *c = &r->checks[i];
        if (!str_eq(attack_title(c->id), title) || !str_eq(attack_group(c->id), group)) {
            title = attack_title(c->id);
            group = attack_group(c->id);
            (void)buf_printf(out, "%s: %s\n", group, title);
        }
        put_check(c, out);
    }
    for (size_t i = 0; i < r->n; i++)
        if (r->checks[i].state == ATTACK_BROKEN)
            (void)buf_printf(out, "BROKEN: %s (%s): the receipt promises this wall\n",
                             r->checks[i].id, attack_title(r->checks[i].id));
    if (r->counts[ATTACK_BROKEN] > 0)
        (void)buf_puts(out, "Run no programs that you do not trust here until that is mended; see "
                            "'box doctor' and SECURITY.md.\n");
    if (!r->has_escapes)
        (void)buf_puts(out, "The escapes did not come to their end, so nothing is proved; the "
                            "reasons stand behind 'not tried' above. Try again.\n");
    return attack_write_summary(r, out);
}

int attack_write_json(const struct attack_report *r, struct buf *out)
{
    static const char *const results[] = {[0] = "held", [1] = "broken"};
    int status = attack_status(r);
    struct jw w;

    jw_init(&w, out);
    jw_object(&w);
    jw_kstr(&w, "version", BOX_VERSION);
    jw_kstr(&w, "backend", r->backend);
    jw_kstr(&w, "kernel", r->kernel);
    jw_kstr(&w, "result", status <= 1 ? results[status] : "failed");
    jw_ku64(&w, "duration_ms", r->duration_ms);
    jw_key(&w, "counts");
    jw_object(&w);
    for (size_t i = 0; i < ATTACK_STATE_MAX; i++)
        jw_ku64(&w, attack_state_names[i], r->counts[i]);
    jw_object_end(&w);
    jw_key(&w, "checks");
    jw_array(&w);
    for (size_t i = 0; i < r->n; i++) {
        const struct attack_check *c = &r->checks[i];
        jw_object(&w);
        jw_kstr(&w, "id", c->id);
        jw_kstr(&w, "group", attack_group(c->id));
        jw_kstr(&w, "title", attack_title(c->id));
        jw_kstr(&w, "state", attack_state_names[c->state]);
        jw_kstr(&w, "detail", c->detail);
        jw_kstr(&w, "reason", c->reason[0] != '\0' ? c->reason : NULL);
        jw_object_end(&w);
    }
    jw_array_end(&w);
    jw_object_end(&w);
    int e = jw_end(&w);
    return e < 0 ? e : buf_putc(out, '\n');
}

/* XML 1.0 has no way to say most control characters: those, and what is not UTF-8, are shown as
 * everywhere else first. */
static int put_xml(struct buf *out, const char *text)
{
    AUTO_DONE(buf) struct buf plain;
    int r = 0;

    buf_init(&plain, 4096);
    if (text_escape(&plain, text, strlen(text)) < 0)
        return 0;
    for (const char *p = buf_str(&plain); *p != '\0' && r >= 0; p++) {
        if (*p == '&')
            r = buf_puts(out, "&amp;");
        else if (*p == '<')
            r = buf_puts(out, "&lt;");
        else if (*p == '>')
            r = buf_puts(out, "&gt;");
        else if (*p == '"')
            r = buf_puts(out, "&quot;");
        else
            r = buf_putc(out, *p);
    }
    return r;
}

static void put_case(const struct attack_check *c, struct buf *out)
{
    (void)buf_printf(out, "    <testcase classname=\"%s.%.*s\" name=\"", attack_group(c->id),
                     (int)strcspn(c->id, "."), c->id);
    (void)put_xml(out, c->id);
    (void)buf_puts(out, ": ");
    (void)put_xml(out, attack_title(c->id));
    if (c->state == ATTACK_HELD) {
        (void)buf_puts(out, "\"/>\n");
        return;
    }
    (void)buf_printf(out, "\">\n      <%s message=\"",
                     c->state == ATTACK_BROKEN ? "failure" : "skipped");
    (void)put_xml(out, words[c->state]);
    (void)buf_puts(out, ": ");
    (void)put_xml(out, c->detail);
    if (c->reason[0] != '\0') {
        (void)buf_puts(out, c->detail[0] != '\0' ? "; " : "");
        (void)put_xml(out, c->reason);
    }
    (void)buf_puts(out, "\"/>\n    </testcase>\n");
}

int attack_write_junit(const struct attack_report *r, struct buf *out)
{
    (void)buf_printf(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n"
        "  <testsuite name=\"box doctor --attack\" tests=\"%zu\" failures=\"%zu\" errors=\"0\" "
        "skipped=\"%zu\" time=\"%.3f\">\n",
        r->n, r->counts[ATTACK_BROKEN],
        r->counts[ATTACK_NOT_PROMISED] + r->counts[ATTACK_NOT_TRIED],
        (double)r->duration_ms / 1000);
    for (size_t i = 0; i < r->n; i++)
        put_case(&r->checks[i], out);
    return buf_puts(out, "  </testsuite>\n</testsuites>\n");
}
