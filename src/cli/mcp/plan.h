/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The plan of `box mcp run`: from options, configuration files and variables to the session and the
 * process to ask for, with every path as it is called inside. */

#include <stdint.h>

#include "base/cleanup.h"
#include "cli/mcp/path.h"
#include "cli/mcp/status.h"

struct args;
struct buf;
struct err;
struct jw;

#define MCP_MOUNT "/workspace"
#define MCP_FILE_MAX (1 << 20) /* of a configuration file */

/* Zero and NULL stand for null: it is left to boxd. */
struct mcp_box {
    char *image;     /* owned */
    int network;     /* enum network; on unless told otherwise */
    char *host_path; /* owned; NULL: inferred */
    int host_path_mode;
    char **env; /* owned; of the session */
    int64_t startup_timeout_sec;
    double cpus;
    int64_t memory_mb, pids_limit;
    int read_only_rootfs;
};

/* A stdio server as clients' configuration files describe it: {"command", "args", "env"}, and how
 * it is boxed in a member "box" (MCPServerBoxConfig), which may be missing. */
struct mcp_server {
    char *command;      /* owned */
    char **args, **env; /* owned */
    struct mcp_box box;
};

/* What has to be done inside before a server can start: installing its dependencies, and finding
 * its command. One shell script does both; it says on stdout what it found, and what installers
 * print goes to stderr. */

#define MCP_STAGE "/home/box/.box-mcp/project" /* where a copy of the project is put */

/* What kind of project a directory of the host is. */
struct mcp_project {
    bool python_package; /* pyproject.toml, setup.py or setup.cfg */
    bool requirements;   /* requirements.txt, and none of these */
    bool node;           /* package.json without node_modules */
};

struct mcp_prepare {
    struct mcp_project project;
    bool writable; /* the mount: nothing has to be copied */
    bool install;  /* else only the command is looked for */
    bool builds;   /* the command does, as mcp_command_builds() says */
};

struct mcp_plan {
    struct mcp_server server; /* owned; as it was described */
    char *name;               /* owned; for messages and lists */
    struct mcp_roots roots;   /* owned; directories of the host to mount */
    struct mcp_roots chain;   /* owned; the command itself, when it is the user's own tool */
    char *chain_path;         /* owned; its directory on PATH inside; "": none */
    struct mcp_roots cache;   /* owned; what it has downloaded, for its next start */
    struct mcp_prepare prepare;
    char *command;      /* owned; as it is called inside */
    char **inside_args; /* owned */
    char *venv;         /* owned; inside, the one that the command came from; "": none */
    char *cwd;          /* owned */
    char session_id[40];
    struct mcp_retry retry;
};

/* mcp_plan_done() is due either way. */
int mcp_plan_make(const struct args *args, struct mcp_plan *p, struct err *err);
void mcp_plan_done(struct mcp_plan *p);
DEFINE_CLEANUP_DONE(mcp_plan)

/* A likely reason why nothing could be downloaded; static, or NULL. */
const char *mcp_plan_download_hint(const struct mcp_plan *p);

/* Replaces this process by the server, without a box: the server has every right that its user has,
 * which is what a box is there to prevent. Returns only on failure. */
int mcp_plan_run_on_host(const struct mcp_plan *p, struct err *err);

/* "NAME=value" into the vector; a later one of a name replaces an earlier one. The text may be a
 * secret: no message repeats it. */
int mcp_env_set(char ***env, const char *text, struct err *err);

/* payload.c: what boxd is asked for, and what the script that prepares a session says. */

/* Whether the server runs from the copy: node looks for its modules beside the program, and uv
 * writes into the project. */
bool mcp_prepare_stages(const struct mcp_prepare *p);

void mcp_write_session(struct jw *w, const struct mcp_plan *p, const struct args *args);
void mcp_write_process(struct jw *w, const char *process_id, const char *command, char *const *args,
                       char *const *env, const char *cwd);
/* The exec of `sh -c SCRIPT sh COMMAND VENV CHAIN`: the command, the virtual environment whose
 * packages count where nothing is installed and the version is the same, and the directory for the
 * beginning of PATH. */
int mcp_write_prepare(const struct mcp_plan *p, struct buf *out);

#define MCP_PREPARE_MISSING 127 /* its exit status when there is no such command */

/* What it said. */
struct mcp_prepared {
    char *command;     /* owned; its full path */
    char *path;        /* owned; PATH of the server */
    char *python_path; /* owned; PYTHONPATH, or NULL */
};

int mcp_prepare_read(const char *text, struct mcp_prepared *ret, struct err *err);
void mcp_prepared_done(struct mcp_prepared *p);
/* The environment of the process of a prepared server; owned. */
char **mcp_env_of_process(int network, const struct mcp_prepared *prepared, char *const *own);
