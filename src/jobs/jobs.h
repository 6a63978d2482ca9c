/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The queue of box-fetch jobs: the skill store (packages with a SKILL.md below one directory of the
 * host, per workspace), directories of the host that are shared with a client, and jobs of other
 * modules. boxd itself never touches these files: each call is one job, which runs as the owner of
 * its directory, sees nothing else, and meets what people have uploaded. Calls are answered in the
 * order they were made, one at a time. */

#include <stdbool.h>
#include <sys/types.h>

#include "base/cleanup.h"

struct buf;
struct err;
struct fetch_launcher;
struct json;
struct loop;
struct jobs;

#define SKILLS_QUEUE_MAX 256U

struct jobs_options {
    const char *program; /* path of box-fetch; borrowed, as are all of these */
    /* How a job is started; NULL: as a child of our own, with our own rights. */
    struct fetch_launcher *launcher;
    /* Without a launcher: directories that jobs may touch, NULL-terminated; NULL: all. */
    char *const *roots;
};

enum skills_op {
    SKILLS_LIST,
    SKILLS_GET,
    SKILLS_CREATE,
    SKILLS_UPDATE,
    SKILLS_DELETE,
    SKILLS_SCAN,
    SKILLS_LIST_FILES,
    SKILLS_READ_FILE,
    SKILLS_WRITE_FILE,
    SKILLS_PREVIEW_ZIP,
    SKILLS_INSTALL_ZIP,
    SKILLS_OP_MAX,
};

int jobs_new(struct loop *loop, const struct jobs_options *options, struct jobs **ret,
             struct err *err);
void jobs_free(struct jobs *s); /* no callback of a call that waits is called */
DEFINE_CLEANUP(jobs)

/* Absolute path of the store ("base" of the wire document, 8.1), clean and without symbolic links.
 * Jobs under way keep the old. NULL: it is not known, and calls are refused. */
void jobs_set_skills_root(struct jobs *s, const char *path);
/* Without a launcher: one more directory that jobs may touch. */
void jobs_add_place(struct jobs *s, const char *path);

/* The next call is made for a user who is not root: its directory has
 * to belong to that user. NULL: no such limit. */
void jobs_act_for(struct jobs *s, const uid_t *uid);

/* Why a job failed. */
struct job_failure {
    const char *class; /* that clients of LangBot know the error by: "BoxValidationError" */
    const char *text;  /* may be longer than struct err holds */
};

/* `data` is the answer, an object; NULL: `failure` says why there is none. Both are borrowed for
 * the call, which comes once, from the loop. */
typedef void jobs_done_fn(void *arg, const struct json *data, const struct job_failure *failure);

/* `workspace` is the namespace ("ws-<24 hex>") or NULL for the store's own root (first release).
 * `request` is the data of the action; copied. `zip_fd` is the uploaded archive, read from its
 * start, -1 for other calls; borrowed for the call. ERR_LIMIT when SKILLS_QUEUE_MAX calls wait;
 * ERR_STATE without a root. */
int jobs_skill(struct jobs *s, const char *workspace, enum skills_op op, const struct json *request,
               int zip_fd, jobs_done_fn *done, void *arg, struct err *err);

/* Directories of the host. Paths are absolute, clean and within the allow-list of boxd. */

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

/* A job of another module's own kind. */

/* What a kind of job is called, how long it may take, and what its failures are. */
struct job_kind {
    const char *op;          /* as fetch/job.h names it */
    const char *error_class; /* of its messages */
    bool key_errors;         /* a missing member of the request has a class of its own */
    bool create;             /* the directory is made where it is missing */
    unsigned seconds;
    /* The messages for clients when the directory cannot be had; NULL: those of the launcher. */
    const char *not_a_directory, *missing;
    /* Turns the data of an answer into what the caller gets, as JSON; NULL: as it is. Negative:
     * `ret` is the text of a failure. */
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
