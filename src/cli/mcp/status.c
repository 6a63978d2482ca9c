/* SPDX-License-Identifier: Apache-2.0 */

/* Names the phases of a server, counts its attempts, reads its list of tools and its last words,
 * and writes all of that for users without secrets. */

#include "cli/mcp/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/io/text.h"
#include "cli/mcp/failure.h"

#define DELAY_SEC_MAX 86400

static const char *const phases[MCP_PHASE_MAX] = {
    [MCP_SESSION_CREATE] = "session_create",
    [MCP_DEP_INSTALL] = "dep_install",
    [MCP_PROCESS_START] = "process_start",
    [MCP_RELAY_CONNECT] = "relay_connect",
    [MCP_INIT] = "mcp_init",
    [MCP_RUNTIME] = "runtime",
    [MCP_BOX_UNAVAILABLE] = "box_unavailable",
};

const char *mcp_phase_name(enum mcp_phase phase)
{
    return phases[phase];
}

static const char *const statuses[MCP_STATUS_MAX] = {"connecting", "connected", "error"};

void mcp_retry_init(struct mcp_retry *r)
{
    *r = (struct mcp_retry){
        .delays_ns = {2 * NSEC_PER_SEC, 4 * NSEC_PER_SEC, 8 * NSEC_PER_SEC, 60 * NSEC_PER_SEC},
        .n_delays = 4,
        .healthy_ns = 30 * NSEC_PER_SEC};
}

int mcp_retry_parse(struct mcp_retry *r, const char *text)
{
    struct mcp_retry next = *r;

    next.n_delays = 0;
    while (next.n_delays < MCP_DELAYS_MAX) {
        size_t len = strcspn(text, ",");
        AUTO_FREE char *word = xstrndup(text, len);
        double seconds;
        if (str_to_double(word, &seconds) < 0 || seconds < 0 || seconds > DELAY_SEC_MAX)
            return -EINVAL;
        next.delays_ns[next.n_delays++] = (uint64_t)(seconds * (double)NSEC_PER_SEC);
        text += len;
        if (*text == '\0') {
            *r = next;
            return 0;
        }
        text++;
    }
    return -EINVAL;
}

uint64_t mcp_retry_failed(struct mcp_retry *r)
{
    size_t i = r->failed < r->n_delays ? r->failed : r->n_delays - 1;

    r->failed++;
    return r->delays_ns[i];
}

void mcp_retry_worked(struct mcp_retry *r, uint64_t ns)
{
    if (ns >= r->healthy_ns)
        r->failed = 0;
}

bool mcp_retry_exhausted(const struct mcp_retry *r)
{
    return r->failed >= r->n_delays;
}

/* What is told. */

#define SECRET_MIN 4 /* "1" or "yes" is no secret, and stands in every text */

void mcp_tools_done(struct mcp_tools *t)
{
    free(t->list);
    *t = (struct mcp_tools){0};
}

void mcp_tools_read(struct mcp_tools *t, const char *line, size_t len, bool more)
{
    AUTO(json) struct json *root = NULL;

    if (json_parse(line, len, &root, NULL) < 0)
        return;
    const struct json *tools = json_get(json_get(root, "result"), "tools");
    if (json_type(tools) != JSON_ARRAY)
        return;
    if (!more)
        mcp_tools_done(t);
    t->known = true;
    t->total += json_len(tools);
    for (size_t i = 0; i < json_len(tools) && t->n < MCP_TOOLS_MAX; i++) {
        const struct json *tool = json_at(tools, i);
        t->list = xreallocarray(t->list, t->n + 1, sizeof(*t->list));
        text_cut(t->list[t->n].name, sizeof(t->list[0].name), json_str(json_get(tool, "name")));
        text_cut(t->list[t->n].description, sizeof(t->list[0].description),
                 json_str(json_get(tool, "description")));
        t->n++;
    }
}

static void put_tools(struct jw *w, const struct mcp_tools *t)
{
    jw_kint(w, "tool_count", (int64_t)t->total);
    jw_karray(w, "tools");
    for (size_t i = 0; i < t->n; i++) {
        jw_object(w);
        jw_kstr(w, "name", t->list[i].name);
        jw_kstr(w, "description", t->list[i].description);
        jw_object_end(w);
    }
    jw_array_end(w);
}

