/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the engine backend share: kinds, mounts, plans, sandboxes and their
 * calls. */

#include <sys/types.h>

#include "backend/backend.h"
#include "backend/engine/api.h"
#include "backend/engine/engine.h"
#include "backend/task.h"
#include "base/buf.h"
#include "base/err.h"
#include "inside/guest_wire.h"
#include "loop/loop.h"
#include "spec/spec.h"

struct engine;
struct engine_binding;
struct engine_pull;
struct engine_sandbox;
struct sock_filter;

#define ENGINE_NAME_MAX 64
#define ENGINE_PREFIX "langbot-box-" /* of every container, and of its directory */
#define ENGINE_ID_MAX 65             /* 64 hex digits and NUL */
#define ENGINE_INSTANCE_LEN 16
#define ENGINE_MOUNTS_MAX (SPEC_MOUNTS_MAX + 2) /* with the workspace and the artifacts */
_Static_assert(ENGINE_MOUNTS_MAX <= GUEST_CHECKS_MAX, "each mount is compared");
#define ENGINE_CREATE_MAX (1U << 20)

#define ENGINE_OWN_LABELS_MAX 512U
#define ENGINE_PAGE 20 /* containers that are listed at a time */

#define LABEL_BOX "langbot.box"
#define LABEL_SESSION "langbot.session_id"
#define LABEL_INSTANCE "langbot.box.instance_id"
#define LABEL_HASH "langbot.box.config_hash"
#define LABEL_NAME "langbot.box.name"
/* Names of the labels that the session has by itself, with commas between them. A container has
 * those of its image, too, and an image may carry any. */
#define LABEL_OWN "langbot.box.labels"

/* All that differs between the two. */
struct engine_kind {
    const char *name;
    const char *const *sockets; /* usual places, first that is there wins; %s: $XDG_RUNTIME_DIR */
    const char *env;            /* that names another */
    const char *probe_import;   /* what makes ENGINE_PROBE_IMAGE of an archive */
    bool seccomp_by_path; /* the profile is a file that the service reads, not JSON in the call */
    bool masks_by_option; /* what is masked is told as an option, not as a list of paths */
    bool is_podman;
    bool mounts_as_text; /* it turns typed mounts into comma-separated text on its way */
};

/* A host directory or file that goes into the container: opened beneath an allowed root, and
 * compared with what is really there once the container runs, before any program does. */
struct engine_mount {
    char *source, *target; /* owned */
    char *bind;            /* owned; what the engine is given instead of the source, or NULL */
    size_t root;           /* of the allow-list */
    const char *rest;      /* of the source, below it */
    bool read_only, workspace;
    bool known; /* what follows is */
    uint64_t dev, ino;
    uid_t uid;
    gid_t gid;
    mode_t type; /* as stat(2) tells it */
    int fd;      /* owned, until it has been compared; -1: none */
};

/* mounts.c. */
struct engine_mounts {
    struct engine_mount list[ENGINE_MOUNTS_MAX];
    size_t n;
    char *place; /* owned; of the spec, or NULL */
};
/* By name only: nothing is opened. */
int engine_mounts_collect(const struct spec *spec, const struct engine *e,
                          struct engine_mounts *ret, struct err *err);
/* Whether what the container has is what was opened, and as read-only as it has to be. `ret_again`:
 * not for certain, the supervisor should look once more. */
int engine_mounts_check(const struct engine_mounts *m, const struct guest_check *checks,
                        bool gvisor, bool *ret_again, struct err *err);
void engine_mounts_checked(struct engine_mounts *m); /* and are not compared again */
void engine_mounts_done(struct engine_mounts *m);

/* Owners of mounts. */
/* Whether the session's user can be made the owner of mounts, or why not. */
bool engine_can_bind(const struct engine *e, const char **ret_why);
/* Asks box-priv for all mounts, then engine_bound() follows. On failure it does not. */
int engine_bind(struct engine_sandbox *sb, uint32_t uid, struct err *err);
/* Does without: programs have the id of the owner. */
int engine_bind_plain(struct engine_sandbox *sb, const char *why, struct err *err);
/* And so does every session from now on: the engine does not see what box-priv mounts. */
int engine_bind_give_up(struct engine_sandbox *sb, struct err *err);
void engine_unbind(struct engine_sandbox *sb); /* the container has what it needs, or is gone */

/* What the engine said about itself. */
struct engine_facts {
    bool known;
    char runtime[64];  /* that it uses unless another is asked for */
    bool narrow;       /* its containers have only a small range of ids: rootless, or remapped */
    bool v1;           /* sockets need a limit of their own, see cgroup_socket_bytes() */
    bool no_limits;    /* it takes them and ignores them: rootless, and no cgroup v2 */
    bool gvisor;       /* its default runtime, or the one that is asked for, is gVisor's */
    bool no_network;   /* that runtime is told to give its containers none */
    bool live_restore; /* containers outlive it, but not those that are to remove themselves */
};

