/* SPDX-License-Identifier: Apache-2.0 */

/* Commands over HTTP: what a request for one may say; runs one and answers with its whole result,
 * or starts one that has an id; lists, shows, signals, follows and deletes those with an id. */

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "base/strv.h"
#include "command/command.h"
#include "command/execs.h"
#include "front/common/sse.h"
#include "front/v1/v1_internal.h"
#include "http/codec/crypto.h"
#include "policy/authz.h"
#include "spec/model.h"
#include "spec/spec.h"

#define STDIN_TEXT_MAX (8 << 20)
#define TIMEOUT_MAX 31536000
#define EXECS_MAX (4U << 20)
#define BODY_MAX (12U << 20)
#define PIECE_MAX 16384U          /* bytes of output in one event */
#define DATA_MAX (PIECE_MAX * 8U) /* worst case of escaping, and the rest */
#define ANSWER_MAX (128U << 20)   /* what is kept of both, escaped */

/* The request --------------------------------------------------------------------------------- */

/* clang-format off */
static const char *const disconnect_names[] = {
    [V1_DISCONNECT_KILL] = "kill", [V1_DISCONNECT_KEEP] = "keep", NULL};

static const struct field exec_fields[] = {
    {"argv", FIELD_STRV, .offset = offsetof(struct v1_exec, argv), .max = SPEC_ARGS_ENTRIES_MAX,
     .max_bytes = SPEC_ARGS_BYTES_MAX, .doc = "Program and arguments; or use cmd."},
    {"cmd", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct v1_exec, cmd), .max = SPEC_CMD_MAX,
     .doc = "A shell command; or use argv."},
    {"env", FIELD_ENV, .offset = offsetof(struct v1_exec, env), .max = SPEC_ENV_ENTRIES_MAX,
     .max_bytes = SPEC_ENV_BYTES_MAX, .doc = "Environment, on top of the session's."},
    {"cwd", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct v1_exec, cwd), .max = SPEC_PATH_MAX,
     .valid = text_absolute, .rule = "cwd must be an absolute path inside the sandbox",
     .doc = "Working directory; default: that of the session."},
    {"stdin_text", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct v1_exec, stdin_text), .max = STDIN_TEXT_MAX,
     .doc = "What the program reads; default: nothing (/dev/null)."},
    {"timeout_sec", FIELD_REAL, .offset = offsetof(struct v1_exec, timeout_sec), .real = TIMEOUT_MAX,
     .max = TIMEOUT_MAX, .rule = "timeout_sec must be greater than 0", .doc = "Seconds until the whole tree is killed."},
    {"tty", FIELD_BOOL, .offset = offsetof(struct v1_exec, tty), .doc = "Give it a terminal (streams only)."},
    {"stdin", FIELD_BOOL, .offset = offsetof(struct v1_exec, with_stdin), .doc = "Keep stdin open (streams only)."},
    {"stdin_acks", FIELD_BOOL, .offset = offsetof(struct v1_exec, stdin_acks),
     .doc = "Tell how much of stdin the program has taken (streams only)."},
    {"cleanup", FIELD_BOOL, .offset = offsetof(struct v1_exec, cleanup),
     .doc = "It only makes room: it may start although the workspace is over its quota."},
    {"rows", FIELD_INT, .offset = offsetof(struct v1_exec, rows), .number = 24, .min = 1, .max = 4096,
     .rule = "rows must be at least 1", .doc = "Height of the terminal."},
    {"cols", FIELD_INT, .offset = offsetof(struct v1_exec, cols), .number = 80, .min = 1, .max = 4096,
     .rule = "cols must be at least 1", .doc = "Width of the terminal."},
    {"capture_bytes", FIELD_INT, .offset = offsetof(struct v1_exec, capture_bytes), .number = RUN_CAPTURE_DEFAULT,
     .min = 0, .max = RUN_CAPTURE_MAX, .rule = "capture_bytes must not be negative",
     .doc = "Bytes kept: of each stream in a whole answer, of both for readers who come back to a stream. The rest is "
            "counted."},
    {"exec_id", FIELD_STR, FIELD_NULLABLE, .offset = offsetof(struct v1_exec, exec_id), .max = EXEC_ID_MAX,
     .valid = id_valid,
     .rule = "exec_id must be 1 to 64 letters, digits, '_' or '-', beginning with a letter or digit",
     .doc = "Name of a stream, to come back to it; default: a random one (streams only)."},
    {"on_disconnect", FIELD_ENUM, .offset = offsetof(struct v1_exec, on_disconnect), .names = disconnect_names,
     .doc = "What becomes of the command when its last reader is gone (streams only)."},
    {"detach", FIELD_BOOL, .offset = offsetof(struct v1_exec, detach),
     .doc = "Answer at once; the command goes on by itself, as with on_disconnect keep."},
};
/* clang-format on */

