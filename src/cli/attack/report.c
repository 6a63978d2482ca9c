/* SPDX-License-Identifier: Apache-2.0 */

/* The judge of `box doctor --attack`, which holds what was found against what the receipt promises,
 * and the report for people, for programs and for CI. */

#include "cli/attack/report.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/io/app.h"
#include "cli/io/text.h"

#define STATUS_BROKEN 1

static const char *const state_names[ATTACK_STATE_MAX] = {
    [ATTACK_HELD] = "held",
    [ATTACK_BROKEN] = "broken",
    [ATTACK_NOT_PROMISED] = "not_promised",
    [ATTACK_NOT_TRIED] = "not_tried",
};

/* Walls that receipts name as missing, in "weaker_than_native", and the checks that show it. */
static const struct {
    const char *prefix, *wall;
} named[] = {
    {"A06.user", "user-namespace"},
    {"A06.cgroup", "cgroup-namespace"},
    {"A06.time", "time-namespace"},
    {"A10", "first-process"},
    {"B18", "priorities"},
    {"C02", "masks"},
    {"C04", "no-control-groups"},
    {"C05./dev", "read-only-dev"},
    {"C05", "masks"},
    {"C07.flags", "mount-flags"},
    {"C07.root", "mount-paths"},
    {"C12", "masks"},
};

static const char *named_reason(const struct json *receipt, const char *id)
{
    const struct json *list = json_get(receipt, "weaker_than_native");
    const char *wall = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(named) && wall == NULL; i++)
        wall = str_starts(id, named[i].prefix) ? named[i].wall : NULL;
    for (size_t i = 0; wall != NULL && i < json_len(list); i++)
        if (str_eq(json_str(json_get(json_at(list, i), "wall")), wall))
            return json_str(json_get(json_at(list, i), "reason"));
    return NULL;
}

/* Promises. Each returns NULL where the wall is promised, else why it is not. */

static const char *promise_always(const struct json *receipt, const char *id)
{
    return NULL;
}

static const char *promise_caps(const struct json *receipt, const char *id)
{
    static const struct {
        const char *id, *key;
    } sets[] = {{"A02.CapInh", "cap_inheritable"},
                {"A02.CapPrm", "cap_permitted"},
                {"A02.CapEff", "cap_effective"},
                {"A02.CapBnd", "cap_bounding"},
                {"A02.CapAmb", "cap_ambient"}};
    const struct json *payload = json_get(receipt, "payload");

    for (size_t i = 0; i < ARRAY_SIZE(sets); i++) {
        const char *value = json_str(json_get(payload, sets[i].key));
        if (str_eq(sets[i].id, id) && value != NULL && value[0] == '\0')
            return "the receipt has no such set: this kernel does not show it";
    }
    return NULL;
}

static const char *promise_filter(const struct json *receipt, const char *id)
{
    const char *mode = json_str(json_get(json_get(receipt, "payload"), "seccomp"));

    return str_eq(mode, "2") ? NULL : "the receipt has no filter of system calls";
}

static const char *promise_namespace(const struct json *receipt, const char *id)
{
    static const char *const optional[] = {"user", "time", "cgroup"};
    const char *name = strchr(id, '.') + 1;
    const struct json *own = json_get(receipt, "namespaces");
    const char *said = json_str(json_get(own, name));

    if (said != NULL)
        return str_eq(said, "private") ? NULL : "the receipt says that it is the host's";
    for (size_t i = 0; i < ARRAY_SIZE(optional); i++)
        if (str_eq(optional[i], name))
            return "the receipt names no such namespace: the engine makes none";
    return NULL;
}

/* A receipt that lists what is missing promises the rest. */
static bool lists_gaps(const struct json *receipt)
{
    return json_get(receipt, "weaker_than_native") != NULL;
}

