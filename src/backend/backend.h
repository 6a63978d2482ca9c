/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What every kind of sandbox can do. Sessions and fronts know only this. Calls never block;
 * completions come later, from the loop, exactly once. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "inside/usage.h"

struct backend;
struct err;
struct exec;
struct jw;
struct proc;
struct sandbox;
struct spec;

/* How an exec ended: exactly one of these. */
enum outcome_kind {
    OUTCOME_EXITED,
    OUTCOME_SIGNALED,
    OUTCOME_TIMED_OUT,
    OUTCOME_OOM_KILLED,
    OUTCOME_QUOTA_EXCEEDED, /* it failed and the session's disk is full, or was killed for it */
    OUTCOME_SESSION_LOST,   /* the sandbox went away underneath it */
    OUTCOME_KIND_MAX,
};

struct outcome {
    enum outcome_kind kind;
    int exit_code; /* EXITED and QUOTA_EXCEEDED; 126 and 127 with error[] set when the program never
                      ran */
    int signo;     /* SIGNALED */
    char error[200]; /* why the program never ran, "" when it did */
    uint64_t duration_ns, cpu_ns, max_rss_kb;
    uint32_t remaining; /* processes it left running */
    char left_as[65];   /* what they are known by: the label of the exec; "": it has none */
    bool unended;       /* it was to end and has not, or not all of it: its sandbox is removed */
};

const char *outcome_name(enum outcome_kind kind);

enum exec_stream { EXEC_STDOUT, EXEC_STDERR };

struct exec_request {
    char *const *argv; /* NULL: cmd is given to the shell */
    const char *cmd;
    bool bash;           /* that shell is bash, where the sandbox has it, and sh elsewhere */
    char *const *env;    /* on top of the sandbox's own */
    const char *cwd;     /* NULL: that of the spec */
    uint64_t timeout_ns; /* 0: none */
    bool with_stdin;     /* else it reads /dev/null */
    bool tty;
    bool posture; /* no program: the confined process reports what the kernel says about itself */
    /* No program of the session's, but box-files (inside/files/wire.h), confined like any other.
     * ERR_UNSUPPORTED where there are no files. */
    bool files;
    uint16_t rows, cols;
    const char *label; /* by which clients know it; NULL: by none */
};

/* The exec object lives until exec_free(), which may be called in any of these. */
struct exec_events {
    void (*output)(void *arg, enum exec_stream stream, const char *data, size_t len);
    void (*stdin_drained)(
        void *arg); /* optional: after exec_write() gave 1, it may be called again */
    void (*finished)(void *arg, const struct outcome *outcome);
};

/* A managed process: it belongs to the sandbox, not to the client that started it, and outlives
 * boxd. What it writes to stdout is kept by the sandbox in a bounded ring and read by byte offset;
 * a full ring holds the process back, nothing is lost. Of stderr the last bytes are kept. */
struct proc_request {
    uint32_t number;   /* chosen by the caller, never 0, never used twice in one sandbox */
    char *const *argv; /* never empty */
    char *const *env;  /* on top of the sandbox's own */
    const char *cwd;
    uint64_t memory_bytes; /* 0: what the session has */
    /* Both streams are kept as a log of records (inside/wire.h) in place of stdout: the oldest make
     * place for new ones, nothing holds the process back. */
    bool log;
    /* Of a log only; any other process has a pipe as stdin. Without either it reads /dev/null. */
    bool with_stdin, tty;
    uint16_t rows, cols;
};

struct proc_range {
    uint64_t begin, end; /* offsets of the first byte kept and behind the last */
    bool eof;            /* nothing follows `end` */
    bool behind;         /* what an earlier daemon has seen is still on its way to this one */
};

/* All from the loop. The object lives until proc_free(), which may be called in any of these. */
struct proc_events {
    void (*output)(void *arg); /* proc_range() has grown, or has come to its end */
    void (*stdin_drained)(void *arg);
    /* Exactly once, unless freed before: the main process is gone. Output may still follow. */
    void (*exited)(void *arg, const struct outcome *outcome);
};

typedef void backend_created_fn(void *arg, struct sandbox *sb,
                                const struct err *err);         /* sb NULL: err says why */