/* create.c */

/* What one container is made from: the input of engine_create_body(), which is pure. */
struct engine_plan {
    const struct spec *spec;
    const struct engine_mounts *mounts;
    const char *name, *instance, *hash;
    const char *image;
    const char *user; /* "uid:gid"; NULL: the image's own */
    const char *runtime;
    const char *seccomp; /* value of the option: JSON, or a path */
    const char *guest_program, *run_dir;
    char *const *volumes; /* that the image declares; they become memory of a size */
    bool masks_by_option;
    bool flat;   /* no mount comes with what is mounted below it */
    bool own_id; /* the user id is the session's alone */
    bool keep;   /* what has ended stays until we remove it */
    bool v1;     /* as in engine_facts */
    bool gvisor; /* the runtime needs processes and threads of its own for each of the session's */
    uint64_t nproc_max;
};
int engine_create_body(const struct engine_plan *plan, struct buf *ret, struct err *err);
void engine_container_name(const char *session_id, const char *random, char *ret, size_t size);
/* What the workspace is. */
enum engine_workspace {
    ENGINE_WORKSPACE_HOST,   /* a directory of the host */
    ENGINE_WORKSPACE_VOLUME, /* the engine's own disk; it belongs to root */
    ENGINE_WORKSPACE_MEMORY, /* of a fixed size */
};
enum engine_workspace engine_workspace(const struct spec *spec, bool root);
uint64_t engine_workspace_bytes(const struct spec *spec); /* of one in memory */
/* Processes of ours beside those of the session. */
int64_t engine_pids_reserve(bool own_id);
/* What the engine is asked for, so that programs have spec->pids_limit. */
int64_t engine_pids_max(const struct spec *spec, bool own_id, bool gvisor);
/* Members of a HostConfig, and of an update; `pids` by engine_pids_max(). */
void engine_put_limits(struct jw *w, const struct spec *spec, int64_t pids);

/* Names of images. Strict: what an engine, a registry or a shell could read as something else is
 * refused. */
int engine_image_check(const char *reference, struct err *err);
/* Labels of an image, of GET /images/x/json, are in every list of containers, and an answer of an
 * engine has a limit: more than some are refused. */
int engine_image_labels(const struct json *image, const char *reference, struct err *err);
/* What an image declares as volumes, of GET /images/x/json, but for those places where the spec
 * mounts something itself. To free with strv_free(), NULL without any. */
int engine_image_volumes(const struct json *image, const struct spec *spec,
                         const struct engine_mounts *mounts, char ***ret, struct err *err);

/* How large an image that is being fetched is, by what the registry says of each layer. */
#define ENGINE_PULL_MAX (16ULL << 30)
/* *pull is made at first; true: with this one it is more than ENGINE_PULL_MAX, or too many. */
bool engine_pull_excess(struct engine_pull **pull, const char *layer, uint64_t bytes);

/* link.c: the connection to one box-guest. */
struct engine_link {
    struct loop *loop;
    int dir_fd, listen_fd, fd; /* owned */
    struct loop_io listen_io, io;
    struct buf in, out;
    size_t out_pos;
    bool extra; /* connections beside the guest's own are wanted */
    const struct engine_link_handlers *handlers;
    void *arg;
};

/* All from the loop. */
struct engine_link_handlers {
    void (*connected)(void *arg);
    /* The body is gone after the return. */
    void (*frame)(void *arg, const struct guest_head *head, const char *body);
    void (*lost)(void *arg); /* the peer is gone or makes no sense; listening goes on */
    void (*drained)(void *arg);
    void (*extra)(void *arg, int fd); /* another connection, the callee's; see below */
};
void engine_link_init(struct engine_link *l, struct loop *loop,
                      const struct engine_link_handlers *handlers, void *arg);
/* Makes the directory `name` beneath the engine's own and listens there. */
int engine_link_open(struct engine_link *l, int parent_fd, const char *name, struct err *err);
void engine_link_close(struct engine_link *l);
/* Whether connections beside the guest's own are accepted; any program of the session can make one.
 */
void engine_link_extra(struct engine_link *l, bool on);
/* A socket that the guest passes clients of that port to (GUEST_LISTEN); it goes with the session's
 * directory. Returns it, owned. */
int engine_link_listen(struct engine_link *l, uint16_t port, struct err *err);
/* 0, -EPIPE without a connection, -ENOBUFS when too much waits. */
int engine_link_send(struct engine_link *l, const struct guest_head *head, const void *a,
                     size_t a_len, const void *b, size_t b_len);

