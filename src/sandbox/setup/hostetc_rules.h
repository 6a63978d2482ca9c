/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Which files of the host's /etc no session sees, although every user of the host can read them.
 * The lists are in docs/reference/host-image.md; a test compares the two. */

#include <stdbool.h>
#include <stddef.h>

/* `path` is relative to /etc. What lies below a hidden directory is hidden with it, and is not
 * asked for. */
bool hostetc_hides(const char *path);

/* Whether a link at `path` may be shown: what it leads to lies in the host image. What it leads to
 * is never copied. */
bool hostetc_link_fits(const char *path, const char *target);

/* Whether the content of a file is a secret: a private key, a URL with a password or a token, a
 * setting that has one. */
bool hostetc_is_secret(const char *text, size_t len);