typedef void backend_done_fn(void *arg, const struct err *err); /* err NULL: done */
typedef void backend_text_fn(void *arg, const char *json, size_t len, const struct err *err);
/* A process in a sandbox, as the supervisor inside tells. */
enum backend_owner { BACKEND_OWNER_NONE, BACKEND_OWNER_EXEC, BACKEND_OWNER_PROC };
struct backend_process {
    uint32_t pid, parent;     /* inside */
    enum backend_owner owner; /* what started the tree that it belongs to */
    bool left;                /* the main process of that tree has ended */
    char label[72]; /* of an exec, "": none was given; or the number of a managed process */
    char state;     /* of /proc */
    uint64_t user_ns, system_ns, age_ns, memory_bytes;
    char command[192]; /* the process's own word: any bytes */
};
/* Borrowed, in the order of their numbers. `more`: there are more than can be told. */
typedef void backend_top_fn(void *arg, const struct backend_process *rows, size_t n, bool more,
                            const struct err *err);
/* `usage` NULL: it could not be found out. */
typedef void backend_usage_fn(void *arg, const struct inside_usage *usage);
/* A sandbox that runs, as its backend knows it. Everything is borrowed. */
struct backend_found {
    const char *backend; /* name of the one that has it */
    const char *name;    /* for adopt() */
    const char *id;      /* as sandbox_id() tells it; NULL: the name */
    char *const *labels; /* "name=value" */
    uint64_t created_ns; /* wall clock, by the backend */
};
typedef void backend_found_fn(void *arg, const struct backend_found *found);
/* `held` NULL: it could not be found out. */
struct backend_held;
typedef void backend_held_fn(void *arg, const struct backend_held *held);
/* `greedy` NULL: it could not be found out. */
struct backend_greedy;
typedef void backend_greedy_fn(void *arg, const struct backend_greedy *greedy);
/* The working directory of the process at the other end of a connection, or a directory below it.
 */
struct backend_place {
    int sock;         /* borrowed for the call */
    const char *rest; /* clean, below `base`; "": the working directory itself is asked for */
    const char *base; /* the working directory, where that is known already */
};
typedef void backend_place_fn(void *arg, const char *path, const struct err *err);
/* A connected stream socket, which is the callee's from then on; -1: err says why. */
typedef void backend_connected_fn(void *arg, int fd, const struct err *err);
/* Listening sockets, non-blocking, which the callee takes (set taken ones to -1); -1: there is
 * none. err set: there are none at all. */
typedef void backend_listening_fn(void *arg, int fds[2], const struct err *err);
typedef void backend_lost_fn(void *arg); /* the sandbox died by itself; destroy it all the same */

/* What a sandbox keeps on disks of the host. */
struct backend_held {
    uint64_t bytes, files;               /* without a name, by its processes */
    uint64_t stored_bytes, stored_files; /* in storage that has no limit by the kernel */
    bool idle;                           /* nothing runs in it: nothing was counted */
    bool incomplete;                     /* there is more than can be looked at */
    bool unknown;                        /* what is above could not be found out */
    uint64_t kernel_bytes; /* limit that the kernel enforces on its host directory; 0: none */
};

/* The most that a session may make the kernel hold of each kind below. */
#define BACKEND_GREEDY_BYTES (16ULL << 20)

/* The sandbox that makes the kernel hold most memory that is charged to no cgroup. */
struct backend_greedy {
    const char *name;       /* borrowed; sandbox_name(), or "": nothing runs in any */
    bool incomplete;        /* there is more than can be counted */
    uint64_t netlink_bytes; /* answers that wait in its netlink sockets */
    uint64_t lock_bytes;    /* record locks (fcntl) of its processes */
};

/* PID 1 of the sandbox enforces time-outs and carries out kills. When it does not report the end
 * within this time, boxd answers for it and gives the sandbox up. */
#define BACKEND_OVERDUE_NS (10ULL * 1000000000ULL)

/* The error for that, of a command or a process. */
int backend_unended(struct err *err, const char *what);

