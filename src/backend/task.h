/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Commands and managed processes, as far as they are alike in every backend: the queue of their
 * stdin, the copy of their output, what their users are told and when, and when they can be freed.
 * A backend supplies the transport; tasks_operations() gives it all operations on them. */

#include "backend/backend.h"
#include "base/buf.h"
#include "base/list.h"
#include "loop/loop.h"

struct inside_process;
struct task;
struct tasks;

/*   RUNNING ──► EXITED ──► TOLD   */
enum task_state {
    TASK_RUNNING,
    TASK_EXITED, /* the main process is gone, or never was */
    TASK_TOLD,   /* and its user has heard how */
    TASK_STATE_MAX,
};

/*   UNTAKEN ──► TAKEN ──► ENDING ──► FREED; each can go to FREED at once.   */
enum task_user {
    TASK_UNTAKEN, /* a process that an earlier daemon left: proc_adopt() may come */
    TASK_TAKEN,
    TASK_ENDING, /* its user wants to hear of its end, and of nothing else */
    TASK_FREED,  /* its user is gone: output that still comes is read and dropped */
    TASK_USER_MAX,
};

/*   OPEN ──► CLOSING ──► CLOSED   */
enum task_stdin {
    TASK_STDIN_OPEN,
    TASK_STDIN_CLOSING, /* once everything is written */
    TASK_STDIN_CLOSED,
    TASK_STDIN_MAX,
};

/* How the tasks of one sandbox come to be, and what they do to it. */
struct tasks_ops {
    unsigned execs_max;
    bool (*ready)(const struct tasks *home); /* commands can be started */
    /* Ask the sandbox for a command or a process. The result is allocated and has its `ops` and its
     * `id`; the caller sets the rest. NULL: err says why not. */
    struct task *(*exec_start)(struct tasks *home, const struct exec_request *req, struct err *err);
    struct task *(*proc_start)(struct tasks *home, const struct proc_request *req, struct err *err);
    /* A process that an earlier daemon left: one of the list that is UNTAKEN, or a new one as
     * above. NULL: there is none of that number. */
    struct task *(*proc_adopt)(struct tasks *home, uint32_t number);
    /* PID 1 does not end a task that it is to end: the sandbox goes. */
    void (*lose)(struct tasks *home);
    /* Ask for the processes behind that number, which looks_answer() tells; or for the end of what
     * execs of that label have left. Negative: not now. */
    int (*list)(struct tasks *home, uint32_t look, uint32_t after);
    int (*end_left)(struct tasks *home, const char *label);
    /* Optional: ask for what is used, which looks_used() tells. */
    int (*usage)(struct tasks *home, uint32_t look);
};

/* What the transport does for one task. */
struct task_ops {
    /* Gives bytes to the program's stdin and returns how many it took. -EAGAIN: none now, the
     * backend calls task_flush() when it can; another error: the program reads no more. */
    ssize_t (*write)(struct task *t, const char *data, size_t len);
    /* No byte follows. -EAGAIN: as above. */
    int (*close_stdin)(struct task *t);
    void (*kill)(struct task *t, int signo, bool tree);
    /* Passes on output that has arrived; without a sandbox it is the last. */
    void (*read)(struct task *t);
    void (*free)(struct task *t);

    void (*resize)(struct task *t, uint16_t rows, uint16_t cols); /* its terminal, if any */

    /* An exec: whether more output may come; t->paused was set. */
    bool (*open)(const struct task *t);
    void (*pause)(struct task *t);

    /* A process: it was taken over by this daemon (optional). */
    void (*adopted)(struct task *t);
    /* PID 1 is to end it. -EAGAIN: the backend calls task_settle() when it can. */
    int (*forget)(struct task *t);
    /* Its reader needs nothing before t->copy.begin; for a backend that uses the copy. */
    void (*released)(struct task *t);
    /* The operations of the same names, all together, where the output is not in t->copy. */
    struct proc_range (*range)(const struct task *t);
    ssize_t (*read_out)(struct task *t, uint64_t from, char *buf, size_t size);
    void (*release)(struct task *t, uint64_t upto);
    size_t (*read_err)(struct task *t, char *buf, size_t size);
    size_t (*read_err_from)(struct task *t, uint64_t *at, char *buf, size_t size);
};

struct task {
    union {
        struct exec exec;
        struct proc proc;
    };
    const struct task_ops *ops;
    struct loop *loop;  /* borrowed */
    struct tasks *home; /* NULL once the sandbox is gone */
    LIST_ENTRY(task) entry;
    uint32_t id;
    enum task_state state;
    enum task_user user;
    unsigned busy; /* callbacks under way: not to be freed underneath them */
    struct outcome outcome;

