/* SPDX-License-Identifier: Apache-2.0 */

/* Compares the counted usage of a workspace with its quota. */

#include "policy/policy_quota.h"

#include <assert.h>

#include "base/err.h"
#include "spec/spec.h"

bool quota_applies(const struct spec *spec)
{
    return spec->host_path != NULL && spec->workspace_quota_mb > 0;
}

int quota_judge(const struct quota_check *check, const struct usage *usage, struct err *err)
{
    static const char *const phases[] = {"before execution", "after execution",
                                         "between executions"};
    const struct spec *spec = check->spec;
    uint64_t limit = (uint64_t)spec->workspace_quota_mb * QUOTA_MB;

    assert(quota_applies(spec));
    if (check->cleanup && check->phase == QUOTA_BEFORE)
        return 0;
    bool walled = usage->kernel_bytes > 0 && usage->kernel_bytes <= limit;
    /* Making room is not finished in one go; adding to what is too much already is no cleanup. */
    bool excused = check->cleanup && usage->bytes <= check->before.bytes &&
                   usage->entries <= check->before.entries;
    if (usage->too_many && !excused)
        return err_set(err, ERR_INVALID,
                       "workspace entry limit exceeded %s: entries>%llu host_path=%s session_id=%s",
                       phases[check->phase], (unsigned long long)check->max_entries,
                       spec->host_path, spec->session_id);
    if (usage->bytes > limit && !excused && !walled)
        return err_set(err, ERR_INVALID,
                       "workspace quota exceeded %s: used=%llu bytes limit=%llu bytes host_path=%s "
                       "session_id=%s",
                       phases[check->phase], (unsigned long long)usage->bytes,
                       (unsigned long long)limit, spec->host_path, spec->session_id);
    if (usage->unreadable > 0 && !check->kernel_limit && !walled && !check->cleanup)
        return err_set(err, ERR_DENIED,
                       "workspace cannot be measured %s: %llu directories are not readable "
                       "host_path=%s session_id=%s",
                       phases[check->phase], (unsigned long long)usage->unreadable, spec->host_path,
                       spec->session_id);
    return 0;
}
