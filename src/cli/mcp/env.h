/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The environment of an MCP server: reading it, and what installers get of it. */

#include <stddef.h>

struct err;

/* "NAME=value" into the vector; a later one of a name replaces an earlier one. The text may be a
 * secret: no message repeats it. */
int mcp_env_set(char ***env, const char *text, struct err *err);
/* A name alone: its value is that of `getenv`; where there is none nothing is set. */
int mcp_env_pass(char ***env, const char *name, struct err *err);
/* Lines of NAME=value. Blank lines and those that begin with # are left out, so is "export ";
 * quotes around a value are taken off. Says the number of a line that is wrong. */
int mcp_env_read(char ***env, const char *text, size_t len, struct err *err);
/* What installers read (proxies, indexes, registries, certificates), for the step that installs. */
char **mcp_env_for_install(char *const *env);
/* What a box says to installers of its own accord, before anybody else does; `network` is an enum
 * network. Without one they need not try. */
char **mcp_env_defaults(int network);
/* Takes `env`, and gives it back with `more` set over it. */
char **mcp_env_with(char **env, char *const *more);
