/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The queue of jobs behind skills.h and hostdir.h. */

#include <stdbool.h>
#include <stddef.h>

#include "jobs/jobs.h"

struct buf;

/* What a kind of job is called, how long it may take, and what its failures are. */
struct job_kind {
    const char *op;          /* as fetch/job.h names it */
    const char *error_class; /* of its messages */
    bool key_errors;         /* a missing member of the request has a class of its own */
    bool create;             /* the directory is made where it is missing */
    unsigned seconds;
    /* What clients are told when the directory cannot be had, NULL: what went wrong. */
    const char *not_a_directory, *missing;
    /* Turns the data of an answer into what the caller gets; NULL: as it is. Negative: `ret` is a
     * message, without its class. */
    int (*translate)(const struct json *data, const char *note, struct buf *ret);
};

struct job_request {
    const struct job_kind *kind;
    const char *dir;  /* the directory that the job sees */
    const char *note; /* for translate(), NULL: none */
    bool shared;      /* see fetch/job.h */
    const struct json *data;
    int zip_fd; /* borrowed; -1: none */
    /* A directory that it may also read, and a file; NULL: neither. See fetch/launcher.h. */
    const char *source, *manifest;
};

int jobs_submit(struct jobs *s, const struct job_request *request, jobs_done_fn *done, void *arg,
                struct err *err);
