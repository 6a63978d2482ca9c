/* SPDX-License-Identifier: Apache-2.0 */

/* A real box-priv with somebody else in place of boxd: hostile plans one by one, then a flood of
 * bent and random requests. What it answers is checked here; what became of the host is for the
 * test that runs this.
 *
 *   live_priv BOX_PRIV BOX_INIT STATE TAG ALLOWED SECONDS SEED
 *
 * Run it in a network namespace of its own: some plans ask for a network.
 *
 * Prints one line per hostile plan ("name: refused: why" or "name: contained") and a count of all
 * answers. Status 0: every request was answered, and box-priv ended cleanly. */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "plans.h"
#include "priv/wire.h"

#define ANSWER_MS 60000
#define LIVE_MAX 24U

static struct {
    int sock;
    pid_t pid;
    char *allowed;
    uint32_t next_id, next_index;
    char live[LIVE_MAX][PLAN_NAME_LEN + 1];
    unsigned n_live;
    unsigned long sent, created, refused, destroyed;
} it;

static uint64_t random_state;

static uint32_t rnd(void)
{
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(random_state >> 33);
}

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "live_priv: %s: %s\n", what, err_errno_text(errno));
    _exit(1);
}

static void start(char **argv)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        die("socketpair");
    it.pid = fork();
    if (it.pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (pair[1] == 3 ? fcntl(3, F_SETFD, 0) < 0 : dup3(pair[1], 3, 0) < 0)
            _exit(126);
        (void)execl(argv[1], "box-priv", "--sock", "3", "--state", argv[3], "--tag", argv[4],
                    "--init", argv[2], "--uid", "1999999999", "--gid", "1999999999", "--root",
                    argv[5], (char *)NULL);
        _exit(127);
    }
    (void)close(pair[1]);
    it.sock = pair[0];
    it.allowed = argv[5];
}

/* The answer to request `id`. Whoever is not answered in a minute never will be. */
static int wait_for(uint32_t id, struct priv_reply *ret)
{
    struct pollfd p = {.fd = it.sock, .events = POLLIN};
    for (;;) {
        int fds[16];
        size_t n_fds = 16;
        if (poll(&p, 1, ANSWER_MS) != 1)
            die("no answer");
        ssize_t n = fd_recv_msg(it.sock, ret, sizeof(*ret), fds, &n_fds, MSG_DONTWAIT);
        if (n != (ssize_t)sizeof(*ret))
            return -EPIPE;
        fd_close_many(fds, n_fds);
        assert(ret->result <= 0);
        assert(ret->result == 0 || memchr(ret->err.msg, 0, sizeof(ret->err.msg)) != NULL);
        if (ret->head.id == id)
            return 0;
    }
}

static int request(struct priv_head *head, size_t len, struct priv_reply *ret)
{
    head->id = ++it.next_id;
    it.sent++;
    if (send(it.sock, head, len, MSG_NOSIGNAL) != (ssize_t)len)
        return -EPIPE;
    return wait_for(head->id, ret);
}

static int destroy(const char *name)
{
    struct priv_name m = {.head = {.type = PRIV_DESTROY}};
    struct priv_reply reply;
    memcpy(m.name, name, sizeof(m.name));
    int r = request(&m.head, sizeof(m), &reply);
    it.destroyed += r == 0 && reply.result == 0;
    return r;
}

/* 1 when a sandbox came of it, 0 when not; -EPIPE when box-priv is gone. */
static int create(const struct plan *plan, size_t len, struct err *ret)
{
    static struct priv_create m;
    struct priv_reply reply;
    m.head.type = PRIV_CREATE;
    memcpy(&m.plan, plan, len < sizeof(m.plan) ? len : sizeof(m.plan));
    int r = request(&m.head, offsetof(struct priv_create, plan) + len, &reply);
    if (r < 0)
        return r;
    *ret = reply.err;
    if (reply.result < 0) {
        it.refused++;
        return 0;
    }
    it.created++;
    return 1;
}

