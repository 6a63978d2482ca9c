/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The skill store: packages with a SKILL.md below one directory of the host, per workspace. boxd
 * itself never touches these files: each call is one job of box-fetch, which runs as the owner of
 * the store, sees nothing but the store, and meets what people have uploaded. Calls are answered in
 * the order they were made, one at a time. */

#include <stddef.h>
#include <sys/types.h>

#include "base/cleanup.h"

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
void jobs_free(struct jobs *s); /* who still waits is not told */
DEFINE_CLEANUP(jobs)

/* Absolute path of the store ("base" of the wire document, 8.1), clean and without symbolic links.
 * Jobs under way keep the old. NULL: nobody knows where it is, and calls are refused. */
void jobs_set_skills_root(struct jobs *s, const char *path);
/* Without a launcher: one more directory that jobs may touch. */
void jobs_add_place(struct jobs *s, const char *path);

/* The next call, of these and of hostdir.h, is made for a user who is not root: its directory has
 * to belong to that user. NULL: for somebody who may do all. */
void jobs_act_for(struct jobs *s, const uid_t *uid);

/* `json` is the data of the answer, an object. On failure it is NULL and `message` the whole text
 * for the wire, its class included ("BoxValidationError: Skill name is required"), which may be
 * longer than struct err holds. Called once, from the loop. */
typedef void jobs_done_fn(void *arg, const char *json, size_t len, const char *message);

/* `workspace` is the namespace ("ws-<24 hex>") or NULL for the store's own root (first release).
 * `request` is the data of the action; copied. `zip_fd` is the uploaded archive, read from its
 * start, -1 for other calls; borrowed for the call. ERR_LIMIT when SKILLS_QUEUE_MAX calls wait;
 * ERR_STATE without a root. */
int jobs_skill(struct jobs *s, const char *workspace, enum skills_op op, const struct json *request,
               int zip_fd, jobs_done_fn *done, void *arg, struct err *err);