const struct model v1_exec_model = {
    .name = "Exec", .doc = "One command in a session.", MODEL_FIELDS(exec_fields, struct v1_exec)};

int v1_exec_parse(const struct json *object, const char *const *more, struct v1_exec *ret,
                  struct err *err)
{
    *ret = (struct v1_exec){0};
    int r = front_read(&v1_exec_model, object, more, ret, err);
    if (r < 0) {
        *ret = (struct v1_exec){0};
        return r;
    }
    bool has_argv = strv_len(ret->argv) > 0, has_cmd = ret->cmd != NULL;
    if (has_argv == has_cmd)
        r = err_set(err, ERR_INVALID, "give either argv or cmd");
    else if (has_argv && ret->argv[0][0] == '\0')
        r = err_set(err, ERR_INVALID, "argv[0] must not be empty");
    if (r < 0)
        v1_exec_done(ret);
    return r;
}

void v1_exec_done(struct v1_exec *e)
{
    model_done(&v1_exec_model, e);
    *e = (struct v1_exec){0};
}

/* Borrows from e. */
static void exec_options(const struct v1_exec *e, struct run_options *ret)
{
    uint64_t timeout_ns = e->timeout_sec < TIMEOUT_MAX ? (uint64_t)(e->timeout_sec * 1e9) : 0;
    if (e->timeout_sec * 1e9 < 1.0)
        timeout_ns = 1; /* 0 would be none at all */
    *ret = (struct run_options){
        .exec = {.argv = strv_len(e->argv) > 0 ? e->argv : NULL,
                 .cmd = e->cmd,
                 .env = e->env,
                 .cwd = e->cwd,
                 .timeout_ns = timeout_ns,
                 .with_stdin = e->with_stdin || e->stdin_text != NULL,
                 .tty = e->tty,
                 .rows = (uint16_t)e->rows,
                 .cols = (uint16_t)e->cols},
        .capture = (size_t)e->capture_bytes,
    };
}

/* Starting ------------------------------------------------------------------------------------ */

static void free_exec(void *owned)
{
    struct v1_exec *e = owned;

    v1_exec_done(e);
    free(e);
}

int v1_exec_begin(const struct v1 *v, struct session *s, const struct front_asker *asker,
                  struct v1_exec *e, struct named_exec **ret, struct err *err)
{
    struct v1_exec *owned = xnew(struct v1_exec);

    *owned = *e;
    *e = (struct v1_exec){0};
    struct named_exec_options options = {.session = s,
                                         .stdin_text = owned->stdin_text,
                                         .owned = owned,
                                         .owned_free = free_exec,
                                         .id = owned->exec_id,
                                         .scope = asker->scope,
                                         .who = asker->who,
                                         .via = "http",
                                         .cleanup = owned->cleanup,
                                         .keep = owned->detach ||
                                                 owned->on_disconnect == V1_DISCONNECT_KEEP,
                                         .log_max = (size_t)owned->capture_bytes};
    exec_options(owned, &options.run);
    return execs_start(v->execs, &options, ret, err);
}

/* Answers ------------------------------------------------------------------------------------- */

void v1_write_outcome(struct jw *w, const struct run_result *r)
{
    const struct outcome *o = &r->outcome;
    bool has_code = o->kind == OUTCOME_EXITED || o->kind == OUTCOME_QUOTA_EXCEEDED;
    jw_kstr(w, "outcome", outcome_name(o->kind));
    if (has_code)
        jw_kint(w, "exit_code", o->exit_code);
    else
        jw_knull(w, "exit_code");
    if (o->kind == OUTCOME_SIGNALED)
        jw_kint(w, "signal", o->signo);
    else
        jw_knull(w, "signal");
    jw_kstr(w, "error", o->error[0] != '\0' ? o->error : NULL);
    jw_ku64(w, "duration_ms", o->duration_ns / NSEC_PER_MSEC);
    jw_ku64(w, "cpu_ms", o->cpu_ns / NSEC_PER_MSEC);
    jw_ku64(w, "max_rss_kb", o->max_rss_kb);
    jw_kint(w, "remaining", o->remaining);
    jw_ku64(w, "stdout_bytes", r->produced[EXEC_STDOUT]);
    jw_ku64(w, "stderr_bytes", r->produced[EXEC_STDERR]);
}

