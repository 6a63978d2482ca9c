/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What of a program's last words is worth repeating. */

#include <stddef.h>

/* Where an installer begins to speak of its failure: behind what it downloaded and built before.
 * The beginning of the text when no line says so. */
const char *mcp_npm_failure(const char *text);

/* The last line that says something; of npm, which says it first, the first one. Returns its
 * length, 0 when there is none. */
size_t mcp_npm_last(const char *text, const char **ret);

/* The beginning of the last `lines` lines. */
const char *mcp_npm_tail(const char *text, unsigned lines);
