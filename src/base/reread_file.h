/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A file that is read again while we serve, by a daemon that has less rights than it had when it
 * started. The file is kept open: one that only root may read can be written anew in its place also
 * when we are root no more. One that is put in its place by rename must be readable by the user we
 * are. */

#include "base/cleanup.h"

struct err;

struct reread_file {
    char *path;       /* owned */
    const char *what; /* its setting, for messages; static */
    int fd;           /* owned, -1: not open, or it was no file and is not looked at again */
};

/* Opens it for the first time, whatever it is. */
int reread_file_open(struct reread_file *f, const char *path, const char *what, struct err *err);
/* Has `fd` be what stands at the path now, at its beginning. Where we may not look at the path any
 * more, a file that was replaced is known by having no name left. */
int reread_file_again(struct reread_file *f, struct err *err);
/* A pipe that somebody filled for us has said all it has to say: closed, unless it is a file. */
void reread_file_settle(struct reread_file *f);
void reread_file_done(struct reread_file *f);