struct backend_ops {
    const char *name;
    bool own_images; /* an image's name is for it to judge; else there is none but the host's own */
    /* The spec is borrowed until `created` runs. `lost` may come any time after that. */
    int (*create)(struct backend *b, const struct spec *spec, backend_created_fn *created,
                  backend_lost_fn *lost, void *arg, struct err *err);
    /* Optional: the caller of create() with that arg does not want the sandbox any more. `created`
     * comes all the same: with an error once the creation is undone, or with the sandbox if it was
     * too late. */
    void (*abandon)(struct backend *b, void *arg);
    /* Ends every process; running execs finish as SESSION_LOST first. The sandbox is freed before
     * `done` runs. */
    void (*destroy)(struct sandbox *sb, backend_done_fn *done, void *arg);
    int (*exec)(struct sandbox *sb, const struct exec_request *req,
                const struct exec_events *events, void *arg, struct exec **ret, struct err *err);
    /* Bytes are taken whole or refused: -ENOBUFS while too much is waiting, -EPIPE once stdin is
     * closed. 1: taken, but the program does not keep up; wait for stdin_drained(). */
    int (*exec_write)(struct exec *e, const char *data, size_t len);
    void (*exec_close_stdin)(struct exec *e);
    void (*exec_signal)(struct exec *e, int signo);
    /* The whole tree. finished() comes when nothing of it runs any more, also where its output is
     * held back; or in time, with an outcome that says that it is `unended`. */
    void (*exec_kill)(struct exec *e);
    void (*exec_resize)(struct exec *e, uint16_t rows, uint16_t cols);
    void (*exec_pause)(struct exec *e,
                       bool paused);   /* stop reading its output: it will block, not lose */
    void (*exec_free)(struct exec *e); /* a running one goes on unobserved, its output drained */
    /* Name of the sandbox in the backend; durable, the same after adopt(). */
    const char *(*sandbox_name)(const struct sandbox *sb);
    /* Optional: what people know it by, such as a container's id, where that is another. */
    const char *(*sandbox_id)(const struct sandbox *sb);
    /* Optional: tells of each sandbox of this instance that runs and has labels of these names
     * (NULL-terminated, of static life), then that it is done. A backend without it keeps no
     * labels: the store's are all there are. */
    int (*list)(struct backend *b, const char *const *labels, backend_found_fn *each,
                backend_done_fn *done, void *arg, struct err *err);
    /* Takes over what an earlier daemon of this instance left running under that name, as if
     * create() had made it: ERR_NOT_FOUND, here or through `created`, when it is not alive any
     * more. Execs of the earlier daemon are ended; its managed processes can be had by proc_adopt()
     * from inside `created`, and those that are not taken there are ended. */
    int (*adopt)(struct backend *b, const char *name, const struct spec *spec,
                 backend_created_fn *created, backend_lost_fn *lost, void *arg, struct err *err);
    /* Ends whatever of this instance is alive or lies about and was neither made nor adopted by
     * this daemon. Never touches another instance. */
    int (*sweep)(struct backend *b, backend_done_fn *done, void *arg, struct err *err);
    /* Optional, all together: sandboxes whose spec says own.durable. stop() is as destroy(), but
     * what the sandbox has on disk stays under its name, and stays when it dies by itself or with
     * the host. start() is as create() for what has stayed; a failure leaves that as it is.
     * discard() removes it, and is fine where nothing has stayed. stored() tells how much of the
     * disk it takes, one at a time. */
    void (*stop)(struct sandbox *sb, backend_done_fn *done, void *arg);
    int (*start)(struct backend *b, const char *name, const struct spec *spec,
                 backend_created_fn *created, backend_lost_fn *lost, void *arg, struct err *err);
    int (*discard)(struct backend *b, const char *name, backend_done_fn *done, void *arg,
                   struct err *err);
    int (*stored)(struct backend *b, const char *name, backend_held_fn *done, void *arg,
                  struct err *err);
    /* Optional: freezes all processes of the sandbox, or lets them go on. No other operation but
     * stop() and destroy() is used on a frozen one. */
    int (*pause)(struct sandbox *sb, bool paused, backend_done_fn *done, void *arg,
                 struct err *err);
    /* Optional: gives the sandbox, frozen or not, the limits of the spec at once: memory,
     * processors and processes, all or none. ERR_STATE where it uses more memory already. Of the
     * rest of the spec nothing changes. */
    int (*update)(struct sandbox *sb, const struct spec *spec, backend_done_fn *done, void *arg,
                  struct err *err);
    /* When the sandbox is to end if no daemon is there to say otherwise: a time of CLOCK_BOOTTIME,
     * 0 for as long as the backend keeps any. Cheap, no answer. */
    void (*set_deadline)(struct sandbox *sb, uint64_t boot_ns);

