/* SPDX-License-Identifier: Apache-2.0 */

/* MCP tools for managed processes: start, list, read, write and stop; and for what commands have
 * left in the background: list and stop. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "front/mcp/mcp_internal.h"
#include "http/codec/crypto.h"
#include "session/process_reader.h"
#include "spec/model.h"
#include "spec/process.h"
#include "spec/spec.h"

#define LIST_MAX (8U << 20)
#define READ_DEFAULT (16 << 10)
#define READ_MAX (50 << 10) /* of what a model is shown, as its other tools do */
#define WAIT_MAX_MS 60000
#define WRITE_MAX (256 << 10)
#define ANSWER_MAX (1U << 20)
#define NUMBER_MAX 9007199254740991 /* what every JSON reader can count to */
#define SHELL_MAX (96 << 10)        /* the kernel takes 128 KiB as one argument */
#define EARLY_END_MS 500            /* most of what cannot start has ended by then */

enum process_encoding { PROCESS_TEXT, PROCESS_BASE64 };

/* The arguments of all these tools: each model fills those that it has. */
struct process_args {
    char *process_id, *data;
    int64_t offset, max_bytes, wait_ms;
    enum process_encoding encoding;
    bool close;
};

struct start_args {
    char *process_id, *command, *workdir, *cwd, *description;
    char **args, **env;
    int64_t timeout_sec, memory_mb, wait_ms;
};

/* clang-format off */
static const char *const encodings[] = {"text", "base64", NULL};

#define PROCESS_ID \
    {"process_id", FIELD_STR, .offset = offsetof(struct process_args, process_id), .text = PROCESS_DEFAULT_ID, \
     .max = SPEC_ID_MAX, .doc = "Name of the process within its session."}

static const struct field id_fields[] = {PROCESS_ID};

#define DIRECTORY(member, text) \
    {#member, FIELD_STR, FIELD_TRIM | FIELD_NULLABLE, .offset = offsetof(struct start_args, member), \
     .max = SPEC_PATH_MAX, .valid = text_absolute, \
     .rule = #member " must be an absolute path inside the sandbox", .doc = (text)}

/* What `exec` takes, under its names, and what only a process that stays can have. */
static const struct field start_fields[] = {
    {"process_id", FIELD_STR, .offset = offsetof(struct start_args, process_id), .text = PROCESS_DEFAULT_ID,
     .max = SPEC_ID_MAX, .doc = "Name of the process within its session. A running one of that name is replaced."},
    {"command", FIELD_STR, FIELD_REQUIRED | FIELD_TRIM, .offset = offsetof(struct start_args, command),
     .max = SHELL_MAX, .valid = text_not_empty, .rule = "command must not be empty",
     .doc = "Shell command to run, such as `npm run dev`. With args: a program, a path or a name in PATH."},
    {"args", FIELD_STRV, .offset = offsetof(struct start_args, args),
     .max = SPEC_ARGS_ENTRIES_MAX, .max_bytes = SPEC_ARGS_BYTES_MAX,
     .doc = "Arguments of the program, passed as they are. Without any, the command is the shell's to read."},
    DIRECTORY(workdir, "Directory the process starts in, made when missing; /workspace by default."),
    DIRECTORY(cwd, "The same as workdir."),
    {"timeout_sec", FIELD_INT, .offset = offsetof(struct start_args, timeout_sec), .min = 0, .max = SPEC_TIMEOUT_MAX,
     .rule = "timeout_sec must not be negative",
     .doc = "Seconds until the process and all it started are killed. 0: never."},
    {"env", FIELD_ENV, .offset = offsetof(struct start_args, env), .max = SPEC_ENV_ENTRIES_MAX,
     .max_bytes = SPEC_ENV_BYTES_MAX, .doc = "Environment variables of the process. Values are never shown again."},
    {"memory_mb", FIELD_INT, .offset = offsetof(struct start_args, memory_mb), .min = 0, .max = SPEC_SIZE_MB_MAX,
     .rule = "memory_mb must not be negative", .doc = "Memory of this process, in MiB. 0: that of the session."},
    {"description", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct start_args, description), .max = 4096,
     .doc = "What the process is for, in a few words."},
    {"wait_ms", FIELD_INT, .offset = offsetof(struct start_args, wait_ms), .number = EARLY_END_MS, .min = 0,
     .max = WAIT_MAX_MS, .rule = "wait_ms must not be negative",
     .doc = "How long to look whether it ends at once; the answer then says why."},
};

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
    {.name = (label), .doc = (text), .closed = true, MODEL_FIELDS(list, struct process_args)}

