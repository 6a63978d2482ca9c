/* SPDX-License-Identifier: Apache-2.0 */

/* The answer of box-files as a program of its session may have written it: frames to the code of
 * boxd that reads them, with nothing behind it that could run. Three bytes choose what was asked
 * (operation, and how much may come); the rest is the stream. Only frames that fit the request get
 * through, with lengths that are right; there is one end, and an end that is a failure says what
 * failed. And it does not matter in which pieces the stream arrives. */

#include "session/run.h"

#define run_start fuzz_run_start
#define run_free fuzz_run_free
#define run_write fuzz_run_write
#define run_close_stdin fuzz_run_close_stdin
#define run_kill fuzz_run_kill
#define run_pause fuzz_run_pause
#define session_manager fuzz_session_manager
#define manager_loop fuzz_manager_loop
int fuzz_run_start(struct session *s, const struct run_options *options,
                   const struct run_events *events, void *arg, struct run **ret, struct err *err);
void fuzz_run_free(struct run *r);
int fuzz_run_write(struct run *r, const char *data, size_t len);
void fuzz_run_close_stdin(struct run *r);
void fuzz_run_kill(struct run *r);
void fuzz_run_pause(struct run *r, bool paused);
struct manager;
struct manager *fuzz_session_manager(const struct session *s);
struct loop *fuzz_manager_loop(const struct manager *m);
/* With the names above replaced. */
#include "agent/files.c"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "fuzz.h"

/* What came of a stream. */
struct seen {
    enum files_op op;
    uint64_t limit, data, frames, hash;
    uint64_t announced; /* READ: bytes */
    unsigned stats, ends;
    uint64_t free_after; /* frames; 0: never */
    struct files_call *call;
};

struct run {
    bool killed, closed;
};

static struct run the_run;
static const struct run_events *listening;

struct manager *fuzz_session_manager(const struct session *s)
{
    return NULL;
}

/* Its timers never come: it does not turn. */
struct loop *fuzz_manager_loop(const struct manager *m)
{
    static struct loop *loop;
    struct err err = {0};
    if (loop == NULL && loop_new(&clock_system, &loop, &err) < 0)
        abort();
    return loop;
}

int fuzz_run_start(struct session *s, const struct run_options *options,
                   const struct run_events *events, void *arg, struct run **ret, struct err *err)
{
    assert(options->exec.files && options->exec.with_stdin);
    the_run = (struct run){0};
    listening = events;
    *ret = &the_run;
    return 0;
}

void fuzz_run_free(struct run *r)
{
    listening = NULL;
}

int fuzz_run_write(struct run *r, const char *data, size_t len)
{
    struct files_request head;

    assert(!r->closed && len >= sizeof(head));
    memcpy(&head, data, sizeof(head));
    assert(len == sizeof(head) + head.root_len + head.path_len + head.a_len + head.b_len);
    return 0;
}

void fuzz_run_close_stdin(struct run *r)
{
    r->closed = true;
}

void fuzz_run_kill(struct run *r)
{
    r->killed = true;
}

void fuzz_run_pause(struct run *r, bool paused)
{
}

/* FNV-1a over all that was handed on. */
static void note(struct seen *s, const void *data, size_t len)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < len; i++)
        s->hash = (s->hash ^ p[i]) * 0x100000001b3ULL;
}

static void see_stat(struct seen *s, const char *data, size_t len)
{
    struct files_stat st;

    s->stats++;
    assert(len == sizeof(st) && s->stats == 1);
    memcpy(&st, data, sizeof(st));
    assert(s->op != FILES_READ || (st.begin <= st.end && st.end <= st.tag.size));
    s->announced = s->op == FILES_READ ? st.end - st.begin : s->limit;
}

