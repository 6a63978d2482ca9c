/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Directories of the host that are shared with a client, looked at the same way as skills: by a job
 * of box-fetch, in the same queue. Paths are absolute, clean and within the allow-list of boxd. */

#include "core/skills.h"

/* Makes the directory and what is missing above it, as the default workspace of LangBot (wire
 * document, 5.11). The answer is {}. */
int hostdir_ensure(struct skills *s, const char *path, skills_done_fn *done, void *arg,
                   struct err *err);

/* Reads a marker file that another program left in the directory, to see that both mean the same
 * one (3.8): {"marker_name", "sha256", "size"}. Every failure is a BoxReadinessError. */
int hostdir_verify_marker(struct skills *s, const char *path, const char *marker_name,
                          skills_done_fn *done, void *arg, struct err *err);