    int (*proc_start)(struct sandbox *sb, const struct proc_request *req,
                      const struct proc_events *events, void *arg, struct proc **ret,
                      struct err *err);
    int (*proc_adopt)(struct sandbox *sb, uint32_t number, const struct proc_events *events,
                      void *arg, struct proc **ret, struct err *err); /* ERR_NOT_FOUND */
    struct proc_range (*proc_range)(const struct proc *p);
    /* Copies stdout from offset `from` on: bytes copied, 0 at the end, -ERANGE outside of the
     * range. */
    ssize_t (*proc_read)(struct proc *p, uint64_t from, char *buf, size_t size);
    void (*proc_release)(struct proc *p, uint64_t upto); /* what lies before is not needed again */
    size_t (*proc_stderr)(struct proc *p, char *buf, size_t size); /* the last `size` bytes */
    /* From offset *at on, or from the first byte that is still kept; moves *at behind what it
     * copied, and past what was lost. Nothing tells when there is more: look. */
    size_t (*proc_stderr_from)(struct proc *p, uint64_t *at, char *buf, size_t size);
    /* As exec_write(). What is given in one call reaches the program whole or, when the daemon
     * dies in the middle, is closed by a newline before anything else follows. */
    int (*proc_write)(struct proc *p, const char *data, size_t len);
    /* Bytes that proc_write() took and that would be lost if this daemon died now. */
    size_t (*proc_unwritten)(const struct proc *p);
    void (*proc_close_stdin)(struct proc *p);
    void (*proc_resize)(struct proc *p, uint16_t rows, uint16_t cols); /* its terminal, if any */
    void (*proc_signal)(struct proc *p, int signo);                    /* the main process */
    void (*proc_kill)(struct proc *p);                                 /* the whole tree */
    /* Kills the whole tree and says so when nothing of it runs any more; no other event comes after
     * the call. When it does not end in time `done` has an error, and the sandbox is lost.
     * Optional: where kills need no time. proc_free() is still owed, and calls `done` off. */
    void (*proc_end)(struct proc *p, backend_done_fn *done, void *arg);
    /* Forgets it; the whole tree of a running one is killed. */
    void (*proc_free)(struct proc *p);

    /* Optional. Connects to a server inside, by TCP to that port of the sandbox's own loopback
     * address, IPv4 first, whatever network the sandbox has. `done` comes in any case, also when
     * the sandbox ends meanwhile: ERR_UNAVAILABLE when no server listens, ERR_LIMIT when too many
     * are under way. What comes over the socket is as hostile as any output. */
    int (*connect)(struct sandbox *sb, uint16_t port, backend_connected_fn *done, void *arg,
                   struct err *err);

    /* Optional. Listens on that port of the sandbox's own loopback addresses (IPv4 and, if it has
     * it, IPv6), for programs inside. No program inside has the sockets, which are to be closed
     * before the sandbox ends. ERR_CONFLICT when one of them listens there. */
    int (*listen)(struct sandbox *sb, uint16_t port, backend_listening_fn *done, void *arg,
                  struct err *err);

    /* The processes inside. `done` comes in any case, also when the sandbox ends meanwhile. The
     * supervisor answers, which needs no process of the session's limit; what it says is as
     * hostile as any output: control characters are for the caller to escape. */
    int (*top)(struct sandbox *sb, backend_top_fn *done, void *arg, struct err *err);
    /* Ends what execs of that label have left that do not run any more, and says so when none of it
     * runs. ERR_NOT_FOUND: they have left nothing. */
    int (*end_left)(struct sandbox *sb, const char *label, backend_done_fn *done, void *arg,
                    struct err *err);

    /* Optional: what it uses, as the kernel counts; cheap enough to ask for each second. */
    int (*usage)(struct sandbox *sb, backend_usage_fn *done, void *arg, struct err *err);

