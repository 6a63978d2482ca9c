/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/config_policy.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "cmd/config.h"
#include "cmd/config_file.h"
#include "cmd/tokens.h"
#include "core/policy.h"
#include "util/alloc.h"
#include "util/err.h"
#include "util/json.h"

void config_source_set(struct config_source *s, const char *value)
{
    free(s->value);
    s->value = xstrdup(value);
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
                                           .resolve = policy_real_path,
                                           .outer_roots = c->mount_roots};
    return policy_new(&options, &c->policy, err);
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