static const char *promise_mounts(const struct json *receipt, const char *id)
{
    const struct json *disk = json_get(json_get(receipt, "limits"), "disk_bytes");

    if (json_get(receipt, "container_id") != NULL && !lists_gaps(receipt))
        return "the engine makes these mounts, and the receipt says nothing of them";
    return str_eq(id, "C07.root") && !json_bool(json_get(disk, "enforced"))
               ? "without a disk quota the workspace is a directory of the host, whose path shows"
               : NULL;
}

static const char *promise_network(const struct json *receipt, const char *id)
{
    const char *said = json_str(json_get(receipt, "network"));

    if (str_eq(said, "none"))
        return NULL;
    if (str_eq(id, "D01"))
        return "the session has a network";
    return said != NULL && strstr(said, "refused") != NULL
               ? NULL
               : "the network is the engine's own, and not filtered";
}

/* Returns what the receipt says against that limit. */
static const char *limit_reason(const struct json *receipt, const char *key)
{
    const struct json *limit = json_get(json_get(receipt, "limits"), key);
    const char *reason = json_str(json_get(limit, "reason"));

    if (json_bool(json_get(limit, "enforced")))
        return NULL;
    return reason != NULL ? reason : "the receipt has no such limit";
}

static const struct wall {
    const char *prefix;
    const char *title;
    const char *(*promise)(const struct json *receipt, const char *id);
    const char *limit; /* in place of promise: a key of the receipt's limits */
    bool of_kernel;    /* gVisor's kernel answers in the host's place, and in its own words */
} walls[] = {
    /* The longest prefix of an id stands before shorter ones. */
    {"A02", "no capabilities", promise_caps, NULL, false},
    {"A04", "a filter and no_new_privs on every thread", promise_filter, NULL, true},
    {"A06", "namespaces of its own", promise_namespace, NULL, true},
    {"A09", "executables cannot be written", promise_always, NULL, true},
    {"A10", "the first process cannot be looked into", promise_always, NULL, true},
    {"B01", "no new namespaces", promise_filter, NULL, true},
    {"B02", "no mounts", promise_filter, NULL, true},
    {"B03", "no chroot, devices or other namespaces", promise_filter, NULL, true},
    {"B04", "no io_uring", promise_filter, NULL, true},
    {"B05", "no sockets of odd families", promise_filter, NULL, true},
    {"B06", "no bpf, perf, userfaultfd", promise_filter, NULL, true},
    {"B07", "no keyrings", promise_filter, NULL, true},
    {"B08", "nothing types into a terminal", promise_filter, NULL, true},
    {"B09", "no calls of another architecture", promise_filter, NULL, true},
    {"B10", "no file handles", promise_filter, NULL, true},
    {"B11", "no personalities and odd memory", promise_filter, NULL, true},
    {"B12", "no raw sockets", promise_filter, NULL, true},
    {"B13", "no memory policies", promise_filter, NULL, true},
    {"B14", "nothing for administrators", promise_filter, NULL, true},
    {"B15", "no file attributes", promise_filter, NULL, true},
    {"B16", "filters nest", promise_filter, NULL, true},
    {"B17", "no gain by prctl", promise_filter, NULL, true},
    {"B18", "no priorities and limits", promise_filter, NULL, true},
    {"B", "the kernel's surface", promise_filter, NULL, true},
    {"C01", "settings of the kernel cannot be written", promise_always, NULL, false},
    {"C02.sys", "files about the host are hidden", promise_mounts, NULL, true},
    {"C02", "files about the host are hidden", promise_always, NULL, true},
    {"C03", "the root is read-only", promise_always, NULL, true},
    {"C04", "no control groups", promise_mounts, NULL, false},
    {"C05", "no devices", promise_always, NULL, true},
    {"C06", "no sockets of the host", promise_always, NULL, false},
    {"C07", "mounts", promise_mounts, NULL, true},
    {"C08", "no secrets and descriptors of boxd", promise_always, NULL, false},
    {"C12", "no names of the host", promise_always, NULL, true},
    {"C", "files", promise_always, NULL, false},
    {"D01", "no network", promise_network, NULL, false},
    {"D02", "the host cannot be reached", promise_network, NULL, false},
    {"D04", "metadata services cannot be reached", promise_network, NULL, false},
    {"M03", "the session beside cannot be seen", promise_always, NULL, false},
    {"E01", "processes", NULL, "pids", false},
    {"E02", "memory", NULL, "memory_bytes", false},
    {"E03.tcp", "memory of sockets", NULL, "socket_bytes", false},
    {"E03.udp", "memory of sockets", NULL, "socket_bytes", false},
    {"E03", "memory that the kernel holds", NULL, "memory_bytes", false},
    {"E05", "processor time", NULL, "cpu_quota_us_per_100ms", false},
    {"E06", "a flood of output", promise_always, NULL, false},
    {"E08", "descriptors", promise_always, NULL, false},
    {"E10", "the session's supervisor", promise_always, NULL, false},
    {"E11", "programs that will not end", promise_always, NULL, false},
    {"F01", "disk", NULL, "disk_bytes", false},
    {"", "other", promise_always, NULL, false},
};

