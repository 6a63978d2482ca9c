/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The section `sandbox` of the configuration: what chat sandboxes are made of. */

#include <stdbool.h>
#include <stdint.h>

struct err;

struct chat_config {
    char *image; /* NULL: there are no chat sandboxes */
    int64_t ttl_seconds;
    int64_t cleanup_interval_seconds;
    char *chats_root; /* as it resolved when the configuration was read */
    char *dependencies_host_path;
    char *lambda_tools_host_path;
    char *chat_mount_path;
    char *dependencies_mount_path;
    char *lambda_tools_mount_path;
};

static inline bool chat_configured(const struct chat_config *c)
{
    return c->image != NULL;
}

/* ERR_INVALID for a section that is given by half, or paths that cannot be meant. */
int chat_config_check(const struct chat_config *c, struct err *err);
void chat_config_done(struct chat_config *c); /* frees the texts */
