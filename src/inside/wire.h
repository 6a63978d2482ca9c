/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the wires of box-init (init_wire.h) and of box-guest (guest_wire.h) have in common: resource
 * limits, the size of a request to start a program, and how a program ended. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INSIDE_STRINGS_MAX (16U << 20) /* argv + environment + cwd, all together */
#define INSIDE_RLIMITS_MAX 12U

struct inside_rlimit {
    uint32_t resource, pad;
    uint64_t soft, hard;
};

/* The numbers of a request: argc + envc + 1 strings (argv, environment, cwd) in strings_len bytes,
 * at least one of which is a program's name. child.c finds the strings themselves. */
static inline bool inside_start_fits(uint32_t argc, uint32_t envc, size_t strings_len)
{
    return strings_len > 0 && strings_len <= INSIDE_STRINGS_MAX && argc > 0 &&
           argc <= strings_len && envc <= strings_len;
}

/* A log: what a program wrote to both of its streams, in that order, as records of this head and
 * `len` bytes. The oldest records make place for new ones; nothing holds the program back. */
#define INSIDE_LOG_MAX 8192U /* bytes of one record */
struct inside_log {
    uint64_t time_ns; /* wall clock */
    uint32_t len;     /* never 0 */
    uint32_t stream;  /* 0: stdout, or the terminal; 1: stderr */
};

/* The size of the record that begins there, of which `left` bytes are there; 0: none is whole. */
static inline size_t inside_log_size(const struct inside_log *head, size_t left)
{
    bool sane = head->len > 0 && head->len <= INSIDE_LOG_MAX && head->stream <= 1;
    size_t size = sizeof(*head) + head->len;
    return sane && size <= left ? size : 0;
}

/* Of so many bytes of records, how many the oldest take that go so that no more than `most` stay.
 */
static inline size_t inside_log_excess(const char *data, size_t len, size_t most)
{
    size_t at = 0;
    while (len - at > most) {
        struct inside_log head = {0};
        if (len - at >= sizeof(head))
            memcpy(&head, data + at, sizeof(head));
        size_t size = inside_log_size(&head, len - at);
        at = size > 0 ? at + size : len;
    }
    return at;
}

enum inside_exited_flags {
    INSIDE_EXITED_TIMEOUT = 1U << 0,
    INSIDE_EXITED_OOM = 1U << 1,
    INSIDE_EXITED_KILLED = 1U << 2,    /* by a request of boxd to kill the whole tree */
    INSIDE_EXITED_DISK_FULL = 1U << 3, /* the session's quota has nothing left */
};

/* Why a program never ran; `error` is then the errno. */
enum inside_stage {
    INSIDE_STAGE_NONE,
    INSIDE_STAGE_LIMIT,   /* too many programs, or no process to be had */
    INSIDE_STAGE_REQUEST, /* malformed request */
    INSIDE_STAGE_CWD,     /* working directory */
    INSIDE_STAGE_CONFINE, /* a wall could not be put up: nothing was run */
    INSIDE_STAGE_EXEC,    /* execve */
};

struct inside_exited {
    uint32_t flags; /* enum inside_exited_flags */
    uint32_t stage; /* enum inside_stage */
    int32_t error;
    int32_t wait_status; /* as from waitpid(2), valid when stage is NONE */
    uint32_t remaining;  /* processes of this program that still run */
    uint32_t pad;
    uint64_t duration_ns, cpu_ns, max_rss_kb;
};

/* By this boxd and its clients know a command or a managed process; "": by none. The supervisor
 * keeps it for as long as anything of the tree runs, so that a later boxd finds it again. */
#define INSIDE_LABEL_SIZE 72U

#define INSIDE_COMMAND_SIZE 192U
#define INSIDE_LIST_MAX 128U /* processes in one answer; boxd asks for those behind the last */

enum inside_owner { INSIDE_OWNER_NONE, INSIDE_OWNER_EXEC, INSIDE_OWNER_PROC, INSIDE_OWNER_MAX };

/* A process inside, as /proc has it there. `command` is the process's own word. */
struct inside_process {
    uint32_t pid, parent, session;
    uint32_t owner; /* enum inside_owner: what started the tree that it belongs to */
    uint32_t left;  /* 1: the main process of that tree has ended */
    uint32_t state; /* a character of /proc */
    uint64_t user_ns, system_ns, age_ns, memory_bytes;
    char label[INSIDE_LABEL_SIZE];     /* of the owner */
    char command[INSIDE_COMMAND_SIZE]; /* arguments with blanks between them, or "[name]" */
};