static const struct model start_model = {
    .name = "start_process", .doc = "The process to start.", .closed = true, MODEL_FIELDS(start_fields, struct start_args)};
static const struct model id_model = MODEL("process", "The process.", id_fields);
static const struct model read_model = MODEL("read_process_output", "What to read.", read_fields);
static const struct model write_model = MODEL("write_stdin", "What to write.", write_fields);

static const struct mcp_output read_output[] = {
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
static const struct mcp_output write_output[] = {{"written_bytes", "integer", "Bytes that were taken.", false}, {0}};
/* clang-format on */

static void write_exit_code(struct jw *w, const struct process *p)
{
    jw_key(w, "exit_code");
    if (process_running(p))
        jw_null(w);
    else
        jw_int(w, process_exit_code(p));
}

static void write_process(struct jw *w, struct process *p)
{
    front_write_process(w, p, session_id(process_session(p)));
    front_write_time(w, "started_at", process_started_at(p));
    write_exit_code(w, p);
    jw_ku64(w, "output_bytes", process_range(p).end);
    front_write_stderr(w, p);
}

/* start_process: starts it, then looks for a while whether it goes on running. */

struct start_work {
    struct mcp_call *call;
    struct start_args args; /* owned */
    struct process_reader reader;
};

static void start_work_free(void *arg)
{
    struct start_work *work = arg;

    process_reader_stop(&work->reader);
    model_done(&start_model, &work->args);
    free(work);
}

/* The result in words: the process runs, or how it ended and its last output. */
static void say_started(struct process *p, struct buf *text)
{
    const char *id = process_spec_of(p)->process_id;
    int code = process_exit_code(p);

    if (process_running(p)) {
        (void)buf_printf(text, "Process %s runs.", id);
        return;
    }
    (void)buf_printf(text, "Process %s has ended: %s %d.", id,
                     code < 0 ? "killed by signal" : "exit code", code < 0 ? -code : code);
    (void)buf_putc(text, '\n');
    process_stderr_preview(p, text);
}

static void answer_started(struct mcp_call *c, struct process *p)
{
    bool failed = !process_running(p) && process_exit_code(p) != 0;
    AUTO_DONE(buf) struct buf text = BUF_INIT(ANSWER_MAX);
    AUTO_DONE(front_answer) struct front_answer out;

    say_started(p, &text);
    write_process(front_begin(&out, LIST_MAX), p);
    if (front_end(&out) == 0)
        mcp_call_tool(c, failed, &text, &out.out);
    else
        mcp_call_failf(c, MCP_INTERNAL, "the answer is too large");
}

static void on_start_look(struct process_reader *reader)
{
    struct start_work *work = container_of(reader, struct start_work, reader);

    /* Its last output may come after the event of its end. */
    if (!process_running(reader->process) && process_range(reader->process).eof)
        answer_started(work->call, reader->process);
}

static void on_start_due(struct process_reader *reader)
{
    answer_started(container_of(reader, struct start_work, reader)->call, reader->process);
}

static void on_start_gone(struct process_reader *reader)
{
    struct err err = {0};

    (void)err_missing(&err, ERR_THING_PROCESS, "the process was stopped or replaced meanwhile");
    mcp_call_tool_err(container_of(reader, struct start_work, reader)->call, &err);
}

static void on_started(void *arg, struct process *p, const struct err *err)
{
    static const struct process_reader_events events = {
        .output = on_start_look, .due = on_start_due, .ended = on_start_gone};
    struct mcp_call *c = mcp_wait_end(arg);

    if (c != NULL && p == NULL)
        mcp_call_tool_err(c, err);
    if (c == NULL || p == NULL)
        return;
    struct start_work *work = c->work;
    if (!process_running(p) || work->args.wait_ms == 0) {
        answer_started(c, p);
        return;
    }
    process_reader_start(&work->reader, p, &events);
    process_reader_wait(&work->reader, (uint64_t)work->args.wait_ms * NSEC_PER_MSEC);
}

static void write_words(struct jw *w, const char *key, char *const *words)
{
    jw_karray(w, key);
    for (; words != NULL && *words != NULL; words++)
        jw_str(w, *words);
    jw_array_end(w);
}

/* The process as every front describes it. A command without arguments is the shell's to read, as
 * that of `exec`. */
static int write_start(const struct start_args *a, const struct json *arguments, struct json **ret,
                       struct err *err)
{
    const struct json *env = json_get(arguments, "env");
    bool shell = a->args == NULL || a->args[0] == NULL;
    const char *const script[] = {"-c", a->command, NULL};
    const char *cwd = a->workdir != NULL ? a->workdir : a->cwd;
    AUTO_DONE(front_answer) struct front_answer text;
    struct jw *w = front_begin(&text, MCP_MESSAGE_MAX * 2);

    if (a->workdir != NULL && a->cwd != NULL && !str_eq(a->workdir, a->cwd))
        return err_set(err, ERR_INVALID, "workdir and cwd are the same: give one of them");
    jw_kstr(w, "process_id", a->process_id);
    jw_kstr(w, "command", shell ? "/bin/sh" : a->command);
    write_words(w, "args", shell ? (char *const *)script : a->args);
    if (env != NULL)
        jw_kvalue(w, "env", env);
    if (cwd != NULL)
        jw_kstr(w, "cwd", cwd);
    jw_kint(w, "memory_mb", a->memory_mb);
    jw_kint(w, "timeout_sec", a->timeout_sec);
    if (front_end(&text) < 0)
        return err_set(err, ERR_LIMIT, "the arguments are too large");
    return json_parse(buf_str(&text.out), text.out.len, ret, err);
}

static void start_process(struct mcp_call *c, struct session *s)
{
    const struct front_asker asker = mcp_place_asker(c->place);
    struct start_work *work = xnew(struct start_work);
    AUTO(json) struct json *object = NULL;
    struct err err = {0};

    work->call = c;
    mcp_call_set_work(c, work, start_work_free);
    struct mcp_wait *w = mcp_wait_new(c);
    int r = mcp_args_parse(&start_model, mcp_call_arguments(c), &work->args, &err);
    if (r == 0)
        r = write_start(&work->args, mcp_call_arguments(c), &object, &err);
    const struct front_process want = {.session = s, .object = object};
    if (r == 0)
        r = front_process_start(c->mcp->front, &asker, &want, on_started, w, &err);
    if (r < 0)
        mcp_wait_failed(w, &err);
}

/* list_processes */

static void list_processes(struct mcp_call *c, struct session *s)
{
    AUTO_DONE(front_answer) struct front_answer out;

    front_write_processes(front_begin(&out, LIST_MAX), s, write_process);
    mcp_call_tool_json(c, &out, NULL);
}

/* stop_process */

static void on_stopped(void *arg, const struct err *err)
{
    mcp_wait_done(arg, err, "stopped", "Stopped.");
}

static void stop_process(struct mcp_call *c, struct session *s)
{
    struct process_args a = {0};
    struct mcp_wait *w = mcp_wait_new(c);
    struct err err = {0};
    int r = mcp_args_parse(&id_model, mcp_call_arguments(c), &a, &err);

    if (r == 0)
        r = process_stop(s, a.process_id, on_stopped, w, &err);
    model_done(&id_model, &a);
    if (r < 0)
        mcp_wait_failed(w, &err);
}

/* read_process_output and write_stdin */

/* One of either under way. */
struct process_work {
    struct mcp_call *call;
    const struct model *model; /* of the arguments */
    struct process_args args;  /* owned */
    char *bytes;               /* owned; to write */
    size_t len;
    struct process_reader reader;
};

static void process_work_free(void *arg)
{
    struct process_work *work = arg;

    process_reader_stop(&work->reader);
    model_done(work->model, &work->args);
    free(work->bytes);
    free(work);
}

static int decode_input(struct process_work *work, struct err *err)
{
    const struct process_args *a = &work->args;
    size_t len = strlen(a->data);

    work->bytes = xcalloc(1, len + 1);
    if (a->encoding == PROCESS_TEXT) {
        memcpy(work->bytes, a->data, len);
        work->len = len;
        return 0;
    }
    ssize_t n = http_base64_decode(a->data, len, (unsigned char *)work->bytes);
    if (n < 0)
        return err_set(err, ERR_INVALID, "data is not base64");
    work->len = (size_t)n;
    return 0;
}

/* Reads the arguments and finds the process. NULL: answered. */
static struct process *process_work_new(struct mcp_call *c, struct session *s,
                                        const struct model *model, struct process_work **ret)
{
    struct process_work *work = xnew(struct process_work);
    struct process *p = NULL;
    struct err err = {0};

    work->call = c;
    work->model = model;
    mcp_call_set_work(c, work, process_work_free);
    int r = mcp_args_parse(model, mcp_call_arguments(c), &work->args, &err);
    if (r == 0 && work->args.data != NULL)
        r = decode_input(work, &err);
    if (r == 0)
        p = process_find(s, work->args.process_id);
    if (r == 0 && p == NULL)
        (void)err_missing(&err, ERR_THING_PROCESS,
                          "session %.80s has no process %.80s; start_process makes one",
                          session_id(s), work->args.process_id);
    if (p == NULL)
        mcp_call_tool_err(c, &err);
    else
        *ret = work;
    return p;
}

static void reply_output(struct mcp_call *c, struct process *p, const struct process_args *a)
{
    struct proc_range range = process_range(p);
    uint64_t from = a->offset < 0 ? range.begin : (uint64_t)a->offset;
    AUTO_FREE char *data = xcalloc(1, (size_t)a->max_bytes + 1);
    ssize_t n = process_read(p, from, data, (size_t)a->max_bytes);
    struct err err = {0};

    if (n < 0) {
        (void)err_set(&err, ERR_INVALID, "offset %llu is outside of what is kept, %llu to %llu",
                      (unsigned long long)from, (unsigned long long)range.begin,
                      (unsigned long long)range.end);
        mcp_call_tool_err(c, &err);
        return;
    }
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, ANSWER_MAX);

    jw_kstr(w, "process_id", process_spec_of(p)->process_id);
    jw_kstr(w, "status", process_running(p) ? "running" : "exited");
    write_exit_code(w, p);
    jw_ku64(w, "offset", from);
    jw_ku64(w, "next_offset", from + (uint64_t)n);
    jw_kbool(w, "end", range.eof && from + (uint64_t)n == range.end);
    jw_kstrn(w, "output", data, (size_t)n);
    front_write_stderr(w, p);
    mcp_call_tool_json(c, &out, NULL);
}

