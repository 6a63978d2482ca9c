/* SPDX-License-Identifier: Apache-2.0 */

/* The table of all actions that LangBot's client can call, by name. */

#include "base/str.h"
#include "front/langbot/langbot_internal.h"

/* Everything a client can ask for. Names and shapes are those of LangBot's runtime. */
static const struct langbot_action actions[] = {
    {"__ping", 0, 0, langbot_ping},
    {LANGBOT_CANCEL_ACTION, 0, LANGBOT_FLOW, langbot_cancel_action},
    {LANGBOT_STREAM_ACK, 0, LANGBOT_FLOW, langbot_stream_ack},
    {"__file_chunk", 0, 0, langbot_file_chunk},
    {"box_init", 0, 0, langbot_init},
    {"box_health", 0, 0, langbot_health},
    {"box_get_backend_info", 0, 0, langbot_backend_info},
    {"box_shutdown", 0, 0, langbot_shutdown},
    {"box_upsert_sandbox_admission_grant", 0, LANGBOT_GRANT, langbot_upsert_grant},
    {"box_revoke_sandbox_admission_grant", 0, LANGBOT_GRANT, langbot_revoke_grant},
    {"box_verify_shared_workspace", 0, LANGBOT_GRANT, langbot_verify_workspace},
    {"box_status", LANGBOT_TENANT, 0, langbot_status},
    {"box_get_storage_analysis", LANGBOT_TENANT, LANGBOT_STORAGE, langbot_storage_analysis},
    {"box_exec", LANGBOT_SANDBOX, LANGBOT_SPEC, langbot_exec},
    {"box_create_session", LANGBOT_SANDBOX, LANGBOT_SPEC, langbot_create_session},
    {"box_get_session", LANGBOT_SANDBOX, 0, langbot_get_session},
    {"box_get_sessions", LANGBOT_SANDBOX, 0, langbot_get_sessions},
    {"box_delete_session", LANGBOT_SANDBOX, 0, langbot_delete_session},
    {"box_start_managed_process", LANGBOT_SANDBOX, 0, langbot_start_process},
    {"box_get_managed_process", LANGBOT_SANDBOX, 0, langbot_get_process},
    {"box_stop_managed_process", LANGBOT_SANDBOX, 0, langbot_stop_process},
    {"box_list_skills", LANGBOT_TENANT, LANGBOT_SKILL, langbot_skill},
    {"box_get_skill", LANGBOT_TENANT, LANGBOT_SKILL, langbot_skill},
    {"box_create_skill", LANGBOT_TENANT, LANGBOT_SKILL, langbot_skill},
    {"box_update_skill", LANGBOT_TENANT, LANGBOT_SKILL, langbot_skill},
    {"box_delete_skill", LANGBOT_TENANT, LANGBOT_SKILL, langbot_skill},
    {"box_scan_skill_directory", LANGBOT_TENANT, LANGBOT_SKILL, langbot_skill},
    {"box_list_skill_files", LANGBOT_TENANT, LANGBOT_SKILL, langbot_skill},
    {"box_read_skill_file", LANGBOT_TENANT, LANGBOT_SKILL, langbot_skill},
    {"box_write_skill_file", LANGBOT_TENANT, LANGBOT_SKILL, langbot_skill},
    {"box_preview_skill_zip", LANGBOT_TENANT, LANGBOT_SKILL, langbot_skill},
    {"box_install_skill_zip", LANGBOT_TENANT, LANGBOT_SKILL, langbot_skill},
};

const struct langbot_action *langbot_action_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(actions); i++)
        if (str_eq(actions[i].name, name))
            return &actions[i];
    return NULL;
}
