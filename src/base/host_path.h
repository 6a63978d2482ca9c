/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Paths of the host as text: their plain spelling, where their links lead, and which of them no
 * session may have. A check by name gives a better answer; box-priv resolves each path again, by
 * descriptor, before it mounts anything. */

#include <stdbool.h>
#include <stddef.h>

/* Whether a path is `root` or lies below it. Both are absolute and plain. */
bool path_at_or_below(const char *path, const char *root);

/* Which of the roots (NULL, or ending with NULL) covers a path; the longest wins, so that an entry
 * for one directory decides about it. With `outer` a root does not cover itself. *ret_rest is the
 * path below the root. All are absolute and plain. */
bool host_path_find_root(char *const *roots, bool outer, const char *path, size_t *ret,
                         const char **ret_rest);

/* Removes ".", ".." and empty components of an absolute path, in place; follows no link. */
void path_normalise(char *path);

/* An absolute path as realpath(3), for one whose end may not exist. Owned. */
char *path_real(const char *path);

/* Whether the path is, lies below, or lies above a directory where hosts keep secrets and control
 * sockets. `place` is a directory of the caller's own that may lie in root's home; NULL: none. */
bool host_path_blocked(const char *path, const char *place);
