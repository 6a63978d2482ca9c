/* SPDX-License-Identifier: Apache-2.0 */

/* The table of langbot-plugin releases and the rules that tell them apart by their first
 * requests. */

#include "front/langbot/release.h"

#include "base/cleanup.h"
#include "base/json.h"
#include "base/str.h"
#include "spec/model.h"
#include "spec/spec.h"

#define FIRST_CALLS (LANGBOT_SPEC | LANGBOT_SKILL)
#define LATER_CALLS (LANGBOT_SPEC | LANGBOT_GRANT | LANGBOT_STORAGE | LANGBOT_FLOW)

/* clang-format off */
const struct langbot_release langbot_releases[LANGBOT_FAMILY_MAX] = {
    [LANGBOT_UNKNOWN] = {
        .releases = "unknown",
        .calls = LATER_CALLS | LANGBOT_SKILL,
        .admitted_mounts = true, .bad_id_is_checked = true, .tells_of_workspace = true,
    },
    [LANGBOT_FIRST] = {
        .releases = "0.4.0 to 0.4.17",
        .calls = FIRST_CALLS,
    },
    [LANGBOT_SKILLS] = {
        .releases = "0.5.0 to 0.7.12",
        .calls = LATER_CALLS | LANGBOT_SKILL,
        .tells_of_workspace = true,
    },
    [LANGBOT_ARTIFACTS] = {
        .releases = "0.7.13 and later",
        .calls = LATER_CALLS,
        .closed = true, .gone = FIELD_BIT(SPEC_SKILL_NAME),
        .keeps_mounts = true, .admitted_mounts = true, .newer_checks = true,
        .bad_id_is_checked = true, .tells_of_workspace = true,
        .adds_artifacts = true,
    },
};
/* clang-format on */

static bool has(const struct langbot_request *r, enum spec_field field)
{
    return json_get(r->data, spec_model.fields[field].name) != NULL;
}

/* How a client is known. The first that fits counts. */

static bool names_no_workspace(const struct langbot_request *r)
{
    return r->tenant && !r->scoped;
}

/* One is enough: all of them are written by the same release. */
static bool has_digests(const struct langbot_request *r)
{
    const struct json *mounts = json_get(r->data, spec_model.fields[SPEC_EXTRA_MOUNTS].name);
    return (r->call & LANGBOT_SPEC) && json_get(json_at(mounts, 0), "content_digest") != NULL;
}

static bool has_skill_name(const struct langbot_request *r)
{
    return (r->call & LANGBOT_SPEC) && has(r, SPEC_SKILL_NAME);
}

/* Every field but skill_name: LangBot's client sends them all, a request by hand does not. */
static bool has_all_but_skill_name(const struct langbot_request *r)
{
    for (int i = 0; i < SPEC_FIELD_MAX; i++)
        if (i != SPEC_SKILL_NAME && !has(r, (enum spec_field)i))
            return false;
    return (r->call & LANGBOT_SPEC) != 0;
}

static bool calls_for_skills(const struct langbot_request *r)
{
    return (r->call & LANGBOT_SKILL) != 0;
}

static const struct {
    bool (*shows)(const struct langbot_request *r);
    enum langbot_family family;
} marks[] = {
    {names_no_workspace, LANGBOT_FIRST}, {has_digests, LANGBOT_ARTIFACTS},
    {has_skill_name, LANGBOT_SKILLS},    {has_all_but_skill_name, LANGBOT_ARTIFACTS},
    {calls_for_skills, LANGBOT_SKILLS},
};

enum langbot_family langbot_recognise(const struct langbot_request *request)
{
    for (size_t i = 0; i < ARRAY_SIZE(marks); i++)
        if (marks[i].shows(request))
            return marks[i].family;
    return LANGBOT_UNKNOWN;
}
