/* SPDX-License-Identifier: Apache-2.0 */

/* Readers of a managed process: its output by byte offset, and whose turn it is to write; the end
 * of its stderr as text; and what is saved of a log. */

#include "session/process_reader.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/state.h"
#include "base/str.h"
#include "inside/wire.h"
#include "session/session_internal.h"
#include "spec/process.h"

#define READ_SIZE 65536U
#define TURN_BYTES (512U << 10) /* of output to one reader in one turn of the loop */
#define LOG_MAX (2U << 20)      /* more than any process keeps */

static const unsigned moves[READER_MAX] = {
    [READER_STOPPED] = 1U << READER_BESIDE,
    [READER_BESIDE] = 1U << READER_WAITING | 1U << READER_STOPPED,
    [READER_WAITING] = 1U << READER_ACTIVE | 1U << READER_BESIDE | 1U << READER_STOPPED,
    [READER_ACTIVE] = 1U << READER_BESIDE | 1U << READER_STOPPED,
};

static void reader_move(struct process_reader *r, enum reader_state to)
{
    STATE_MOVE(r->state, moves, to);
}

static const struct backend_ops *ops(const struct process *p)
{
    return p->proc->backend->ops;
}

/* Of the process, beside any reader. */

struct proc_range process_range(const struct process *p)
{
    if (p->proc == NULL)
        return (struct proc_range){
            .begin = p->saved_begin, .end = p->saved_begin + p->saved.len, .eof = true};
    return ops(p)->proc_range(p->proc);
}

ssize_t process_read(struct process *p, uint64_t from, char *buf, size_t size)
{
    if (p->proc == NULL) {
        if (from < p->saved_begin || from > p->saved_begin + p->saved.len)
            return -ERANGE;
        size_t at = (size_t)(from - p->saved_begin), n = p->saved.len - at;
        memcpy(buf, buf_str(&p->saved) + at, n < size ? n : size);
        return (ssize_t)(n < size ? n : size);
    }
    session_touch(p->session);
    return ops(p)->proc_read(p->proc, from, buf, size);
}

void process_save_log(struct process *p)
{
    AUTO_DONE(buf) struct buf all = BUF_INIT(LOG_MAX);
    static char chunk[READ_SIZE];
    struct proc_range range = process_range(p);
    uint64_t at = range.begin;
    for (ssize_t n; (n = process_read(p, at, chunk, sizeof(chunk))) > 0; at += (uint64_t)n)
        if (buf_append(&all, chunk, (size_t)n) < 0)
            break;
    size_t gone = inside_log_excess(buf_str(&all), all.len, PROCESS_SAVED_MAX);
    (void)buf_append(&p->saved, buf_str(&all) + gone, all.len - gone);
    p->saved_begin = at - p->saved.len;
}

int process_release(struct process *p, uint64_t upto, struct err *err)
{
    if (process_attached(p))
        return err_set(err, ERR_CONFLICT,
                       "a client is attached to process %.100s; only it can release output",
                       p->spec->process_id);
    if (p->proc != NULL)
        ops(p)->proc_release(p->proc, upto);
    return 0;
}

/* The preview of stderr ------------------------------------------------------------------------ */

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Valid text, as decoded with replacement. NUL is replaced too: a reader may take it for the
 * end. */
static void preview_decode(const char *data, size_t len, struct buf *ret)
{
    while (len > 0) {
        bool incomplete;
        int n = utf8_next(data, len, &incomplete);
        size_t used = (size_t)(n > 0 ? n : -n);
        if (n > 0 && *data != '\0')
            (void)buf_append(ret, data, used);
        else
            (void)buf_puts(ret, replacement);
        data += used;
        len -= used;
    }
}

