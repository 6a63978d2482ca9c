/* SPDX-License-Identifier: Apache-2.0 */

/* Checks whether a caller may use a session, and writes a command as text for records. */

#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"
#include "command/policy_gate.h"
#include "policy/authz.h"
#include "spec/profile.h"

/* Every byte of the arguments as a quote that is quoted, and what goes around each. */
#define TEXT_MAX (4U * SPEC_ARGS_BYTES_MAX + 4U * SPEC_ARGS_ENTRIES_MAX)

int64_t policy_longest_sec(const struct policy *p, const struct authz_scope *scope)
{
    const struct profile *profile = NULL;
    int64_t longest = 0;

    if (scope == NULL && policy_profile_chosen(p) && policy_profile(p, NULL, &profile, NULL) == 0)
        return profile->max_timeout_sec;
    for (size_t i = 0; scope != NULL && (profile = policy_profile_at(p, i)) != NULL; i++)
        if (profile->max_timeout_sec > longest &&
            authz_check_profile(scope, profile->name, NULL) == 0)
            longest = profile->max_timeout_sec;
    return scope != NULL && longest == 0 ? 1 : longest;
}

static bool has_mounts(const struct spec *spec)
{
    bool any = spec->host_path != NULL && spec->host_path_mode != MOUNT_NONE;

    for (size_t i = 0; i < spec->n_extra_mounts; i++)
        any = any || spec->extra_mounts[i].mode != MOUNT_NONE;
    return any;
}

int policy_check_user(const struct spec *spec, uid_t uid, struct err *err)
{
    if (!has_mounts(spec) || (spec->own.bound && spec->own.uid == uid))
        return 0;
    return err_set(err, ERR_DENIED,
                   "session %.100s has directories of the host that another user has mounted; uid "
                   "%u can use its own sessions, and those without such directories",
                   spec->session_id, uid);
}

int policy_check_use(const struct policy *p, const struct authz_scope *scope,
                     const struct spec *spec, struct err *err)
{
    const char *own = policy_settings(p)->default_workspace;
    uid_t uid = 0;
    int r = authz_check_session(scope, spec->session_id, err);

    if (r == 0)
        r = authz_check_network(scope, spec->network, err);
    if (r == 0 && spec->host_path != NULL && !str_eq(spec->host_path, own))
        r = authz_check_mount(scope, spec->host_path, spec->host_path_mode, err);
    for (size_t i = 0; r == 0 && i < spec->n_extra_mounts; i++)
        r = authz_check_mount(scope, spec->extra_mounts[i].host_path, spec->extra_mounts[i].mode,
                              err);
    return r == 0 && authz_is_user(scope, &uid) ? policy_check_user(spec, uid, err) : r;
}

static bool is_plain(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "@%+=:,./-_";
    return word[0] != '\0' && strspn(word, plain) == strlen(word);
}

/* As a shell would have to be told. */
static void put_word(struct buf *out, const char *word)
{
    if (is_plain(word)) {
        (void)buf_puts(out, word);
        return;
    }
    (void)buf_putc(out, '\'');
    for (; *word != '\0'; word++)
        if (*word == '\'')
            (void)buf_puts(out, "'\\''");
        else
            (void)buf_putc(out, *word);
    (void)buf_putc(out, '\'');
}

char *policy_command_text(char *const *argv, const char *cmd)
{
    AUTO_DONE(buf) struct buf text;

    buf_init(&text, TEXT_MAX);
    if (cmd != NULL)
        return xstrdup(cmd);
    for (size_t i = 0; argv != NULL && argv[i] != NULL; i++) {
        if (i > 0)
            (void)buf_putc(&text, ' ');
        put_word(&text, argv[i]);
    }
    return xstrdup(buf_str(&text));
}