static void on_read_output(struct process_reader *reader)
{
    struct process_work *work = container_of(reader, struct process_work, reader);

    reply_output(work->call, reader->process, &work->args);
}

static void on_read_gone(struct process_reader *reader)
{
    struct err err = {0};

    (void)err_missing(&err, ERR_THING_PROCESS, "the process was stopped or replaced meanwhile");
    mcp_call_tool_err(container_of(reader, struct process_work, reader)->call, &err);
}

static void read_process(struct mcp_call *c, struct session *s)
{
    static const struct process_reader_events events = {
        .output = on_read_output, .due = on_read_output, .ended = on_read_gone};
    struct process_work *work = NULL;
    struct process *p = process_work_new(c, s, &read_model, &work);
    struct err err = {0};

    if (p == NULL)
        return;
    if (process_check_plain(p, &err) < 0) {
        mcp_call_tool_err(c, &err);
        return;
    }
    const struct process_args *a = &work->args;
    struct proc_range range = process_range(p);
    uint64_t from = a->offset < 0 ? range.begin : (uint64_t)a->offset;
    /* A client that asks for later output has received the output before. While another client is
     * attached, only that one releases output. */
    if (from > range.begin && from <= range.end)
        (void)process_release(p, from, NULL);
    if (from != range.end || range.eof || a->wait_ms == 0) {
        reply_output(c, p, a);
        return;
    }
    process_reader_start(&work->reader, p, &events);
    process_reader_wait(&work->reader, (uint64_t)a->wait_ms * NSEC_PER_MSEC);
}

