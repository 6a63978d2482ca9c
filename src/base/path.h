/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Every path another party names is resolved here, beneath a descriptor, by the kernel. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct err;
struct stat;

/* openat2 with RESOLVE_BENEATH | NO_SYMLINKS | NO_MAGICLINKS | NO_XDEV. `path` is relative ("" or
 * "." is the directory itself). Returns a descriptor (O_CLOEXEC) or a negative errno; -ENOSYS where
 * the kernel lacks openat2. */
int path_open_beneath(int dirfd, const char *path, int flags, mode_t mode);

/* The same beneath an allowed directory, along a clean relative path, as O_PATH (with
 * `flags`: 0 or O_DIRECTORY). What is mounted there is part of it when it is storage of its own: a
 * volume, a tmpfs. -EXDEV for other mounts: of the kernel's own file systems and FUSE, and of
 * directories that lie elsewhere on the same file system or on that of the host itself. */
int path_open_storage(int dirfd, const char *path, int flags);

/* An absolute path of the host without a link at any depth; mounts are fine. As
 * above otherwise. */
int path_open_unlinked(const char *path, int flags);

/* Walks from `dirfd` (O_PATH is enough) along a clean relative path to the deepest directory that
 * is there, one component at a time under the rules of path_open_storage(). Returns it as O_PATH;
 * *ret_missing points at what is left of the path, "" when all of it is there. -ENOTDIR when
 * something else stands in the way. */
int path_open_deepest(int dirfd, const char *path, const char **ret_missing);

/* The same walk, which makes each directory that is missing, 0755 less the umask. Returns the last
 * one as O_PATH. */
int path_make_beneath(int dirfd, const char *path);

/* Says what such a walk to a directory has failed at (`error` is negative), and returns that. */
int path_dir_error(int error, const char *path, struct err *err);

/* Absolute, no "." or ".." component, no empty component, no trailing slash (except "/"), at most
 * 4095 bytes. */
bool path_is_clean_absolute(const char *path);

/* Removes everything below and including `name` in dirfd, iteratively, without following links,
 * whatever its depth, with a fixed number of descriptors. Missing is fine. Directories without
 * permission are chmod-ed first. Never enters what is mounted there: -EBUSY, with the rest removed.
 * Entries may be swapped meanwhile; a program that keeps adding some can keep us busy. */
int path_remove_tree_at(int dirfd, const char *name);

/* What a file counts against a limit: its size, or the blocks it has where they are more
 * than rounding explains (preallocated beyond its end). A sparse file costs its size, as it may be
 * filled. */
uint64_t path_cost(const struct stat *st);

/* mkdirat that accepts an existing directory (not a symlink) and opens it. */
int path_make_dir_at(int dirfd, const char *name, mode_t mode);
