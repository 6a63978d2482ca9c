/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What keeps us from taking another program's directory for a state directory: what looks like ours
 * there is removed at start. */

struct err;

#define STATE_DIR_MARK "box-state"

/* Makes sure that `fd`, an open directory that messages call `path`, is for us alone. One that is
 * empty gets the mark; so does one that an earlier version, which knew no mark, has made. Any other
 * without the mark is ERR_INVALID, and nothing in it has changed. */
int state_dir_claim(int fd, const char *path, struct err *err);
