/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The protocol between boxd and the supervisor inside a container (box-guest).
 *
 * box-guest is the container's own program, bind-mounted read-only. It connects to a socket that
 * boxd listens on in a directory of the session's own, and connects again when that connection
 * ends: a new boxd finds its processes where the old one left them.
 *
 * Frames over any byte stream: a head, then `len` bytes. Native byte order: both sides come from
 * one build and run on one machine; a version that differs is refused at HELLO. boxd treats every
 * field as hostile, because box-guest runs under the same user id as the programs it starts. */

#include "inside/usage.h"
#include "inside/wire.h"

#define GUEST_WIRE_VERSION 6U
#define GUEST_PROGRAM "/.box/guest"
#define GUEST_FILES "files" /* its argument when it is to be box-files (inside/files/wire.h) */
#define GUEST_DIR "/.box/run"
#define GUEST_SOCKET_NAME "s"
#define GUEST_HOST_NAME "h%u" /* of the port */

#define GUEST_CELLS_MAX 64U             /* execs and managed processes at once */
#define GUEST_FRAME_MAX (17U << 20)     /* boxd -> guest */
#define GUEST_ANSWER_MAX (128U * 1024U) /* guest -> boxd */
#define GUEST_DATA_MAX (32U * 1024U)    /* bytes of a stream in one frame */
#define GUEST_WINDOW (256U * 1024U)     /* bytes of one stream under way, either direction */
#define GUEST_RING (1024U * 1024U)      /* stdout of a managed process that is kept for boxd */
#define GUEST_STDERR_KEPT (64U * 1024U)
#define GUEST_CONNS_MAX                                                                            \
    64U /* connections of boxd to servers inside, and of programs to the host                      \
         */
#define GUEST_HOST_CONNS_MAX 32U /* of these, those of programs to the host */
#define GUEST_LISTENS_MAX 16U
#define GUEST_SECRET_LEN 16U
#define GUEST_CHECKS_MAX 260U      /* mounts whose identity is reported */
#define GUEST_PROC_BIT 0x80000000U /* in an id: a managed process, by its number */

struct guest_head {
    uint32_t type;
    uint32_t id;    /* of the exec or process it is about, 0: neither */
    uint32_t flags; /* by type */
    uint32_t len;
};

enum guest_type {
    /* boxd -> guest */
    GUEST_HELLO = 1, /* struct guest_hello, filter, paths to check; first on each connection */
    GUEST_START,     /* struct guest_start, strings; flags: enum guest_start_flags */
    GUEST_INPUT,     /* bytes for stdin; flags: enum guest_input_flags */
    GUEST_CREDIT,    /* uint64_t: bytes of output consumed; flags: stream. Of execs and of logs */
    GUEST_SIGNAL,    /* to the main process; flags: signal number */
    GUEST_KILL,      /* the whole tree */
    GUEST_RESIZE,    /* flags: rows << 16 | columns */
    GUEST_ATTACH,    /* a managed process: send its output from where it begins */
    GUEST_RELEASE,   /* uint64_t: what lies before this offset is not needed again */
    GUEST_FORGET,    /* a managed process: end it, drop everything; answered with GONE */
    GUEST_DEADLINE,  /* uint64_t: nanoseconds from now until all ends if no boxd is there then; 0:
                        after linger_ns */
    GUEST_CONNECT,   /* struct guest_connect: to a server inside; ids are numbers of their own */
    GUEST_LISTEN,    /* struct guest_connect: for programs inside, see there; ids as of CONNECT */
    GUEST_LIST,      /* processes; flags: those behind that number; ids are numbers of their own */
    GUEST_USAGE,     /* what the container uses; ids as those of GUEST_LIST */
    GUEST_END_LEFT,  /* a label: kills what commands of it have left, and none that still runs */
    /* guest -> boxd */
    GUEST_WELCOME = 32, /* struct guest_welcome, struct guest_check[], struct guest_proc[] */
    GUEST_OUTPUT,       /* bytes; flags: stream. Of a process: struct guest_at first */
    GUEST_END,          /* a stream has ended; flags: stream */
    GUEST_DRAINED,      /* uint64_t: bytes of stdin that the program was given */
    GUEST_EXITED,       /* struct inside_exited */
    GUEST_GONE,         /* nothing of what was to be forgotten runs any more */
    GUEST_REFUSED,      /* there is no connection of that id, or no listener; flags: errno */
    GUEST_LISTENING,    /* the listener of that id is there */
    GUEST_USED,         /* struct inside_usage */
    GUEST_LISTED,       /* struct inside_process[]; flags: an errno, they cannot be listed */
};

