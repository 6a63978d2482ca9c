/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What callers may do: profiles, locked fields, limits, the mount allow-list, names of sessions. A
 * policy is read once, from the configuration, and does not change; from then on nothing here does
 * any I/O unless it says so. Every front asks the same questions and gets the same answers. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "policy/chat_config.h"

struct authz_scope;
struct err;
struct json;
struct policy;
struct profile;
struct spec;

/* Configuration ------------------------------------------------------------------------------- */

#define POLICY_ROOTS_MAX 64
#define POLICY_PROFILES_MAX 64
#define POLICY_TEMPLATE_DEFAULT "{launcher_type}_{launcher_id}"

enum policy_fallback { POLICY_FALLBACK_REFUSE, POLICY_FALLBACK_HOST };
enum policy_sync { POLICY_SYNC_NONE, POLICY_SYNC_RECORD };
enum policy_full { POLICY_FULL_CONTINUE, POLICY_FULL_REFUSE };

/* Owned by the policy; text that is not set is NULL. */
struct policy_settings {
    bool enabled;
    char *profile;
    char *image;
    char *host_root;
    char *default_workspace;
    char **mount_roots; /* as they resolve; see policy_check_mount() */
    bool has_quota;
    int64_t workspace_quota_mb;
    int64_t max_workspace_entries;
    int64_t session_disk_mb, disk_reserve_mb; /* command/disk_guard.h */
    int64_t output_limit_chars;
    char *session_template; /* of queries that bring none */
    char *force_template;   /* over every query's own */
    bool mcp_stdio_enabled;
    enum policy_fallback mcp_stdio_fallback;
    int64_t outputs_max_mb;  /* of all outputs that are kept */
    int64_t outputs_each_mb; /* of one */
    /* Of a token that names no cap of its own. */
    int64_t token_sessions, token_execs, token_processes, token_output_mb;
    bool audit_enabled;
    int64_t audit_file_mb;
    int64_t audit_keep_files; /* 0: all */
    enum policy_sync audit_sync;
    enum policy_full audit_full;
    char **publish_addresses; /* beside loopback, where ports of sessions may be published */
    char **allow_hosts;       /* beside loopback, what sessions may reach; host_service_write() */
    struct chat_config chat;
};

struct policy_options {
    const struct json *file; /* the configuration file as an object; NULL: none */
    const char *file_name;   /* as sources name it */
    char *const *env;        /* "NAME=value", NULL-terminated; NULL: none */
    const char *cwd;         /* absolute; where relative paths start */
    /* Resolves links of an absolute path whose end may not exist; the result is owned. NULL: paths
     * are taken as they are spelled. path_real() is the one for a daemon. */
    char *(*resolve)(const char *path);
    char *const *outer_roots; /* the allow-list when the settings name none; NULL: nothing */
};

/* ERR_INVALID names the setting and where its value came from. Paths are only resolved, never made.
 */
int policy_new(const struct policy_options *options, struct policy **ret, struct err *err);
void policy_free(struct policy *p);
DEFINE_CLEANUP(policy)

const struct policy_settings *policy_settings(const struct policy *p);

/* What each setting is and why, for `box config --explain`. */
struct policy_row {
    const char *key;    /* "box.local.profile" */
    const char *value;  /* "" when not set; secrets are never among them */
    const char *source; /* "default", "environment BOX__PROFILE", "file x.yaml: box.profile", … */
    const char *doc;
};
/* The i-th row; false when there is none. */
bool policy_explain(const struct policy *p, size_t i, struct policy_row *ret);

/* Built-in profiles and those of the configuration. NULL and blank: the configured one. */
int policy_profile(const struct policy *p, const char *name, const struct profile **ret,
                   struct err *err);
/* Whether the configuration names the profile of requests that name none. */
bool policy_profile_chosen(const struct policy *p);
const struct profile *policy_profile_at(const struct policy *p, size_t i); /* by name; NULL: end */

/* Does I/O: makes the default workspace unless it is there. Nothing to do without one. */
int policy_ensure_workspace(const struct policy *p, struct err *err);

/* Requests ------------------------------------------------------------------------------------ */

/* What was decided, for the audit log. */
struct policy_decision {
    const struct profile *profile; /* borrowed from the policy */
    uint64_t overridden;           /* FIELD_BIT() set: asked for, but locked by the profile */
    bool clamped;                  /* the timeout was above the longest */
    bool own_workspace;            /* host_path is the default workspace */
};

struct policy_request {
    const char *profile;             /* NULL: the configured one */
    const struct json *query;        /* of a tool call: what its session is named after */
    const struct authz_scope *scope; /* NULL: may do everything */
    /* Mounts that the daemon itself adds (skills), a JSON array or NULL: not the caller's, so
     * neither the allow-list nor the scope is asked. */
    const struct json *own_mounts;
    const char *session_id; /* of a whole spec, instead of what that says; NULL: the spec does */
    /* Image of a request that names none, unless the request or the configuration names a profile
     * or the configuration an image; NULL: that of the profile. */
    const char *image;
    bool skip_mount_check; /* host paths come from an administrator */
    const char *tool;      /* that it is for; NULL: "exec" */
};

/* The agent's tool: takes `command`, `workdir`, `timeout_sec` and `env` of the arguments and
 * nothing else, and names the session after request->query. `ret_decision` may be NULL. */
int policy_tool_spec(const struct policy *p, const struct policy_request *request,
                     const struct json *arguments, struct spec **ret,
                     struct policy_decision *ret_decision, struct err *err);

/* A whole spec from a caller. The first wrong member is told as clients of the LangBot wire know
 * it. */
int policy_payload_spec(const struct policy *p, const struct policy_request *request,
                        const struct json *payload, struct spec **ret,
                        struct policy_decision *ret_decision, struct err *err);

/* Whether fields of a session that was made of the spec, a set of FIELD_BIT(), may be changed: its
 * profile must not lock them, and the scope must have that profile. ERR_DENIED. */
int policy_check_change(const struct policy *p, const struct authz_scope *scope,
                        const struct spec *spec, uint64_t changed, struct err *err);

/* The name of the query's session, owned. */
int policy_session_id(const struct policy *p, const struct json *query, char **ret,
                      struct err *err);
/* For records: the query's id as text, "" without one. Owned. */
char *policy_query_id(const struct json *query);
/* ERR_INVALID unless it consists of text, {name}, {{ and }}. */
int policy_template_check(const char *template, struct err *err);