/* Its problem or outcome, if it has ended. */
static void write_end(struct jw *w, const struct named_exec *k)
{
    if (named_exec_error(k) != NULL) {
        jw_kobject(w, "problem");
        front_write_problem(w, named_exec_error(k));
        jw_object_end(w);
    } else if (named_exec_state(k) == COMMAND_DONE) {
        v1_write_outcome(w, named_exec_result(k));
    }
}

static void write_exec(struct jw *w, const struct named_exec *k)
{
    uint64_t begin, at_end;

    named_exec_range(k, &begin, &at_end);
    jw_kstr(w, "session_id", named_exec_session_id(k));
    jw_kstr(w, "exec_id", named_exec_id(k));
    jw_kstr(w, "status", named_exec_state_name(k));
    jw_kstr(w, "on_disconnect", named_exec_keeps(k) ? "keep" : "kill");
    front_write_time(w, "started_at", named_exec_started(k));
    jw_kobject(w, "output");
    jw_ku64(w, "begin", begin);
    jw_ku64(w, "end", at_end);
    jw_object_end(w);
    jw_ku64(w, "stdin_bytes", named_exec_stdin_bytes(k));
    write_end(w, k);
}

static void reply_exec(struct http_request *req, unsigned status, const struct named_exec *k)
{
    AUTO_DONE(front_answer) struct front_answer out;

    write_exec(front_begin(&out, EXECS_MAX), k);
    front_reply(&out, req, status);
}

/* Server-sent events -------------------------------------------------------------------------- *
 *
 * The id of an event is the position behind it, so that a client that comes back with the last id
 * goes on without gap or repeat; the id of the end is one more. */

struct exec_sse {
    struct http_request *req;
    struct loop *loop; /* borrowed */
    struct sse sse;
    struct named_exec_reader reader;
    uint64_t at;  /* position behind what was sent */
    bool started; /* and said so */
};

static void sse_exec_end(struct exec_sse *x)
{
    named_exec_detach(&x->reader);
    if (x->started)
        sse_end(&x->sse);
    else
        http_abort(x->req);
    free(x);
}

static void send_at(struct exec_sse *x, const char *event, uint64_t id, struct front_answer *out)
{
    char text[24];

    (void)str_fmt(text, sizeof(text), "%llu", (unsigned long long)id);
    (void)front_end(out); /* of bounded size */
    sse_send(&x->sse, event, text, &out->out);
}

static void send_started(struct exec_sse *x)
{
    const struct named_exec *k = x->reader.kept;
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, DATA_MAX);

    jw_kstr(w, "session_id", named_exec_session_id(k));
    jw_kstr(w, "exec_id", named_exec_id(k));
    jw_ku64(w, "seq", x->at);
    send_at(x, "started", x->at, &out);
}

static void send_dropped(struct exec_sse *x, uint64_t bytes)
{
    x->at += bytes;
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, DATA_MAX);

    jw_ku64(w, "bytes", bytes);
    jw_ku64(w, "seq", x->at);
    send_at(x, "dropped", x->at, &out);
}

static void send_output(struct exec_sse *x, enum exec_stream stream, const char *data, size_t len)
{
    static char encoded[HTTP_BASE64_SIZE(PIECE_MAX)];

    x->at += len;
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, DATA_MAX);

    jw_kstr(w, "stream", stream == EXEC_STDERR ? "stderr" : "stdout");
    if (utf8_valid(data, len)) {
        jw_kstrn(w, "text", data, len);
    } else {
        http_base64(data, len, encoded);
        jw_kstr(w, "base64", encoded);
    }
    send_at(x, "output", x->at, &out);
}

