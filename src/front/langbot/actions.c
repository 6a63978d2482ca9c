/* SPDX-License-Identifier: Apache-2.0 */
#include "base/str.h"
#include "front/langbot/langbot_internal.h"

/* Everything a client can ask for. Names and shapes are those of LangBot's runtime. */
static const struct rpc_action actions[] = {
    {"__ping", 0, 0, rpc_ping},
    {RPC_CANCEL_ACTION, 0, LANGBOT_FLOW, rpc_cancel_action},
    {RPC_STREAM_ACK, 0, LANGBOT_FLOW, rpc_stream_ack},
    {"__file_chunk", 0, 0, rpc_file_chunk},
    {"box_init", 0, 0, rpc_init},
    {"box_health", 0, 0, rpc_health},
    {"box_get_backend_info", 0, 0, rpc_backend_info},
    {"box_shutdown", 0, 0, rpc_shutdown},
    {"box_upsert_sandbox_admission_grant", 0, LANGBOT_GRANT, rpc_upsert_grant},
    {"box_revoke_sandbox_admission_grant", 0, LANGBOT_GRANT, rpc_revoke_grant},
    {"box_verify_shared_workspace", 0, LANGBOT_GRANT, rpc_verify_workspace},
    {"box_status", RPC_TENANT, 0, rpc_status},
    {"box_get_storage_analysis", RPC_TENANT, LANGBOT_STORAGE, rpc_storage_analysis},
    {"box_exec", RPC_SANDBOX, LANGBOT_SPEC, rpc_exec},
    {"box_create_session", RPC_SANDBOX, LANGBOT_SPEC, rpc_create_session},
    {"box_get_session", RPC_SANDBOX, 0, rpc_get_session},
    {"box_get_sessions", RPC_SANDBOX, 0, rpc_get_sessions},
    {"box_delete_session", RPC_SANDBOX, 0, rpc_delete_session},
    {"box_start_managed_process", RPC_SANDBOX, 0, rpc_start_process},
    {"box_get_managed_process", RPC_SANDBOX, 0, rpc_get_process},
    {"box_stop_managed_process", RPC_SANDBOX, 0, rpc_stop_process},
    {"box_list_skills", RPC_TENANT, LANGBOT_SKILL, rpc_skill},
    {"box_get_skill", RPC_TENANT, LANGBOT_SKILL, rpc_skill},
    {"box_create_skill", RPC_TENANT, LANGBOT_SKILL, rpc_skill},
    {"box_update_skill", RPC_TENANT, LANGBOT_SKILL, rpc_skill},
    {"box_delete_skill", RPC_TENANT, LANGBOT_SKILL, rpc_skill},
    {"box_scan_skill_directory", RPC_TENANT, LANGBOT_SKILL, rpc_skill},
    {"box_list_skill_files", RPC_TENANT, LANGBOT_SKILL, rpc_skill},
    {"box_read_skill_file", RPC_TENANT, LANGBOT_SKILL, rpc_skill},
    {"box_write_skill_file", RPC_TENANT, LANGBOT_SKILL, rpc_skill},
    {"box_preview_skill_zip", RPC_TENANT, LANGBOT_SKILL, rpc_skill},
    {"box_install_skill_zip", RPC_TENANT, LANGBOT_SKILL, rpc_skill},
};

const struct rpc_action *rpc_action_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(actions); i++)
        if (str_eq(actions[i].name, name))
            return &actions[i];
    return NULL;
}
