/* SPDX-License-Identifier: Apache-2.0 */

/* Runs box-files in a session for one request, and checks each frame that comes back. Error
 * messages, entity tags, and names of types and changes are here, too. */

#include "agent/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/state.h"
#include "base/str.h"
#include "loop/loop.h"
#include "session/manager.h"
#include "session/run.h"

/* Errors of the session's own system calls, as a caller should see them. */
static const struct {
    int error;
    enum err_code code;
    const char *text;
} errors[] = {
    {ENOENT, ERR_NOT_FOUND, "there is no such file or directory"},
    {ENOTDIR, ERR_INVALID, "a part of the path is not a directory"},
    {EISDIR, ERR_INVALID, "it is a directory"},
    {ELOOP, ERR_INVALID, "too many symbolic links, or they change all the time"},
    {ENAMETOOLONG, ERR_INVALID, "the path, or a part of it, is too long"},
    {EINVAL, ERR_INVALID, "the request is not valid for this path"},
    {EACCES, ERR_DENIED, "the session's user may not do that"},
    {EPERM, ERR_DENIED, "the session's user may not do that"},
    {EROFS, ERR_DENIED, "the session has it read-only"},
    {ENOSPC, ERR_LIMIT, "the session's disk is full; nothing was kept"},
    {EDQUOT, ERR_LIMIT, "the session's quota is used up; nothing was kept"},
    {EFBIG, ERR_LIMIT, "the file would be larger than the session may write"},
    {EMFILE, ERR_LIMIT, "too many open files in the session"},
    {ENOMEM, ERR_LIMIT, "the session is out of memory"},
    {EEXIST, ERR_CONFLICT, "it exists already"},
    {ENOTEMPTY, ERR_CONFLICT, "the directory is not empty; ask for it with all it holds"},
    {EBUSY, ERR_CONFLICT, "it is in use, or the top of what can be reached"},
    {EXDEV, ERR_CONFLICT, "it lies on another file system; copy it instead"},
    {ETXTBSY, ERR_CONFLICT, "it is being executed"},
};

static void explain_errno(struct files_failure *f)
{
    for (size_t i = 0; i < ARRAY_SIZE(errors); i++) {
        if (errors[i].error == f->error) {
            (void)err_set(&f->err, errors[i].code, "%s", errors[i].text);
            f->err.sys = f->error;
            return;
        }
    }
    (void)err_sys(&f->err, f->error != 0 ? f->error : EIO, "in the session");
}

/* Text from inside, for a person: as far as it is printable. */
static void explain_pattern(struct err *err, const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && n < 200 && (unsigned char)text[n] >= 0x20 && (unsigned char)text[n] < 0x7f)
        n++;
    if (n > 0)
        (void)err_set(err, ERR_INVALID, "%.*s", (int)n, text);
    else
        (void)err_set(err, ERR_INVALID, "the pattern is not valid");
}

static const struct {
    enum err_code code;
    const char *text; /* NULL: there is more to say */
} reasons[FILES_WHY_MAX] = {
    [FILES_WHY_ESCAPE] = {ERR_DENIED, "the path leaves the directory that it has to stay in"},
    [FILES_WHY_SPECIAL] = {ERR_INVALID, "it is neither a file nor a directory"},
    [FILES_WHY_NO_PLACE] = {ERR_NOT_FOUND, "the text is not in the file"},
    [FILES_WHY_BUSY] = {ERR_CONFLICT, "a program in the session holds a lock on the directory"},
    [FILES_WHY_CUT_OFF] = {ERR_INVALID, "the content ended too early; nothing was kept"},
    [FILES_WHY_REQUEST] = {ERR_BACKEND, "the session does not understand the request"},
};