/* How the exec ended, or why it failed. A browser keeps the event name "error" for itself. */
static void send_end(struct exec_sse *x)
{
    const struct err *err = named_exec_error(x->reader.kept);
    AUTO_DONE(front_answer) struct front_answer out;

    write_end(front_begin(&out, DATA_MAX), x->reader.kept);
    send_at(x, err != NULL ? "failed" : "exit", x->at + 1, &out);
}

/* The exec never ran and nothing was sent yet: the failure is answered like any other. */
static void sse_refuse(struct exec_sse *x)
{
    struct http_request *req = x->req;
    struct err err = *named_exec_error(x->reader.kept);

    named_exec_detach(&x->reader);
    free(x);
    front_fail(req, &err);
}

/* One piece, between characters where that can be had. False: nothing to send for now. */
static bool send_piece(struct exec_sse *x)
{
    static char data[PIECE_MAX];
    enum exec_stream stream;
    size_t len = named_exec_read(&x->reader, &stream, data, sizeof(data));

    if (len == 0)
        return false;
    size_t whole = utf8_boundary(data, len);
    if (whole == 0 && named_exec_may_grow(&x->reader, len))
        return false; /* the rest of the character is on its way */
    len = whole > 0 ? whole : len;
    send_output(x, stream, data, len);
    named_exec_advance(&x->reader, len);
    return true;
}

/* False: not yet, or never. */
static bool sse_begin(struct exec_sse *x)
{
    const struct named_exec *k = x->reader.kept;

    if (named_exec_state(k) == COMMAND_ASKING)
        return false;
    if (named_exec_state(k) == COMMAND_DONE && named_exec_error(k) != NULL && !named_exec_ran(k)) {
        sse_refuse(x);
        return false;
    }
    x->started = true;
    sse_start(&x->sse, x->req, x->loop);
    send_started(x);
    return true;
}

static void sse_pump(void *arg)
{
    struct exec_sse *x = arg;

    if (!x->started && !sse_begin(x))
        return;
    uint64_t dropped = named_exec_take_dropped(&x->reader);
    if (dropped > 0)
        send_dropped(x, dropped);
    while (!sse_full(&x->sse) && send_piece(x))
        ;
    if (!named_exec_at_end(&x->reader))
        return;
    send_end(x);
    sse_exec_end(x);
}

static void on_sse_writable(struct http_request *req, void *arg)
{
    sse_pump(arg);
}

static void on_sse_cancel(struct http_request *req, void *arg)
{
    sse_exec_end(arg);
}

static void exec_sse(struct http_request *req, const struct v1 *v, struct named_exec *k,
                     uint64_t from)
{
    static const struct named_exec_events events = {.ready = sse_pump};
    struct exec_sse *x = xnew(struct exec_sse);

    x->req = req;
    x->loop = manager_loop(v->front.manager);
    x->at = from;
    http_on_cancel(req, on_sse_cancel, x);
    http_on_writable(req, on_sse_writable, x);
    named_exec_attach(k, &x->reader, from, &events, x);
    sse_pump(x);
}

/* Starting one that has an id ----------------------------------------------------------------- */

/* A client that waits for its command to begin or to end. */
struct exec_wait {
    struct http_request *req;
    struct named_exec_reader reader;
};

static void exec_wait_free(struct exec_wait *l)
{
    named_exec_detach(&l->reader);
    free(l);
}

/* A detached command is on its way when the policy has let it in. */
static void on_detached(void *arg)
{
    struct exec_wait *l = arg;
    const struct named_exec *k = l->reader.kept;
    struct http_request *req = l->req;
    struct err err = {0};

    if (named_exec_state(k) == COMMAND_ASKING)
        return;
    if (named_exec_error(k) != NULL)
        err = *named_exec_error(k);
    else
        reply_exec(req, 202, k);
    exec_wait_free(l);
    if (err.code != ERR_NONE)
        front_fail(req, &err);
}

static void answer_detached(struct http_request *req, struct named_exec *k)
{
    static const struct named_exec_events events = {.ready = on_detached};
    struct exec_wait *l = xnew(struct exec_wait);

    l->req = req;
    named_exec_attach(k, &l->reader, 0, &events, l);
}