/* As those who use the frames read them: without another look at the lengths. */
static void see_parts(const char *data, size_t len, enum files_type type)
{
    struct files_entry e;
    struct files_match m;
    struct files_event v;

    if (type == FILES_FRAME_ENTRY) {
        memcpy(&e, data, sizeof(e));
        assert(e.name_len > 0 && sizeof(e) + (uint64_t)e.name_len + e.target_len == len);
        assert(memchr(data + sizeof(e), 0, len - sizeof(e)) == NULL);
    } else if (type == FILES_FRAME_MATCH) {
        memcpy(&m, data, sizeof(m));
        assert(sizeof(m) + (uint64_t)m.path_len + m.text_len == len);
    } else {
        memcpy(&v, data, sizeof(v));
        assert(sizeof(v) + (uint64_t)v.path_len == len);
        assert(files_change_name((enum files_change)v.change) != NULL);
    }
}

static void on_seen(void *arg, enum files_type type, const char *data, size_t len)
{
    struct seen *s = arg;

    assert(s->ends == 0 && !the_run.killed && len <= FILES_FRAME_MAX);
    s->frames++;
    note(s, &type, sizeof(type));
    note(s, data, len);
    if (type == FILES_FRAME_STAT) {
        see_stat(s, data, len);
    } else if (type == FILES_FRAME_DATA) {
        s->data += len;
        assert(s->stats == 1 && len > 0 && s->data <= s->announced);
    } else {
        see_parts(data, len, type);
        assert(type == FILES_FRAME_EVENT || s->frames <= s->limit);
    }
    if (s->frames == s->free_after) {
        files_call_free(s->call);
        s->call = NULL;
    }
}

static void on_end(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct seen *s = arg;

    s->ends++;
    assert(s->ends == 1 && (done == NULL) != (failure == NULL));
    if (done != NULL) {
        assert(done->cut < FILES_CUT_MAX && (s->op != FILES_READ || s->data == s->announced));
        note(s, done, sizeof(*done));
        return;
    }
    assert(failure->why < FILES_WHY_MAX && failure->error >= 0 && failure->error < 4096);
    assert(failure->err.code > ERR_NONE && failure->err.code < ERR_CODE_MAX);
    assert(failure->err.msg[0] != '\0');
    for (const char *p = failure->err.msg; *p != '\0'; p++)
        assert((unsigned char)*p >= 0x20 && *p != 0x7f);
    note(s, failure->err.msg, strlen(failure->err.msg));
}

/* In pieces of that many bytes, each a block of its own, which a sanitizer watches. */
static void feed(struct seen *s, const uint8_t *data, size_t size, size_t piece)
{
    const struct files_events events = {.frame = on_seen, .finished = on_end};
    const struct files_ask ask = {
        .head = {.op = s->op, .length = s->limit, .max = s->limit}, .root = "/", .path = "f"};
    struct err err = {0};
    int r = files_start(NULL, &ask, &events, s, &s->call, &err);

    assert(r == 0);
    while (size > 0 && listening != NULL) {
        size_t n = piece < size ? piece : size;
        char *block = xcalloc(1, n);
        memcpy(block, data, n);
        listening->output(s->call, EXEC_STDOUT, block, n);
        free(block);
        data += n;
        size -= n;
    }
    if (s->call != NULL) {
        const struct run_result over = {.outcome = {.kind = OUTCOME_EXITED}};
        assert(listening != NULL);
        listening->finished(s->call, &over);
        assert(s->ends == 1);
        files_call_free(s->call);
    }
    assert(listening == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t pieces[] = {64U << 10, 1, 7, 4096};
    uint64_t hash = 0;

    if (size < 3)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
        struct seen s = {
            .op = (enum files_op)(1 + data[0] % (FILES_OP_MAX - 1)),
            .limit = data[1],
            .free_after = data[2],
            .hash = 0xcbf29ce484222325ULL,
        };
        feed(&s, data + 3, size - 3, pieces[i]);
        assert(i == 0 || s.hash == hash);
        hash = s.hash;
    }
    return 0;
}
