/* SPDX-License-Identifier: Apache-2.0 */

/* Reads the policy and chat sections, and explains where each setting comes from. */

#include "config/config_policy.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/host_path.h"
#include "base/json.h"
#include "base/str.h"
#include "config/config.h"
#include "config/config_file.h"
#include "config/tokens.h"
#include "policy/policy.h"

void config_source_set(struct config_source *s, const char *value)
{
    free(s->value);
    s->value = xstrdup(value);
}

static bool may_be_mounted(const struct config *c, const char *path)
{
    AUTO_FREE char *real = path_real(path);
    for (char *const *root = c->mount_roots; root != NULL && *root != NULL; root++) {
        size_t len = strlen(*root);
        if (str_starts(real, *root) &&
            (real[len] == '/' || (real[len] == '\0' && !c->mount_roots_builtin)))
            return true;
    }
    return false;
}

/* What every sandbox of a chat would fail at is said at once. */
static int check_chat(const struct config *c, struct err *err)
{
    const struct chat_config *chat = &policy_settings(c->policy)->chat;
    const char *const paths[] = {chat->chats_root, chat->dependencies_host_path,
                                 chat->lambda_tools_host_path};
    int r = chat_config_check(chat, err);
    for (size_t i = 0; r == 0 && chat_configured(chat) && i < ARRAY_SIZE(paths); i++)
        if (!may_be_mounted(c, paths[i]))
            r = err_set(err, ERR_INVALID,
                        "'%.200s' of the section sandbox is outside the directories that may be "
                        "mounted; add it to allowed_mount_roots",
                        paths[i]);
    return r;
}

int config_read_policy(struct config *c, const struct json *sections, const char *path,
                       struct err *err)
{
    char cwd[PATH_MAX];
    if (getcwd(cwd, sizeof(cwd)) == NULL)
        return err_sys(err, errno, "current directory");
    const struct policy_options options = {.file = sections,
                                           .file_name = path != NULL ? path : "(none)",
                                           .env = environ,
                                           .cwd = cwd,
                                           .resolve = path_real,
                                           .outer_roots = c->mount_roots};
    int r = policy_new(&options, &c->policy, err);
    return r < 0 ? r : check_chat(c, err);
}

void config_policy_done(struct config *c)
{
    policy_free(c->policy);
    tokens_file_free(c->tokens);
    for (size_t i = 0; c->sources != NULL && i < CONFIG_KEY_MAX; i++) {
        free(c->sources[i].value);
        free(c->sources[i].where);
    }
    free(c->sources);
}

bool config_explain(const struct config *c, size_t i, struct policy_row *ret)
{
    if (i >= CONFIG_KEY_MAX)
        return policy_explain(c->policy, i - CONFIG_KEY_MAX, ret);
    *ret = (struct policy_row){.key = config_keys[i].name,
                               .value = c->sources[i].value,
                               .source = c->sources[i].where,
                               .doc = config_keys[i].doc};
    return true;
}