    union {
        struct exec_events exec;
        struct proc_events proc;
    } events;
    void *arg;

    struct buf in;
    size_t in_pos;      /* bytes of it that the transport has */
    uint64_t in_flight; /* bytes that the transport has, but not the program */
    enum task_stdin in_state;
    bool in_held_back; /* the writer waits for stdin_drained() */

    struct loop_timer overdue; /* it is to end, and nothing is heard of that */
    struct loop_defer news;

    /* An exec. */
    bool tty, paused;
    bool killed;             /* the sandbox was asked to end it */
    struct loop_timer drain; /* the end of its output is awaited */

    /* A process. */
    bool log;              /* its output is one */
    bool told_eof;         /* its user has heard that no output follows */
    bool forgotten;        /* PID 1 was told to end it */
    backend_done_fn *gone; /* of proc_end(); NULL: there was none, or it was called */
    void *gone_arg;
    struct {
        struct buf out; /* stdout from `begin` on */
        uint64_t begin;
        uint64_t known; /* of one that was adopted: as much there is, behind the last byte */
        bool eof;
        struct buf err;   /* the end of stderr */
        uint64_t err_end; /* behind its last byte, since this daemon listens */
    } copy;
};

LIST_HEAD(task_list, task);

/* The tasks of one sandbox, and the base of every backend's sandbox that has some. Their users own
 * them. */
struct tasks {
    struct sandbox sandbox;
    const struct tasks_ops *ops;
    struct loop *loop; /* borrowed */
    struct task_list execs, procs;
    unsigned running;              /* execs whose main process is there */
    LIST_HEAD(, tasks_look) looks; /* at what runs inside, under way */
    uint32_t next_look;
    unsigned n_looks;
    bool frozen; /* nothing that runs in the sandbox can be late */
};

/* Sets the operations on commands and processes. */
void tasks_operations(struct backend_ops *ops);
void tasks_init(struct tasks *home, struct backend *b, const struct tasks_ops *ops,
                struct loop *loop);
/* The sandbox is gone: everything in it ends as SESSION_LOST, which is told from the loop. */
void tasks_lose(struct tasks *home);
void tasks_drop(struct tasks *home); /* frees processes; their user is not told, PID 1 neither */

/* For transports. */
struct task *task_find(const struct task_list *list, uint32_t id); /* or NULL */
void task_flush(struct task *t);   /* writes to stdin what is waiting */
void task_drained(struct task *t); /* then tells the writer, when that is due */
void task_settle(struct task *t);  /* after a callback, or when more is known: tells, or frees */

/* Whether its user is to be given output. */
bool task_hears(const struct task *t);
void task_output(struct task *t, enum exec_stream stream, const char *data, size_t len);
void task_exec_exited(struct task *t, const struct outcome *outcome);
void task_exec_kill(struct exec *e);

/* A process that PID 1 told of and that its user may still take over. */
void task_proc_init(struct task *t, struct tasks *home);
/* Adds to the copy of stdout, or of a log, whose oldest records go. -ENOBUFS: more than the
 * transport may send ahead of release(). */
int task_copy_output(struct task *t, const char *data, size_t len);
void task_copy_stderr(struct task *t, const char *data, size_t len);
void task_proc_output(struct task *t); /* tells that there is more, or that it is the end */
void task_proc_exited(struct task *t, const struct outcome *outcome);
void task_proc_gone(struct task *t);  /* the answer to forget() */
void task_proc_later(struct task *t); /* tells all there is to tell, from the loop */
void task_proc_close_stdin(struct proc *p);
void task_proc_kill(struct proc *p);
void task_proc_free(struct proc *p);

/* looks.c: questions about what runs inside. */
int tasks_top(struct sandbox *sb, backend_top_fn *done, void *arg, struct err *err);
int tasks_end_left(struct sandbox *sb, const char *label, backend_done_fn *done, void *arg,
                   struct err *err);
/* What PID 1 answers; `error` is an errno, or 0. */
void looks_answer(struct tasks *home, uint32_t id, const struct inside_process *rows, size_t n,
                  int error);
int tasks_usage(struct sandbox *sb, backend_usage_fn *done, void *arg, struct err *err);
void looks_used(struct tasks *home, uint32_t id, const struct inside_usage *usage);
void looks_lose(struct tasks *home); /* they fail, from the loop */
