/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Jobs of box-fetch that box-priv starts for boxd, because the directory belongs to somebody else.
 * box-priv reads nothing of what they are told or say. */

#include <stddef.h>
#include <stdint.h>

struct err;
struct launch_host;
struct priv_job;

#define PRIV_JOBS_MAX 8U /* at a time; boxd has one */
#define PRIV_JOB_FDS 3U  /* pidfd, and our ends of standard input and output */

struct priv_jobs {
    int pidfds[PRIV_JOBS_MAX]; /* owned; -1: none */
};

void priv_jobs_init(struct priv_jobs *jobs);
void priv_jobs_done(struct priv_jobs *jobs); /* kills them; whoever reaps children reaps them */

/* Starts a job as the owner of the deepest directory of the request's path that is there. The
 * request is a struct priv_job, priv_job_as or priv_copy; its type says which. The descriptors are
 * the caller's. */
int priv_job_start(struct priv_jobs *jobs, const struct launch_host *h, const struct priv_job *m,
                   size_t len, int ret_fds[static PRIV_JOB_FDS], struct err *err);