static const struct wall *wall_of(const char *id)
{
    size_t i = 0;

    while (!str_starts(id, walls[i].prefix))
        i++;
    return &walls[i];
}

static const char *title_of(const char *id)
{
    return wall_of(id)->title;
}

static const char *group_of(const char *id)
{
    return id[0] == 'E' || id[0] == 'F' ? "abuse" : "escape";
}

/* What gVisor's /proc does not show as Linux does, and a program of the session's own that it lets
 * the session write to while it runs. */
static bool is_gvisors_way(const char *id)
{
    return str_eq(id, "A04") || str_starts(id, "A06") || str_eq(id, "A09.self");
}

/* "EPERM" and its like: the attempt was refused, if not as the native backend refuses it. */
static bool is_refusal(const char *detail)
{
    size_t len = strspn(detail, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");

    return detail[0] == 'E' && len > 2 && detail[len] == '\0';
}

/* Where any refusal will do, because the native backend promises one in particular only to show
 * that a call was not even looked at. */
static bool any_refusal_holds(const char *id, bool gvisor)
{
    return gvisor ? wall_of(id)->of_kernel : str_starts(id, "C03") || str_starts(id, "C05");
}

static void judge_check(struct attack_check *c, const struct json *receipt)
{
    const struct wall *wall = wall_of(c->id);
    bool gvisor = str_eq(json_str(json_get(receipt, "kernel")), "gvisor");
    const char *why = named_reason(receipt, c->id);

    if (why == NULL)
        why = wall->limit != NULL ? limit_reason(receipt, wall->limit)
                                  : wall->promise(receipt, c->id);
    c->state = ATTACK_BROKEN;
    if (is_refusal(c->detail) && any_refusal_holds(c->id, gvisor)) {
        c->state = ATTACK_HELD;
        return;
    }
    if (why == NULL && gvisor && wall->of_kernel && (!lists_gaps(receipt) || is_gvisors_way(c->id)))
        why = "the receipt has gVisor as kernel: this is gVisor's answer, not the host's";
    if (why == NULL)
        return;
    c->state = ATTACK_NOT_PROMISED;
    (void)snprintf(c->reason, sizeof(c->reason), "%s", why);
}

/* What the program tells for readers of its output, and does not try. */
static bool is_fact(const char *id)
{
    static const char *const facts[] = {"C12.hostname", "C12.kernel", "C12.boottime", "C12.boot_id",
                                        "C14"};

    for (size_t i = 0; i < ARRAY_SIZE(facts); i++)
        if (str_starts(id, facts[i]))
            return true;
    return false;
}

static bool attack_has(const struct attack_report *r, const char *id)
{
    for (size_t i = 0; i < r->n; i++)
        if (str_eq(r->checks[i].id, id))
            return true;
    return false;
}

/* The first word on an attempt counts. */
void attack_add(struct attack_report *r, const struct json *receipt, const char *id,
                enum attack_found found, const char *detail)
{
    if (r->n == ATTACK_CHECKS_MAX || is_fact(id) || attack_has(r, id))
        return;
    if (r->checks == NULL)
        r->checks = xcalloc(ATTACK_CHECKS_MAX, sizeof(*r->checks));
    struct attack_check *c = &r->checks[r->n++];
    (void)snprintf(c->id, sizeof(c->id), "%s", id);
    (void)snprintf(c->detail, sizeof(c->detail), "%s", detail);
    if (found == ATTACK_FAIL) {
        judge_check(c, receipt);
    } else if (found == ATTACK_NA) {
        c->state = ATTACK_NOT_TRIED;
        memcpy(c->reason, c->detail, sizeof(c->reason));
        c->detail[0] = '\0';
    }
    r->counts[c->state]++;
}

static bool is_id(const char *id, size_t len)
{
    if (len == 0 || len >= sizeof(((struct attack_check *)0)->id) || id[0] < 'A' || id[0] > 'Z')
        return false;
    for (size_t i = 0; i < len; i++)
        if (strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789./_-", id[i]) ==
            NULL)
            return false;
    return true;
}

/* "ID ok|FAIL|n/a detail" */
static void read_line(struct attack_report *r, const struct json *receipt, const char *line)
{
    static const char *const words[] = {
        [ATTACK_OK] = "ok", [ATTACK_FAIL] = "FAIL", [ATTACK_NA] = "n/a"};
    size_t id_len = strcspn(line, " ");
    const char *word = line[id_len] != '\0' ? line + id_len + 1 : "";
    size_t len = strcspn(word, " ");

    if (!is_id(line, id_len))
        return;
    AUTO_FREE char *id = xstrndup(line, id_len);
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (strlen(words[i]) == len && memcmp(words[i], word, len) == 0)
            attack_add(r, receipt, id, (enum attack_found)i,
                       word[len] != '\0' ? word + len + 1 : "");
}

bool attack_read(struct attack_report *r, const struct json *receipt, const char *text, size_t len)
{
    bool ended = false;

    while (len > 0) {
        const char *end = memchr(text, '\n', len);
        size_t n = end != NULL ? (size_t)(end - text) : len;
        AUTO_FREE char *line = xstrndup(text, n);
        ended = str_starts(line, "# ") && str_ends(line, " failed");
        read_line(r, receipt, line);
        n += end != NULL;
        text += n;
        len -= n;
    }
    return ended;
}

int attack_status(const struct attack_report *r)
{
    if (r->counts[ATTACK_BROKEN] > 0)
        return STATUS_BROKEN;
    return r->has_escapes ? 0 : STATUS_FAILED;
}

void attack_report_done(struct attack_report *r)
{
    free(r->checks);
    memset(r, 0, sizeof(*r));
}

/* The report. */

/* As people read them. */
static const char *const state_words[ATTACK_STATE_MAX] = {
    [ATTACK_HELD] = "held",
    [ATTACK_BROKEN] = "BROKEN",
    [ATTACK_NOT_PROMISED] = "not promised",
    [ATTACK_NOT_TRIED] = "not tried",
};

static int write_summary(const struct attack_report *r, struct buf *out)
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
    (void)buf_printf(out, "  %-12s  %-22s ", state_words[c->state], c->id);
    (void)text_escape(out, c->detail, strlen(c->detail));
    if (c->reason[0] != '\0') {
        (void)buf_puts(out, c->detail[0] != '\0' ? "; " : "");
        (void)text_escape(out, c->reason, strlen(c->reason));
    }
    while (out->len > 0 && out->data[out->len - 1] == ' ')
        out->len--;
    (void)buf_putc(out, '\n');
}