/* Fills err from the rest; `text` is what box-files said of a pattern. */
static void files_explain(struct files_failure *f, const char *text, size_t len)
{
    struct err *err = &f->err;
    unsigned long long n = f->n;
    if (reasons[f->why].text != NULL)
        (void)err_set(err, reasons[f->why].code, "%s", reasons[f->why].text);
    else if (f->why == FILES_WHY_CHANGED)
        (void)err_set(err, ERR_CONFLICT, "%s",
                      f->error == EEXIST   ? "it exists already"
                      : f->error == ENOENT ? "it does not exist"
                                           : "another program changed it meanwhile");
    else if (f->why == FILES_WHY_RANGE)
        (void)err_set(err, ERR_INVALID, "the range is outside of the file, which has %llu bytes",
                      n);
    else if (f->why == FILES_WHY_PATTERN)
        explain_pattern(err, text, len);
    else if (f->why == FILES_WHY_PLACES)
        (void)err_set(err, ERR_CONFLICT, "the text is in the file %llu times", n);
    else if (f->why == FILES_WHY_TOO_LARGE)
        (void)err_set(err, ERR_LIMIT, "the file has more than %llu bytes", n);
    else
        explain_errno(f);
}

/* Names. */

void files_etag(const struct files_tag *tag, char ret[static FILES_ETAG_SIZE])
{
    (void)snprintf(ret, FILES_ETAG_SIZE, "\"%llx-%llx-%llx-%llx\"", (unsigned long long)tag->ino,
                   (unsigned long long)tag->size, (unsigned long long)tag->mtime_ns,
                   (unsigned long long)tag->ctime_ns);
}

static bool read_hex(const char **s, const char *end, uint64_t *ret)
{
    const char *begin = *s;
    *ret = 0;
    for (; *s < end && *s - begin < 16; (*s)++) {
        char c = **s;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            break;
        *ret = *ret << 4 | (unsigned)digit;
    }
    return *s > begin;
}

bool files_etag_parse(const char *text, size_t len, struct files_tag *ret)
{
    uint64_t n[4];
    const char *s = text, *end = text + len;
    if (len < 2 || *s++ != '"')
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(n); i++) {
        if (i > 0 && (s >= end || *s++ != '-'))
            return false;
        if (!read_hex(&s, end, &n[i]))
            return false;
    }
    *ret = (struct files_tag){n[0], n[1], (int64_t)n[2], (int64_t)n[3]};
    return s + 1 == end && *s == '"';
}

const char *files_type_name(uint32_t mode)
{
    static const struct {
        uint32_t type;
        const char *name;
    } types[] = {{S_IFREG, "file"},        {S_IFDIR, "directory"}, {S_IFLNK, "symlink"},
                 {S_IFIFO, "fifo"},        {S_IFSOCK, "socket"},   {S_IFCHR, "char_device"},
                 {S_IFBLK, "block_device"}};
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if ((mode & S_IFMT) == types[i].type)
            return types[i].name;
    return "unknown";
}

const char *files_change_name(enum files_change c)
{
    static const char *const names[FILES_CHANGE_MAX] = {
        [FILES_CREATED] = "created",   [FILES_MODIFIED] = "modified",
        [FILES_CLOSED] = "closed",     [FILES_ATTRIBUTES] = "attributes",
        [FILES_DELETED] = "deleted",   [FILES_MOVED_FROM] = "moved_from",
        [FILES_MOVED_TO] = "moved_to", [FILES_GONE] = "gone",
        [FILES_OVERFLOW] = "overflow", [FILES_PARTIAL] = "partial"};
    return c > 0 && c < FILES_CHANGE_MAX ? names[c] : NULL;
}

const char *files_cut_name(uint32_t cut)
{
    static const char *const names[FILES_CUT_MAX] = {
        [FILES_CUT_LINES] = "lines",     [FILES_CUT_BYTES] = "bytes",
        [FILES_CUT_ENTRIES] = "entries", [FILES_CUT_MATCHES] = "matches",
        [FILES_CUT_LINE] = "line",       [FILES_CUT_SCAN] = "scan"};
    return cut < FILES_CUT_MAX ? names[cut] : NULL;
}

/* A call. */

/*   ASKING ──► ASKED ──► TOLD
 *      └───────────────────▲ */
enum call_state {
    CALL_ASKING, /* WRITE: content may follow */
    CALL_ASKED,  /* the request is complete */
    CALL_TOLD,   /* finished() was called */
    CALL_STATE_MAX,
};

