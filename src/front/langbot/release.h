/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Which release of LangBot's client is at the other end of a connection, and the rules that follow
 * from it. The client, langbot-plugin, brings a runtime of its own, and each release expects the
 * behaviour of its own runtime. Where releases differ, the rule is a column of this table, and no
 * other code looks at the release.
 *
 * No release sends its number, but each writes all fields of its model with every session, so that
 * the fields distinguish families of releases: `skill_name` came with 0.5.0 and went with 0.7.13, a
 * mount's `content_digest` came with 0.7.13. The first finding stays true until the connection
 * ends.
 *
 * Changes within a family only added something, which older clients of it do not ask for or do not
 * look at; they are served like the newest.
 *
 * None of this is a wall: a peer that pretends to be another release gets other messages, not more
 * rights. */

#include <stdbool.h>
#include <stdint.h>

struct json;

/* Calls that not every release knows, and those that show what a client is. */
enum langbot_kind {
    LANGBOT_SPEC = 1 << 0,    /* carries a BoxSpec */
    LANGBOT_SKILL = 1 << 1,   /* until 0.7.12 */
    LANGBOT_GRANT = 1 << 2,   /* since 0.5.0 */
    LANGBOT_STORAGE = 1 << 3, /* since 0.6.1 */
    LANGBOT_FLOW = 1 << 4,    /* cancelling since 0.7.0, acknowledging since 0.7.11 */
};

struct langbot_release {
    const char *releases;   /* for people: "0.5.0 to 0.7.12" */
    unsigned calls;         /* of enum langbot_kind; others are not found */
    bool closed;            /* unknown fields of a BoxSpec are errors; they are ignored otherwise */
    uint64_t gone;          /* fields of ours that it does not have: FIELD_BIT(enum spec_field) */
    bool keeps_mounts;      /* other ordinary mounts conflict; else the session is made anew */
    bool adds_artifacts;    /* content-addressed mounts may come later */
    bool admitted_mounts;   /* a managed sandbox may have read-only extra mounts */
    bool newer_checks;      /* of readiness: hard_read_only_mount_quota, once of skills */
    bool bad_id_is_checked; /* an unusable session_id is a BoxValidationError, not a ValueError */
    bool tells_of_workspace; /* `limits` and `capacity` of box_status, `status` of a session */
};

/* In order of appearance. */
enum langbot_family {
    LANGBOT_UNKNOWN, /* has shown nothing yet, or is not LangBot's: served in full */
    LANGBOT_FIRST,
    LANGBOT_SKILLS,
    LANGBOT_ARTIFACTS,
    LANGBOT_FAMILY_MAX,
};

extern const struct langbot_release langbot_releases[LANGBOT_FAMILY_MAX];

/* The features of a request by which a release is recognised. */
struct langbot_request {
    unsigned call;           /* of enum langbot_kind; 0: one that all know */
    bool tenant;             /* is about a workspace */
    bool scoped;             /* and says which */
    const struct json *data; /* borrowed */
};

/* LANGBOT_UNKNOWN: nothing. */
enum langbot_family langbot_recognise(const struct langbot_request *request);
