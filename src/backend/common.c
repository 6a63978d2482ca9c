/* SPDX-License-Identifier: Apache-2.0 */

/* Checks mount sources, makes places for them, and writes the status part of receipts. */

#include "backend/common.h"

#include <fcntl.h>
#include <string.h>

#include "backend/backend.h"
#include "base/cleanup.h"
#include "base/compat.h"
#include "base/err.h"
#include "base/host_path.h"
#include "base/json.h"
#include "base/path.h"
#include "base/str.h"
#include "spec/spec.h"

int backend_find_root(const struct backend_roots *all, const char *path, size_t *ret,
                      const char **ret_rest, struct err *err)
{
    char *const *roots = all->paths;
    size_t best = 0;
    bool found = false;
    if (host_path_blocked(path, all->place))
        return err_set(err, ERR_DENIED, "host_path %.300s is blocked for security", path);
    for (size_t i = 0; roots != NULL && roots[i] != NULL; i++) {
        size_t len = strlen(roots[i]);
        if (!path_at_or_below(path, roots[i]) || len < best || (all->outer && path[len] == '\0'))
            continue;
        best = len;
        found = true;
        *ret = i;
        *ret_rest = path[len] == '/' ? path + len + 1 : path + len;
    }
    if (!found)
        return err_set(err, ERR_DENIED,
                       "host_path %.300s is outside the directories that may be mounted; add it to "
                       "allowed_mount_roots in the configuration, or set BOX_ALLOWED_MOUNT_ROOTS",
                       path);
    return 0;
}

int backend_refuse_bound(const struct spec *spec, const char *path, struct err *err)
{
    return err_set(err, ERR_DENIED,
                   "host_path %.150s cannot be mounted for uid %u: only the native backend and "
                   "runsc, started by root, can find out what that user may open; use a token",
                   path, spec->own.uid);
}

int backend_make_place(const struct backend_place *want, struct err *err)
{
    AUTO_CLOSE int base = path_open_unlinked(want->base, O_PATH | O_DIRECTORY);
    if (base < 0)
        return err_sys(err, -base, "open %.300s", want->base);
    int fd = path_make_beneath(base, want->rest);
    return fd < 0 ? err_sys(err, -fd, "make %.200s in %.300s", want->rest, want->base) : fd;
}

void backend_status_field(const char *status, const char *name, char *ret, size_t size)
{
    size_t len = strlen(name);
    ret[0] = '\0';
    for (const char *line = status; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        size_t n = end != NULL ? (size_t)(end - line) : strlen(line);
        if (n > len + 1 && strncmp(line, name, len) == 0 && line[len] == ':') {
            const char *value = line + len + 1;
            while (*value == '\t' || *value == ' ')
                value++;
            size_t m = (size_t)(line + n - value);
            m = m < size ? m : size - 1;
            memcpy(ret, value, m);
            ret[m] = '\0';
            return;
        }
        line = end != NULL ? end + 1 : NULL;
    }
}

void backend_write_status(struct jw *w, const char *status)
{
    static const struct {
        const char *key, *name;
    } fields[] = {
        {"uid", "Uid"},
        {"gid", "Gid"},
        {"groups", "Groups"},
        {"cap_inheritable", "CapInh"},
        {"cap_permitted", "CapPrm"},
        {"cap_effective", "CapEff"},
        {"cap_bounding", "CapBnd"},
        {"cap_ambient", "CapAmb"},
        {"no_new_privs", "NoNewPrivs"},
        {"seccomp", "Seccomp"},
        {"seccomp_filters", "Seccomp_filters"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        char value[128];
        backend_status_field(status, fields[i].name, value, sizeof(value));
        jw_kstr(w, fields[i].key, value);
    }
}

void doctor_check(struct jw *w, const char *id, const char *status, const char *detail,
                  const char *remedy)
{
    jw_object(w);
    jw_kstr(w, "id", id);
    jw_kstr(w, "status", status);
    jw_kstr(w, "detail", detail);
    jw_kstr(w, "remedy", str_eq(status, "ok") ? NULL : remedy);
    jw_object_end(w);
}