static const unsigned call_moves[CALL_STATE_MAX] = {
    [CALL_ASKING] = 1U << CALL_ASKED | 1U << CALL_TOLD,
    [CALL_ASKED] = 1U << CALL_TOLD,
    [CALL_TOLD] = 0,
};

struct files_call {
    struct run *run; /* owned; NULL: it could not be started */
    enum call_state state;
    enum files_op op;
    struct files_events events;
    void *arg;
    struct buf in;      /* part of a frame */
    bool busy, freed;   /* callbacks under way: freed after them */
    uint64_t data_left; /* READ: bytes that STAT has announced */
    bool stat_seen;
    uint64_t entries, limit;
    uint64_t range_max; /* READ: bytes that were asked for at most */
    bool held_back;     /* WRITE: what was sent is not taken yet */
    bool paused;
    struct loop *loop; /* borrowed */
    struct loop_timer patience;
    char noise[160]; /* the beginning of what came on stderr */
    size_t n_noise;
};

static void files_call_destroy(struct files_call *c)
{
    loop_timer_stop(&c->patience);
    run_free(c->run);
    buf_done(&c->in);
    free(c);
}

static void files_finish(struct files_call *c, const struct files_done *done,
                         const struct files_failure *failure)
{
    if (c->state == CALL_TOLD)
        return;
    STATE_MOVE(c->state, call_moves, CALL_TOLD);
    loop_timer_stop(&c->patience);
    c->events.finished(c->arg, done, failure);
}

/* It says what it could not: end it, and do not believe the rest. */
static void distrust(struct files_call *c)
{
    struct files_failure f = {0};
    run_kill(c->run);
    (void)err_set(&f.err, ERR_BACKEND,
                  "the answer from inside the session makes no sense; a program there disturbs it");
    files_finish(c, NULL, &f);
}

/* Programs of the same user id can stop box-files, and no client must wait for it then. What is no
 * stream has a time of its own; a stream owes a sign of life whenever it is not for us, or our
 * caller, to go on. */
static bool is_due(const struct files_call *c)
{
    if (c->op == FILES_READ)
        return !c->paused;
    if (c->op == FILES_WRITE)
        return c->held_back || c->state == CALL_ASKED;
    return c->op == FILES_WATCH && !c->stat_seen && !c->paused;
}

static void on_impatient(struct loop_timer *t)
{
    struct files_call *c = container_of(t, struct files_call, patience);
    struct files_failure f = {0};
    run_kill(c->run);
    (void)err_set(&f.err, ERR_LIMIT, "the session took too long to look at its files");
    files_finish(c, NULL, &f);
}

static void wait_anew(struct files_call *c)
{
    if (c->state != CALL_TOLD && is_due(c))
        loop_timer_start(c->loop, &c->patience, FILES_TIMEOUT_NS, on_impatient);
    else
        loop_timer_stop(&c->patience);
}

/* Frames that each operation may send. */
#define ON(t) (1U << FILES_FRAME_##t)
static const unsigned expected[FILES_OP_MAX] = {
    [FILES_STAT] = ON(STAT),
    [FILES_READ] = ON(STAT) | ON(DATA),
    [FILES_LINES] = ON(STAT) | ON(DATA),
    [FILES_LIST] = ON(ENTRY),
    [FILES_WRITE] = ON(STAT),
    [FILES_EDIT] = ON(STAT),
    [FILES_REMOVE] = 0,
    [FILES_MKDIR] = ON(STAT),
    [FILES_MOVE] = ON(STAT),
    [FILES_GLOB] = ON(ENTRY),
    [FILES_GREP] = ON(MATCH),
    [FILES_WATCH] = ON(STAT) | ON(EVENT),
};

static bool stat_fits(struct files_call *c, const char *data, size_t len)
{
    struct files_stat st;
    if (len != sizeof(st) || c->stat_seen)
        return false;
    memcpy(&st, data, sizeof(st));
    c->stat_seen = true;
    if (c->op == FILES_LINES)
        c->data_left = c->limit;
    if (c->op != FILES_READ)
        return true;
    if (st.begin > st.end || st.end > st.tag.size)
        return false;
    c->data_left = st.end - st.begin;
    return c->data_left <= c->range_max;
}

