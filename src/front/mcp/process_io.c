/* SPDX-License-Identifier: Apache-2.0 */

/* MCP tools that read the output of a managed process and write to its stdin. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "front/mcp/mcp_internal.h"
#include "front/mcp/process.h"
#include "http/codec/crypto.h"
#include "session/manager.h"
#include "session/process.h"
#include "spec/model.h"
#include "spec/process.h"
#include "spec/spec.h"

#define READ_DEFAULT (16 << 10)
#define READ_MAX (50 << 10) /* of what a model is shown, as its other tools do */
#define WAIT_MAX_MS 60000
#define WRITE_MAX (256 << 10)
#define ANSWER_MAX (1U << 20)
#define NUMBER_MAX 9007199254740991 /* what every JSON reader can count to */

/* clang-format off */
static const char *const encodings[] = {"text", "base64", NULL};

#define PROCESS_ID \
    {"process_id", FIELD_STR, .offset = offsetof(struct process_args, process_id), .text = PROCESS_DEFAULT_ID, \
     .max = SPEC_ID_MAX, .doc = "Name of the process within its session."}

static const struct field id_fields[] = {PROCESS_ID};

static const struct field read_fields[] = {
    PROCESS_ID,
    {"offset", FIELD_INT, .offset = offsetof(struct process_args, offset), .number = -1, .min = -1, .max = NUMBER_MAX,
     .rule = "offset must be at least -1", .doc = "First byte to read, counted from 0; -1: the first that is kept."},
    {"max_bytes", FIELD_INT, .offset = offsetof(struct process_args, max_bytes), .number = READ_DEFAULT, .min = 1,
     .max = READ_MAX, .rule = "max_bytes must be at least 1", .doc = "Bytes to read at most."},
    {"wait_ms", FIELD_INT, .offset = offsetof(struct process_args, wait_ms), .number = 0, .min = 0, .max = WAIT_MAX_MS,
     .rule = "wait_ms must not be negative", .doc = "How long to wait when there is nothing new yet."},
};

static const struct field write_fields[] = {
    PROCESS_ID,
    {"data", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct process_args, data), .max = WRITE_MAX,
     .doc = "What to write."},
    {"encoding", FIELD_ENUM, .offset = offsetof(struct process_args, encoding), .names = encodings,
     .doc = "How data is written here."},
    {"close", FIELD_BOOL, .offset = offsetof(struct process_args, close),
     .doc = "Close the input behind it: the process reads its end."},
};

#define MODEL(label, text, list) \
    {.name = (label), .doc = (text), .fields = (list), .n_fields = ARRAY_SIZE(list), \
     .size = sizeof(struct process_args), .closed = true}

const struct model process_id_model = MODEL("process", "The process.", id_fields);
const struct model process_read_model = MODEL("read_process_output", "What to read.", read_fields);
const struct model process_write_model = MODEL("write_stdin", "What to write.", write_fields);

const struct mcp_output mcp_read_output[] = {
    {"process_id", "string", "Its name.", false},
    {"status", "string", "running or exited.", false},
    {"exit_code", "integer?", "How it ended; null while it runs.", false},
    {"offset", "integer", "First byte shown.", false},
    {"next_offset", "integer", "Go on there.", false},
    {"end", "boolean", "Nothing will follow.", false},
    {"output", "string", "What was written; bytes that are no UTF-8 are shown as U+FFFD.", false},
    {"stderr_preview", "string", "The last of what it wrote to standard error.", false},
    {0},
};
const struct mcp_output mcp_write_output[] = {{"written_bytes", "integer", "Bytes that were taken.", false}, {0}};
/* clang-format on */

int mcp_process_args(struct mcp_call *c, const struct model *m, struct process_args **ret,
                     struct err *err)
{
    struct report report = {0};
    struct process_args *a = xnew(struct process_args);

    model_init(m, a);
    *ret = a;
    return model_parse(m, mcp_call_arguments(c), 0, a, &report) < 0
               ? report_fail_plain(&report, err)
               : 0;
}

