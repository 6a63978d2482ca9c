/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Directories of the host that are shared with a client, looked at the same way as skills: by a job
 * of box-fetch, in the same queue. Paths are absolute, clean and within the allow-list of boxd. */

#include "jobs/jobs.h"

/* Makes the directory and what is missing above it, as the default workspace of LangBot (wire
 * document, 5.11). The answer is {}. */
int hostdir_ensure(struct jobs *s, const char *path, jobs_done_fn *done, void *arg,
                   struct err *err);

/* How much lies in the directory, and in each of the `parts` (names in it, NULL-terminated):
 * {"": {"exists", "size_bytes", "disk_bytes" (path_cost()), "file_count", "error_count"},
 * "<part>": {…}}. Bounded in entries and time; what was left out counts as an error. The message
 * for a directory that is not there ends in HOSTDIR_MISSING. */
#define HOSTDIR_MISSING "no such directory"
int hostdir_measure(struct jobs *s, const char *path, const char *const *parts, jobs_done_fn *done,
                    void *arg, struct err *err);

/* Reads a marker file that another program left in the directory, to see that both mean the same
 * one (3.8): {"marker_name", "sha256", "size"}. Every failure is a BoxReadinessError. */
int hostdir_verify_marker(struct jobs *s, const char *path, const char *marker_name,
                          jobs_done_fn *done, void *arg, struct err *err);