static bool data_fits(struct files_call *c, size_t len)
{
    if (!c->stat_seen || len == 0 || len > c->data_left)
        return false;
    c->data_left -= len;
    return true;
}

/* A name has no NUL; what is beneath a directory is no absolute path. */
static bool name_fits(const char *name, size_t len)
{
    return len < FILES_PATH_MAX && memchr(name, 0, len) == NULL;
}

static bool entry_fits(struct files_call *c, const char *data, size_t len)
{
    struct files_entry e;
    if (len < sizeof(e) || ++c->entries > c->limit)
        return false;
    memcpy(&e, data, sizeof(e));
    return e.name_len > 0 && len == sizeof(e) + (size_t)e.name_len + e.target_len &&
           name_fits(data + sizeof(e), e.name_len) &&
           name_fits(data + sizeof(e) + e.name_len, e.target_len);
}

static bool match_fits(struct files_call *c, const char *data, size_t len)
{
    struct files_match m;
    if (len < sizeof(m) || ++c->entries > c->limit)
        return false;
    memcpy(&m, data, sizeof(m));
    return len == sizeof(m) + (size_t)m.path_len + m.text_len &&
           m.text_len <= 4 * FILES_GREP_LINE_MAX && name_fits(data + sizeof(m), m.path_len);
}

static bool event_fits(const char *data, size_t len)
{
    struct files_event e;
    if (len < sizeof(e))
        return false;
    memcpy(&e, data, sizeof(e));
    return files_change_name((enum files_change)e.change) != NULL &&
           len == sizeof(e) + (size_t)e.path_len && name_fits(data + sizeof(e), e.path_len);
}

static bool frame_fits(struct files_call *c, uint32_t type, const char *data, size_t len)
{
    switch (type) {
    case FILES_FRAME_STAT:
        return stat_fits(c, data, len);
    case FILES_FRAME_DATA:
        return data_fits(c, len);
    case FILES_FRAME_ENTRY:
        return entry_fits(c, data, len);
    case FILES_FRAME_MATCH:
        return match_fits(c, data, len);
    case FILES_FRAME_EVENT:
        return event_fits(data, len);
    default:
        return false;
    }
}

static void on_done(struct files_call *c, const char *data, size_t len)
{
    struct files_done done;
    /* A client that announced content has to deliver it. */
    if (len != sizeof(done) || (c->op == FILES_READ && c->data_left > 0) ||
        ((expected[c->op] & ON(STAT)) != 0 && !c->stat_seen)) {
        distrust(c);
        return;
    }
    memcpy(&done, data, sizeof(done));
    if (done.cut >= FILES_CUT_MAX)
        done.cut = FILES_CUT_SCAN;
    files_finish(c, &done, NULL);
}

static void on_fail(struct files_call *c, const char *data, size_t len)
{
    struct files_fail fail;
    struct files_failure f = {0};
    if (len < sizeof(fail)) {
        distrust(c);
        return;
    }
    memcpy(&fail, data, sizeof(fail));
    /* 0 is ours: it says that box-files did not answer. */
    f.why = fail.why > 0 && fail.why < FILES_WHY_MAX ? (enum files_why)fail.why : FILES_WHY_REQUEST;
    f.error = fail.error > 0 && fail.error < 4096 ? fail.error : 0;
    f.n = fail.n;
    files_explain(&f, data + sizeof(fail), len - sizeof(fail));
    files_finish(c, NULL, &f);
}

static void on_frame(struct files_call *c, uint32_t type, const char *data, size_t len)
{
    if (type == FILES_FRAME_DONE)
        on_done(c, data, len);
    else if (type == FILES_FRAME_FAIL)
        on_fail(c, data, len);
    else if (type > FILES_FRAME_FAIL || (expected[c->op] & (1U << type)) == 0 ||
             !frame_fits(c, type, data, len))
        distrust(c);
    else if (c->events.frame != NULL)
        c->events.frame(c->arg, (enum files_type)type, data, len);
}