void mcp_write_info(struct jw *w, const struct mcp_info *info)
{
    jw_object(w);
    jw_kstr(w, "kind", "mcp");
    jw_kstr(w, "name", info->name);
    jw_kstr(w, "command", info->command);
    jw_kint(w, "pid", info->pid);
    jw_kstr(w, "status", statuses[info->status]);
    jw_kstr(w, "phase", mcp_phase_name(info->phase));
    jw_kstr(w, "error_message", info->error);
    jw_kstr(w, "error_phase", info->error != NULL ? mcp_phase_name(info->phase) : NULL);
    jw_kint(w, "retry_count", info->retries);
    jw_kint(w, "restart_count", info->restarts);
    if (info->tools != NULL && info->tools->known)
        put_tools(w, info->tools);
    if (info->session_id != NULL) {
        jw_kstr(w, "box_session_id", info->session_id);
        jw_kbool(w, "box_enabled", true);
    }
    jw_object_end(w);
}

/* The longest of the values that stand at this place: one may begin another. */
static size_t secret_at(const char *text, char *const *env)
{
    size_t best = 0;

    for (size_t i = 0; i < strv_len(env); i++) {
        const char *value = strchr(env[i], '=');
        size_t len = value != NULL ? strlen(value + 1) : 0;
        if (len >= SECRET_MIN && len > best && strncmp(text, value + 1, len) == 0)
            best = len;
    }
    return best;
}

void mcp_hide_secrets(const char *text, char *const *env, struct buf *ret)
{
    while (*text != '\0') {
        size_t len = secret_at(text, env);
        if (len > 0)
            (void)buf_puts(ret, "***");
        else
            (void)buf_putc(ret, *text);
        text += len > 0 ? len : 1;
    }
}

/* Last words. */

static bool begins_failure(const char *line)
{
    static const char *const words[] = {"ERROR", "Error", "error", "npm error", "npm ERR!"};

    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (str_starts(line, words[i]))
            return true;
    return false;
}

/* Where an installer begins to speak of its failure: behind what it downloaded and built before.
 * The beginning of the text when no line says so. */
static const char *failure_of(const char *text)
{
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (begins_failure(line))
            return line;
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return text;
}

const char *mcp_last_lines(const char *text, unsigned lines)
{
    const char *at = text + strlen(text);

    if (at > text && at[-1] == '\n')
        at--;
    for (; at > text; at--)
        if (at[-1] == '\n' && --lines == 0)
            break;
    return at;
}

char *mcp_install_failure(const struct json *result, int64_t timeout_sec, const char *hint)
{
    const char *said = json_str(json_get(result, "stderr"));
    const char *from = failure_of(said != NULL ? said : "");
    size_t len = strlen(from);
    char *why;

    len = len > MCP_INSTALL_TEXT ? utf8_boundary(from, MCP_INSTALL_TEXT) : len;
    if (str_eq(json_str(json_get(result, "outcome")), "timed_out"))
        why = xasprintf("dependencies were not installed within %lld s (--startup-timeout)%s%s",
                        (long long)timeout_sec, hint != NULL ? "; " : "", hint != NULL ? hint : "");
    else
        why =
            xasprintf("Dependency install failed (exit code %lld): %s%s%.*s",
                      (long long)json_int(json_get(result, "exit_code")), hint != NULL ? hint : "",
                      hint != NULL ? "; --install off starts without: " : "", (int)len, from);
    for (size_t end = strlen(why); end > 0 && why[end - 1] == '\n';)
        why[--end] = '\0';
    for (char *c = strchr(why, '\n'); c != NULL; c = strchr(c, '\n'))
        *c = ' ';
    return why;
}

void mcp_exit_text(int64_t code, const char *hint, const char *last_words, char *ret, size_t size)
{
    AUTO_FREE char *why = mcp_failure_text(last_words);

    (void)snprintf(ret, size, "the server %s %lld%s%s%s%s",
                   code < 0 ? "was killed by signal" : "exited with status",
                   (long long)(code < 0 ? -code : code), why[0] != '\0' ? ": " : "", why,
                   hint[0] != '\0' ? "; " : "", hint);
}
