/* SPDX-License-Identifier: Apache-2.0 */
#include "backend/backend.h"

const char *outcome_name(enum outcome_kind kind)
{
    static const char *const names[OUTCOME_KIND_MAX] = {
        [OUTCOME_EXITED] = "exited",
        [OUTCOME_SIGNALED] = "signaled",
        [OUTCOME_TIMED_OUT] = "timed_out",
        [OUTCOME_OOM_KILLED] = "oom_killed",
        [OUTCOME_QUOTA_EXCEEDED] = "quota_exceeded",
        [OUTCOME_SESSION_LOST] = "session_lost",
    };
    return kind < OUTCOME_KIND_MAX ? names[kind] : "unknown";
}
