/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The protocol between boxd and a sandbox's PID 1 (box-init), over one SOCK_SEQPACKET connection.
 * It outlives boxd: a new boxd says HELLO with an epoch of its own. From then on PID 1 has
 * forgotten the execs of the earlier one, and reports the managed processes, which stay. Messages
 * that boxd reads before the answer with its own epoch were meant for an earlier boxd.
 *
 * PID 1 never waits for boxd. It keeps everything that it has to report as a state, never as a
 * queue: while no boxd reads, nothing grows.
 *
 * Fixed structures, native byte order: both sides come from one build and run on one machine; a
 * version mismatch is refused at HELLO. Nothing here ever comes from the program in the sandbox,
 * but boxd still treats every field as hostile, because PID 1 runs beside hostile code. */

#include "inside/wire.h"

#define INIT_WIRE_VERSION 6U
#define INIT_EXECS_MAX 64U /* running at once in one sandbox */
#define INIT_PROCS_MAX 32U /* managed processes that are known at once */
#define INIT_INLINE_MAX                                                                            \
    (64U * 1024U) /* strings in the datagram; longer ones travel in a sealed memfd */

/* Descriptors box-init finds at start, by number. */
enum init_fd {
    INIT_FD_CONTROL = 3,  /* our end of the SOCK_SEQPACKET pair that boxd talks to us by */
    INIT_FD_CONFIG = 4,   /* sealed memfd: struct init_config */
    INIT_FD_SECCOMP = 5,  /* sealed memfd: struct sock_filter[], SECCOMP_INIT */
    INIT_FD_LANDLOCK = 6, /* ruleset; /dev/null when the kernel has no Landlock */
    INIT_FD_CGROUP = 7,   /* this session's directory in the cgroup2 tree; /dev/null without one */
    INIT_FD_MEMCG1 = 8,   /* the same in a v1 memory hierarchy; /dev/null without one */
    INIT_FD_PARENT = 9,   /* pidfd of box-priv */
    INIT_FD_MAX,
};

enum init_cgroup_mode {
    INIT_CGROUP_NONE,   /* nothing delegated: trees are killed by walking the pid namespace */
    INIT_CGROUP_HYBRID, /* kill groups in cgroup2, memory in v1 */
    INIT_CGROUP_V2,     /* everything in cgroup2 */
};

/* What box-init finds at its start; INIT_WIRE_VERSION is how it speaks then. */
#define INIT_CONFIG_VERSION 5U

struct init_config {
    uint32_t version;
    uint32_t cgroup_mode;
    uint32_t payload_uid, payload_gid; /* inside the namespace */
    uint32_t switch_uid;               /* 0: PID 1 and the payload share one id (rootless) */
    uint32_t n_rlimits;
    struct inside_rlimit rlimits[INSIDE_RLIMITS_MAX];
    int32_t oom_score_adj;
    uint32_t landlock;   /* ABI in force, 0: none */
    char quota_path[64]; /* a place on the disk under quota, "" without one */
};

enum init_msg_type {
    INIT_MSG_HELLO = 1, /* both ways, first */
    INIT_MSG_EXEC,      /* boxd -> init: struct init_exec + strings */
    INIT_MSG_KILL,      /* boxd -> init: struct init_kill */
    INIT_MSG_STARTED,   /* init -> boxd: struct init_started + descriptors */
    INIT_MSG_EXITED,    /* init -> boxd: struct init_exited; the last word about an id */
    /* Managed processes; their ids are numbers of their own. */
    INIT_MSG_PROC,        /* boxd -> init: struct init_exec + strings */
    INIT_MSG_PROC_STATE,  /* init -> boxd: struct init_state + descriptors; after a start, and of
                             each after HELLO */
    INIT_MSG_PROC_END,    /* init -> boxd: struct init_number; these were all, after HELLO */
    INIT_MSG_PROC_OUTPUT, /* init -> boxd: struct init_number; boxd waits for it (ring.h) */
    INIT_MSG_PROC_EXITED, /* init -> boxd: struct init_exited; it is known until FORGET */
    INIT_MSG_PROC_ROOM,   /* boxd -> init: struct init_number; a ring that was full has room */
    INIT_MSG_PROC_STDIN,  /* boxd -> init: struct init_stdin */
    INIT_MSG_PROC_KILL,   /* boxd -> init: struct init_kill */
    INIT_MSG_PROC_FORGET, /* boxd -> init: struct init_number; what is left of it is killed */
    INIT_MSG_PROC_GONE,   /* init -> boxd: struct init_number; the answer, when nothing is left */
    /* Connections to servers inside; their ids are numbers of their own. */
    INIT_MSG_CONNECT,   /* boxd -> init: struct init_connect */
    INIT_MSG_CONNECTED, /* init -> boxd: struct init_connected + the socket; one for each CONNECT */
    INIT_MSG_LIST,      /* boxd -> init: struct init_list */
    INIT_MSG_LISTED,    /* init -> boxd: struct init_listed, as far as its rows go */
    INIT_MSG_END_LEFT,  /* boxd -> init: struct init_end_left */
};