static int start_named(struct http_request *req, const struct v1 *v, struct session *s,
                       const struct json *body, struct err *err)
{
    const struct front_asker asker = {.scope = front_caller(req), .who = front_who(req)};
    struct v1_exec e = {0};
    struct named_exec *k = NULL;
    int r = v1_exec_parse(body, NULL, &e, err);

    if (r < 0)
        return r;
    bool detach = e.detach;
    if (!detach && !sse_wanted(req))
        r = err_set(err, ERR_INVALID,
                    "exec_id and on_disconnect are for streams: send 'Accept: text/event-stream', "
                    "or detach");
    else if (e.tty || e.with_stdin)
        r = err_set(err, ERR_INVALID, "tty and stdin need the streaming endpoint /v1/exec");
    if (r == 0)
        r = v1_exec_begin(v, s, &asker, &e, &k, err);
    v1_exec_done(&e);
    if (r < 0)
        return r;
    if (detach)
        answer_detached(req, k);
    else
        exec_sse(req, v, k, 0);
    return 0;
}

static bool run_named(struct http_request *req, const struct v1 *v, struct session *s,
                      const struct json *body)
{
    static const char *const members[] = {"detach", "exec_id", "on_disconnect"};
    struct err err = {0};
    bool ours = sse_wanted(req);

    for (size_t i = 0; i < ARRAY_SIZE(members); i++)
        ours = ours || json_get(body, members[i]) != NULL;
    if (!ours)
        return false;
    if (json_bool(json_get(body, "detach")) && !idem_begin(v->idem, req, front_who(req)))
        return true;
    if (start_named(req, v, s, body, &err) < 0)
        front_fail(req, &err);
    return true;
}

/* The whole answer -------------------------------------------------------------------------- */

/* One command, answered when it has ended. */
struct whole_call {
    struct http_request *req;
    struct command *command; /* owned */
    struct v1_exec exec;
};

static void whole_call_free(struct whole_call *c)
{
    command_free(c->command);
    v1_exec_done(&c->exec);
    free(c);
}

/* Text that was cut is cut between characters; the whole has an id. */
static void write_stream(const struct command_result *r, enum exec_stream stream, struct jw *w)
{
    static const char *const names[2][3] = {{"stdout", "stdout_truncated_bytes", "stdout_id"},
                                            {"stderr", "stderr_truncated_bytes", "stderr_id"}};
    const struct buf *text = &r->text[stream];
    size_t len = r->cut[stream] ? utf8_boundary(buf_str(text), text->len) : text->len;

    jw_kstrn(w, names[stream][0], buf_str(text), len);
    jw_ku64(w, names[stream][1], r->produced[stream] - len);
    if (r->id[stream][0] != '\0')
        jw_kstr(w, names[stream][2], r->id[stream]);
}

static void on_whole_ended(void *arg, const struct command_result *result, const struct err *err)
{
    struct whole_call *c = arg;

    if (err != NULL) {
        front_fail(c->req, err);
    } else {
        const struct run_result ended = {
            .outcome = result->outcome,
            .produced = {result->produced[EXEC_STDOUT], result->produced[EXEC_STDERR]}};
        AUTO_DONE(front_answer) struct front_answer out;
        struct jw *w = front_begin(&out, ANSWER_MAX);

        jw_kstr(w, "session_id", result->session_id);
        v1_write_outcome(w, &ended);
        if (result->outcome.remaining > 0)
            jw_kstr(w, "exec_id", result->outcome.left_as);
        write_stream(result, EXEC_STDOUT, w);
        write_stream(result, EXEC_STDERR, w);
        front_reply(&out, c->req, 200);
    }
    whole_call_free(c);
}

/* The client has gone and cannot read the result, so the command ends too. */
static void on_whole_cancelled(struct http_request *req, void *arg)
{
    command_kill(((struct whole_call *)arg)->command);
}