static bool is_inside_character(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Where the last PROCESS_STDERR_CHARS code points of valid text begin. */
static size_t preview_tail(const char *text, size_t len)
{
    size_t at = len;
    for (size_t n = 0; at > 0 && n < PROCESS_STDERR_CHARS; n++)
        do
            at--;
        while (at > 0 && is_inside_character(text[at]));
    return at;
}

static void preview_write(const char *data, size_t len, bool cut, struct buf *ret)
{
    AUTO_DONE(buf) struct buf text;
    /* What was cut off may have taken the beginning of a character along. */
    for (int i = 0; cut && i < 3 && len > 0 && is_inside_character(*data); i++) {
        data++;
        len--;
    }
    buf_init(&text, len * (sizeof(replacement) - 1) + 1);
    (void)buf_putc(&text, '|'); /* blanks in front are not stripped */
    preview_decode(data, len, &text);
    AUTO_FREE char *stripped = str_strip(buf_str(&text));
    size_t end = strlen(stripped + 1);
    size_t begin = preview_tail(stripped + 1, end);
    (void)buf_append(ret, stripped + 1 + begin, end - begin);
}

void process_stderr_preview(struct process *p, struct buf *ret)
{
    char tail[PREVIEW_BYTES];
    size_t n = 0;
    if (p->proc != NULL)
        n = p->proc->backend->ops->proc_stderr(p->proc, tail, sizeof(tail));
    if (n > 0)
        preview_write(tail, n, n == sizeof(tail), ret);
    else
        (void)buf_append(ret, buf_str(&p->preview), p->preview.len);
}

size_t process_stderr_from(struct process *p, uint64_t *at, char *buf, size_t size)
{
    return p->proc == NULL ? 0 : p->proc->backend->ops->proc_stderr_from(p->proc, at, buf, size);
}

/* Coming and going. */

static bool claims(const struct process_reader *r)
{
    return r->state == READER_WAITING || r->state == READER_ACTIVE;
}

/* The one whose turn it is: of those that claim the process, the first that came. */
static struct process_reader *first_in_line(const struct process *p)
{
    struct process_reader *r, *first = NULL;
    LIST_FOREACH (r, &p->readers, link)
        if (claims(r))
            first = r;
    return first;
}

bool process_attached(const struct process *p)
{
    return first_in_line(p) != NULL;
}

static void on_active(struct loop_defer *d)
{
    struct process_reader *r = container_of(d, struct process_reader, news);
    reader_move(r, READER_ACTIVE);
    process_settle(r->process);
    if (r->state == READER_ACTIVE && r->events->active != NULL)
        r->events->active(r); /* otherwise no output was left for it */
}

static void on_ended(struct loop_defer *d)
{
    struct process_reader *r = container_of(d, struct process_reader, news);
    r->events->ended(r);
}

static void promote(const struct process *p)
{
    struct process_reader *r = first_in_line(p);
    if (r != NULL && r->state == READER_WAITING)
        loop_defer_start(r->loop, &r->news, on_active);
}

void process_reader_start(struct process_reader *r, struct process *p,
                          const struct process_reader_events *events)
{
    assert(r->state == READER_STOPPED && events->ended != NULL);
    *r = (struct process_reader){
        .process = p, .at = r->at, .events = events, .loop = p->session->m->loop};
    reader_move(r, READER_BESIDE);
    LIST_INSERT_HEAD(&p->readers, r, link);
}

int process_reader_claim(struct process_reader *r, struct err *err)
{
    struct process *p = r->process;
    if (p->state != PROCESS_RUNNING)
        return err_set(err, ERR_STATE, "managed process %.100s in session %.100s is not running",
                       p->spec->process_id, session_id(p->session));
    reader_move(r, READER_WAITING);
    session_touch(p->session);
    promote(p);
    return 0;
}

/* A round of readers_tell_output(), on its stack. A reader that leaves moves on every round that
 * would have come to it next. So a round never holds one that is gone, and it is over when the
 * process itself goes, which all of its readers leave before. */
struct reader_round {
    struct reader_round *outer;
    struct process_reader *next;
};

static void reader_leave(struct process_reader *r)
{
    struct process *p = r->process;
    for (struct reader_round *round = p->session->m->round; round != NULL; round = round->outer)
        if (round->next == r)
            round->next = LIST_NEXT(r, link);
    LIST_REMOVE(r, link);
    r->process = NULL;
    reader_move(r, READER_STOPPED);
    loop_defer_stop(&r->news);
    loop_defer_stop(&r->again);
    loop_timer_stop(&r->timer);
}

void process_reader_stop(struct process_reader *r)
{
    struct process *p = r->process;
    loop_defer_stop(&r->news); /* its end need not be told any more */
    if (p == NULL)
        return;
    bool had_claim = claims(r);
    reader_leave(r);
    if (!had_claim)
        return;
    promote(p);
    if (p->state == PROCESS_EXITED)
        reap_exited(p->session->m);
}

/* Never calls back: nothing can happen to a process while it is being forgotten. */
static void end_reader(struct process_reader *r)
{
    reader_leave(r);
    loop_defer_start(r->loop, &r->news, on_ended);
}

void readers_end_turns(struct process *p)
{
    struct process_reader *r, *next;
    LIST_FOREACH_SAFE (r, &p->readers, link, next) {
        if (!claims(r))
            continue;
        loop_defer_stop(&r->news);
        if (r->events->stays)
            reader_move(r, READER_BESIDE);
        else
            end_reader(r);
    }
}

void readers_end(struct process *p)
{
    while (!LIST_EMPTY(&p->readers))
        end_reader(LIST_FIRST(&p->readers));
}

/* Telling. */

void readers_tell_output(struct process *p)
{
    struct manager *m = p->session->m;
    struct reader_round round = {.outer = m->round, .next = LIST_FIRST(&p->readers)};
    m->round = &round;
    while (round.next != NULL) {
        struct process_reader *r = round.next;
        round.next = LIST_NEXT(r, link);
        if (r->events->output != NULL)
            r->events->output(r);
    }
    m->round = round.outer;
}

void readers_tell_drained(struct process *p)
{
    struct process_reader *r = first_in_line(p);
    if (r != NULL && r->state == READER_ACTIVE && r->events->drained != NULL)
        r->events->drained(r);
}

/* What a reader does. */

static void on_again(struct loop_defer *d)
{
    struct process_reader *r = container_of(d, struct process_reader, again);
    r->events->output(r);
}

enum reader_pumped process_reader_pump(struct process_reader *r)
{
    static char buffer[READER_ROOM + READ_SIZE];
    char *data = buffer + READER_ROOM;
    size_t budget = TURN_BYTES;
    while (r->process != NULL && r->events->ready(r)) {
        ssize_t n = process_read(r->process, r->at, data, READ_SIZE);
        if (n < 0)
            return READER_LOST;
        struct proc_range range = process_range(r->process);
        bool last = range.eof && r->at + (uint64_t)n >= range.end;
        if (n == 0)
            return last ? READER_END : READER_ALL;
        size_t used = r->events->take(r, data, (size_t)n, last);
        r->at += used;
        if (used == 0)
            break;
        if (used > budget) {
            loop_defer_start(r->loop, &r->again, on_again);
            break;
        }
        budget -= used;
    }
    return READER_HELD;
}

static void on_due(struct loop_timer *t)
{
    struct process_reader *r = container_of(t, struct process_reader, timer);
    r->events->due(r);
}

void process_reader_wait(struct process_reader *r, uint64_t ns)
{
    loop_timer_start(r->loop, &r->timer, ns, on_due);
}

void process_reader_release(struct process_reader *r, uint64_t upto)
{
    struct process *p = r->process;
    if (p == NULL || p->proc == NULL || (r->state != READER_ACTIVE && process_attached(p)))
        return;
    ops(p)->proc_release(p->proc, upto);
    process_settle(p);
}

/* It has the process, and the process its stdin. */
static bool can_write(const struct process_reader *r)
{
    assert(r->state != READER_WAITING);
    return r->state == READER_ACTIVE && r->process->proc != NULL;
}

int process_reader_write(struct process_reader *r, const char *data, size_t len)
{
    if (!can_write(r))
        return -EPIPE;
    int e = ops(r->process)->proc_write(r->process->proc, data, len);
    if (e >= 0)
        session_touch(r->process->session);
    return e;
}

size_t process_reader_unwritten(const struct process_reader *r)
{
    return can_write(r) ? ops(r->process)->proc_unwritten(r->process->proc) : 0;
}

void process_reader_close_stdin(struct process_reader *r)
{
    if (can_write(r))
        ops(r->process)->proc_close_stdin(r->process->proc);
}
