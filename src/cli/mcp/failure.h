/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Why a server died, from what it wrote to standard error: the line that names the failure, and the
 * option of `box mcp run` that allows what the box has refused. */

#include <stdbool.h>
#include <stddef.h>

struct mcp_plan;
struct spec;

#define MCP_FAILURE_MAX 360U /* bytes that are shown */

/* The line that says what went wrong, with up to three that belong to it, as one line; owned, ""
 * where nothing was said. Of a Python traceback it is the exception (of a group the innermost), of
 * node, Java, Go and Rust the error above the stack, of npm its first line, else the last line that
 * speaks of an error, else the last that says anything. */
char *mcp_failure_text(const char *said);

/* What may help: a file that cannot be written, a port of the box's own loopback, a network that is
 * off, a path of this host among those that the user gave to the server; owned, NULL: nothing is
 * known. `said` may also be the text of a tool's answer. Nothing is looked up on this host because
 * a server has named it. `spec` has the mounts of the command line. */
char *mcp_failure_hint(const char *said, const struct mcp_plan *plan, const struct spec *spec);

/* For a path that the client or the user has named: what it is called in the box, or how it gets
 * there; owned, NULL: it is there, or is nowhere. */
char *mcp_path_hint(const char *path, const struct mcp_plan *plan, const struct spec *spec);
