/* SPDX-License-Identifier: Apache-2.0 */

/* Streams changes below a directory of a session as server-sent events. */

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"
#include "front/common/sse.h"
#include "front/v1/files.h"
#include "http/server/server.h"
#include "session/manager.h"

#define EVENT_MAX (64U << 10)

struct watching {
    struct sse sse;
    uint64_t number;
};

static void watching_free(void *arg)
{
    struct watching *w = arg;
    sse_end(&w->sse);
    free(w);
}

static void send_event(struct watching *w, const char *name, const struct buf *json)
{
    char id[24];

    (void)snprintf(id, sizeof(id), "%llu", (unsigned long long)++w->number);
    sse_send(&w->sse, name, id, json);
}

static void begin(struct v1_file *f, const struct files_stat *st)
{
    struct watching *w = f->more;
    AUTO_DONE(buf) struct buf out;
    struct jw jw;

    buf_init(&out, EVENT_MAX);
    sse_start(&w->sse, f->req, manager_loop(f->v->front.manager));
    jw_init(&jw, &out);
    jw_object(&jw);
    v1_file_write_name(&jw, "path", f->path, strlen(f->path));
    v1_file_write_stat(&jw, st);
    jw_object_end(&jw);
    if (jw_end(&jw) == 0)
        send_event(w, "watching", &out);
}

static void tell(struct v1_file *f, const char *data)
{
    struct watching *w = f->more;
    AUTO_DONE(buf) struct buf out;
    struct files_event e;
    struct jw jw;

    memcpy(&e, data, sizeof(e));
    const char *name = files_change_name((enum files_change)e.change);
    buf_init(&out, EVENT_MAX);
    jw_init(&jw, &out);
    jw_object(&jw);
    jw_kstr(&jw, "change", name);
    v1_file_write_name(&jw, "path", data + sizeof(e), e.path_len);
    jw_kbool(&jw, "is_directory", e.is_dir != 0);
    if (e.cookie != 0)
        jw_ku64(&jw, "cookie", e.cookie);
    jw_object_end(&jw);
    if (jw_end(&jw) == 0)
        send_event(w, name, &out);
}

static void on_frame(void *arg, enum files_type type, const char *data, size_t len)
{
    struct v1_file *f = arg;
    struct watching *w = f->more;
    struct files_stat st;

    if (type == FILES_FRAME_STAT && len == sizeof(st)) {
        memcpy(&st, data, sizeof(st));
        begin(f, &st);
    } else if (type == FILES_FRAME_EVENT && w->sse.req != NULL) {
        tell(f, data);
    }
    /* A reader that does not keep up holds box-files back, and then the kernel says what was lost.
     */
    if (sse_full(&w->sse))
        files_pause(f->call, true);
}

static void on_end(void *arg, const struct files_done *done, const struct files_failure *failure)
{
    struct v1_file *f = arg;
    struct watching *w = f->more;

    if (failure != NULL && w->sse.req == NULL)
        v1_file_fail(f, failure);
    else
        v1_file_free(f); /* which ends the stream */
}

static void on_writable(struct http_request *req, void *arg)
{
    struct v1_file *f = arg;
    files_pause(f->call, false);
}

/* The peer has gone: sse_end() gives the answer that is owed. */
static void on_gone(struct http_request *req, void *arg)
{
    struct v1_file *f = arg;
    struct watching *w = f->more;

    if (w->sse.req == NULL)
        http_abort(req);
    v1_file_free(f);
}

void v1_file_watch(struct http_request *req, void *arg)
{
    static const struct files_events events = {.frame = on_frame, .finished = on_end};
    struct v1_file *f = v1_file_new(req, arg, "read", "path");

    if (f == NULL)
        return;
    if (str_eq(http_request_method(req), "HEAD")) { /* it would never end */
        http_reply(req, 200, "text/event-stream", NULL, 0);
        v1_file_free(f);
        return;
    }
    f->more = xnew(struct watching);
    f->more_free = watching_free;
    struct files_ask ask = {
        .head = {.op = FILES_WATCH,
                 .flags = v1_query_flag(req, "recursive", false) ? FILES_RECURSIVE : 0},
        .quiet = true};
    if (!v1_file_start(f, &ask, &events))
        return;
    http_on_cancel(req, on_gone, f);
    http_on_writable(req, on_writable, f);
}