static void fresh(unsigned variant, struct plan *p)
{
    char name[17];
    id_random(name);
    plans_make(variant, it.allowed, name, it.next_index++ % 4096, p);
}

/* Hostile plans. Each changes an honest one; the comment is what would be gained. */

static struct plan_op *add(struct plan *p, enum plan_op_kind kind, const char *target,
                           enum plan_source class, const char *source)
{
    struct plan_op *op = plan_add(p, kind, target);
    op->source_class = (uint8_t) class;
    op->source = plan_string(p, source);
    op->flags = PLAN_OP_LANDLOCK_RW;
    return op;
}

static void writable_usr(struct plan *p) /* the host's programs */
{
    p->payload_uid = p->payload_gid = 0;
    p->init_uid = p->init_gid = 999;
    (void)add(p, PLAN_OP_BIND, "/mnt", PLAN_SRC_HOST, "/usr");
}

static void writable_etc(struct plan *p) /* the /etc of every session */
{
    (void)add(p, PLAN_OP_BIND, "/mnt", PLAN_SRC_ETC, "off");
}

static void other_host_directory(struct plan *p)
{
    add(p, PLAN_OP_BIND, "/mnt", PLAN_SRC_HOST, "/root")->flags = PLAN_OP_RDONLY;
}

static void host_by_dots(struct plan *p)
{
    add(p, PLAN_OP_BIND, "/mnt", PLAN_SRC_HOST, "/usr/../root")->flags = PLAN_OP_RDONLY;
}

static void overlay_on_etc(struct plan *p) /* writes into the shared layer */
{
    (void)add(p, PLAN_OP_OVERLAY, "/usr", PLAN_SRC_ETC, "off");
}

static void overlay_on_allowed(struct plan *p)
{
    (void)add(p, PLAN_OP_OVERLAY, "/usr", PLAN_SRC_ALLOWED, "sub");
}

static void link_out(struct plan *p) /* a file in /tmp of the host */
{
    (void)add(p, PLAN_OP_SYMLINK, "/x", PLAN_SRC_NONE, "/tmp");
    (void)add(p, PLAN_OP_SYMLINK, "/x/box-live-escaped", PLAN_SRC_NONE, "/");
}

static void dir_by_link(struct plan *p)
{
    (void)add(p, PLAN_OP_SYMLINK, "/x", PLAN_SRC_NONE, "/tmp");
    add(p, PLAN_OP_DIR, "/x/box-live-escaped", PLAN_SRC_NONE, "")->mode = 0777;
}

static void mount_by_link(struct plan *p)
{
    (void)add(p, PLAN_OP_SYMLINK, "/x", PLAN_SRC_NONE, "/tmp");
    (void)add(p, PLAN_OP_BIND, "/x", PLAN_SRC_PRIVATE, "home");
    (void)add(p, PLAN_OP_BIND, "/x/y", PLAN_SRC_PRIVATE, "home");
}

static void own_usr(struct plan *p) /* chown and chmod on the host */
{
    struct plan_op *op = add(p, PLAN_OP_DIR, "/usr/bin", PLAN_SRC_NONE, "");
    op->flags = PLAN_OP_OWNED;
    op->mode = 0777;
}

static void made_in_usr(struct plan *p)
{
    add(p, PLAN_OP_DIR, "/usr/box-live-escaped", PLAN_SRC_NONE, "")->mode = 0777;
}

static void outside_the_list(struct plan *p)
{
    (void)add(p, PLAN_OP_BIND, "/mnt", PLAN_SRC_ALLOWED, "../outside");
}

static void absolute_source(struct plan *p)
{
    (void)add(p, PLAN_OP_BIND, "/mnt", PLAN_SRC_ALLOWED, "/etc");
}

static void link_in_the_list(struct plan *p)
{
    (void)add(p, PLAN_OP_BIND, "/mnt", PLAN_SRC_ALLOWED, "out");
}

