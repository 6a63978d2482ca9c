/* SPDX-License-Identifier: Apache-2.0 */

/* The connection of box-guest to boxd: frames in both directions, and the check of mounts. */

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/guest/guest.h"

#define OUT_HIGH_WATER (512U * 1024U)
#define READ_CHUNK (64U * 1024U)
#define FILTER_MAX 4096U
#define MOUNTINFO_MAX (256U * 1024U)

void serve_drop(struct guest *g)
{
    fd_close_many(&g->sock, 1);
    if (g->hello)
        g->alone_since = guest_now();
    g->hello = false;
    g->retry_at = guest_now();
    buf_done(&g->in);
    buf_done(&g->out);
    g->out_pos = 0;
}

bool serve_can_send(const struct guest *g)
{
    return g->hello && g->out.len - g->out_pos < OUT_HIGH_WATER;
}

void serve_send(struct guest *g, const struct guest_head *head, const void *a, size_t a_len,
                const void *b, size_t b_len)
{
    struct guest_head h = *head;
    if (!g->hello)
        return;
    h.len = (uint32_t)(a_len + b_len);
    if (buf_append(&g->out, &h, sizeof(h)) < 0 ||
        (a_len > 0 && buf_append(&g->out, a, a_len) < 0) ||
        (b_len > 0 && buf_append(&g->out, b, b_len) < 0))
        serve_drop(g);
}

void serve_flush(struct guest *g)
{
    while (g->sock >= 0 && g->out_pos < g->out.len) {
        ssize_t n = send(g->sock, g->out.data + g->out_pos, g->out.len - g->out_pos,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            serve_drop(g);
            return;
        }
        g->out_pos += (size_t)n;
    }
    if (g->out_pos == g->out.len) {
        buf_done(&g->out);
        g->out_pos = 0;
    } else if (g->out_pos > g->out.len / 2) {
        buf_consume(&g->out, g->out_pos);
        g->out_pos = 0;
    }
}

