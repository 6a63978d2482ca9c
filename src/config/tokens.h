/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The file of tokens with scopes (policy/authz.h), read again when it changes: a token that is not
 * in it any more counts no more from then on. While the file is missing, not to be read, open to
 * others or wrong in any line, none of its tokens counts. What that takes is in base/reread_file.h.
 */

#include "base/cleanup.h"

struct authz;
struct err;
struct tokens_file;

/* Fails when there is something wrong with it to begin with. */
int tokens_file_open(const char *path, struct tokens_file **ret, struct err *err);
void tokens_file_free(struct tokens_file *f);
DEFINE_CLEANUP(tokens_file)

const struct authz *tokens_file_scopes(const struct tokens_file *f); /* NULL: none at the moment */
/* Looks again: 1 when it was read anew, or is good no more; `err` then says why. 0 otherwise. */
int tokens_file_check(struct tokens_file *f, struct err *err);