void mcp_process_args_free(const struct model *m, struct process_args *a)
{
    if (a != NULL)
        model_done(m, a);
    free(a);
}

static struct process *find(struct session *s, const char *id, struct err *err)
{
    struct process *p = process_find(s, id);

    if (p == NULL)
        (void)err_missing(err, ERR_THING_PROCESS,
                          "session %.80s has no process %.80s; start_process makes one",
                          session_id(s), id);
    return p;
}

/* read_process_output */

/* One that waits for bytes that are not there yet. */
struct reading {
    struct mcp_call *call;
    struct process_args *args; /* owned */
    struct process_watch watch;
    struct loop_timer timer;
};

static void reading_free(void *work)
{
    struct reading *r = work;

    process_watch_stop(&r->watch);
    loop_timer_stop(&r->timer);
    mcp_process_args_free(&process_read_model, r->args);
    free(r);
}

static void reply_output(struct mcp_call *c, struct process *p, const struct process_args *a)
{
    struct proc_range range = process_range(p);
    uint64_t from = a->offset < 0 ? range.begin : (uint64_t)a->offset;
    AUTO_FREE char *data = xcalloc(1, (size_t)a->max_bytes + 1);
    ssize_t n = process_read(p, from, data, (size_t)a->max_bytes);
    AUTO_DONE(buf) struct buf out = {0};
    AUTO_DONE(buf) struct buf preview = {0};
    struct err err = {0};
    struct jw w;

    buf_init(&out, ANSWER_MAX);
    buf_init(&preview, PROCESS_STDERR_CHARS * 4U + 1U);
    if (n < 0) {
        (void)err_set(&err, ERR_INVALID, "offset %llu is outside of what is kept, %llu to %llu",
                      (unsigned long long)from, (unsigned long long)range.begin,
                      (unsigned long long)range.end);
        mcp_call_tool_err(c, &err);
        return;
    }
    process_stderr_preview(p, &preview);
    jw_init(&w, &out);
    jw_object(&w);
    jw_kstr(&w, "process_id", process_spec_of(p)->process_id);
    jw_kstr(&w, "status", process_running(p) ? "running" : "exited");
    jw_key(&w, "exit_code");
    if (process_running(p))
        jw_null(&w);
    else
        jw_int(&w, process_exit_code(p));
    jw_ku64(&w, "offset", from);
    jw_ku64(&w, "next_offset", from + (uint64_t)n);
    jw_kbool(&w, "end", range.eof && from + (uint64_t)n == range.end);
    jw_key(&w, "output");
    jw_strn(&w, data, (size_t)n);
    jw_kstr(&w, "stderr_preview", buf_str(&preview));
    jw_object_end(&w);
    mcp_call_tool_json(c, &w, NULL);
}

static void finish_reading(struct reading *r, struct process *p)
{
    struct mcp_call *c = r->call;
    struct err err = {0};

    if (p != NULL) {
        reply_output(c, p, r->args);
        return;
    }
    (void)err_missing(&err, ERR_THING_PROCESS, "the process was stopped or replaced meanwhile");
    mcp_call_tool_err(c, &err);
}

static void on_output(struct process_watch *w, struct process *p)
{
    finish_reading(container_of(w, struct reading, watch), p);
}

static void on_patience(struct loop_timer *t)
{
    struct reading *r = container_of(t, struct reading, timer);

    finish_reading(r, r->watch.p);
}

