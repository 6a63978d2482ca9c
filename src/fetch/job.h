/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One job of box-fetch, the program that meets what people have uploaded. Whoever starts it gives
 * it a directory as descriptor FETCH_DIR_FD and nothing else of the file system:
 *
 *   box-fetch [--make a/b/c] [--seconds N]
 *
 * It makes the directories a/b/c below that one where they are missing, gives up every right but
 * those to the last of them, and only then reads: one line of JSON from standard input,
 *
 *   {"op":"read_file","root":"/srv/skills","shared":false,"data":{...}}
 *
 * and whatever follows that line is the archive of the operations that take one. The answer is one
 * JSON object on standard output: {"data":{...}} or {"error":"...","class":null}. `root` is what
 * the directory is called in answers and messages; it is never opened. `class` names the kind of
 * the error where it is not the usual one of the operation. */

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct err;

#define FETCH_DIR_FD 3
#define FETCH_SECONDS 60U
#define FETCH_SECONDS_MAX 120U
#define FETCH_REQUEST_MAX (24U << 20)
#define FETCH_ANSWER_MAX (24U << 20)
#define FETCH_ZIP_MAX (20U << 20)

/* Opens the directory below `fd` that `make` names ("": itself), making what is missing of it; a
 * symbolic link is no directory. `fd` may be O_PATH. Returns a descriptor or a negative errno. */
int fetch_open_dir(int fd, const char *make, struct err *err);

/* Gives up everything but memory, the open descriptors and what lies below `dir_fd`: limits, no
 * capabilities, no_new_privs, Landlock, a system call filter without sockets and processes. For
 * good. Only -EOPNOTSUPP of Landlock is no error: kernels may lack it. */
int fetch_confine(int dir_fd, struct err *err);

struct fetch_input {
    const char *request; /* JSON; borrowed */
    size_t request_len;
    const char *zip; /* borrowed; NULL: none */
    size_t zip_len;
};

/* Does the job in the directory `root_fd` and writes the answer, whatever happens. */
void fetch_run(int root_fd, const struct fetch_input *in, struct buf *out);