struct guest_hello {
    uint32_t version;
    uint32_t filter_len; /* bytes of struct sock_filter[] that follow */
    uint32_t n_checks;   /* NUL-terminated paths behind the filter */
    uint32_t n_rlimits;
    /* Processes that the user id may have; 0: the user id is not the session's own, so they cannot
     * be counted. `processes` is the same for a
     * kernel that has no others, whatever the user id. */
    uint32_t nproc, processes;
    uint64_t linger_ns; /* how long all goes on without a boxd */
    struct inside_rlimit rlimits[INSIDE_RLIMITS_MAX];
    char quota_path[64]; /* a place on a disk of limited size, "" without one */
};

enum guest_start_flags {
    GUEST_START_STDIN = 1U << 0, /* a pipe; otherwise it reads /dev/null */
    GUEST_START_TTY = 1U << 1,
    GUEST_START_SCRIPT = 1U << 2,  /* argv is one shell command string of any size */
    GUEST_START_POSTURE = 1U << 3, /* no program: the confined process tells about itself */
    GUEST_START_PROC = 1U << 4,    /* a managed process */
    GUEST_START_BASH =
        1U << 5, /* with GUEST_START_SCRIPT: for bash, or for sh where there is none */
    GUEST_START_LOG = 1U << 6, /* the same: its output is a log (inside/wire.h) */
};

/* Followed by argc + envc + 1 NUL-terminated strings: argv, environment on top of the image's, cwd.
 */
struct guest_start {
    uint32_t argc, envc;
    uint64_t timeout_ns; /* 0: none. Enforced in the container, also while no boxd is there. */
    /* 0: what the container has. Of all processes of the tree together, their own and shared
     * memory. No cgroup can be made inside a container, so box-guest looks ten times a second and
     * ends the tree; what it takes in between is bounded by the container's own limit. */
    uint64_t memory_bytes;
    uint16_t rows, cols;
    uint32_t pad;
    char label[INSIDE_LABEL_SIZE];
};

enum guest_input_flags {
    GUEST_INPUT_CLOSE = 1U << 0,
    GUEST_INPUT_PART = 1U << 1, /* more of the same call follows */
};

struct guest_check {
    uint64_t dev, ino;
    uint32_t mode; /* 0: it could not be looked at */
    uint32_t mount_flags;
    uint32_t uid, gid;
    uint64_t size;
    int64_t mtime_ns, ctime_ns;
};

enum guest_proc_flags { GUEST_PROC_EXITED = 1U << 0, GUEST_PROC_LOG = 1U << 1 };

struct guest_proc {
    uint32_t number, flags;
    uint64_t begin, end;
};

enum guest_welcome_flags {
    /* The kernel is gVisor's: it invents devices and inodes, so `dev` and `ino` mean nothing. */
    GUEST_WELCOME_GVISOR = 1U << 0,
};

struct guest_welcome {
    uint32_t version, pid;
    uint32_t n_checks, n_procs;
    uint32_t uid, gid;
    uint32_t flags, pad;
};

struct guest_at {
    uint64_t offset;
};

/* CONNECT: box-guest connects to the port of the loopback address, then once more to boxd's socket,
 * where it sends the secret first. What follows are the bytes of the connection, both ways.
 * LISTEN: box-guest listens on that port, and connects each client to the socket of GUEST_HOST_NAME
 * beside boxd's, which leads to a service of the host. No secret is needed: a program that connects
 * there itself reaches the same service. */
struct guest_connect {
    unsigned char secret[GUEST_SECRET_LEN];
    uint16_t port; /* never 0 */
    uint16_t pad[3];
};
