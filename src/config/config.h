/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What boxd was told: command line over environment over configuration file over defaults. */

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"

struct err;
struct policy;
struct policy_row;
struct token_file;
struct tokens_file;

/* For `--version`: "0.1.0+COMMIT", without "+COMMIT" where the build does not know it. */
extern const char config_version[];

struct config {
    char *state_dir;               /* owned; absolute */
    char *socket_path;             /* owned; absolute */
    char *host;                    /* owned; numeric address */
    uint64_t port;                 /* at most 65535; 0: no TCP listener */
    char *backend;                 /* owned */
    struct token_file *token_file; /* owned; NULL: none */
    char *engine_socket;           /* owned; of Docker or Podman, NULL: the usual places */
    char *engine_runtime;          /* owned; NULL: the engine's own choice */
    char *engine_tls_ca, *engine_tls_cert, *engine_tls_key; /* owned; PEM files, NULL: none */
    char **mount_roots;                   /* owned; real paths of directories that exist */
    bool mount_roots_builtin;             /* not configured: only what lies below may be mounted */
    char *allowed_users, *allowed_groups; /* owned; as given, NULL: none */
    char *socket_group;                   /* owned; "none": no group, NULL: not given */
    char *langbot_base;                   /* owned; absolute, NULL: not given */
    char **aliases;                       /* owned; "name=command" */
    bool strict_images, require_limits, stdio_control, legacy_protocol, image_pull;
    uint64_t max_sessions, session_ttl_sec, linger_sec;
    uint64_t max_kept, kept_disk_mb;                /* durable sessions */
    uint64_t max_processes, max_exited, exited_sec; /* managed processes; see session/manager.h */
    char *report_backend; /* owned; name of the backend on the LangBot wire, NULL: its own */
    char *log_level, *log_format, *access_log; /* owned; as in the table of settings */
    /* What a LangBot host says through the environment. */
    char *control_token;   /* owned; NULL: none */
    char *instance;        /* owned; the instance that is trusted, NULL: the first that connects */
    char *box_config;      /* owned; JSON, NULL: none */
    bool unsafe_storage;   /* soft storage limits count as enforced */
    struct policy *policy; /* owned */
    struct tokens_file *tokens;    /* owned; tokens with scopes, NULL: there are none */
    struct config_source *sources; /* owned */
    int ready_fd;                  /* owned; one byte is written when we serve, -1: none */
};

/* 0, or > 0 when --help or --version has been answered, or a negative errno. */
int config_load(int argc, char **argv, struct config **ret, struct err *err);
/* As a boxd that is started with `--config FILE` would read it; NULL: without a file. */
int config_load_file(const char *file, struct config **ret, struct err *err);
void config_free(struct config *c);
DEFINE_CLEANUP(config)

/* The i-th setting, those of the policy after our own, with its source; false: there is none. */
bool config_explain(const struct config *c, size_t i, struct policy_row *ret);

/* From here on the log, also that of programs we start, is as configured. */
void config_apply_log(const struct config *c);
/* Makes the state directory and that of the socket, parents included. */
int config_make_dirs(const struct config *c, struct err *err);
int config_make_path(const char *path, mode_t mode, struct err *err); /* like mkdir -p */
/* A helper program of ours: beside our own program in a build tree, in libexec when installed. */
int config_find_program(const char *name, char ret[static PATH_MAX], struct err *err);
bool config_host_is_loopback(const struct config *c);
bool config_needs_token(const struct config *c); /* TCP clients have to send one */
void config_say_ready(struct config *c);