static int64_t nanoseconds(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

/* What a mount really is, for boxd to compare with what it had in mind. */
static void look(const char *path, struct guest_check *ret)
{
    struct stat st;
    struct statfs fs;
    if (lstat(path, &st) < 0 || statfs(path, &fs) < 0)
        return;
    *ret = (struct guest_check){.dev = st.st_dev,
                                .ino = st.st_ino,
                                .mode = st.st_mode,
                                .mount_flags = (uint32_t)fs.f_flags,
                                .uid = st.st_uid,
                                .gid = st.st_gid,
                                .size = (uint64_t)st.st_size,
                                .mtime_ns = nanoseconds(&st.st_mtim),
                                .ctime_ns = nanoseconds(&st.st_ctim)};
}

/* "\040" and the like, in place. */
static void unescape(char *s)
{
    char *to = s;
    for (; *s != '\0'; s++) {
        bool octal = s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
                     s[3] >= '0' && s[3] <= '7';
        *to++ = octal ? (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0')) : *s;
        s += octal ? 3 : 0;
    }
    *to = '\0';
}

static bool is_listed(const char *path, const char *paths, const char *end)
{
    for (; paths < end; paths += strlen(paths) + 1)
        if (strcmp(path, paths) == 0)
            return true;
    return false;
}

struct mounted {
    char target[4096]; /* "": longer than that */
    bool read_only;
};

/* One line of mountinfo: what follows it, or NULL when there is none. */
static const char *next_mounted(const char *line, struct mounted *ret)
{
    for (int field = 0; field < 4; field++) {
        line = strchr(line, ' ');
        if (line == NULL)
            return NULL;
        line++;
    }
    size_t len = strcspn(line, " \n");
    if (str_fmt(ret->target, sizeof(ret->target), "%.*s", (int)len, line) < 0)
        ret->target[0] = '\0';
    unescape(ret->target);
    line += len;
    ret->read_only = str_starts(line, " ro ") || str_starts(line, " ro,");
    return line + strcspn(line, "\n");
}

/* gVisor's statfs(2) does not tell; its list of mounts does. */
static bool is_read_only(const struct guest *g, const struct mounted *m)
{
    struct statfs fs;
    return g->gvisor ? m->read_only : statfs(m->target, &fs) == 0 && (fs.f_flags & ST_RDONLY);
}

/* Whether something that nobody asked for is mounted below a path, and can be written to. */
static bool writable_below(const struct guest *g, const char *mountinfo, const char *path,
                           const char *paths, const char *end)
{
    static struct mounted m;
    size_t len = strlen(path);
    for (const char *line = next_mounted(mountinfo, &m); line != NULL;
         line = next_mounted(line, &m)) {
        if (m.target[0] == '\0')
            return true;
        if (strncmp(m.target, path, len) == 0 && m.target[len] == '/' &&
            !is_listed(m.target, paths, end) && !is_read_only(g, &m))
            return true;
    }
    return false;
}

static bool listed_read_only(const char *mountinfo, const char *path)
{
    static struct mounted m;
    bool is = false;
    for (const char *line = next_mounted(mountinfo, &m); line != NULL;
         line = next_mounted(line, &m))
        if (str_eq(m.target, path))
            is = m.read_only;
    return is;
}

/* A mount is as read-only as what came along with it. */
static void look_below(const struct guest *g, const char *paths, const char *end,
                       struct guest_check *checks)
{
    static char mountinfo[MOUNTINFO_MAX];
    ssize_t got = fd_read_file_at(AT_FDCWD, "/proc/self/mountinfo", mountinfo, sizeof(mountinfo));
    bool whole = got >= 0 && (size_t)got < sizeof(mountinfo) - 1;
    const char *path = paths;
    for (uint32_t i = 0; i < g->config.n_checks && path < end; i++, path += strlen(path) + 1) {
        if (whole && g->gvisor && listed_read_only(mountinfo, path))
            checks[i].mount_flags |= (uint32_t)ST_RDONLY;
        if (!whole || writable_below(g, mountinfo, path, paths, end))
            checks[i].mount_flags &= ~(uint32_t)ST_RDONLY;
    }
}

static void welcome(struct guest *g, const char *paths, const char *end)
{
    static struct guest_check checks[GUEST_CHECKS_MAX];
    static struct guest_proc procs[GUEST_CELLS_MAX];
    struct guest_head head = {.type = GUEST_WELCOME};
    struct guest_welcome w = {.version = GUEST_WIRE_VERSION,
                              .pid = (uint32_t)getpid(),
                              .n_checks = g->config.n_checks,
                              .uid = geteuid(),
                              .gid = getegid(),
                              .flags = g->gvisor ? GUEST_WELCOME_GVISOR : 0};
    const char *path = paths;
    memset(checks, 0, sizeof(checks));
    for (uint32_t i = 0; i < w.n_checks && path < end; i++) {
        look(path, &checks[i]);
        path += strlen(path) + 1;
    }
    if (w.n_checks > 0)
        look_below(g, paths, end, checks);
    for (unsigned i = 0; i < GUEST_CELLS_MAX; i++) {
        const struct cell *c = &g->cells[i];
        if (c->state == CELL_FREE || !(c->id & GUEST_PROC_BIT))
            continue;
        procs[w.n_procs++] = (struct guest_proc){.number = c->id & ~GUEST_PROC_BIT,
                                                 .exited = c->exited,
                                                 .begin = c->ring.begin,
                                                 .end = c->ring.end};
    }
    AUTO_DONE(buf) struct buf body;
    buf_init(&body, GUEST_ANSWER_MAX);
    (void)buf_append(&body, checks, w.n_checks * sizeof(checks[0]));
    (void)buf_append(&body, procs, w.n_procs * sizeof(procs[0]));
    serve_send(g, &head, &w, sizeof(w), body.data, body.len);
}

static void on_hello(struct guest *g, const char *body, size_t len)
{
    struct guest_hello h;
    if (len < sizeof(h)) {
        serve_drop(g);
        return;
    }
    memcpy(&h, body, sizeof(h));
    const char *at = body + sizeof(h), *end = body + len;
    if (h.version != GUEST_WIRE_VERSION || h.filter_len > (size_t)(end - at) ||
        h.filter_len % sizeof(struct sock_filter) != 0 ||
        h.filter_len / sizeof(struct sock_filter) > FILTER_MAX || h.n_checks > GUEST_CHECKS_MAX ||
        h.n_rlimits > GUEST_RLIMITS_MAX || memchr(h.quota_path, 0, sizeof(h.quota_path)) == NULL ||
        (end > at && end[-1] != '\0' && h.n_checks > 0)) {
        serve_drop(g);
        return;
    }
    g->config = h;
    free(g->filter);
    g->filter = xcalloc(1, h.filter_len + 1);
    memcpy(g->filter, at, h.filter_len);
    g->hello = true;
    cell_new_connection(g);
    welcome(g, at + h.filter_len, end);
}

static void on_start(struct guest *g, const struct guest_head *head, const char *body)
{
    struct start_request req = {.flags = head->flags};
    if (head->len < sizeof(req.head)) {
        serve_drop(g);
        return;
    }
    memcpy(&req.head, body, sizeof(req.head));
    req.strings = body + sizeof(req.head);
    req.strings_len = head->len - sizeof(req.head);
    cell_start(g, head->id, &req);
}

static uint64_t number(const struct guest_head *head, const char *body)
{
    uint64_t n = 0;
    if (head->len == sizeof(n))
        memcpy(&n, body, sizeof(n));
    return n;
}

static void on_cell(struct guest *g, const struct guest_head *h, const char *body)
{
    struct cell *c = cell_find(g, h->id);
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
            c->credit[h->flags] += number(h, body);
        break;
    case GUEST_SIGNAL:
        tend_signal(c, (int)h->flags);
        break;
    case GUEST_KILL:
        tend_end(c, GUEST_EXITED_KILLED);
        break;
    case GUEST_RESIZE:
        cell_resize(c, h->flags >> 16, h->flags & 0xffff);
        break;
    case GUEST_ATTACH:
        cell_attach(c);
        break;
    case GUEST_RELEASE:
        cell_release(c, number(h, body));
        break;
    case GUEST_FORGET:
        cell_forget(c);
        break;
    default:
        serve_drop(g);
    }
}

static void on_frame(struct guest *g, const struct guest_head *h, const char *body)
{
    if (h->type == GUEST_HELLO) {
        on_hello(g, body, h->len);
    } else if (!g->hello) {
        serve_drop(g);
    } else if (h->type == GUEST_START) {
        on_start(g, h, body);
    } else if (h->type == GUEST_DEADLINE) {
        uint64_t left = number(h, body);
        g->deadline = left > 0 ? guest_now() + left : 0;
    } else {
        on_cell(g, h, body);
    }
}

static void take_frames(struct guest *g)
{
    size_t pos = 0;
    while (g->sock >= 0 && g->in.len - pos >= sizeof(struct guest_head)) {
        struct guest_head h;
        memcpy(&h, g->in.data + pos, sizeof(h));
        if (h.len > GUEST_FRAME_MAX) {
            serve_drop(g);
            return;
        }
        if (g->in.len - pos - sizeof(h) < h.len)
            break;
        on_frame(g, &h, g->in.data + pos + sizeof(h));
        pos += sizeof(h) + h.len;
    }
    if (g->sock < 0)
        return; /* dropped, and the buffer with it */
    buf_consume(&g->in, pos);
    if (g->in.len == 0)
        buf_done(&g->in);
}

void serve_input(struct guest *g)
{
    if (buf_reserve(&g->in, READ_CHUNK) < 0) {
        serve_drop(g);
        return;
    }
    ssize_t n = recv(g->sock, g->in.data + g->in.len, READ_CHUNK, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        serve_drop(g);
        return;
    }
    g->in.len += (size_t)n;
    take_frames(g);
}