static void run_exec(struct http_request *req, void *arg)
{
    static const struct command_events events = {.ended = on_whole_ended};
    const struct v1 *v = arg;
    AUTO(json) struct json *body = NULL;
    struct err err = {0};
    struct v1_exec e = {0};
    struct session *s = front_use_session(req, &v->front, "exec");

    if (s == NULL || !front_read_body(req, &body) || run_named(req, v, s, body))
        return;
    int r = v1_exec_parse(body, NULL, &e, &err);
    if (r == 0 && (e.tty || e.with_stdin))
        r = err_set(&err, ERR_INVALID, "tty and stdin need the streaming endpoint /v1/exec");
    struct whole_call *c = xnew(struct whole_call);
    c->req = req;
    c->exec = e;
    if (r == 0) {
        struct command_options options = {.session = s,
                                          .stdin_text = e.stdin_text,
                                          .request = {.scope = front_caller(req)},
                                          .via = "http",
                                          .who = front_who(req),
                                          .cleanup = e.cleanup,
                                          .keep = COMMAND_KEEP_BYTES,
                                          .keep_rest = true};
        exec_options(&c->exec, &options.run);
        r = command_start(v->front.service, &options, &events, c, &c->command, &err);
    }
    if (r < 0) {
        whole_call_free(c);
        front_fail(req, &err);
        return;
    }
    http_on_cancel(req, on_whole_cancelled, c);
}

/* Execs with an id ------------------------------------------------------------------------ */

/* The exec of {id} and {exec}; its session may be gone, but must have been the caller's. NULL:
 * answered.
 */
static struct named_exec *find_exec(struct http_request *req, const struct v1 *v)
{
    const char *session = http_request_param(req, "id"), *id = http_request_param(req, "exec");
    struct err err = {0};
    struct named_exec *k = NULL;

    if (front_owns(req, &v->front, session))
        k = execs_find(v->execs, session, id);
    if (k == NULL || !authz_sees(front_caller(req), named_exec_who(k), session)) {
        (void)err_missing(&err, ERR_THING_EXEC, "session %.80s has no exec %.80s", session, id);
        front_fail(req, &err);
        return NULL;
    }
    return k;
}

/* The same for a caller that follows the exec, writes to it or ends it, which takes the same rights
 * as running it. While the session exists the caller's scope must cover it. NULL: answered. */
static struct named_exec *use_exec(struct http_request *req, const struct v1 *v)
{
    struct named_exec *k = front_may(req, &v->front, "exec") ? find_exec(req, v) : NULL;
    const struct session *s =
        k != NULL ? manager_find(v->front.manager, named_exec_session_id(k)) : NULL;

    return s == NULL || front_may_use(req, &v->front, s) ? k : NULL;
}

static void list_execs(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct session *s = front_find_session(req, &v->front);

    if (s == NULL)
        return;
    AUTO_DONE(front_answer) struct front_answer out;
    struct jw *w = front_begin(&out, EXECS_MAX);

    jw_karray(w, "execs");
    for (struct named_exec *k = execs_next(v->execs, session_id(s), NULL); k != NULL;
         k = execs_next(v->execs, session_id(s), k)) {
        /* A session of that name may have been another user's before. */
        if (!authz_sees(front_caller(req), named_exec_who(k), session_id(s)))
            continue;
        jw_object(w);
        write_exec(w, k);
        jw_object_end(w);
    }
    jw_array_end(w);
    front_reply(&out, req, 200);
}

static void get_exec(struct http_request *req, void *arg)
{
    struct named_exec *k = find_exec(req, arg);
    if (k != NULL)
        reply_exec(req, 200, k);
}

/* A client that ends an exec is answered when nothing of it runs any more. */
static void on_ending(void *arg)
{
    struct exec_wait *e = arg;
    struct named_exec *k = e->reader.kept;
    uint64_t begin, at_end;
    struct err err = {0};

    named_exec_range(k, &begin, &at_end);
    named_exec_advance(&e->reader,
                       at_end - e->reader.at); /* nothing is held back for this reader */
    if (named_exec_state(k) != COMMAND_DONE)
        return;
    if (named_exec_result(k)->outcome.unended) {
        (void)backend_unended(&err, "command");
        front_fail(e->req, &err);
    } else {
        http_reply(e->req, 204, NULL, NULL, 0);
    }
    exec_wait_free(e);
}

static void on_ending_gone(struct http_request *req, void *arg)
{
    exec_wait_free(arg);
    http_abort(req);
}

static void end_exec(struct http_request *req, struct named_exec *k,
                     void (*end)(struct named_exec *k))
{
    static const struct named_exec_events events = {.ready = on_ending};
    struct exec_wait *e = xnew(struct exec_wait);

    e->req = req;
    named_exec_attach(k, &e->reader, UINT64_MAX, &events, e);
    http_on_cancel(req, on_ending_gone, e);
    end(k); /* what has not begun ends in here */
}

