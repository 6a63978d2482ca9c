/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the description of a server, reads its list of tools, and hides secrets in texts. */

#include "cli/mcp/info.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"

#define SECRET_MIN 4 /* "1" or "yes" is nobody's secret, and in every text */

void mcp_tools_done(struct mcp_tools *t)
{
    free(t->list);
    *t = (struct mcp_tools){0};
}

static void cut_copy(char *dst, size_t size, const char *src)
{
    size_t len = src != NULL ? strlen(src) : 0;

    if (len >= size)
        len = utf8_boundary(src, size - 1);
    if (len > 0)
        memcpy(dst, src, len);
    dst[len] = '\0';
}

void mcp_tools_read(struct mcp_tools *t, const char *line, size_t len, bool more)
{
    AUTO(json) struct json *root = NULL;
    struct err ignored;

    if (json_parse(line, len, &root, &ignored) < 0)
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
        cut_copy(t->list[t->n].name, sizeof(t->list[0].name), json_str(json_get(tool, "name")));
        cut_copy(t->list[t->n].description, sizeof(t->list[0].description),
                 json_str(json_get(tool, "description")));
        t->n++;
    }
}

static void put_tools(struct jw *w, const struct mcp_tools *t)
{
    jw_kint(w, "tool_count", (int64_t)t->total);
    jw_key(w, "tools");
    jw_array(w);
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
    jw_kstr(w, "status", mcp_status_name(info->status));
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
