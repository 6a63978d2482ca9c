/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The file with the token of TCP clients. It is read again every second, so that a token can be
 * replaced while we serve: the old one counts no more from then on. While the file is missing, not
 * to be read, or holds no good token, nobody is let in. What that takes is in base/reread_file.h.
 */

#include "base/cleanup.h"

struct err;
struct token_file;

/* Fails when there is no good token to begin with. */
int token_file_open(const char *path, struct token_file **ret, struct err *err);
void token_file_free(struct token_file *f);
DEFINE_CLEANUP(token_file)

const char *token_file_text(const struct token_file *f); /* NULL: none at the moment */
/* Looks again: 1 when the token is another one than before, or there is one no more; `err` then
 * says why. 0 otherwise. */
int token_file_check(struct token_file *f, struct err *err);