static void on_write_active(struct process_reader *reader)
{
    struct process_work *work = container_of(reader, struct process_work, reader);
    struct mcp_call *c = work->call;
    struct err err = {0};

    int r = work->len > 0 ? process_reader_write(reader, work->bytes, work->len) : 0;
    if (r < 0) {
        (void)err_set(&err, ERR_STATE,
                      r == -ENOBUFS ? "the process does not read its input: try again later"
                                    : "the input of the process is closed");
        mcp_call_tool_err(c, &err);
        return;
    }
    if (work->args.close)
        process_reader_close_stdin(reader);
    AUTO_DONE(front_answer) struct front_answer out;

    jw_ku64(front_begin(&out, 4096), "written_bytes", work->len);
    mcp_call_tool_json(c, &out, "Written.");
}

static void on_write_ended(struct process_reader *reader)
{
    struct err err = {0};

    (void)err_set(&err, ERR_STATE, "the process has ended");
    mcp_call_tool_err(container_of(reader, struct process_work, reader)->call, &err);
}

static void write_stdin(struct mcp_call *c, struct session *s)
{
    static const struct process_reader_events events = {.active = on_write_active,
                                                        .ended = on_write_ended};
    struct process_work *work = NULL;
    struct process *p = process_work_new(c, s, &write_model, &work);
    struct err err = {0};

    if (p == NULL)
        return;
    int r = process_attached(p)
                ? err_set(&err, ERR_CONFLICT, "another client is attached to the process")
                : 0;
    if (r == 0) {
        process_reader_start(&work->reader, p, &events);
        r = process_reader_claim(&work->reader, &err);
    }
    if (r < 0)
        mcp_call_tool_err(c, &err);
}