static void root_not_there(struct plan *p)
{
    add(p, PLAN_OP_BIND, "/mnt", PLAN_SRC_ALLOWED, "")->root = 1;
}

static void root_far_away(struct plan *p)
{
    add(p, PLAN_OP_BIND, "/mnt", PLAN_SRC_ALLOWED, "")->root = 65535;
}

static void covers_proc(struct plan *p)
{
    (void)add(p, PLAN_OP_BIND, "/proc", PLAN_SRC_ALLOWED, "sub");
}

static void private_by_dots(struct plan *p)
{
    (void)add(p, PLAN_OP_BIND, "/mnt", PLAN_SRC_PRIVATE, "..");
}

static void private_by_path(struct plan *p)
{
    (void)add(p, PLAN_OP_BIND, "/mnt", PLAN_SRC_PRIVATE, "../../trash");
}

static void name_is_a_path(struct plan *p)
{
    memcpy(p->name, "../../../../tmp/", PLAN_NAME_LEN);
}

static void range_of_others(struct plan *p)
{
    p->uid_index = UINT32_MAX;
}

static void both_are_one(struct plan *p)
{
    p->payload_uid = p->init_uid;
}

static void no_limits(struct plan *p)
{
    p->memory_bytes = 0;
}

static void endless_disk(struct plan *p)
{
    p->quota_bytes = UINT64_MAX;
    p->quota_inodes = UINT64_MAX;
}

static void odd_disk(struct plan *p)
{
    p->quota_bytes = 8U << 20;
    p->quota_inodes = UINT64_MAX / 2;
}

static void too_many_operations(struct plan *p)
{
    p->n_ops = UINT32_MAX;
}

static void unknown_operation(struct plan *p)
{
    p->ops[0].kind = 255;
}

static void string_outside(struct plan *p)
{
    p->ops[0].target = UINT32_MAX;
}

static void setuid_mode(struct plan *p)
{
    add(p, PLAN_OP_DIR, "/opt/x", PLAN_SRC_NONE, "")->mode = 04777;
}

static void unknown_limits(struct plan *p)
{
    for (uint32_t i = 0; i < p->n_rlimits; i++)
        p->rlimits[i].resource = UINT32_MAX;
}

static void no_root_at_all(struct plan *p)
{
    p->n_ops = 0;
}

#define HOSTILE(f)                                                                                 \
    {                                                                                              \
#f, f                                                                                      \
    }
static const struct {
    const char *name;
    void (*bend)(struct plan *p);
} hostile[] = {
    HOSTILE(writable_usr),    HOSTILE(writable_etc),        HOSTILE(other_host_directory),
    HOSTILE(host_by_dots),    HOSTILE(overlay_on_etc),      HOSTILE(overlay_on_allowed),
    HOSTILE(link_out),        HOSTILE(dir_by_link),         HOSTILE(mount_by_link),
    HOSTILE(own_usr),         HOSTILE(made_in_usr),         HOSTILE(outside_the_list),
    HOSTILE(absolute_source), HOSTILE(link_in_the_list),    HOSTILE(root_not_there),
    HOSTILE(root_far_away),   HOSTILE(covers_proc),         HOSTILE(private_by_dots),
    HOSTILE(private_by_path), HOSTILE(name_is_a_path),      HOSTILE(range_of_others),
    HOSTILE(both_are_one),    HOSTILE(no_limits),           HOSTILE(endless_disk),
    HOSTILE(odd_disk),        HOSTILE(too_many_operations), HOSTILE(unknown_operation),
    HOSTILE(string_outside),  HOSTILE(setuid_mode),         HOSTILE(unknown_limits),
    HOSTILE(no_root_at_all),
};

static void run_hostile(void)
{
    static struct plan p;
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        struct err err = {0};
        fresh(0, &p);
        hostile[i].bend(&p);
        int r = create(&p, plan_wire_size(&p), &err);
        if (r < 0)
            die(hostile[i].name);
        if (r == 1 && destroy(p.name) < 0)
            die(hostile[i].name);
        (void)printf("%s: %s%s\n", hostile[i].name,
                     r == 1 ? "contained" : "refused: ", r == 1 ? "" : err.msg);
    }
}

