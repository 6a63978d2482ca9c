/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a host tells its runtime about limits and directories: the object that box_init of the
 * LangBot wire carries, read into values. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/cleanup.h"

struct err;
struct json;

struct box_limits {
    int64_t max_sessions;
    int64_t max_managed_processes;
    int64_t max_completed_processes;
    int64_t max_admission_records;
    int64_t max_rpc_file_bytes;
    int64_t completed_process_retention_sec;
};

extern const struct box_limits box_limits_default;

/* Changes those that are given, or nothing: ERR_INVALID. `limits` may be NULL. */
int box_limits_parse(const struct json *limits, struct box_limits *ret, struct err *err);

/* Directories of the host: absolute, with links resolved as far as they exist. */
struct box_paths {
    char *host_root;         /* owned; NULL: none */
    char *default_workspace; /* owned; NULL: none */
    char *skills_root;       /* owned */
    char **mount_roots;      /* owned */
};

/* From the section `local`, NULL for the defaults. What is relative starts at our working
 * directory. */
int box_paths_parse(const struct json *local, struct box_paths *ret, struct err *err);
int box_paths_copy(const struct box_paths *p, struct box_paths *ret); /* 0 */
void box_paths_done(struct box_paths *p);
DEFINE_CLEANUP_DONE(box_paths)

/* Whether the default workspace has to be made. ERR_INVALID: it cannot be one. */
int box_paths_check_workspace(const struct box_paths *p, bool *ret_make, struct err *err);
/* Where the default workspace is, if sandboxes may be given parts of it; ERR_STATE. */
int box_paths_managed_place(const struct box_paths *p, const char **ret, struct err *err);
/* The directory of one workspace beneath it; owned. */
char *box_paths_tenant_dir(const struct box_paths *p, const char *ns);
