/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the JSON that asks boxd for the session and the process of an MCP server. */

#include "cli/mcp/payload.h"

#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/str.h"
#include "base/strv.h"
#include "cli/mcp/config.h"
#include "cli/mcp/path.h"
#include "spec/spec.h"

static void put_env(struct jw *w, char *const *env)
{
    jw_key(w, "env");
    jw_object(w);
    for (size_t i = 0; i < strv_len(env); i++) {
        size_t len = strcspn(env[i], "=");
        AUTO_FREE char *name = xstrndup(env[i], len);
        jw_kstr(w, name, env[i][len] == '=' ? env[i] + len + 1 : "");
    }
    jw_object_end(w);
}

static void put_mount(struct jw *w, const char *host, const char *inside, int mode)
{
    jw_object(w);
    jw_kstr(w, "host_path", host);
    jw_kstr(w, "mount_path", inside);
    jw_kstr(w, "mode", mount_mode_names[mode]);
    jw_object_end(w);
}

static void put_mounts(struct jw *w, const struct mcp_session_payload *p)
{
    bool some = p->n_mounts > 0 || (p->chain != NULL && p->chain->n > 0);

    for (size_t i = 0; p->roots != NULL && i < p->roots->n; i++)
        some = some || !str_eq(p->roots->list[i].inside, MCP_MOUNT);
    if (!some)
        return;
    jw_key(w, "extra_mounts");
    jw_array(w);
    for (size_t i = 0; p->roots != NULL && i < p->roots->n; i++)
        if (!str_eq(p->roots->list[i].inside, MCP_MOUNT))
            put_mount(w, p->roots->list[i].host, p->roots->list[i].inside, p->box->host_path_mode);
    for (size_t i = 0; p->chain != NULL && i < p->chain->n; i++)
        put_mount(w, p->chain->list[i].host, p->chain->list[i].inside, MOUNT_RO);
    for (size_t i = 0; i < p->n_mounts; i++)
        put_mount(w, p->mounts[i].host_path, p->mounts[i].mount_path, (int)p->mounts[i].mode);
    jw_array_end(w);
}

void mcp_write_session(struct jw *w, const struct mcp_session_payload *p)
{
    const struct mcp_box *b = p->box;

    jw_object(w);
    jw_kstr(w, "session_id", p->session_id);
    jw_kstr(w, "workdir", p->workdir != NULL ? p->workdir : MCP_MOUNT);
    put_env(w, b->env);
    jw_kstr(w, "network", network_names[b->network]);
    jw_kbool(w, "read_only_rootfs", b->read_only_rootfs == 1);
    for (size_t i = 0; p->roots != NULL && i < p->roots->n; i++) {
        if (!str_eq(p->roots->list[i].inside, MCP_MOUNT))
            continue;
        jw_kstr(w, "host_path", p->roots->list[i].host);
        jw_kstr(w, "host_path_mode", mount_mode_names[b->host_path_mode]);
    }
    put_mounts(w, p);
    if (b->image != NULL)
        jw_kstr(w, "image", b->image);
    if (b->cpus > 0)
        jw_kreal(w, "cpus", b->cpus);
    if (b->memory_mb > 0)
        jw_kint(w, "memory_mb", b->memory_mb);
    if (b->pids_limit > 0)
        jw_kint(w, "pids_limit", b->pids_limit);
    if (p->quota_mb > 0)
        jw_kint(w, "workspace_quota_mb", p->quota_mb);
    if (p->profile != NULL)
        jw_kstr(w, "profile", p->profile);
    jw_object_end(w);
}

void mcp_write_process(struct jw *w, const struct mcp_process_payload *p)
{
    jw_object(w);
    jw_kstr(w, "process_id", p->process_id);
    jw_kstr(w, "command", p->command);
    jw_key(w, "args");
    jw_array(w);
    for (size_t i = 0; i < strv_len(p->args); i++)
        jw_str(w, p->args[i]);
    jw_array_end(w);
    put_env(w, p->env);
    jw_kstr(w, "cwd", p->cwd);
    jw_object_end(w);
}
