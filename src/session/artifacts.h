/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Artifacts: read-only trees that are named by the digest of their content (LangBot's skills since
 * langbot-plugin 0.7.13). Each session that may have some has a directory of its own on the host,
 * mounted read-only from its beginning at SPEC_ARTIFACTS; what is copied there appears inside, so a
 * living session gets more of them without being touched. Copies are made by jobs of box-fetch, in
 * a queue of their own, one at a time; what a session has stays until the session ends.
 *
 *   <host_root>/.box-artifacts/<boxd>/<session>/tree/<digest>
 *
 * A directory that neither a session nor a call refers to is removed: when a session ends, and when
 * a root is set, for what an earlier boxd left. */

#include <stdbool.h>

#include "jobs/jobs.h"

#define ARTIFACTS_HOLDER ".box-artifacts" /* no mount may be there or below */

struct artifacts;
struct artifacts_place;
struct manager;
struct mount_spec;
struct session;
struct spec;

struct artifacts_options {
    struct jobs_options jobs;
    struct manager *manager; /* borrowed; whose sessions refer to directories */
    const char *tag;         /* borrowed; of this boxd: others may share the root */
};

int artifacts_new(struct loop *loop, const struct artifacts_options *options,
                  struct artifacts **ret, struct err *err);
void artifacts_free(struct artifacts *a); /* before the manager; waiting callers get no answer */
DEFINE_CLEANUP(artifacts)

/* The directory of the host that holds all of them: absolute and clean, NULL: none. */
void artifacts_set_root(struct artifacts *a, const char *host_root);

/* A directory for the session that is to be made from `spec`, mounted with it. It is kept until
 * artifacts_place_free(), and after that as long as a session has it. NULL: there can be none, and
 * `err` says why; a session works without one, unless it is `needed`, which tries harder.
 * *ret_ready: it has been made. */
struct artifacts_place *artifacts_place(struct artifacts *a, struct spec *spec, bool needed,
                                        bool *ret_ready, struct err *err);
void artifacts_place_free(struct artifacts_place *p); /* NULL is fine */

/* Why new sessions have none; "": they have one, as far as we know. */
const char *artifacts_problem(const struct artifacts *a);

/* Makes such a directory; `tree` is what spec->own.artifacts has of it. */
int artifacts_make(struct artifacts *a, const char *tree, jobs_done_fn *done, void *arg,
                   struct err *err);
/* Copies one into it, and verifies what was copied. One that is there already is fine. ERR_DENIED:
 * it may not be read. */
int artifacts_add(struct artifacts *a, const char *tree, const struct mount_spec *m,
                  jobs_done_fn *done, void *arg, struct err *err);

/* The artifacts of a session, also after a restart. */
bool session_has_artifact(const struct session *s, const struct mount_spec *m);
void session_add_artifact(struct session *s, const struct mount_spec *m);