/* Makes the containers where no engine does (runsc.c). */
struct engine_maker {
    /* Ends what there is of one, then calls engine_removed(). */
    void (*remove)(struct engine_sandbox *sb);
    /* What its supervisor is told first is almost complete. */
    void (*hello)(const struct engine_sandbox *sb, struct guest_hello *h);
};

struct engine {
    struct backend base;
    struct backend_ops ops; /* those of all engines, under this one's name */
    struct loop *loop;
    struct engine_options options;
    const struct engine_kind *kind;
    const struct engine_maker *maker; /* NULL: the engine itself */
    struct engine_api *api;           /* owned; NULL with a maker */
    bool binds_unseen; /* it does not see the mounts of box-priv: a proxy or a VM is in between */
    bool untidy;       /* something of ours could not be removed; the engine was away */
    struct engine_facts facts;
    char instance[ENGINE_INSTANCE_LEN + 1];
    char *dir_path, *seccomp;   /* owned */
    int dir_fd;                 /* owned: where sessions meet their guests */
    char **roots;               /* owned; the allow-list, with the places of callers behind it */
    int *root_fds;              /* owned; like roots */
    struct sock_filter *filter; /* owned */
    size_t filter_len;          /* bytes */
    LIST_HEAD(, engine_sandbox) sandboxes;
    LIST_HEAD(, engine_job) jobs; /* sweeps, receipts, reports under way */
};

/*   PROBING ► INSPECTING ► (PULLING ► INSPECTING) ► CREATING ► STARTING ► GREETING ► READY
 *   ADOPTING ──────────────────────────────────────────────────────────►
 *   Before CREATING is BINDING, where something is mounted; CREATING may come again, unmapped.
 *   Every state can go to REMOVING, after which there is nothing. */
enum engine_state {
    ENGINE_PROBING,
    ENGINE_INSPECTING,
    ENGINE_PULLING,
    ENGINE_BINDING,
    ENGINE_CREATING,
    ENGINE_STARTING,
    ENGINE_ADOPTING,
    ENGINE_GREETING,
    ENGINE_READY,
    ENGINE_REMOVING,
    ENGINE_STATE_MAX,
};

struct engine_sandbox {
    struct tasks tasks;
    struct engine *engine; /* borrowed */
    LIST_ENTRY(engine_sandbox) entry;
    enum engine_state state;
    char name[ENGINE_NAME_MAX];
    char id[ENGINE_ID_MAX]; /* "" until the engine made it */
    struct spec *spec;      /* owned copy of what it needs */
    struct engine_mounts mounts;
    char user[32];            /* "": the image's own */
    char **volumes;           /* owned; of the image */
    struct engine_pull *pull; /* owned; NULL: nothing is fetched */
    struct engine_call *call; /* under way, or NULL */
    struct engine_link link;
    bool linked;                    /* the link is open */
    bool image_root;                /* the image names no user of its own */
    struct engine_binding *binding; /* answers of box-priv that are awaited, or NULL */
    char bind_name[17];             /* of its binds; "": there are none (any more) */
    uint32_t bind_uid;
    char not_mapped[200]; /* why the owners of its mounts are not its user; "": they are */
    bool own_id;          /* no other session has its user id */
    bool lost, pulled;
    bool gvisor; /* its kernel is gVisor's */
    struct loop_timer timer;
    struct loop_defer defer;
    struct guest_proc found[GUEST_CELLS_MAX]; /* at adoption */
    size_t n_found;
    uint32_t next_exec, next_dial, guest_uid;
    unsigned n_dials, n_callers;
    LIST_HEAD(, engine_dial) dials;     /* connections to servers inside that are being made */
    LIST_HEAD(, engine_caller) callers; /* connections that may belong to one of these */
    uint64_t tree_bytes; /* memory that box-guest lets each program's tree have; 0: it need not */
    unsigned removals, looks; /* tries to remove it; looks whether it runs at all */
    unsigned conflicts;       /* times that its removal was under way already */
    unsigned compared;        /* times that its mounts were */
    struct err failure;       /* why it is being removed before it was ready */
    backend_created_fn *created;
    backend_lost_fn *on_lost;
    void *arg;
    backend_done_fn *destroyed;
    void *destroyed_arg;
};

/* life.c */
void engine_move(struct engine_sandbox *sb, enum engine_state to);
/* One call at a time belongs to a sandbox; fn sets sb->call to NULL. */
void engine_ask(struct engine_sandbox *sb, const struct engine_request *req, engine_answer_fn *fn);
/* It will not come to be: whatever is there already goes, then its user hears why. */
void engine_fail(struct engine_sandbox *sb, const struct err *err);
void engine_remove(struct engine_sandbox *sb); /* in REMOVING: whatever is known by now */
int engine_listen(struct engine_sandbox *sb, struct err *err);
void engine_greet(struct engine_sandbox *sb); /* the container runs: its supervisor is awaited */

