/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* From what a caller wants to what the kernel will be asked: a pure function, golden-tested without
 * privileges. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct exec_request;
struct cgroup_limits;
struct init_exec;
struct plan;
struct spec;

#define NATIVE_HOST_DIRS_MAX 8

/* What the plan depends on besides the spec. */
struct native_facts {
    struct {
        const char *path; /* "/bin" */
        char link[32];    /* "usr/bin", or "" for a real directory */
    } dirs[NATIVE_HOST_DIRS_MAX];
    size_t n_dirs;
    char *const *aliases; /* "name=/path/of/command"; borrowed */
    char *const *roots;   /* allow-list, real paths; borrowed */
    bool roots_are_outer; /* built-in list: only what lies below a root may be mounted, not the root
                             itself */
    bool require_limits;
    uint32_t workspace_entries; /* most files in a host directory with a quota; 0: no limit */
    bool gvisor; /* sessions are gVisor's: the tree is for box-guest (sandbox/setup/gvisor.h) */
    bool one_id; /* box-priv has no other id to give than boxd's own */
    bool core_by_pipe; /* the host pipes cores to a program: only a limit of 1 stops that */
};

/* The same list with paths: names of commands are looked up in the host image. To free. */
char **native_aliases(char *const *aliases);

void native_facts_read(struct native_facts *f); /* asks the host about its directories */

int native_plan(const struct spec *spec, const struct native_facts *facts, const char *name,
                uint32_t uid_index, struct plan *ret, struct err *err);

#define NATIVE_FILES "box-files"
/* The limits of a spec, as box-priv wants them. */
struct cgroup_limits native_limits(const struct spec *spec);
/* Appends the strings of a request to a message that begins with `head`, and counts them there. The
 * environment is the host image's, the session's and the request's; later entries win. */
int native_pack(struct buf *out, struct init_exec *head, const struct exec_request *req,
                char *const *session_env, const char *workdir);