/* The flood. */

static void end_one(void)
{
    unsigned i = rnd() % it.n_live;
    if (destroy(it.live[i]) < 0)
        die("destroy");
    memcpy(it.live[i], it.live[--it.n_live], sizeof(it.live[0]));
}

static void bent_plan(void)
{
    static struct plan p;
    uint8_t changes[64];
    struct err err = {0};
    fresh(rnd(), &p);
    size_t n = rnd() % sizeof(changes);
    for (size_t i = 0; i < n; i++)
        changes[i] = (uint8_t)(rnd() % 4 ? rnd() % 24 : rnd());
    plans_bend(&p, changes, n);
    size_t len = plan_wire_size(&p);
    if (rnd() % 16 == 0)
        len = rnd() % sizeof(p);
    int r = create(&p, len, &err);
    if (r < 0)
        die("a plan ended box-priv");
    if (r == 0)
        return;
    if (it.n_live == LIVE_MAX)
        end_one();
    memcpy(it.live[it.n_live++], p.name, sizeof(it.live[0]));
}

/* Ended before it has begun: both are answered, in whatever order. */
static void overtaken(void)
{
    static struct priv_create m;
    struct priv_name end = {.head = {.type = PRIV_DESTROY}};
    struct pollfd in = {.fd = it.sock, .events = POLLIN};
    unsigned answers = 0;
    fresh(0, &m.plan);
    memcpy(end.name, m.plan.name, sizeof(end.name));
    m.head = (struct priv_head){PRIV_CREATE, ++it.next_id};
    end.head.id = ++it.next_id;
    size_t len = offsetof(struct priv_create, plan) + plan_wire_size(&m.plan);
    if (send(it.sock, &m, len, MSG_NOSIGNAL) < 0)
        die("send");
    if (rnd() % 2)
        (void)poll(NULL, 0, (int)(rnd() % 8));
    if (send(it.sock, &end, sizeof(end), MSG_NOSIGNAL) < 0)
        die("send");
    it.sent += 2;
    while (answers < 2) {
        struct priv_reply reply;
        int fds[16];
        size_t n_fds = 16;
        if (poll(&in, 1, ANSWER_MS) != 1 || fd_recv_msg(it.sock, &reply, sizeof(reply), fds, &n_fds,
                                                        MSG_DONTWAIT) != (ssize_t)sizeof(reply))
            die("a sandbox that was ended while it started");
        fd_close_many(fds, n_fds);
        answers += reply.head.id == m.head.id || reply.head.id == end.head.id;
    }
}

/* Everything but what is by design the end: a message too short to have an id, or one with more
 * descriptors than any has. */
static void random_bytes(void)
{
    static union {
        struct priv_head head;
        struct priv_name name;
        unsigned char bytes[4096];
    } m;
    struct priv_reply reply;
    size_t len = sizeof(m.head) + rnd() % (sizeof(m) - sizeof(m.head));
    for (size_t i = 0; i < len; i++)
        m.bytes[i] = (unsigned char)rnd();
    if (rnd() % 2) {
        m.head.type = rnd() % (PRIV_TYPE_MAX + 2U);
        len = rnd() % 2 ? sizeof(m.name) : len;
        if (it.n_live > 0 && rnd() % 2)
            memcpy(m.name.name, it.live[rnd() % it.n_live], sizeof(m.name.name));
    }
    /* A probe is honest work and slow; a destroy of a live one is end_one()'s; a frozen one answers
     * nothing; a goodbye is the end. */
    if (m.head.type == PRIV_PROBE || m.head.type == PRIV_DESTROY || m.head.type == PRIV_STOP ||
        m.head.type == PRIV_PAUSE || m.head.type == PRIV_CREATE || m.head.type == PRIV_BYE)
        m.head.type = PRIV_ADOPT;
    /* Never answered; what follows is. */
    if (m.head.type == PRIV_DEADLINE || m.head.type == PRIV_UNBIND) {
        it.sent++;
        if (send(it.sock, &m, len, MSG_NOSIGNAL) != (ssize_t)len)
            die("a request without an answer ended box-priv");
        m.head.type = PRIV_LIST;
        len = sizeof(m.head);
    }
    if (request(&m.head, len, &reply) < 0)
        die("random bytes ended box-priv");
}

