/* SPDX-License-Identifier: Apache-2.0 */

/* One program of box-guest: its pipes or terminal, its output rings, and orders from boxd. */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/state.h"
#include "base/str.h"
#include "inside/clone.h"
#include "inside/guest/guest.h"

#define READS_PER_TURN 8

static const unsigned moves[CELL_STATE_MAX] = {
    [CELL_FREE] = 1U << CELL_RUNNING,
    [CELL_RUNNING] = 1U << CELL_LINGER | 1U << CELL_FREE, /* FREE: it could not be started */
    [CELL_LINGER] = 1U << CELL_FREE,
};

static struct guest_cell *cell_find(struct guest *g, uint32_t id)
{
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        if (g->cells[i].state != CELL_FREE && g->cells[i].id == id && !g->cells[i].silent)
            return &g->cells[i];
    return NULL;
}

static void cell_free(struct guest_cell *c)
{
    fd_close_many(c->out, 2);
    fd_close_many(&c->in, 1);
    buf_done(&c->input);
    for (int i = 0; i < 2; i++)
        if (c->kept[i].data != NULL)
            (void)munmap(c->kept[i].data, c->kept[i].size);
    STATE_MOVE(c->state, moves, CELL_FREE);
    *c = (struct guest_cell){.in = -1, .out = {-1, -1}};
}

/* Starting. */

