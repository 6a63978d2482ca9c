/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What has to be done inside before a server can start: its dependencies, and finding out that its
 * command is there at all. One shell script does both; it says on stdout what it found, and
 * whatever installers print goes to stderr. */

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct err;
struct mcp_fs;

#define MCP_STAGE "/home/box/.box-mcp/project" /* where a copy of the project is put */

/* What kind of project a directory of the host is. */
struct mcp_project {
    bool python_package; /* pyproject.toml, setup.py or setup.cfg */
    bool requirements;   /* requirements.txt, and none of these */
    bool node;           /* package.json without node_modules */
};

void mcp_project_look(const struct mcp_fs *fs, const char *host_path, struct mcp_project *ret);
/* Commands that install what they run themselves. */
bool mcp_command_installs(const char *command);

/* Of these, those that work inside the project: uv makes a virtual environment and a lock there. */
bool mcp_command_builds(const char *command);

struct mcp_prepare {
    struct mcp_project project;
    bool writable; /* the mount: nothing has to be copied */
    bool install;  /* else only the command is looked for */
    bool builds;   /* the command does, as mcp_command_builds() says */
};

/* Whether the server runs from the copy: node looks for its modules beside the program, and uv
 * writes into the project. */
bool mcp_prepare_stages(const struct mcp_prepare *p);
/* For `sh -c SCRIPT sh COMMAND VENV CHAIN`. CHAIN is a directory for the beginning of PATH, or "".
 * VENV is the virtual environment that the command was taken from, inside, or "": its packages
 * count where nothing is installed and the version is the same.
 */
int mcp_prepare_script(const struct mcp_prepare *p, struct buf *out);

#define MCP_PREPARE_MISSING 127 /* its exit status when there is no such command */

/* What it said. */
struct mcp_prepared {
    char *command;     /* owned; its full path */
    char *path;        /* owned; PATH of the server */
    char *python_path; /* owned; PYTHONPATH, or NULL */
};

int mcp_prepare_read(const char *text, struct mcp_prepared *ret, struct err *err);
void mcp_prepared_done(struct mcp_prepared *p);
