/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Whose session it is. A caller on the LangBot wire acts for a workspace of an instance, in a
 * placement generation; its names for sessions become names of ours, and a newer generation shuts
 * out the older ones. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "front/langbot/tenant/nsmap.h"

struct err;
struct fence;
struct json;
struct model;
struct report;

/* "ActionContext" of the wire. */
struct tenant_context {
    char *instance_uuid;  /* owned */
    char *workspace_uuid; /* owned */
    int64_t placement_generation;
    char *installation_uuid; /* owned or NULL; of no meaning here */
};

extern const struct model tenant_context_model;

/* ERR_INVALID with the report filled. A complete InstallationBinding is taken as well, and what it
 * says beyond the workspace is dropped. */
int tenant_context_parse(const struct json *object, struct tenant_context *ret,
                         struct report *report, struct err *err);
void tenant_context_done(struct tenant_context *c);
DEFINE_CLEANUP_DONE(tenant_context)

/* [A-Za-z0-9][A-Za-z0-9._:-]{0,127} */
bool instance_id_valid(const char *s);

#define TENANT_PREFIX_SIZE (NS_SIZE + 24) /* with "-g", a generation and "-" */

void tenant_ns(const char *instance_uuid, const char *workspace_uuid, char ret[static NS_SIZE]);
void tenant_prefix(const char *ns, int64_t generation, char ret[static TENANT_PREFIX_SIZE]);

/* The name under which core knows the session that a caller names: ERR_INVALID when nothing of the
 * name can be kept. *ret is owned. */
int tenant_physical(const char *prefix, const char *logical, char **ret, struct err *err);
/* The caller's name of a session of its own; other names are given back as they are. */
const char *tenant_logical(const char *prefix, const char *physical);
/* Whether a name was made by tenant_physical() for anybody. */
bool tenant_name_is_physical(const char *id);
/* Whose it is, and of which generation; false: not such a name. */
bool tenant_of_physical(const char *id, char ret_ns[static NS_SIZE], int64_t *ret_generation);

/* The generation fence: the highest generation seen of each workspace. It only ever grows. */
struct fence *fence_new(size_t max);
void fence_free(struct fence *f);
DEFINE_CLEANUP(fence)
void fence_set_max(struct fence *f, size_t max); /* more than that stay, and none is added */
size_t fence_count(const struct fence *f);
int64_t fence_current(const struct fence *f, const char *ns); /* 0: never seen */
/* A session of that generation was there before us: older ones are shut out as if we had seen it.
 * The first who comes with it passes as one that just became current, because older sessions may
 * be there, too. */
void fence_found(struct fence *f, const char *ns, int64_t generation);
/* 0: it is the current generation. 1: it just became that. ERR_DENIED: stale; ERR_LIMIT: no room
 * for one more workspace. */
int fence_pass(struct fence *f, const char *ns, int64_t generation, struct err *err);
