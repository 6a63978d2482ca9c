/* SPDX-License-Identifier: Apache-2.0 */

/* Parses NAME=value texts and files, and chooses variables for installers. */

#include "cli/mcp/env.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"
#include "base/strv.h"
#include "spec/spec.h"

static bool name_valid(const char *name, size_t len)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    static const char all[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789.-";

    return len > 0 && strchr(letters, name[0]) != NULL && strspn(name, all) >= len;
}

int mcp_env_set(char ***env, const char *text, struct err *err)
{
    size_t len = strcspn(text, "=");

    if (text[len] != '=' || !name_valid(text, len))
        return err_set(err, ERR_INVALID, "env entries must be NAME=value");
    if (!utf8_valid(text, strlen(text)))
        return err_set(err, ERR_INVALID, "the value of %.*s is not valid UTF-8", (int)len, text);
    for (size_t i = 0; i < strv_len(*env); i++) {
        if (strncmp((*env)[i], text, len + 1) != 0)
            continue;
        free((*env)[i]);
        (*env)[i] = xstrdup(text);
        return 0;
    }
    if (strv_len(*env) >= SPEC_ENV_ENTRIES_MAX)
        return err_set(err, ERR_INVALID, "env must have at most %d entries", SPEC_ENV_ENTRIES_MAX);
    strv_add(env, text);
    return 0;
}

int mcp_env_pass(char ***env, const char *name, struct err *err)
{
    const char *value = name_valid(name, strlen(name)) ? getenv(name) : NULL;

    if (!name_valid(name, strlen(name)))
        return err_set(err, ERR_INVALID, "env entries must be NAME=value or NAME");
    if (value == NULL)
        return 0;
    AUTO_FREE char *text = xasprintf("%s=%s", name, value);
    return mcp_env_set(env, text, err);
}

static int read_line(char ***env, const char *line, struct err *err)
{
    if (line[0] == '\0' || line[0] == '#')
        return 0;
    if (str_starts(line, "export "))
        line += strlen("export ");
    AUTO_FREE char *text = str_strip(line);
    char *value = strchr(text, '=');
    size_t len = value != NULL ? strlen(++value) : 0;
    if (len >= 2 && (value[0] == '"' || value[0] == '\'') && value[len - 1] == value[0]) {
        memmove(value, value + 1, len - 2);
        value[len - 2] = '\0';
    }
    return mcp_env_set(env, text, err);
}

int mcp_env_read(char ***env, const char *text, size_t len, struct err *err)
{
    const char *end = text + len;

    if (memchr(text, '\0', len) != NULL)
        return err_set(err, ERR_INVALID, "the file holds a NUL");
    for (unsigned number = 1; text < end; number++) {
        size_t n = strcspn(text, "\n");
        AUTO_FREE char *raw = xstrndup(text, n);
        AUTO_FREE char *line = str_strip(raw);
        int r = read_line(env, line, err);
        if (r < 0)
            return err_wrap(err, "line %u", number);
        text += n + 1;
    }
    return 0;
}

char **mcp_env_for_install(char *const *env)
{
    static const char *const prefixes[] = {
        "PIP_",         "UV_",         "NPM_CONFIG_",   "npm_config_",          "NPM_TOKEN=",
        "HTTP_PROXY=",  "http_proxy=", "NO_PROXY=",     "NODE_AUTH_TOKEN=",     "SSL_CERT_",
        "HTTPS_PROXY=", "ALL_PROXY=",  "no_proxy=",     "NODE_EXTRA_CA_CERTS=", "CURL_CA_BUNDLE=",
        "https_proxy=", "all_proxy=",  "NODE_OPTIONS=", "REQUESTS_CA_BUNDLE="};
    char **some = NULL;

    for (size_t i = 0; i < strv_len(env); i++)
        for (size_t j = 0; j < ARRAY_SIZE(prefixes); j++)
            if (str_starts(env[i], prefixes[j])) {
                strv_add(&some, env[i]);
                break;
            }
    return some;
}

char **mcp_env_defaults(int network)
{
    char **env = NULL;

    /* Nobody answers, however often one asks; and what a cache has is taken from there. */
    if (network == NETWORK_OFF) {
        strv_add(&env, "PIP_RETRIES=0");
        strv_add(&env, "UV_OFFLINE=1");
        strv_add(&env, "npm_config_offline=true");
    }
    return env;
}

char **mcp_env_with(char **env, char *const *more)
{
    struct err ignored;

    for (size_t i = 0; i < strv_len(more); i++)
        (void)mcp_env_set(&env, more[i], &ignored);
    return env;
}