/* clang-format off */
#define PROCESS \
    {"session_id", "string", "Where it runs.", false}, \
    {"process_id", "string", "Its name there.", false}, \
    {"status", "string", "running or exited.", false}, \
    {"command", "string", "The program.", false}, \
    {"args", "array", "Its arguments.", false}, \
    {"started_at", "string", "When it began.", false}, \
    {"exit_code", "integer?", "How it ended: its status, or the negative number of a signal; null while it runs.", false}, \
    {"output_bytes", "integer", "Bytes it has written to standard output.", false}, \
    {"stderr_preview", "string", "The last of what it wrote to standard error.", false}

static const struct mcp_output process_output[] = {PROCESS, {0}};
static const struct mcp_output list_output[] = {{"processes", "array", "In the order they were started.", false}, {0}};
static const struct mcp_output stop_output[] = {{"stopped", "boolean", "It is gone.", false}, {0}};

const struct mcp_tool_row mcp_process_tools[] = {
    {.name = "start_process", .title = "Start a process",
     .description = "Start a shell command that goes on running, such as a server. A running one of the same "
                    "process_id is replaced. One that fails at once is an error, with what it wrote to standard error.",
     .params = &start_model, .output = process_output, .scope = "process", .destructive = true,
     .open_world = true, .in = start_process},
    {.name = "list_processes", .title = "List processes",
     .description = "List the processes that start_process has started, also those that have ended.",
     .params = &mcp_no_arguments, .output = list_output, .scope = "process", .read_only = true,
     .idempotent = true, .in = list_processes},
    {.name = "read_process_output", .title = "Read the output of a process",
     .description = "Read what a process has written to standard output, from an offset in bytes on. Go on at "
                    "next_offset; what lies before it is then forgotten, which makes room for more.",
     .params = &read_model, .output = read_output, .scope = "process", .idempotent = true,
     .in = read_process},
    {.name = "write_stdin", .title = "Write to a process",
     .description = "Write to the standard input of a process. Lines need their newline.",
     .params = &write_model, .output = write_output, .scope = "process",
     .destructive = true, .open_world = true, .in = write_stdin},
    {.name = "stop_process", .title = "Stop a process",
     .description = "End a process, and all it started, and forget it.",
     .params = &id_model, .output = stop_output, .scope = "process", .destructive = true,
     .idempotent = true, .in = stop_process},
    {0},
};
/* clang-format on */