static int map_kept(struct guest_cell *c)
{
    static const size_t sizes[2] = {GUEST_RING, GUEST_STDERR_KEPT};
    for (int i = 0; i < 2; i++) {
        void *p = mmap(NULL, sizes[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return -errno;
        c->kept[i] = (struct guest_kept){.data = p, .size = sizes[i]};
    }
    return 0;
}

/* Born with it: when memory runs out the programs go, and not box-guest. The file was opened while
 * box-guest was dumpable: a process that is not cannot write to its own. */
static pid_t clone_expendable(const struct guest *g)
{
    char score[8];
    (void)str_fmt(score, sizeof(score), "%u", GUEST_OOM_SCORE);
    bool raised = g->oom_fd >= 0 && pwrite(g->oom_fd, score, strlen(score), 0) > 0;
    pid_t pid = clone_plain();
    if (pid != 0 && raised)
        (void)!pwrite(g->oom_fd, g->oom_own, strlen(g->oom_own), 0);
    return pid;
}

static _Noreturn void run_child(const struct guest *g, const struct guest_cell *c,
                                const struct guest_request *req, const struct child_stdio *io)
{
    const struct guest_hello *config = &g->config;
    struct inside_rlimit rlimits[INSIDE_RLIMITS_MAX + 1];
    uint32_t n = config->n_rlimits, nproc = g->gvisor ? config->processes : config->nproc;
    bool in_user = g->within[CHILD_NS_USER] >= 0, tty = (req->flags & GUEST_START_TTY) != 0;
    memcpy(rlimits, config->rlimits, n * sizeof(rlimits[0]));
    /* The container's own limit has room for box-guest; programs must not take it. The kernel
     * (since 5.14) counts in the user namespace, where box-guest is not. */
    if (nproc > 1 && in_user)
        nproc--;
    if (nproc > 0)
        rlimits[n++] = (struct inside_rlimit){RLIMIT_NPROC, 0, nproc, nproc};
    child_run(&(struct child){
        .report = &g->reports[c - g->cells],
        .argc = req->head.argc,
        .envc = req->head.envc,
        .strings = req->strings,
        .strings_len = req->strings_len,
        .strings_fd = -1,
        .program = -1,
        .script = (req->flags & GUEST_START_SCRIPT) != 0,
        .bash = (req->flags & GUEST_START_BASH) != 0,
        .posture = (req->flags & GUEST_START_POSTURE) != 0,
        .env = tty ? g->env : g->env + GUEST_ENV_TTY,
        .n_env = tty ? g->n_env : g->n_env - GUEST_ENV_TTY,
        .io = *io,
        .mark = brand_mark(c->brand),
        .memory_group = -1,
        .rlimits = rlimits,
        .n_rlimits = n,
        /* gVisor refuses to set limits that it does not have: queues of messages and of signals
         * are memory of its own there, which the container's limit counts. */
        .absent = g->gvisor ? 1U << RLIMIT_MSGQUEUE | 1U << RLIMIT_SIGPENDING : 0,
        .namespaces = g->within,
        .drop_caps = in_user,
        .landlock = -1,
        .filters = {brand_filter,
                    {g->filter, (unsigned short)(config->filter_len / sizeof(*g->filter))}}});
}

static int open_streams(const struct guest *g, struct guest_cell *c,
                        const struct guest_request *req, struct streams *s)
{
    c->tty = (req->flags & GUEST_START_TTY) != 0;
    c->log = (req->flags & GUEST_START_LOG) != 0;
    int r =
        streams_open(&(struct streams_request){.tty = c->tty,
                                               .with_stdin = (req->flags & GUEST_START_STDIN) != 0,
                                               .nonblock = true,
                                               .by_name = g->gvisor,
                                               .rows = req->head.rows,
                                               .cols = req->head.cols},
                     s);
    if (r < 0)
        return r;
    c->out[0] = s->ours[0];
    c->out[1] = s->ours[1];
    c->in = c->tty ? fcntl(c->out[0], F_DUPFD_CLOEXEC, 3) : s->ours[2];
    return c->tty && c->in < 0 ? -errno : 0;
}

static int cell_run(struct guest *g, struct guest_cell *c, const struct guest_request *req)
{
    struct streams s;
    int r = open_streams(g, c, req, &s);
    if (r == 0 && guest_is_proc(c))
        r = map_kept(c);
    if (r == 0) {
        tend_start(g, c, &req->head);
        g->reports[c - g->cells] = (struct child_report){0};
        r = c->main = clone_expendable(g);
    }
    if (r == 0 && c->main == 0)
        run_child(g, c, req, &s.child);
    streams_close_child(&s);
    return r < 0 ? r : 0;
}

static void cell_start(struct guest *g, uint32_t id, const struct guest_request *req)
{
    struct guest_head head = {.type = GUEST_EXITED, .id = id};
    struct inside_exited refused = {.stage = INSIDE_STAGE_LIMIT, .error = EAGAIN};
    unsigned i = 0;
    while (i < GUEST_CELLS_MAX && g->cells[i].state != CELL_FREE)
        i++;
    bool fits = inside_start_fits(req->head.argc, req->head.envc, req->strings_len) &&
                req->strings[req->strings_len - 1] == '\0';
    if (!fits || i == GUEST_CELLS_MAX || cell_find(g, id) != NULL) {
        if (!fits)
            refused = (struct inside_exited){.stage = INSIDE_STAGE_REQUEST, .error = EBADMSG};
        serve_send(g, &head, &refused, sizeof(refused), NULL, 0);
        return;
    }
    struct guest_cell *c = &g->cells[i];
    *c = (struct guest_cell){.state = CELL_RUNNING,
                             .id = id,
                             .main = -1,
                             .in = -1,
                             .out = {-1, -1},
                             .credit = {GUEST_WINDOW, GUEST_WINDOW},
                             .brand = brand_new(),
                             .attached = true};
    memcpy(c->label, req->head.label, sizeof(c->label));
    c->label[sizeof(c->label) - 1] = '\0';
    c->alone = true;
    for (unsigned k = 0; k < GUEST_CELLS_MAX; k++)
        if (k != i && g->cells[k].state == CELL_RUNNING)
            c->alone = g->cells[k].alone = false;
    buf_init(&c->input, 2 * GUEST_WINDOW);
    int r = cell_run(g, c, req);
    if (r < 0) {
        refused.error = -r;
        serve_send(g, &head, &refused, sizeof(refused), NULL, 0);
        cell_free(c);
    }
}

static void cell_resize(struct guest_cell *c, uint32_t rows, uint32_t cols)
{
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)cols};
    if (c->tty && c->out[0] >= 0 && rows > 0 && cols > 0)
        (void)ioctl(c->out[0], TIOCSWINSZ, &size);
}

static void cell_release(struct guest_cell *c, uint64_t upto)
{
    if (guest_is_proc(c) && upto > c->kept[0].begin && upto <= c->kept[0].end)
        c->kept[0].begin = upto;
}

static void cell_forget(struct guest_cell *c)
{
    c->silent = c->forget = true;
    tend_end(c, INSIDE_EXITED_KILLED);
}

static void cell_attach(struct guest_cell *c)
{
    c->attached = true;
    for (int i = 0; i < 2; i++) {
        c->kept[i].sent = c->kept[i].begin;
        c->credit[i] = GUEST_RING; /* all that there is comes at once */
        c->ended_told[i] = false;
    }
    c->told = false;
}

