/* SPDX-License-Identifier: Apache-2.0 */

/* Checks the settings of chat sandboxes. */

#include "policy/chat_config.h"

#include <stddef.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/path.h"
#include "base/str.h"

#define AT(member) offsetof(struct chat_config, member)
static const struct {
    const char *name;
    size_t offset;
    bool path;    /* else any text */
    bool needed;  /* nothing can be made without it */
    bool mounted; /* a place inside: no two may be the same */
} texts[] = {
    {"image", AT(image), .needed = true},
    {"chats_root", AT(chats_root), .path = true, .needed = true},
    {"dependencies_host_path", AT(dependencies_host_path), .path = true, .needed = true},
    {"lambda_tools_host_path", AT(lambda_tools_host_path), .path = true, .needed = true},
    {"chat_mount_path", AT(chat_mount_path), .path = true, .mounted = true},
    {"dependencies_mount_path", AT(dependencies_mount_path), .path = true, .mounted = true},
    {"lambda_tools_mount_path", AT(lambda_tools_mount_path), .path = true, .mounted = true},
};
#undef AT

static const char *text(const struct chat_config *c, size_t i)
{
    return *(char *const *)(const void *)((const char *)c + texts[i].offset);
}

static int check_mounted(const struct chat_config *c, size_t at, struct err *err)
{
    for (size_t i = 0; i < at; i++)
        if (texts[i].mounted && str_eq(text(c, i), text(c, at)))
            return err_set(err, ERR_INVALID, "sandbox.%s and sandbox.%s are the same place",
                           texts[i].name, texts[at].name);
    return 0;
}

int chat_config_check(const struct chat_config *c, struct err *err)
{
    const char *given = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(texts) && given == NULL; i++)
        given = texts[i].needed && text(c, i) != NULL ? texts[i].name : NULL;
    if (given == NULL)
        return 0; /* chats are not configured */
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        if (text(c, i) == NULL)
            return err_set(err, ERR_INVALID, "sandbox.%s is missing, while sandbox.%s is given",
                           texts[i].name, given);
        if (texts[i].path && !path_is_clean_absolute(text(c, i)))
            return err_set(err, ERR_INVALID,
                           "sandbox.%s must be absolute, without '.', '..', '//' or a '/' at its "
                           "end, not '%.100s'",
                           texts[i].name, text(c, i));
        int r = texts[i].mounted ? check_mounted(c, i, err) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

void chat_config_done(struct chat_config *c)
{
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        free(*(char **)(void *)((char *)c + texts[i].offset));
    *c = (struct chat_config){0};
}
