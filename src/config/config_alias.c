/* SPDX-License-Identifier: Apache-2.0 */

/* Parses the setting that gives commands of the host another name inside a session. */

#include <ctype.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/path.h"
#include "base/str.h"
#include "base/strv.h"
#include "config/config_file.h"

#define ALIASES_MAX 32U
#define NAME_LEN_MAX 64U

static bool is_plain_name(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || (s[n] != '\0' && strchr("._+-", s[n]) != NULL))
        n++;
    return n > 0 && n <= NAME_LEN_MAX && s[n] == '\0' && !str_eq(s, ".") && !str_eq(s, "..");
}

static int check(char *const *have, const char *name, const char *target, struct err *err)
{
    if (!is_plain_name(name))
        return err_set(err, ERR_INVALID,
                       "command_aliases: '%.80s' is no plain name of a command (letters, digits, "
                       "'.', '_', '+', '-')",
                       name);
    if (!is_plain_name(target) && (!path_is_clean_absolute(target) || str_eq(target, "/")))
        return err_set(err, ERR_INVALID,
                       "command_aliases: %.64s must be the name of a command or an absolute path "
                       "without '.', '..' or '//', not '%.80s'",
                       name, target);
    if (str_eq(name, target))
        return err_set(err, ERR_INVALID, "command_aliases: '%.64s' is given as itself", name);
    for (; have != NULL && *have != NULL; have++)
        if (strncmp(*have, name, strlen(name)) == 0 && (*have)[strlen(name)] == '=')
            return err_set(err, ERR_INVALID, "command_aliases: '%.64s' is given twice", name);
    return 0;
}

int config_read_aliases(const char *list, char ***ret, struct err *err)
{
    AUTO_FREE char *copy = xstrdup(list);
    AUTO_STRV char **aliases = NULL;
    char *save = NULL;
    if (str_eq(list, "none"))
        return 0;
    for (char *item = strtok_r(copy, ",", &save); item != NULL; item = strtok_r(NULL, ",", &save)) {
        AUTO_FREE char *pair = str_strip(item);
        char *equals = strchr(pair, '=');
        if (equals == NULL)
            return err_set(err, ERR_INVALID,
                           "command_aliases: '%.80s' is not name=command (none: no aliases)", pair);
        *equals = '\0';
        int r = check(aliases, pair, equals + 1, err);
        if (r < 0)
            return r;
        if (strv_len(aliases) >= ALIASES_MAX)
            return err_set(err, ERR_LIMIT, "command_aliases: more than %u entries", ALIASES_MAX);
        *equals = '=';
        strv_add(&aliases, pair);
    }
    *ret = TAKE_PTR(aliases);
    return 0;
}
