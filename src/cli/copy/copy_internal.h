/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of `box cp` share: single files, and trees of them. */

struct app;
struct buf;
struct err;

/* A path inside of a session. */
struct copy_place {
    const char *session, *path; /* borrowed */
};

/* cp.c. Both take fd. `local` is for messages. */
int copy_fd_in(struct app *app, int fd, const char *local, const struct copy_place *to,
               struct err *err);
int copy_fd_out(struct app *app, int fd, const char *local, const struct copy_place *from,
                struct err *err);
const char *copy_last_part(const char *path);
void copy_put_escaped(struct buf *out, const char *text);
/* The target of a request about a file: `what` is path, list or stat. */
void copy_put_target(struct buf *out, const char *session, const char *what, const char *path);

/* tree.c: with all it holds, as `docker cp` has it: into a directory that exists, or as one that
 * does not. An exit status, or a negative errno. */
int copy_tree_in(struct app *app, const char *local, const struct copy_place *to, struct err *err);
int copy_tree_out(struct app *app, const struct copy_place *from, const char *local,
                  struct err *err);