/* A new boxd. It does not wait for commands of the old one, which are ended; what they had left in
 * the background stays, as ever. Its managed processes go on, and half a message of the old one is
 * closed before anything else follows. */
void cell_new_connection(struct guest *g)
{
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        struct guest_cell *c = &g->cells[i];
        if (c->state == CELL_FREE)
            continue;
        c->attached = false;
        if (!guest_is_proc(c) && c->state == CELL_LINGER)
            c->silent = true;
        else if (!guest_is_proc(c))
            cell_forget(c);
        c->forget = false; /* the boxd that asked is gone */
        if (c->part && c->in >= 0)
            (void)buf_putc(&c->input, '\n');
        c->part = false;
    }
}

/* Bytes in. */

static void flush_input(struct guest *g, struct guest_cell *c)
{
    uint64_t done = 0;
    while (c->in >= 0 && c->input.len > 0) {
        ssize_t n = write(c->in, c->input.data, c->input.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) { /* the program has closed its end */
            done += c->input.len;
            buf_done(&c->input);
            c->close_in = true;
            break;
        }
        done += (uint64_t)n;
        buf_consume(&c->input, (size_t)n);
    }
    if (c->close_in && c->input.len == 0)
        fd_close_many(&c->in, 1);
    if (done > 0 && !c->silent) {
        struct guest_head head = {.type = GUEST_DRAINED, .id = c->id};
        serve_send(g, &head, &done, sizeof(done), NULL, 0);
    }
}

static void cell_input(struct guest *g, struct guest_cell *c, const char *data, size_t len,
                       uint32_t flags)
{
    if (c->in < 0 || c->close_in) {
        struct guest_head head = {.type = GUEST_DRAINED, .id = c->id};
        uint64_t done = len;
        if (len > 0)
            serve_send(g, &head, &done, sizeof(done), NULL, 0);
        return;
    }
    if (buf_append(&c->input, data, len) < 0) {
        serve_drop(g); /* it sends more than we said we take */
        return;
    }
    if (len > 0)
        c->part = (flags & GUEST_INPUT_PART) != 0;
    c->close_in = (flags & GUEST_INPUT_CLOSE) != 0;
    flush_input(g, c);
}

/* Bytes out. */

static size_t output_room(const struct guest_cell *c, int stream)
{
    if (c->silent)
        return GUEST_DATA_MAX;
    if (!guest_is_proc(c))
        return c->credit[stream] < GUEST_DATA_MAX ? (size_t)c->credit[stream] : GUEST_DATA_MAX;
    if (c->log)
        return INSIDE_LOG_MAX; /* the oldest records make place */
    if (stream == 1)
        return GUEST_DATA_MAX; /* the oldest bytes make place */
    uint64_t free_bytes = c->kept[0].size - (c->kept[0].end - c->kept[0].begin);
    return free_bytes < GUEST_DATA_MAX ? (size_t)free_bytes : GUEST_DATA_MAX;
}

static bool wants_output(const struct guest_cell *c, int stream)
{
    return c->out[stream] >= 0 && output_room(c, stream) > 0;
}

/* Where there is no room the oldest bytes go; output_room() sees to it that those of stdout stay.
 */
static void kept_put(struct guest_kept *k, const char *data, size_t len)
{
    size_t pos = (size_t)(k->end % k->size);
    size_t first = len < k->size - pos ? len : k->size - pos;
    assert(len <= k->size);
    memcpy(k->data + pos, data, first);
    memcpy(k->data, data + first, len - first);
    k->end += len;
    if (k->end - k->begin > k->size)
        k->begin = k->end - k->size;
}

/* Whole records go: what begins at `begin` is one. */
static void kept_put_record(struct guest_kept *k, int stream, const char *data, size_t len)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    const struct inside_log head = {.time_ns = (uint64_t)now.tv_sec * 1000000000ULL +
                                               (uint64_t)now.tv_nsec,
                                    .len = (uint32_t)len,
                                    .stream = (uint32_t)stream};
    while (k->end + sizeof(head) + len - k->begin > k->size) {
        char old[sizeof(head)] = {0};
        for (size_t i = 0; i < sizeof(old); i++)
            old[i] = k->data[(k->begin + i) % k->size];
        struct inside_log gone;
        memcpy(&gone, old, sizeof(gone));
        k->begin += sizeof(gone) + gone.len;
    }
    kept_put(k, (const char *)&head, sizeof(head));
    kept_put(k, data, len);
}

