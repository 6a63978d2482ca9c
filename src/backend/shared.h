/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the native backend and the engines decide and tell alike. */

#include <stdbool.h>
#include <stddef.h>

struct err;
struct jw;

bool backend_at_or_below(const char *path, const char *root);

/* Which of the roots (NULL, or ending with NULL) covers a path of the host; the longest wins, so
 * that an entry for one directory decides about it. `outer`: the roots themselves are not to be
 * mounted. ERR_DENIED says what to do; some places are refused whatever the roots are. */
int backend_find_root(char *const *roots, bool outer, const char *path, size_t *ret,
                      const char **ret_rest, struct err *err);

/* What /proc/PID/status says of a confined process, as members of a receipt. */
void backend_write_status(struct jw *w, const char *status);