void engine_removed(struct engine_sandbox *sb, const struct err *err); /* err NULL: it is gone */
void engine_lose(struct engine_sandbox *sb); /* it died by itself: its user hears of it, once */

void engine_destroy(struct sandbox *base, backend_done_fn *done, void *arg);
void engine_set_deadline(struct sandbox *base, uint64_t boot_ns);
/* Adds a zeroed one, with what it needs of the spec, to those of the engine. */
void engine_sandbox_init(struct engine_sandbox *sb, struct engine *e, const struct spec *spec);
void engine_sandbox_free(struct engine_sandbox *sb); /* its user is not told */
int engine_send(struct engine_sandbox *sb, enum guest_type type, uint32_t id, uint32_t flags,
                const void *data, size_t len);

/* make.c */
void engine_bound(struct engine_sandbox *sb); /* its mounts are settled */
const char *engine_unenforced(const struct backend *b, const struct spec *spec, unsigned field);
int engine_create(struct backend *b, const struct spec *spec, backend_created_fn *created,
                  backend_lost_fn *lost, void *arg, struct err *err);
void engine_abandon(struct backend *b, void *arg);
int engine_adopt(struct backend *b, const char *name, const struct spec *spec,
                 backend_created_fn *created, backend_lost_fn *lost, void *arg, struct err *err);

/* tasks.c */
extern const struct tasks_ops engine_tasks_ops;
void engine_task_frame(struct engine_sandbox *sb, const struct guest_head *head, const char *body);
void engine_proc_forget_found(struct engine_sandbox *sb); /* those that were not taken over */

/* connect.c */
int engine_connect(struct sandbox *base, uint16_t port, backend_connected_fn *done, void *arg,
                   struct err *err);
void engine_on_extra(struct engine_sandbox *sb, int fd); /* takes fd */
void engine_on_refused(struct engine_sandbox *sb, const struct guest_head *head);
int engine_host_listen(struct sandbox *base, uint16_t port, backend_listening_fn *done, void *arg,
                       struct err *err);
void engine_on_listening(struct engine_sandbox *sb, const struct guest_head *head);
void engine_dials_lose(struct engine_sandbox *sb); /* they fail, from the loop */

/* engine.c */
extern const struct backend_ops engine_ops;                /* but for the name */
int engine_open_dir(struct engine *e, struct err *err);    /* where sessions meet their guests */
int engine_load_filter(struct engine *e, struct err *err); /* of system calls, for commands */
/* What a program of that version is too old for, or NULL. */
const char *engine_floor_breach(const char *program, const char *text);

/* list.c */
void engine_sweep_directories(const struct engine *e); /* those of no session that is known */
int engine_sweep(struct backend *b, backend_done_fn *done, void *arg, struct err *err);
int engine_list(struct backend *b, const char *const *labels, backend_found_fn *each,
                backend_done_fn *done, void *arg, struct err *err);

/* pause.c */
int engine_pause(struct sandbox *base, bool paused, backend_done_fn *done, void *arg,
                 struct err *err);
int engine_update(struct sandbox *base, const struct spec *spec, backend_done_fn *done, void *arg,
                  struct err *err);
void engine_thaw(struct engine_sandbox *sb); /* ADOPTING: it is paused, and could not answer */

/* report.c */
int engine_receipt(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err);
int engine_diff(struct sandbox *base, backend_text_fn *done, void *arg, struct err *err);
int engine_doctor(struct backend *b, backend_text_fn *done, void *arg, struct err *err);
void engine_report_forget(const struct engine_sandbox *sb); /* its reports end */

/* A piece of work that belongs to no sandbox: the first member of what xnew() made for it. */
struct engine_job {
    struct engine *engine; /* borrowed */
    LIST_ENTRY(engine_job) entry;
    struct engine_call *call; /* under way, or NULL */
    backend_done_fn *done;
    void *arg;
    void (*release)(struct engine_job *job); /* frees what it owns beside; NULL: nothing */
};
void engine_job_start(struct engine *e, struct engine_job *job, backend_done_fn *done, void *arg);
/* One call at a time; fn gets the job, and sets job->call to NULL. */
void engine_job_ask(struct engine_job *job, const struct engine_request *req, engine_answer_fn *fn);
void engine_job_free(struct engine_job *job);                       /* without a word */
void engine_job_end(struct engine_job *job, const struct err *err); /* and done() hears of it */
/* What GET /info said. */
void engine_facts_read(struct engine_facts *f, const struct json *info, const char *wanted_runtime);