static void take_output(struct guest *g, struct guest_cell *c, int stream, const char *data,
                        size_t len)
{
    struct guest_head head = {.type = GUEST_OUTPUT, .id = c->id, .flags = (uint32_t)stream};
    if (c->silent)
        return;
    if (!guest_is_proc(c)) {
        c->credit[stream] -= len;
        serve_send(g, &head, data, len, NULL, 0);
    } else if (c->log) {
        kept_put_record(&c->kept[0], stream, data, len);
    } else {
        kept_put(&c->kept[stream], data, len);
    }
}

static void cell_on_output(struct guest *g, struct guest_cell *c, int stream)
{
    static char chunk[GUEST_DATA_MAX];
    bool hung_up = false;
    for (int i = 0; i < READS_PER_TURN && wants_output(c, stream); i++) {
        ssize_t n = read(c->out[stream], chunk, output_room(c, stream));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        /* A terminal says EIO when the last process has closed it; what was written in between may
         * still be there. */
        if (n < 0 && errno == EIO && !hung_up) {
            hung_up = true;
            continue;
        }
        if (n <= 0) {
            fd_close_many(&c->out[stream], 1);
            c->owed[stream] = 0;
            return;
        }
        take_output(g, c, stream, chunk, (size_t)n);
        c->owed[stream] -= (uint64_t)n < c->owed[stream] ? (uint64_t)n : c->owed[stream];
    }
}

static void send_kept(struct guest *g, struct guest_cell *c, int stream)
{
    struct guest_kept *k = &c->kept[stream];
    while (serve_can_send(g) && k->sent < k->end && (!c->log || c->credit[stream] > 0)) {
        struct guest_head head = {.type = GUEST_OUTPUT, .id = c->id, .flags = (uint32_t)stream};
        if (k->sent < k->begin)
            k->sent = k->begin;
        struct guest_at at = {.offset = k->sent};
        size_t pos = (size_t)(k->sent % k->size);
        uint64_t n = k->end - k->sent;
        n = n < k->size - pos ? n : k->size - pos; /* one contiguous piece */
        n = n < GUEST_DATA_MAX ? n : GUEST_DATA_MAX;
        if (c->log) {
            n = n < c->credit[stream] ? n : c->credit[stream];
            c->credit[stream] -= n;
        }
        serve_send(g, &head, &at, sizeof(at), k->data + pos, (size_t)n);
        k->sent += n;
    }
}

static void send_ends(struct guest *g, struct guest_cell *c)
{
    for (int i = 0; i < 2; i++) {
        struct guest_head head = {.type = GUEST_END, .id = c->id, .flags = (uint32_t)i};
        bool open = c->out[i] >= 0 || (c->log && c->out[1] >= 0);
        if (open || c->ended_told[i] || c->kept[i].sent < c->kept[i].end)
            continue;
        serve_send(g, &head, NULL, 0, NULL, 0);
        c->ended_told[i] = true;
    }
}

/* EXITED follows the output that was written before it, unless boxd has ended the command: then it
 * must not depend on a client that reads the output. */
static bool owes_output(const struct guest_cell *c, int stream)
{
    const uint32_t ended = INSIDE_EXITED_KILLED | INSIDE_EXITED_TIMEOUT;
    return c->owed[stream] > 0 && (output_room(c, stream) > 0 || (c->result.flags & ended) == 0);
}

static void cell_settle(struct guest *g, struct guest_cell *c)
{
    bool told = c->silent;
    if (g->hello && c->attached && !c->silent) {
        for (int i = 0; i < 2; i++)
            send_kept(g, c, i);
        send_ends(g, c);
        if (c->exited && !c->told && !owes_output(c, 0) && !owes_output(c, 1)) {
            struct guest_head head = {.type = GUEST_EXITED, .id = c->id};
            serve_send(g, &head, &c->result, sizeof(c->result), NULL, 0);
            c->told = true;
        }
        told = c->told && c->ended_told[0] && c->ended_told[1] && !guest_is_proc(c);
    }
    if (c->gone && c->forget) {
        struct guest_head head = {.type = GUEST_GONE, .id = c->id};
        serve_send(g, &head, NULL, 0, NULL, 0);
    }
    if (c->gone && told && (c->silent || (c->out[0] < 0 && c->out[1] < 0)))
        cell_free(c);
}

/* The kernel counts kills for the whole container. They are this one's when nothing else ran, or
 * when it failed meanwhile. */