/* Frames off the front of data; how many bytes they had. */
static size_t take_frames(struct files_call *c, const char *data, size_t len)
{
    struct files_head h;
    size_t at = 0;
    while (c->state != CALL_TOLD && !c->freed && len - at >= sizeof(h)) {
        memcpy(&h, data + at, sizeof(h));
        if (h.len > FILES_FRAME_MAX) {
            distrust(c);
            break;
        }
        if (len - at - sizeof(h) < h.len)
            break;
        on_frame(c, h.type, data + at + sizeof(h), h.len);
        at += sizeof(h) + h.len;
    }
    return c->state == CALL_TOLD || c->freed ? len : at;
}

static void take_input(struct files_call *c, const char *data, size_t len)
{
    if (c->in.len == 0) {
        size_t used = take_frames(c, data, len);
        if (used < len)
            (void)buf_append(&c->in, data + used, len - used);
        return;
    }
    if (buf_append(&c->in, data, len) < 0) {
        distrust(c);
        return;
    }
    size_t used = take_frames(c, c->in.data, c->in.len);
    buf_consume(&c->in, used);
}

static void on_output(void *arg, enum exec_stream stream, const char *data, size_t len)
{
    struct files_call *c = arg;
    if (c->state == CALL_TOLD)
        return;
    if (stream == EXEC_STDERR) {
        size_t room = sizeof(c->noise) - 1 - c->n_noise, n = len < room ? len : room;
        memcpy(c->noise + c->n_noise, data, n);
        c->n_noise += n;
        return;
    }
    c->busy = true;
    take_input(c, data, len);
    wait_anew(c);
    c->busy = false;
    if (c->freed)
        files_call_destroy(c);
}

static void on_drained(void *arg)
{
    struct files_call *c = arg;
    c->held_back = false;
    wait_anew(c);
    if (c->state != CALL_TOLD && c->events.drained != NULL)
        c->events.drained(c->arg);
}

/* It ended without an answer. */
static void on_finished(void *arg, const struct run_result *result)
{
    struct files_call *c = arg;
    const struct outcome *o = &result->outcome;
    struct files_failure f = {0};
    if (c->state == CALL_TOLD)
        return;
    if (o->kind == OUTCOME_TIMED_OUT)
        (void)err_set(&f.err, ERR_LIMIT, "the session took too long to look at its files");
    else if (o->kind == OUTCOME_OOM_KILLED)
        (void)err_set(&f.err, ERR_LIMIT, "the session is out of memory");
    else if (o->kind == OUTCOME_SESSION_LOST)
        (void)err_set(&f.err, ERR_BACKEND, "the session ended meanwhile");
    else if (o->error[0] != '\0')
        (void)err_set(&f.err, ERR_LIMIT, "the session cannot look at its files now: %s", o->error);
    else
        (void)err_set(
            &f.err, ERR_BACKEND,
            "a program in the session killed box-files, which reads its files; try again");
    files_finish(c, NULL, &f);
}

static const struct run_events run_events = {
    .output = on_output, .stdin_drained = on_drained, .finished = on_finished};

static int send_request(struct files_call *c, const struct files_ask *ask)
{
    AUTO_DONE(buf) struct buf out;
    struct files_request head = ask->head;
    const struct files_text texts[] = {
        {ask->root, strlen(ask->root)}, {ask->path, strlen(ask->path)}, ask->a, ask->b};
    buf_init(&out, sizeof(head) + 2 * FILES_PATH_MAX + 2 * FILES_STRING_MAX);
    head.version = FILES_WIRE_VERSION;
    head.root_len = (uint32_t)texts[0].len;
    head.path_len = (uint32_t)texts[1].len;
    head.a_len = (uint32_t)texts[2].len;
    head.b_len = (uint32_t)texts[3].len;
    int r = buf_append(&out, &head, sizeof(head));
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(texts); i++)
        r = texts[i].len > 0 ? buf_append(&out, texts[i].p, texts[i].len) : 0;
    if (r == 0)
        r = run_write(c->run, out.data, out.len);
    /* WATCH goes on until its input ends. */
    if (r >= 0 && ask->head.op != FILES_WRITE && ask->head.op != FILES_WATCH)
        run_close_stdin(c->run);
    if (ask->head.op != FILES_WRITE)
        STATE_MOVE(c->state, call_moves, CALL_ASKED);
    return r < 0 ? r : 0;
}

