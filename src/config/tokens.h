/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The two files that hold tokens of TCP clients: token_file with one, tokens_file with several and
 * their scopes (policy/authz.h). boxd reads them again while it serves, so that a token can be
 * replaced or removed: an old one counts no more from then on. While a file is missing, cannot be
 * read or is wrong, none of its tokens counts. config/tokens.c says what that takes. */

#include "base/cleanup.h"

struct authz;
struct err;
struct token_file;
struct tokens_file;
struct authz_sessions;

/* Fails when there is no good token to begin with. */
int token_file_open(const char *path, struct token_file **ret, struct err *err);
void token_file_free(struct token_file *f);
DEFINE_CLEANUP(token_file)

/* NULL: none at the moment, or there is no file. */
const char *token_file_text(const struct token_file *f);
/* Looks again: 1 when the token is another one than before, or there is none any more; `err` then
 * says why. 0 otherwise. */
int token_file_check(struct token_file *f, struct err *err);

/* Fails when there is something wrong with it to begin with, such as a mode that lets others read
 * it. */
int tokens_file_open(const char *path, struct tokens_file **ret, struct err *err);
void tokens_file_free(struct tokens_file *f);
DEFINE_CLEANUP(tokens_file)

/* NULL: none at the moment, or there is no file. */
const struct authz *tokens_file_scopes(const struct tokens_file *f);
/* authz_set_sessions() for these scopes and for those that are read later; f NULL is fine. */
void tokens_file_set_sessions(struct tokens_file *f, const struct authz_sessions *sessions);
/* Looks again: 1 when it was read anew, or is good no more; `err` then says why. 0 otherwise. */
int tokens_file_check(struct tokens_file *f, struct err *err);