void cell_on_result(struct guest *g, struct guest_cell *c)
{
    for (int i = 0; i < 2; i++) { /* what it wrote before it ended comes before the news */
        int left = 0;
        cell_on_output(g, c, i);
        if (!guest_is_proc(c) && c->out[i] >= 0 && ioctl(c->out[i], FIONREAD, &left) == 0 &&
            left > 0)
            c->owed[i] = (uint64_t)left; /* it waits for a reader that is slow */
    }
    if (c->oom_seen && (c->failed || c->alone))
        c->result.flags |= INSIDE_EXITED_OOM;
    c->exited = true;
    STATE_MOVE(c->state, moves, CELL_LINGER);
    c->close_in = true;
    buf_done(&c->input);
    fd_close_many(&c->in, 1);
}

/* In the main loop. */

/* Order of a cell's descriptors in the list for poll(2). */
enum watch { WATCH_OUT, WATCH_ERR, WATCH_IN };

static short wanted(const struct guest *g, const struct guest_cell *c, enum watch w)
{
    switch (w) {
    case WATCH_OUT:
    case WATCH_ERR:
        return wants_output(c, (int)w) && (serve_can_send(g) || guest_is_proc(c)) ? POLLIN : 0;
    case WATCH_IN:
        return c->input.len > 0 ? POLLOUT : 0;
    }
    return 0;
}

static void watch_cell(const struct guest *g, const struct guest_cell *c, struct pollfd *p)
{
    const int fds[GUEST_POLLS] = {c->out[0], c->out[1], c->in};
    for (unsigned w = 0; w < GUEST_POLLS; w++) {
        short events = c->state == CELL_FREE ? 0 : wanted(g, c, (enum watch)w);
        p[w] = (struct pollfd){.fd = events != 0 ? fds[w] : -1, .events = events};
    }
}

static void serve_cell(struct guest *g, struct guest_cell *c, const struct pollfd *p)
{
    for (int stream = 0; stream < 2; stream++)
        if (p[stream].revents != 0 && c->out[stream] == p[stream].fd)
            cell_on_output(g, c, stream);
    if (p[WATCH_IN].revents != 0 && c->in == p[WATCH_IN].fd)
        flush_input(g, c);
}

void cells_watch(const struct guest *g, struct pollfd *polls)
{
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        watch_cell(g, &g->cells[i], &polls[i * GUEST_POLLS]);
}

void cells_serve(struct guest *g, const struct pollfd *polls)
{
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        if (g->cells[i].state != CELL_FREE)
            serve_cell(g, &g->cells[i], &polls[i * GUEST_POLLS]);
}

void cells_settle(struct guest *g)
{
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++)
        if (g->cells[i].state != CELL_FREE)
            cell_settle(g, &g->cells[i]);
}

/* Orders of boxd. */

static void order_start(struct guest *g, const struct guest_head *head, const char *body)
{
    struct guest_request req = {.flags = head->flags};
    if (head->len < sizeof(req.head)) {
        serve_drop(g);
        return;
    }
    memcpy(&req.head, body, sizeof(req.head));
    req.strings = body + sizeof(req.head);
    req.strings_len = head->len - sizeof(req.head);
    cell_start(g, head->id, &req);
}

void cell_order(struct guest *g, const struct guest_head *h, const char *body)
{
    if (h->type == GUEST_START) {
        order_start(g, h, body);
        return;
    }
    struct guest_cell *c = cell_find(g, h->id);
    if (c == NULL) { /* it ended while the message was under way */
        struct guest_head gone = {.type = GUEST_GONE, .id = h->id};
        if (h->type == GUEST_FORGET)
            serve_send(g, &gone, NULL, 0, NULL, 0);
        return;
    }
    switch (h->type) {
    case GUEST_INPUT:
        cell_input(g, c, body, h->len, h->flags);
        break;
    case GUEST_CREDIT:
        if (h->flags < 2)
            c->credit[h->flags] += guest_number(h, body);
        break;
    case GUEST_SIGNAL:
        tend_signal(c, (int)h->flags);
        break;
    case GUEST_KILL:
        tend_end(c, INSIDE_EXITED_KILLED);
        break;
    case GUEST_RESIZE:
        cell_resize(c, h->flags >> 16, h->flags & 0xffff);
        break;
    case GUEST_ATTACH:
        cell_attach(c);
        break;
    case GUEST_RELEASE:
        cell_release(c, guest_number(h, body));
        break;
    case GUEST_FORGET:
        cell_forget(c);
        break;
    default:
        serve_drop(g);
    }
}
