/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The tenant that a session belongs to. A caller on the LangBot wire acts for a workspace of an
 * instance, in a placement generation; its names for sessions become names of core, and a newer
 * generation shuts out the older ones. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct err;
struct fence;
struct json;
struct model;
struct report;

#define NS_SIZE 28 /* of the namespace of a workspace: "ws-", 24 hex digits of a hash, NUL */

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
/* Whether a name was made by tenant_physical(), for any workspace. */
bool tenant_name_is_physical(const char *id);
/* The workspace and the generation of such a name; false: it is no such name. */
bool tenant_of_physical(const char *id, char ret_ns[static NS_SIZE], int64_t *ret_generation);

/* A bounded table by namespace. Its entries begin with `char ns[NS_SIZE]`. */
struct ns_table {
    void *tree; /* of entries, owned; see tsearch(3) */
    size_t n, max;
};
void *ns_table_find(const struct ns_table *t, const char *ns); /* NULL: none */
/* The entry, made with zeros in it where it is missing; NULL: there is no room for one more. */
void *ns_table_need(struct ns_table *t, const char *ns, size_t size);

/* The generation fence: the highest generation seen of each workspace. It only ever grows. */
struct fence *fence_new(size_t max);
void fence_free(struct fence *f);
DEFINE_CLEANUP(fence)
void fence_set_max(struct fence *f, size_t max); /* more than that stay, and none is added */
int64_t fence_current(const struct fence *f, const char *ns); /* 0: never seen */
/* boxd took over a session of that generation: older generations are shut out as if a request had
 * shown it. The first request of it still passes as one that just became current, because older
 * sessions may be there, too. */
void fence_found(struct fence *f, const char *ns, int64_t generation);
/* 0: it is the current generation. 1: it just became that. ERR_DENIED: stale; ERR_LIMIT: no room
 * for one more workspace. */
int fence_pass(struct fence *f, const char *ns, int64_t generation, struct err *err);
