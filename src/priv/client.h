/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* boxd's side of the privileged helper. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "priv/wire.h"

struct err;
struct loop;
struct priv_client;

struct priv_client_options {
    const char *program, *init_program;        /* paths of box-priv and box-init */
    const char *fetch_program;                 /* of box-fetch; NULL: no jobs */
    const char *runsc_program, *guest_program; /* NULL: no sandbox is gVisor's */
    const char *engine_socket; /* path of an engine's, for priv_client_bind(); NULL: none */
    const char *state_dir, *tag;
    uid_t uid; /* that boxd will have */
    gid_t gid;
    char *const *roots; /* allow-list, real paths; at most 64 */
    bool places;        /* the operator chose no list: callers' own directories may join it */
    /* How long box-priv keeps sandboxes without a deadline when we are gone without a word; 0: not
     * at all. */
    uint64_t linger_sec;
};

/* Called once per request, from the loop. The descriptors in fds are the callee's to take (set
 * taken ones to -1). `reply` is NULL when box-priv has gone away. */
typedef void priv_reply_fn(void *arg, const struct priv_reply *reply, int *fds, size_t n_fds);
typedef void priv_gone_fn(void *arg);

/* Takes over the box-priv that an earlier boxd left on this state directory, or starts one, and
 * waits for its first word: blocks, so call it before the loop runs, and while we may still do what
 * starting one needs. One of another version, or for another user, or without the programs that we
 * name, is told to end everything first.
 * ERR_CONFLICT: another boxd has it. */
int priv_client_new(struct loop *loop, const struct priv_client_options *options,
                    struct priv_client **ret, struct err *err);
/* Says goodbye, upon which box-priv ends every sandbox, and waits for it to be done. */
void priv_client_free(struct priv_client *c);
/* Goes without a word: box-priv keeps the sandboxes for the next boxd. */
void priv_client_detach(struct priv_client *c);
void priv_client_on_gone(struct priv_client *c, priv_gone_fn *fn, void *arg);

const struct priv_host *priv_client_host(const struct priv_client *c);
/* The allow-list that plans index, as box-priv was started with it. */
char *const *priv_client_roots(const struct priv_client *c);
/* Which place of a caller, as priv_client_place() has made them, holds a directory. */
bool priv_client_place_of(const struct priv_client *c, const char *dir, uint32_t *ret,
                          const char **ret_rest);
/* The sandboxes that were there already; the names are hostile only as far as box-priv is. */
size_t priv_client_found(const struct priv_client *c, const struct priv_item **ret);

int priv_client_create(struct priv_client *c, const struct plan *plan, priv_reply_fn *fn, void *arg,
                       struct err *err);
/* PRIV_DESTROY, STOP, PAUSE, UNPAUSE, INSPECT, USAGE, HELD, KEPT, QUOTA, DIFF or ADOPT: a request
 * that has the name of a sandbox and no more. */
int priv_client_ask_about(struct priv_client *c, enum priv_type type, const char *name,
                          priv_reply_fn *fn, void *arg, struct err *err);
int priv_client_update(struct priv_client *c, const char *name, const struct cgroup_limits *limits,
                       priv_reply_fn *fn, void *arg, struct err *err);
/* PRIV_PROBE, GREEDY or SWEEP: a request that is its type and no more. */
int priv_client_ask(struct priv_client *c, enum priv_type type, priv_reply_fn *fn, void *arg,
                    struct err *err);
/* Answered with one or two sockets that listen on that port inside the sandbox. */
int priv_client_listen(struct priv_client *c, const char *name, uint16_t port, priv_reply_fn *fn,
                       void *arg, struct err *err);
void priv_client_deadline(struct priv_client *c, const char *name, uint64_t boot_ns);

/* Where the client at the other end of `sock` works, and, with a path, the directory there as a
 * root that may be mounted (struct priv_place). */
int priv_client_place(struct priv_client *c, int sock, const char *path, priv_reply_fn *fn,
                      void *arg, struct err *err);

struct priv_job_request {
    uint32_t root;    /* place in the allow-list */
    const char *path; /* below it */
    bool create;
    unsigned seconds;
    bool bound; /* only as `uid` */
    uid_t uid;
    /* What is copied from, and the file that lists it; NULL: nothing is. */
    const char *source, *manifest;
    uint32_t source_root, manifest_root;
};

/* Answered with pidfd, standard input and standard output of the job, the latter two not blocking.
 */
int priv_client_job(struct priv_client *c, const struct priv_job_request *request,
                    priv_reply_fn *fn, void *arg, struct err *err);

struct priv_bind_request {
    const char *name; /* of all binds of one container; PLAN_NAME_LEN characters */
    uint32_t index, root, flags, uid;
    const char *path; /* below the root */
};

/* Makes PRIV_BINDS/name/index in the state directory, as the engine sees it. Answered with a
 * descriptor of it, unless flags have PRIV_BIND_LOOK. */
int priv_client_bind(struct priv_client *c, const struct priv_bind_request *b, priv_reply_fn *fn,
                     void *arg, struct err *err);
void priv_client_unbind(struct priv_client *c, const char *name); /* all that have that name */
