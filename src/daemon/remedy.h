/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What an operator can do about a boxd that does not start: the message names the setting and the
 * command. Each function takes an error that was filled already and returns its negative errno. */

#include <stdint.h>
#include <sys/types.h>

struct err;

/* boxd could not listen there. */
int remedy_port(int r, const char *host, uint64_t port, struct err *err);

/* boxd could not make or use a directory of its own; `setting` says which that is. */
int remedy_dir(int r, const char *dir, const char *setting, struct err *err);

/* The directory belongs to `owner`, and boxd will be `uid`. */
int remedy_owner(const char *dir, uid_t owner, uid_t uid, struct err *err);