struct init_hello {
    uint32_t type, version;
    uint64_t epoch;
};

struct init_number {
    uint32_t type;
    uint32_t id;
};

enum init_exec_flags {
    INIT_EXEC_STDIN = 1U << 0, /* give the program a stdin pipe; otherwise it reads /dev/null */
    INIT_EXEC_TTY = 1U << 1,   /* one pseudo-terminal for all three */
    INIT_EXEC_MEMFD =
        1U << 2, /* strings are in the descriptor that came along, not in the datagram */
    INIT_EXEC_SCRIPT = 1U << 3, /* argv is one shell command string of any size */
    INIT_EXEC_POSTURE =
        1U << 4, /* no program: the confined process prints its own /proc/self/status and ends */
    INIT_EXEC_BASH = 1U << 6, /* with INIT_EXEC_SCRIPT: for bash, or for sh where there is none */
    INIT_EXEC_PROGRAM = 1U << 5, /* the last descriptor that came along is executed, not argv[0] */
    INIT_EXEC_LOG = 1U << 7,     /* PROC: the ring is a log; only then STDIN and TTY are asked for,
                                    any other has a pipe as stdin */
};

/* Followed by strings_len bytes: argc + envc + 1 NUL-terminated strings (argv, environment, cwd).
 */
struct init_exec {
    uint32_t type;
    uint32_t id; /* never 0 */
    uint32_t flags;
    uint32_t argc, envc;
    uint32_t strings_len;
    uint64_t timeout_ns; /* 0: none. Enforced by PID 1, also while no boxd is there. */
    uint16_t rows, cols;
    uint32_t nproc;        /* RLIMIT_NPROC of the command; 0: as the session was made with */
    uint64_t memory_bytes; /* PROC: 0: what the session has */
    char label[INSIDE_LABEL_SIZE];
};

enum init_kill_scope { INIT_KILL_MAIN = 1, INIT_KILL_TREE };

struct init_kill {
    uint32_t type;
    uint32_t id;
    uint32_t scope;
    int32_t signo; /* ignored for INIT_KILL_TREE, which is SIGKILL */
};

/* Descriptors: with a terminal the master; else stdout, stderr and, with INIT_EXEC_STDIN, stdin. */
struct init_started {
    uint32_t type;
    uint32_t id;
};

struct init_exited {
    uint32_t type;
    uint32_t id;
    struct inside_exited end;
};

enum init_state_flags {
    INIT_STATE_EXITED = 1U << 0,      /* `exited` says how */
    INIT_STATE_MIDLINE = 1U << 1,     /* a write to stdin was not finished */
    INIT_STATE_MEMORY_OPEN = 1U << 2, /* its memory limit could not be set */
    INIT_STATE_LOG = 1U << 3,         /* the ring is a log */
};

/* Descriptors: the ring (ring.h) and, while stdin is open, its writing end, or the terminal's
 * master. */
struct init_state {
    uint32_t type;
    uint32_t id;
    uint32_t flags;
    uint32_t pad;
    uint64_t begin; /* what lies before was released */
    struct init_exited exited;
};

enum init_stdin_op {
    INIT_STDIN_WHOLE,   /* what was begun is written */
    INIT_STDIN_MIDLINE, /* a write begins that may be cut off */
    INIT_STDIN_CLOSE,
};

struct init_stdin {
    uint32_t type;
    uint32_t id;
    uint32_t op;
    uint32_t pad;
};

/* A TCP socket of the sandbox's own network that connects to its loopback address. */
struct init_connect {
    uint32_t type;
    uint32_t id;
    uint16_t port; /* never 0 */
    uint16_t ipv6; /* 1: ::1, 0: 127.0.0.1 */
    uint32_t pad;
};

/* Descriptor: the socket, non-blocking; it may still be connecting. None: `error` is the errno. */
struct init_connected {
    uint32_t type;
    uint32_t id;
    int32_t error;
    uint32_t pad;
};

/* The processes behind that number. An answer that boxd has no room for is not repeated. */
struct init_list {
    uint32_t type;
    uint32_t id;
    uint32_t after;
    uint32_t pad;
};

struct init_listed {
    uint32_t type;
    uint32_t id;
    int32_t error; /* an errno: they cannot be listed */
    uint32_t n;
    struct inside_process rows[INSIDE_LIST_MAX];
};

/* Kills what commands of that label have left, and nothing of one that still runs. */
struct init_end_left {
    uint32_t type;
    uint32_t pad;
    char label[INSIDE_LABEL_SIZE];
};
