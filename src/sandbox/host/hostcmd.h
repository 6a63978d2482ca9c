/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Runs another program of the host (mkfs.ext4, nft, slirp4netns). The program is looked up in the
 * fixed system directories, never in $PATH; it gets a fresh environment, default signals, and no
 * descriptor but those named. */

#include <stddef.h>
#include <sys/types.h>

struct err;

#define HOSTCMD_FDS_MAX 8

struct hostcmd {
    pid_t pid; /* 0: none */
    int pidfd; /* owned */
};

/* The path of a program of the host. 0, or ERR_UNSUPPORTED when it is not installed. */
int hostcmd_find(const char *name, char *ret, size_t size, struct err *err);

/* Starts argv (NULL-terminated). fds[i] (borrowed) becomes descriptor i of the child; -1, and
 * every standard descriptor past the end of fds, is /dev/null. The caller owns *ret and must reap
 * it: hostcmd_kill(). */
int hostcmd_start(const char *const argv[], const int *fds, size_t n_fds, struct hostcmd *ret,
                  struct err *err);

/* Runs argv with `stdin_fd` as standard input (-1: /dev/null) to its end. Fails when the program
 * cannot be started, does not exit with 0 (the error carries the start of what it wrote to standard
 * error), or is not done after timeout_ms: then it is killed. */
int hostcmd_wait(const char *const argv[], int stdin_fd, unsigned timeout_ms, struct err *err);

/* The same with more to say: standard output goes to out_fd (borrowed, -1: /dev/null), and every
 * exit status up to max_status is good and returned. */
struct hostcmd_opts {
    int stdin_fd;
    int stdout_fd;
    unsigned timeout_ms;
    int max_status;
};
int hostcmd_wait_opts(const char *const argv[], const struct hostcmd_opts *opts, struct err *err);

/* Kills with SIGKILL if still alive, reaps, closes. Fine on a zeroed or finished one. */
void hostcmd_kill(struct hostcmd *p);
