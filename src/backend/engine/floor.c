/* SPDX-License-Identifier: Apache-2.0 */

/* The oldest safe version of each container runtime, compared with the one that is installed. Row
 * L12: runtimes below these have known ways out of a container. A branch without a fix counts as
 * below. Docker's own floor (29.4.3, for kernels with AF_ALG) is not here: our system call profile
 * has no AF_ALG. */

#include <string.h>

#include "backend/engine/engine_internal.h"
#include "base/str.h"

struct version {
    unsigned major, minor, patch, rc; /* rc 0: none */
};

static const struct {
    const char *program;
    struct version fixed; /* first good one of its minor branch */
    const char *cves;
} floors[] = {
    {"runc", {1, 3, 6, 0}, "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881, CVE-2026-41579"},
    {"runc", {1, 4, 3, 0}, "CVE-2026-41579"},
    {"runc", {1, 5, 0, 3}, "CVE-2026-41579"},
    {"crun", {1, 28, 0, 0}, "CVE-2026-30892, CVE-2026-47766"},
};

static unsigned take_number(const char **at)
{
    unsigned n = 0;
    for (; **at >= '0' && **at <= '9' && n < 100000; (*at)++)
        n = n * 10 + (unsigned)(**at - '0');
    return n;
}

/* The first "1.2.3", "1.2" or "1.2.3-rc.4" in a text. */
static bool find_version(const char *text, struct version *ret)
{
    const char *at = text;
    while (*at != '\0' && !(*at >= '0' && *at <= '9'))
        at++;
    *ret = (struct version){.major = take_number(&at)};
    if (*at != '.')
        return false;
    at++;
    ret->minor = take_number(&at);
    if (*at == '.') {
        at++;
        ret->patch = take_number(&at);
    }
    const char *rc = str_starts(at, "-rc.") || str_starts(at, "~rc.") ? at + 4
                     : str_starts(at, "-rc") || str_starts(at, "~rc") ? at + 3
                                                                      : NULL;
    if (rc != NULL)
        ret->rc = take_number(&rc);
    return true;
}

static bool is_below(const struct version *v, const struct version *fixed)
{
    if (v->patch != fixed->patch)
        return v->patch < fixed->patch;
    unsigned a = v->rc > 0 ? v->rc : ~0U, b = fixed->rc > 0 ? fixed->rc : ~0U;
    return a < b;
}

const char *engine_floor_breach(const char *program, const char *text)
{
    struct version v;
    const char *newest = NULL;
    bool branch_known = false;
    unsigned newest_minor = 0;
    if (!find_version(text, &v))
        return NULL;
    for (size_t i = 0; i < ARRAY_SIZE(floors); i++) {
        if (!str_eq(floors[i].program, program))
            continue;
        if (v.major == floors[i].fixed.major && v.minor == floors[i].fixed.minor) {
            branch_known = true;
            if (is_below(&v, &floors[i].fixed))
                return floors[i].cves;
        }
        if (newest == NULL || floors[i].fixed.minor < newest_minor) {
            newest = floors[i].cves; /* that of the oldest branch with a fix */
            newest_minor = floors[i].fixed.minor;
        }
    }
    if (newest == NULL || branch_known)
        return NULL;
    return v.major < 1 || (v.major == 1 && v.minor < newest_minor) ? newest : NULL;
}
