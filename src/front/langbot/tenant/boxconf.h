/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a host tells its runtime about limits and directories: the object that box_init of the
 * LangBot wire carries, read into values. */

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"

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
    char *skills_root;       /* owned; NULL: not known */
    char **mount_roots;      /* owned */
    bool placed;             /* host_root is where its user keeps what is its own */
};

#define BOX_DEFAULT_ROOT "./data/box" /* of LangBot */

/* Where relative paths start: the directory that LangBot runs in. */
struct box_base {
    const char *dir; /* absolute; NULL: not known */
    const char *why; /* it is not, as half a sentence */
};

/* From the section `local`, NULL for the defaults. ERR_INVALID says what to set. */
int box_paths_parse(const struct json *local, const struct box_base *base, struct box_paths *ret,
                    struct err *err);
/* host_root as it is written, if that is relative; NULL: it is not. *ret is owned in any case. */
const char *box_paths_relative_root(const struct json *local, char **ret);
int box_paths_copy(const struct box_paths *p, struct box_paths *ret); /* 0 */
void box_paths_done(struct box_paths *p);
DEFINE_CLEANUP_DONE(box_paths)

/* Whether the default workspace has to be made. ERR_INVALID: it cannot be one. */
int box_paths_check_workspace(const struct box_paths *p, bool *ret_make, struct err *err);
/* Where the default workspace is, if sandboxes may be given parts of it; ERR_STATE. */
int box_paths_managed_place(const struct box_paths *p, const char **ret, struct err *err);
/* Whether such a path is, or lies below, one of the allowed roots. */
bool box_paths_allow(const struct box_paths *p, const char *path);
/* Whether an absolute path is, or lies below, the default workspace or the directory that all of
 * the host's is in: where directories that are asked for may be made. By its text, so links in it
 * are not looked at; the job that makes them does not follow any. */
bool box_paths_own(const struct box_paths *p, const char *path);
/* The directory of one workspace beneath it; owned. */
char *box_paths_tenant_dir(const struct box_paths *p, const char *ns);
