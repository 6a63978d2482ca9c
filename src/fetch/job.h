/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* One job of box-fetch, the program that meets what people have uploaded. Its starter gives
 * it a directory as descriptor FETCH_DIR_FD and nothing else of the file system:
 *
 *   box-fetch [--make a/b/c] [--manifest NAME] [--seconds N]
 *
 * With --manifest there are two more: FETCH_SOURCE_FD, a directory that may be read, and
 * FETCH_MANIFEST_FD, the one that holds the file NAME.
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

#include <stddef.h>

struct buf;
struct err;

#define FETCH_DIR_FD 3
#define FETCH_SOURCE_FD 4
#define FETCH_MANIFEST_FD 5
#define FETCH_SECONDS 60U
#define FETCH_SECONDS_MAX 120U
#define FETCH_REQUEST_MAX (24U << 20)
#define FETCH_ANSWER_MAX (24U << 20)
#define FETCH_ZIP_MAX (20U << 20)

/* Opens the directory below `fd` that `make` names ("": itself), making what is missing of it; a
 * symbolic link is no directory. `fd` may be O_PATH. Returns a descriptor or a negative errno. */
int fetch_open_dir(int fd, const char *make, struct err *err);

/* What artifacts of a session are mounted from, in its directory. */
#define FETCH_ARTIFACTS_TREE "tree"
#define FETCH_ARTIFACTS_MAX (256U << 20) /* bytes of all artifacts of a session */

/* What is copied from elsewhere; both are borrowed. */
struct fetch_source {
    int dir_fd;      /* may be O_PATH */
    int manifest_fd; /* open for reading; may be of any type */
};

/* Gives up everything but memory, the open descriptors, what lies below `dir_fd` and, for reading,
 * what lies below that of `source` (NULL: none): limits, no capabilities, no_new_privs, Landlock, a
 * system call filter without sockets and processes. For good. Only -EOPNOTSUPP of Landlock is no
 * error: kernels may lack it. */
int fetch_confine(int dir_fd, const struct fetch_source *source, struct err *err);

struct fetch_input {
    const char *request; /* JSON; borrowed */
    size_t request_len;
    const char *zip; /* borrowed; NULL: none */
    size_t zip_len;
    const struct fetch_source *source; /* borrowed; NULL: none */
};

/* The answer that says no, instead of what is there; class NULL: the usual one. */
void fetch_write_error(const char *text, const char *class, struct buf *out);
/* Does the job in the directory `root_fd` and writes the answer, whatever happens. */
void fetch_run(int root_fd, const struct fetch_input *in, struct buf *out);