static void with_descriptors(void)
{
    struct priv_head head = {.type = PRIV_INSPECT, .id = ++it.next_id};
    struct priv_reply reply;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fds[] = {fd, fd, fd};
    if (fd_send_msg(it.sock, &head, sizeof(head), fds, 3, MSG_NOSIGNAL) < 0 ||
        wait_for(head.id, &reply) < 0)
        die("descriptors ended box-priv");
    (void)close(fd);
}

static unsigned count_fds(void)
{
    char path[32];
    unsigned n = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/fd", it.pid);
    for (int fd = 0; fd < 4096; fd++) {
        char name[48];
        (void)snprintf(name, sizeof(name), "%s/%d", path, fd);
        n += faccessat(AT_FDCWD, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    }
    return n;
}

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void flood(double seconds)
{
    for (double end = now() + seconds; now() < end;) {
        unsigned what = rnd() % 16;
        if (what == 0)
            with_descriptors();
        else if (what < 5)
            random_bytes();
        else if (what == 5 && it.n_live > 0)
            end_one();
        else if (what == 6)
            overtaken();
        else
            bent_plan();
    }
    while (it.n_live > 0)
        end_one();
}

int main(int argc, char **argv)
{
    struct priv_hello hello = {.head = {.type = PRIV_HELLO},
                               .version = PRIV_WIRE_VERSION,
                               .uid = 1999999999,
                               .gid = 1999999999};
    struct priv_head early = {.type = PRIV_PROBE};
    struct priv_reply reply;
    struct err err = {0};
    static struct plan p;
    int status = 0;
    if (argc != 8)
        return 2;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    random_state = strtoull(argv[7], NULL, 10);
    start(argv);
    /* Before it knows us, it does nothing. */
    if (request(&early, sizeof(early), &reply) < 0 || reply.result >= 0)
        die("served before the greeting");
    if (request(&hello.head, sizeof(hello), &reply) < 0 || reply.result < 0)
        die("greet");
    if (request(&hello.head, sizeof(hello), &reply) < 0 || reply.result >= 0)
        die("greeted twice");
    fresh(0, &p);
    if (create(&p, plan_wire_size(&p), &err) != 1) {
        (void)fprintf(stderr, "an honest plan: %s\n", err.msg);
        return 1;
    }
    if (destroy(p.name) < 0)
        die("destroy");
    /* What it keeps for good, it has from here on. */
    fresh(0, &p);
    p.flags |= PLAN_NET_ON;
    if (create(&p, plan_wire_size(&p), &err) == 1 && destroy(p.name) < 0)
        die("destroy");
    early.type = PRIV_PROBE;
    if (request(&early, sizeof(early), &reply) < 0)
        die("probe");
    unsigned before = count_fds();
    run_hostile();
    flood(atof(argv[6]));
    unsigned after = count_fds();
    for (int i = 0; i < 100 && after > before + 2;
         i++) { /* what removes files may be at it still */
        (void)poll(NULL, 0, 50);
        after = count_fds();
    }
    (void)printf("sent=%lu created=%lu refused=%lu destroyed=%lu fds=%u->%u\n", it.sent, it.created,
                 it.refused, it.destroyed, before, after);
    (void)close(it.sock);
    if (waitpid(it.pid, &status, 0) != it.pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        (void)fprintf(stderr, "box-priv ended with %#x\n", (unsigned)status);
        return 1;
    }
    /* One or two come with what was asked for first; a leak would have come a thousand times. */
    return after > before + 2 ? 1 : 0;
}