static int write_text(const struct attack_report *r, struct buf *out)
{
    const char *title = "", *group = "";

    for (size_t i = 0; i < r->n; i++) {
        const struct attack_check *c = &r->checks[i];
        if (!str_eq(title_of(c->id), title) || !str_eq(group_of(c->id), group)) {
            title = title_of(c->id);
            group = group_of(c->id);
            (void)buf_printf(out, "%s: %s\n", group, title);
        }
        put_check(c, out);
    }
    for (size_t i = 0; i < r->n; i++)
        if (r->checks[i].state == ATTACK_BROKEN)
            (void)buf_printf(out, "BROKEN: %s (%s): the receipt promises this wall\n",
                             r->checks[i].id, title_of(r->checks[i].id));
    if (r->counts[ATTACK_BROKEN] > 0)
        (void)buf_puts(out, "Run no programs that you do not trust here until that is mended; see "
                            "'box doctor' and SECURITY.md.\n");
    if (!r->has_escapes)
        (void)buf_puts(out, "The escapes did not come to their end, so nothing is proved; the "
                            "reasons stand behind 'not tried' above. Try again.\n");
    return write_summary(r, out);
}

static int write_json(const struct attack_report *r, struct buf *out)
{
    static const char *const results[] = {[0] = "held", [1] = "broken"};
    int status = attack_status(r);
    struct jw w = JW_INIT(out);

    jw_object(&w);
    jw_kstr(&w, "version", BOX_VERSION);
    jw_kstr(&w, "backend", r->backend);
    jw_kstr(&w, "kernel", r->kernel);
    jw_kstr(&w, "result", status <= 1 ? results[status] : "failed");
    jw_ku64(&w, "duration_ms", r->duration_ms);
    jw_kobject(&w, "counts");
    for (size_t i = 0; i < ATTACK_STATE_MAX; i++)
        jw_ku64(&w, state_names[i], r->counts[i]);
    jw_object_end(&w);
    jw_karray(&w, "checks");
    for (size_t i = 0; i < r->n; i++) {
        const struct attack_check *c = &r->checks[i];
        jw_object(&w);
        jw_kstr(&w, "id", c->id);
        jw_kstr(&w, "group", group_of(c->id));
        jw_kstr(&w, "title", title_of(c->id));
        jw_kstr(&w, "state", state_names[c->state]);
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
static void put_xml(struct buf *out, const char *text)
{
    static const char *const names[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&quot;"};
    AUTO_DONE(buf) struct buf plain = BUF_INIT(4096);

    if (text_escape(&plain, text, strlen(text)) < 0)
        return;
    for (const char *p = buf_str(&plain); *p != '\0'; p++) {
        const char *name = (unsigned char)*p < ARRAY_SIZE(names) ? names[(unsigned char)*p] : NULL;
        (void)(name != NULL ? buf_puts(out, name) : buf_putc(out, *p));
    }
}

static void put_case(const struct attack_check *c, struct buf *out)
{
    (void)buf_printf(out, "    <testcase classname=\"%s.%.*s\" name=\"", group_of(c->id),
                     (int)strcspn(c->id, "."), c->id);
    put_xml(out, c->id);
    (void)buf_puts(out, ": ");
    put_xml(out, title_of(c->id));
    if (c->state == ATTACK_HELD) {
        (void)buf_puts(out, "\"/>\n");
        return;
    }
    (void)buf_printf(out, "\">\n      <%s message=\"",
                     c->state == ATTACK_BROKEN ? "failure" : "skipped");
    put_xml(out, state_words[c->state]);
    (void)buf_puts(out, ": ");
    put_xml(out, c->detail);
    if (c->reason[0] != '\0') {
        (void)buf_puts(out, c->detail[0] != '\0' ? "; " : "");
        put_xml(out, c->reason);
    }
    (void)buf_puts(out, "\"/>\n    </testcase>\n");
}

static int write_junit(const struct attack_report *r, struct buf *out)
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

int attack_write(const struct attack_report *r, const char *format, struct buf *out)
{
    static const struct {
        const char *name;
        int (*write)(const struct attack_report *r, struct buf *out);
    } formats[] = {{"text", write_text},
                   {"json", write_json},
                   {"junit", write_junit},
                   {"summary", write_summary}};
    size_t i = 0;

    while (i < ARRAY_SIZE(formats) && !str_eq(formats[i].name, format))
        i++;
    assert(i < ARRAY_SIZE(formats));
    return formats[i].write(r, out);
}
