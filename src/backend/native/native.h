/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Sandboxes made of namespaces, cgroups and seccomp by this host's own kernel: no engine needed. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct backend;
struct err;
struct fetch_launcher;
struct loop;
struct priv_client;

struct native_options {
    const char *program, *init_program; /* paths of box-priv and box-init */
    const char *fetch_program;          /* of box-fetch; NULL: native_launcher_new() is of no use */
    const char *files_program;          /* of box-files; NULL: files of sessions cannot be had */
    /* Of runsc and box-guest; NULL: none. Else sandboxes are gVisor's (runsc.c): they can be made,
     * adopted, inspected and ended here, but nothing can be started in them. */
    const char *runsc_program, *guest_program;
    const char *runsc_version; /* as it told */
    const char *state_dir, *tag;
    uid_t uid;
    gid_t gid;
    char *const *roots;   /* allow-list, real paths */
    char *const *aliases; /* "name=command": further names in the host image */
    bool roots_are_outer;
    bool require_limits;
    uint32_t workspace_entries; /* most files in a host directory with a quota; 0: no limit */
    uint64_t linger_sec; /* how long sandboxes outlive a daemon that was killed; 0: not at all */
    void (*gone)(void *arg); /* box-priv died: nothing works any more */
    void *gone_arg;
};

/* Starts box-priv, or takes over that of an earlier daemon; call before dropping privileges. The
 * strings are borrowed for the backend's life. */
int native_new(struct loop *loop, const struct native_options *options, struct backend **ret,
               struct err *err);

/* Starts jobs of box-fetch through this backend's box-priv, within its allow-list. Free it before
 * the backend. */
struct fetch_launcher *native_launcher_new(struct backend *b);
/* The same through a box-priv that was started with these roots. */
struct fetch_launcher *native_launcher_by(struct priv_client *priv, char *const *roots, bool outer);