/* An exec that has ended is forgotten; that it has left nothing is no failure. */
static void on_left_ended(void *arg, const struct err *err)
{
    front_done(arg, err != NULL && err->code == ERR_NOT_FOUND ? NULL : err);
}

/* The exec, and what it has left in the background, also where boxd does not know it any more. */
static void delete_exec(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    const char *session = http_request_param(req, "id"), *id = http_request_param(req, "exec");
    struct session *s = manager_find(v->front.manager, session);
    struct err err = {0};

    if (s != NULL && authz_sees(front_caller(req), NULL, session) &&
        execs_find(v->execs, session, id) == NULL) {
        if (front_look_session(req, &v->front, "exec") != NULL &&
            front_end_left(s, id, front_done, req, &err) < 0)
            front_fail(req, &err);
        return;
    }
    struct named_exec *k = use_exec(req, v);
    if (k == NULL)
        return;
    if (named_exec_state(k) != COMMAND_DONE) {
        end_exec(req, k, named_exec_dismiss);
        return;
    }
    int r = s != NULL ? front_end_left(s, id, on_left_ended, req, &err) : -1;
    if (r < 0 && s != NULL && session_sandbox(s) != NULL) {
        front_fail(req, &err);
        return;
    }
    named_exec_dismiss(k);
    if (r < 0)
        http_reply(req, 204, NULL, NULL, 0); /* nothing of it can run */
}

static void signal_exec(struct http_request *req, void *arg)
{
    AUTO(json) struct json *body = NULL;
    struct named_exec *k = use_exec(req, arg);

    if (k == NULL || !front_read_body(req, &body))
        return;
    int signo = v1_read_signal(req, body);
    if (signo == 0)
        return;
    if (named_exec_state(k) != COMMAND_RUNNING) {
        front_failf(req, ERR_STATE, "exec %.64s is not running", named_exec_id(k));
    } else if (signo == SIGKILL) {
        end_exec(req, k, named_exec_kill); /* and all it started */
    } else {
        named_exec_signal(k, signo);
        http_reply(req, 204, NULL, NULL, 0);
    }
}

/* Where the caller wants to go on: `from`, or behind the last event it has. False: answered. */
static bool read_start(struct http_request *req, const struct named_exec *k, uint64_t *ret)
{
    const char *last = http_request_header(req, "Last-Event-ID");
    uint64_t begin, at_end, most;

    named_exec_range(k, &begin, &at_end);
    most = named_exec_state(k) == COMMAND_DONE ? at_end + 1 : at_end;
    *ret = 0;
    if (last != NULL && (str_to_u64(last, ret) < 0 || *ret > most)) {
        front_failf(req, ERR_INVALID, "Last-Event-ID must be a whole number from 0 to %llu",
                    (unsigned long long)most);
        return false;
    }
    return v1_query_number(req, "from", most, *ret, ret);
}

static void stream_exec(struct http_request *req, void *arg)
{
    const struct v1 *v = arg;
    struct named_exec *k = use_exec(req, v);
    uint64_t from, begin, at_end;

    if (k == NULL || !read_start(req, k, &from))
        return;
    named_exec_range(k, &begin, &at_end);
    if (http_request_header(req, "Upgrade") != NULL)
        v1_stream_attach(req, v, k, from);
    else if (from > at_end)
        http_reply(req, 204, NULL, NULL, 0); /* the caller has it all; do not come again */
    else if (str_eq(http_request_method(req), "HEAD"))
        http_reply(req, 200, "text/event-stream", NULL, 0);
    else
        exec_sse(req, v, k, from);
}

const struct http_route v1_exec_routes[] = {
    {"POST", "/v1/sessions/{id}/exec", run_exec, HTTP_ROUTE_SCOPED, BODY_MAX},
    {"GET", "/v1/sessions/{id}/execs", list_execs, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions/{id}/execs/{exec}", get_exec, HTTP_ROUTE_SCOPED, 0},
    {"DELETE", "/v1/sessions/{id}/execs/{exec}", delete_exec, HTTP_ROUTE_SCOPED, 0},
    {"POST", "/v1/sessions/{id}/execs/{exec}/signal", signal_exec, HTTP_ROUTE_SCOPED, 0},
    {"GET", "/v1/sessions/{id}/execs/{exec}/stream", stream_exec, HTTP_ROUTE_SCOPED, 0},
    {0},
};
