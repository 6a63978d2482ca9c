/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What a caller wants of a session and of one command in it ("BoxSpec" on the LangBot wire). Pure
 * data: nothing here asks the system anything, so a path that passes is well formed, not allowed.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"

struct buf;
struct err;
struct json;
struct model;
struct report;

#define SPEC_DEFAULT_IMAGE "rockchin/langbot-sandbox:latest"
#define SPEC_DEFAULT_MOUNT "/workspace"

/* Caps on what a peer sizes. An environment and arguments within theirs fit one execve(2) under the
 * usual 8 MiB stack limit; a command is not an argument, it travels by descriptor. */
#define SPEC_CMD_MAX (8 << 20)
#define SPEC_ENV_ENTRIES_MAX 4096
#define SPEC_ENV_BYTES_MAX (1 << 20)
#define SPEC_ARGS_ENTRIES_MAX 4096
#define SPEC_ARGS_BYTES_MAX (512 << 10)
#define SPEC_PATH_MAX 4095
#define SPEC_ID_MAX 512
#define SPEC_IMAGE_MAX 1024
#define SPEC_DIGEST_MAX 128
#define SPEC_MOUNTS_MAX 256
#define SPEC_TIMEOUT_MAX 315360000 /* ten years */
#define SPEC_CPUS_MAX 8192
#define SPEC_SIZE_MB_MAX (1 << 30) /* one PiB, for memory and quotas */
#define SPEC_PIDS_MAX 4194304      /* the kernel's own PID_MAX_LIMIT */
#define SPEC_HOSTS_MAX 16          /* services of the host that a session may reach */
#define SPEC_HOST_TEXT_MAX 64      /* bytes of one of them, as text */

enum network { NETWORK_OFF, NETWORK_ON };
enum mount_mode { MOUNT_NONE, MOUNT_RO, MOUNT_RW }; /* MOUNT_NONE: nothing is mounted */

struct mount_spec {
    char *host_path;  /* owned; absolute as POSIX or Windows mean it */
    char *mount_path; /* owned; absolute, normalised */
    enum mount_mode mode;
    char *content_digest; /* owned or NULL; "sha256:" and 64 digits. What the caller says */
    char *manifest_path;  /* owned or NULL; absolute as host_path */
};

#define SPEC_ARTIFACTS "/opt/langbot-artifacts" /* where only content-addressed mounts may be */
/* Read-only, with a digest and a manifest, at the place that the digest names. */
bool mount_content_addressed(const struct mount_spec *m);

struct spec {
    char *cmd;     /* owned; may be empty: a session without a command */
    char *workdir; /* owned; absolute */
    int64_t timeout_sec;
    enum network network;
    char *session_id; /* owned; any text that is not blank, see spec_check_id() */
    char **env;       /* owned; "NAME=value", names differ */
    char *image;      /* owned; may be empty */
    char *host_path;  /* owned; NULL: no host directory */
    enum mount_mode host_path_mode;
    char *mount_path;                /* owned; absolute */
    struct mount_spec *extra_mounts; /* owned */
    size_t n_extra_mounts;
    char *skill_name; /* owned or NULL */
    bool persistent;
    double cpus;
    int64_t memory_mb;
    int64_t pids_limit;
    bool read_only_rootfs;
    int64_t workspace_quota_mb; /* 0: no quota */
    /* What the daemon itself says of a session. No caller can: these are no fields of the table. */
    struct {
        char **labels; /* owned; "name=value", metadata that lasts as long as the sandbox */
        char *owner;   /* owned; the token that is charged for it; NULL: none is */
        char *profile; /* owned; that it was made with; NULL: the configured one */
        char *place;   /* owned; directory that is the caller's own wherever it lies, NULL: none */
        bool bound;    /* mounts are only what the user `uid` could itself open */
        uid_t uid;
        uint64_t created_ns;     /* wall clock; 0: when it is made */
        uint64_t expires_ns;     /* wall clock; when it ends, used or not. 0: when it is idle */
        bool image_named;        /* the caller has chosen the image: no other will do */
        bool durable;            /* it stays until it is removed: what ends is its processes */
        uint64_t required;       /* set of FIELD_BIT(): limits that the caller gave, and that must
                                    be enforced */
        bool best_effort;        /* the caller takes a session without a limit that it asked for */
        bool env_locked;         /* commands and processes bring no environment of their own */
        char *artifacts;         /* owned; directory of the host that is mounted read-only at
                                    SPEC_ARTIFACTS; NULL: none */
        char **artifact_digests; /* owned; what was verified in there: "sha256:…" */
        char **allow_hosts;      /* owned; services it may reach, as host_service_write() has it */
    } own;
};