    /* The limits and walls in force, read back from the kernel, as a JSON object. */
    int (*receipt)(struct sandbox *sb, backend_text_fn *done, void *arg, struct err *err);
    /* Optional: which files of the image the sandbox has changed, as a JSON object: changes, each
     * {kind: added, changed or deleted, path}, and whether they are truncated. Only where its root
     * is writable. */
    int (*diff)(struct sandbox *sb, backend_text_fn *done, void *arg, struct err *err);
    /* Optional: why a field of such a spec, one of backend_asked, is not enforced in its sandbox;
     * NULL: it is. Lives as long as the backend. */
    const char *(*unenforced)(const struct backend *b, const struct spec *spec, unsigned field);
    /* Optional. */
    int (*held)(struct sandbox *sb, backend_held_fn *done, void *arg, struct err *err);
    /* Optional. Answers for all sandboxes of the backend at once. */
    int (*greediest)(struct backend *b, backend_greedy_fn *done, void *arg, struct err *err);
    /* Optional. Without `rest`: tells where that process works, when we may not look ourselves.
     * With it: makes the directory where it is missing, and from now on what lies below may be
     * mounted. ERR_UNSUPPORTED: this one cannot; other errors say why not. 1: done, fn does not
     * come. */
    int (*place)(struct backend *b, const struct backend_place *want, backend_place_fn *fn,
                 void *arg, struct err *err);
    /* What this host can enforce, found out by trying: a JSON object with "checks", each {id,
     * status, detail, remedy}. */
    int (*doctor)(struct backend *b, backend_text_fn *done, void *arg, struct err *err);
    /* Ends every sandbox. Procs that were not freed go too; none of them may be used after. */
    void (*free)(struct backend *b);
    /* Optional: free() for a daemon that leaves everything running for the next one to adopt(). */
    void (*detach)(struct backend *b);
    /* Optional: whether it answers at all. Quick, and proves less than a sandbox does. */
    void (*ping)(struct backend *b, backend_done_fn *done, void *arg);

    /* Optional, all together: of one that stands for several (choice.h). */
    struct backend *(*find)(struct backend *b, const char *name); /* NULL: it has none such */
    /* From now on only that one is used for new sandboxes, "": any. False: it has none such. */
    bool (*limit)(struct backend *b, const char *name);
    /* Whether a sandbox can be had, as far as is known: 0, or ERR_UNAVAILABLE and why not. */
    int (*available)(const struct backend *b, struct err *err);
    /* Finds that out, unless it was found out just now. */
    void (*probe)(struct backend *b, backend_done_fn *done, void *arg);
    /* How a creation ended is told here (err NULL: well): it may be time to look again. */
    void (*note)(struct backend *b, const struct err *err);
};

struct backend {
    const struct backend_ops *ops;
};

/* The optional operations, with their results for a backend that has none of them. */
struct backend *backend_find(struct backend *b, const char *name);
bool backend_limit(struct backend *b, const char *name);
int backend_available(const struct backend *b, struct err *err);
void backend_note(struct backend *b, const struct err *err);

/* What callers ask for and a backend may not have, limits and an image: enum spec_field. */
#define BACKEND_ASKED 5
extern const unsigned backend_asked[BACKEND_ASKED];
const char *backend_unenforced(const struct backend *b, const struct spec *spec, unsigned field);
/* ERR_UNSUPPORTED when the backend does not enforce what the caller requires, or cannot let a
 * session reach services of the host. */
int backend_require(const struct backend *b, const struct spec *spec, struct err *err);

/* The quota of a host directory, for the receipt's limits: no file system of ours is around it, so
 * it is counted (command/quota.h), and `why` says what keeps the kernel from enforcing it. 0:
 * there is none, and nothing is written. */
uint64_t backend_counted_bytes(const struct spec *spec);
void backend_write_counted(struct jw *w, uint64_t bytes, const char *why);

/* Row F18: the first 16 hex digits of the SHA-256 of spec_config_text(), for labels. */
#define BACKEND_CONFIG_HASH_LEN 16
void backend_config_hash(const struct spec *spec, char ret[BACKEND_CONFIG_HASH_LEN + 1]);

/* Base of every backend's own sandbox. `backend` is the one whose operations work on it, which need
 * not be the one that was asked to make it (choice.h). */
struct sandbox {
    struct backend *backend; /* borrowed */
    bool paused;             /* adopt() has found it frozen, and has let it go on */
};

struct exec {
    struct backend *backend; /* borrowed */
};

struct proc {
    struct backend *backend; /* borrowed */
};