static void read_in(struct mcp_call *c, struct session *s)
{
    struct reading *r = xnew(struct reading);
    struct err err = {0};

    r->call = c;
    c->work = r;
    c->work_free = reading_free;
    int e = mcp_process_args(c, &process_read_model, &r->args, &err);
    struct process *p = e == 0 ? find(s, r->args->process_id, &err) : NULL;
    if (p == NULL) {
        mcp_call_tool_err(c, &err);
        return;
    }
    const struct process_args *a = r->args;
    struct proc_range range = process_range(p);
    uint64_t from = a->offset < 0 ? range.begin : (uint64_t)a->offset;
    /* Whoever asks for what follows has what lies before. Somebody attached knows better. */
    if (from > range.begin && from <= range.end)
        (void)process_release(p, from, NULL);
    if (from != range.end || range.eof || a->wait_ms == 0) {
        reply_output(c, p, a);
        return;
    }
    process_watch_start(p, &r->watch, on_output);
    loop_timer_start(c->mcp->loop, &r->timer, (uint64_t)a->wait_ms * NSEC_PER_MSEC, on_patience);
}

void mcp_read_process(struct mcp_call *c, const struct json *arguments)
{
    mcp_call_session(c, c->session_id, read_in);
}

/* write_stdin */

struct writing {
    struct mcp_call *call;
    struct process_args *args; /* owned */
    char *bytes;               /* owned */
    size_t len;
    struct attachment *attachment; /* owned */
};

static void writing_free(void *work)
{
    struct writing *wr = work;

    attachment_free(wr->attachment);
    mcp_process_args_free(&process_write_model, wr->args);
    free(wr->bytes);
    free(wr);
}

static void on_active(void *arg)
{
    struct writing *wr = arg;
    struct mcp_call *c = wr->call;
    AUTO_DONE(buf) struct buf out = {0};
    struct err err = {0};
    struct jw w;

    int r = wr->len > 0 ? attachment_write(wr->attachment, wr->bytes, wr->len) : 0;
    if (r < 0) {
        (void)err_set(&err, ERR_STATE,
                      r == -ENOBUFS ? "the process does not read its input: try again later"
                                    : "the input of the process is closed");
        mcp_call_tool_err(c, &err);
        return;
    }
    if (wr->args->close)
        attachment_close_stdin(wr->attachment);
    buf_init(&out, 4096);
    jw_init(&w, &out);
    jw_object(&w);
    jw_ku64(&w, "written_bytes", wr->len);
    jw_object_end(&w);
    mcp_call_tool_json(c, &w, "Written.");
}

static void on_nothing(void *arg)
{
}

static void on_ended(void *arg)
{
    struct writing *wr = arg;
    struct err err = {0};

    (void)err_set(&err, ERR_STATE, "the process has ended");
    mcp_call_tool_err(wr->call, &err);
}

static int decode(struct writing *wr, struct err *err)
{
    const struct process_args *a = wr->args;
    size_t len = strlen(a->data);

    wr->bytes = xcalloc(1, len + 1);
    if (a->encoding == PROCESS_TEXT) {
        memcpy(wr->bytes, a->data, len);
        wr->len = len;
        return 0;
    }
    ssize_t n = http_base64_decode(a->data, len, (unsigned char *)wr->bytes);
    if (n < 0)
        return err_set(err, ERR_INVALID, "data is not base64");
    wr->len = (size_t)n;
    return 0;
}

static void write_in(struct mcp_call *c, struct session *s)
{
    static const struct attachment_events events = {
        .active = on_active, .output = on_nothing, .drained = on_nothing, .ended = on_ended};
    struct writing *wr = xnew(struct writing);
    struct err err = {0};

    wr->call = c;
    c->work = wr;
    c->work_free = writing_free;
    int r = mcp_process_args(c, &process_write_model, &wr->args, &err);
    if (r == 0)
        r = decode(wr, &err);
    struct process *p = r == 0 ? find(s, wr->args->process_id, &err) : NULL;
    if (p != NULL && process_attached(p)) {
        (void)err_set(&err, ERR_CONFLICT, "somebody else is attached to the process");
        p = NULL;
    }
    if (p == NULL || process_attach(p, &events, wr, &wr->attachment, &err) < 0)
        mcp_call_tool_err(c, &err);
}

void mcp_write_stdin(struct mcp_call *c, const struct json *arguments)
{
    mcp_call_session(c, c->session_id, write_in);
}
