/* SPDX-License-Identifier: Apache-2.0 */

/* Checks the extra mounts of a managed sandbox: read-only directories of a trusted host, beside the
 * workspace. They are looked at by name, for an answer that says what is wrong; when they are
 * mounted they are resolved again, by descriptor and without links. */

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/host_path.h"
#include "base/str.h"
#include "front/langbot/tenant/admission.h"
#include "front/langbot/tenant/boxconf.h"
#include "spec/spec.h"

#define MOUNTS_MAX 256U
#define BELOW_WORKSPACE SPEC_DEFAULT_MOUNT "/"

static const struct {
    mode_t type;
    const char *unavailable, *outside;
} kinds[] = {
    {S_IFDIR, "Managed sandbox read-only mount source is unavailable",
     "Managed sandbox read-only mount source is outside allowed_mount_roots"},
    {S_IFREG, "Managed sandbox read-only mount manifest is unavailable",
     "Managed sandbox read-only mount manifest is outside allowed_mount_roots"},
};

/* Replaces the path by the one without links. */
static int check_source(const struct box_paths *paths, char **path, size_t kind, struct err *err)
{
    AUTO_FREE char *real = path_real(*path);
    struct stat st;
    if ((*path)[0] != '/')
        return err_set(err, ERR_DENIED, "%s", kinds[kind].unavailable);
    /* What we may not look at may well be there: box-priv will see. */
    bool seen = stat(real, &st) == 0;
    if (seen ? (st.st_mode & S_IFMT) != kinds[kind].type : errno != EACCES)
        return err_set(err, ERR_DENIED, "%s", kinds[kind].unavailable);
    if (!box_paths_allow(paths, real))
        return err_set(err, ERR_DENIED, "%s", kinds[kind].outside);
    free(*path);
    *path = TAKE_PTR(real);
    return 0;
}

static int check_mount(const struct box_paths *paths, struct mount_spec *m, struct err *err)
{
    if (m->mode != MOUNT_RO)
        return err_set(err, ERR_DENIED, "Managed sandbox additional host mounts are disabled");
    int r = check_source(paths, &m->host_path, 0, err);
    if (r < 0)
        return r;
    if (m->manifest_path != NULL && m->content_digest == NULL)
        return err_set(err, ERR_DENIED, "Managed sandbox mount manifests require content_digest");
    r = m->manifest_path != NULL ? check_source(paths, &m->manifest_path, 1, err) : 0;
    if (r < 0)
        return r;
    if (!mount_content_addressed(m) && !str_starts(m->mount_path, BELOW_WORKSPACE))
        return err_set(err, ERR_DENIED,
                       "Managed sandbox additional mount targets must stay under /workspace");
    return 0;
}

int admission_check_mounts(const struct box_paths *paths, struct spec *spec, struct err *err)
{
    if (spec->n_extra_mounts > MOUNTS_MAX)
        return err_set(err, ERR_DENIED, "Managed sandbox accepts at most %u read-only mounts",
                       MOUNTS_MAX);
    if (spec->n_extra_mounts > 0 && paths->mount_roots == NULL)
        return err_set(err, ERR_DENIED,
                       "Managed sandbox read-only mounts require allowed_mount_roots");
    for (size_t i = 0; i < spec->n_extra_mounts; i++) {
        struct mount_spec *m = &spec->extra_mounts[i];
        int r = check_mount(paths, m, err);
        if (r < 0)
            return r;
        for (size_t k = 0; k < i; k++)
            if (str_eq(spec->extra_mounts[k].mount_path, m->mount_path))
                return err_set(err, ERR_DENIED,
                               "Managed sandbox additional mount targets must be unique");
    }
    return 0;
}