/* Positions in the table, which are the order of declaration and so of errors. */
enum spec_field {
    SPEC_CMD,
    SPEC_WORKDIR,
    SPEC_TIMEOUT_SEC,
    SPEC_NETWORK,
    SPEC_SESSION_ID,
    SPEC_ENV,
    SPEC_IMAGE,
    SPEC_HOST_PATH,
    SPEC_HOST_PATH_MODE,
    SPEC_MOUNT_PATH,
    SPEC_EXTRA_MOUNTS,
    SPEC_SKILL_NAME,
    SPEC_PERSISTENT,
    SPEC_CPUS,
    SPEC_MEMORY_MB,
    SPEC_PIDS_LIMIT,
    SPEC_READ_ONLY_ROOTFS,
    SPEC_WORKSPACE_QUOTA_MB,
    SPEC_FIELD_MAX,
};

/* Beside the fields of the table, in sets of FIELD_BIT(): own.allow_hosts. */
#define SPEC_ALLOW_HOSTS SPEC_FIELD_MAX
#define SPEC_ALLOW_HOSTS_NAME "allow_hosts"

extern const struct model spec_model;
extern const struct model mount_spec_model;
/* cpus, memory_mb and pids_limit of a spec alone: what can change while a session lives. */
extern const struct model spec_limits_model;

extern const char *const network_names[];    /* "off", "on", NULL */
extern const char *const mount_mode_names[]; /* "none", "ro", "rw", NULL */

struct spec *spec_new(void);    /* all defaults; session_id is NULL */
void spec_free(struct spec *s); /* NULL is fine */
DEFINE_CLEANUP(spec)

/* ERR_INVALID with the first issue in declaration order, worded as clients of the LangBot wire know
 * it. spec_parse_report() also tells all issues and where they are; its report is filled on failure
 * only. */
int spec_parse(const struct json *object, struct spec **ret, struct err *err);
int spec_parse_report(const struct json *object, struct spec **ret, struct report *report,
                      struct err *err);

/* The same where unknown members are errors, too, and those of the fields `gone`, a set of
 * FIELD_BIT(enum spec_field), are unknown. */
int spec_parse_closed(const struct json *object, uint64_t gone, struct spec **ret,
                      struct report *report, struct err *err);

/* For a spec built in C: the same trimming, defaults and rules, but errors in plain words. */
int spec_validate(struct spec *s, struct err *err);

/* For fronts that turn ids into names of files and in URLs (command line, HTTP): refuses, never
 * repairs. The LangBot wire takes any text and maps it elsewhere. */
int spec_check_id(const char *id, struct err *err);

/* Up to 64 characters, each a letter or digit of any script, '-' or '_'. */
bool skill_name_valid(const char *name);

/* A TCP service that a session reaches at a port of its own loopback address. */
struct host_service {
    char address[46]; /* numeric; an IPv4 address is never written as an IPv6 one */
    uint16_t port;
    uint16_t inside; /* the session's port */
    bool loopback;   /* the address is 127.0.0.0/8 or ::1 */
};
/* "ADDRESS:PORT" or "ADDRESS:PORT:INSIDE_PORT"; an IPv6 address stands in brackets, "localhost" is
 * 127.0.0.1. False: it is neither. */
bool host_service_parse(const char *text, struct host_service *ret);
/* The one spelling of it. Without `inside` the text says only which service it is. */
void host_service_write(const struct host_service *h, bool inside, char ret[SPEC_HOST_TEXT_MAX]);

/* Absolute as POSIX means it, or as Windows does ("C:\x", "\\server\share"). */
bool host_path_valid(const char *path);

/* What a sandbox was made from, as the JSON that Python's json.dumps(sort_keys=True) writes of
 * image, network, host_path, host_path_mode, cpus, memory_mb, pids_limit and read_only_rootfs: what
 * the hash in labels is over (row F18; backend_config_hash()). At most SPEC_CONFIG_TEXT_MAX bytes.
 */
#define SPEC_CONFIG_TEXT_MAX ((SPEC_PATH_MAX + SPEC_IMAGE_MAX) * 6U + 1024U) /* all escaped */
void spec_config_text(const struct spec *spec, struct buf *out);