/* What commands have left ---------------------------------------------------------------------- */

struct background_args {
    char *exec_id;
};

/* clang-format off */
static const struct field background_fields[] = {
    {"exec_id", FIELD_STR, FIELD_REQUIRED, .offset = offsetof(struct background_args, exec_id), .max = 64,
     .doc = "The command that left the processes, as exec and list_background name it."},
};
/* clang-format on */

static const struct model background_model = {
    .name = "stop_background",
    .doc = "What to end.",
    .closed = true,
    MODEL_FIELDS(background_fields, struct background_args)};

/* A list that is waited for; the call may be freed meanwhile. */
struct background_wait {
    struct mcp_wait *wait;
    struct session *session; /* held */
};

static void on_background(void *arg, const struct backend_process *rows, size_t n, bool more,
                          const struct err *err)
{
    AUTO_FREE struct background_wait *b = arg;
    const struct front_top top = {
        .session = b->session, .rows = rows, .n = n, .more = more, .left = true};
    AUTO_DONE(front_answer) struct front_answer out;

    front_write_top(front_begin(&out, LIST_MAX), &top);
    if (err != NULL) {
        mcp_wait_failed(b->wait, err);
    } else {
        struct mcp_call *c = mcp_wait_end(b->wait);
        if (c != NULL)
            mcp_call_tool_json(c, &out, NULL);
    }
    session_release(b->session);
}

static void list_background(struct mcp_call *c, struct session *s)
{
    struct background_wait *b = xnew(struct background_wait);
    struct err err = {0};

    *b = (struct background_wait){.wait = mcp_wait_new(c), .session = s};
    session_hold(s);
    if (front_ask_top(s, on_background, b, &err) == 0)
        return;
    mcp_wait_failed(b->wait, &err);
    session_release(s);
    free(b);
}

static void stop_background(struct mcp_call *c, struct session *s)
{
    struct background_args a = {0};
    struct mcp_wait *w = mcp_wait_new(c);
    struct err err = {0};
    int r = mcp_args_parse(&background_model, mcp_call_arguments(c), &a, &err);

    if (r == 0)
        r = front_end_left(s, a.exec_id, on_stopped, w, &err);
    model_done(&background_model, &a);
    if (r < 0)
        mcp_wait_failed(w, &err);
}

/* clang-format off */
static const struct mcp_output background_output[] = {
    {"processes", "array", "Each with pid, command, exec_id, age_ms, user_ms, system_ms and memory_bytes.", false},
    {"truncated", "boolean", "There are more.", false},
    {0},
};

const struct mcp_tool_row mcp_background_tools[] = {
    {.name = "list_background", .title = "List what runs in the background",
     .description = "List the processes that commands of exec have left running (`server &`), with the exec_id of the "
                    "command that left each. Processes of start_process are in list_processes.",
     .params = &mcp_no_arguments, .output = background_output, .scope = "exec", .read_only = true,
     .idempotent = true, .in = list_background},
    {.name = "stop_background", .title = "Stop what runs in the background",
     .description = "End all processes that one command of exec has left running, by its exec_id.",
     .params = &background_model, .output = stop_output, .scope = "exec", .destructive = true,
     .idempotent = true, .in = stop_background},
    {0},
};
/* clang-format on */