static int check_ask(const struct files_ask *ask, struct err *err)
{
    if (ask->path[0] == '\0')
        return err_set(err, ERR_INVALID, "the path is empty; name a file inside the session");
    if (strlen(ask->path) >= FILES_PATH_MAX || strlen(ask->root) >= FILES_PATH_MAX)
        return err_set(err, ERR_INVALID, "the path is longer than %u bytes", FILES_PATH_MAX - 1);
    if (ask->a.len > FILES_STRING_MAX || ask->b.len > FILES_STRING_MAX)
        return err_set(err, ERR_LIMIT, "a text is larger than %u MiB", FILES_STRING_MAX >> 20);
    return 0;
}

int files_start(struct session *s, const struct files_ask *ask, const struct files_events *events,
                void *arg, struct files_call **ret, struct err *err)
{
    struct run_options options = {
        .exec = {.files = true, .cwd = "/", .with_stdin = true, .timeout_ns = ask->timeout_ns},
        .quiet = ask->quiet};
    int r = check_ask(ask, err);
    if (r < 0)
        return r;
    AUTO(files_call) struct files_call *c = xnew(struct files_call);
    c->op = (enum files_op)ask->head.op;
    c->events = *events;
    c->arg = arg;
    c->limit = c->op == FILES_LINES ? ask->head.max : ask->head.length;
    /* Without If-Range: with it the whole file may come instead. */
    bool exact = (ask->head.flags & (FILES_RANGE | FILES_IF_MATCH)) == FILES_RANGE;
    c->range_max = exact ? ask->head.length : UINT64_MAX;
    c->loop = manager_loop(session_manager(s));
    buf_init(&c->in, sizeof(struct files_head) + FILES_FRAME_MAX + (64U << 10));
    r = run_start(s, &options, &run_events, c, &c->run, err);
    if (r < 0)
        return r;
    r = send_request(c, ask);
    if (r < 0)
        return err_sys(err, -r, "ask for a file of the session");
    wait_anew(c);
    *ret = TAKE_PTR(c);
    return 0;
}

void files_call_free(struct files_call *c)
{
    if (c == NULL)
        return;
    /* What was begun inside ends by itself when its input does, and cleans up; a stream of output
     * would not notice. */
    if (c->run != NULL && c->state != CALL_TOLD && c->op != FILES_WRITE)
        run_kill(c->run);
    c->freed = true;
    if (!c->busy)
        files_call_destroy(c);
}

int files_write(struct files_call *c, const char *data, size_t len)
{
    int r = 0;
    if (c->state != CALL_ASKING)
        return -EPIPE;
    while (len > 0 && r >= 0) {
        char frame[sizeof(struct files_head) + FILES_DATA_MAX];
        size_t n = len < FILES_DATA_MAX ? len : FILES_DATA_MAX;
        struct files_head h = {.type = FILES_FRAME_DATA, .len = (uint32_t)n};
        memcpy(frame, &h, sizeof(h));
        memcpy(frame + sizeof(h), data, n);
        int one = run_write(c->run, frame, sizeof(h) + n);
        r = one < 0 ? one : (r | one);
        data += n;
        len -= n;
    }
    c->held_back = r > 0;
    wait_anew(c);
    return r;
}

void files_write_end(struct files_call *c)
{
    struct files_head h = {.type = FILES_FRAME_END};
    if (c->state != CALL_ASKING)
        return;
    STATE_MOVE(c->state, call_moves, CALL_ASKED);
    (void)run_write(c->run, (const char *)&h, sizeof(h));
    run_close_stdin(c->run);
    wait_anew(c);
}

void files_pause(struct files_call *c, bool paused)
{
    if (c->state == CALL_TOLD)
        return;
    run_pause(c->run, paused);
    c->paused = paused;
    wait_anew(c);
}
