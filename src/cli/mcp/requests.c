/* SPDX-License-Identifier: Apache-2.0 */

/* Scans JSON-RPC lines byte by byte, keeps the requests under way, replays the handshake, and
 * answers what a dead server cannot. */

#include "cli/mcp/requests.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/str.h"

/* Messages, byte by byte. */

enum { FIELD_OTHER, FIELD_IS_ID, FIELD_IS_METHOD, FIELD_IS_RESULT, FIELD_IS_ERROR };
enum { CAPTURE_NOTHING, CAPTURE_KEY, CAPTURE_ID, CAPTURE_METHOD };

static const char *const fields[] = {[FIELD_IS_ID] = "id",
                                     [FIELD_IS_METHOD] = "method",
                                     [FIELD_IS_RESULT] = "result",
                                     [FIELD_IS_ERROR] = "error"};

void mcp_scan_reset(struct mcp_scan *s)
{
    memset(s, 0, sizeof(*s));
}

static void message_begins(struct mcp_scan *s)
{
    memset(&s->msg, 0, sizeof(s->msg));
    s->n_id = s->n_method = s->n_key = 0;
    s->wants_key = true;
    s->field = FIELD_OTHER;
}

static void put(char *text, size_t *n, size_t size, bool *cut, char c)
{
    if (*n + 1 < size)
        text[(*n)++] = c;
    else
        *cut = true;
    text[*n] = '\0';
}

static void copy(struct mcp_scan *s, char c)
{
    bool cut = false;

    if (s->capture == CAPTURE_KEY)
        put(s->key, &s->n_key, sizeof(s->key), &cut, c);
    else if (s->capture == CAPTURE_ID)
        put(s->msg.id, &s->n_id, sizeof(s->msg.id), &s->msg.id_cut, c);
    else if (s->capture == CAPTURE_METHOD)
        put(s->msg.method, &s->n_method, sizeof(s->msg.method), &s->msg.method_cut, c);
}

static void string_begins(struct mcp_scan *s)
{
    s->in_string = true;
    if (s->depth != s->level || s->level == 0)
        return;
    if (s->wants_key) {
        s->n_key = 0;
        s->key[0] = '\0';
        s->capture = CAPTURE_KEY;
    } else if (s->field == FIELD_IS_METHOD && s->n_method == 0) {
        s->capture = CAPTURE_METHOD;
    } else if (s->field == FIELD_IS_ID && s->n_id == 0) {
        s->capture = CAPTURE_ID;
        copy(s, '"');
    }
}

static void in_string(struct mcp_scan *s, char c)
{
    if (!s->escaped && c == '"') {
        s->in_string = false;
        if (s->capture == CAPTURE_ID)
            copy(s, '"');
        s->capture = CAPTURE_NOTHING;
        return;
    }
    s->escaped = !s->escaped && c == '\\';
    copy(s, c);
}

static void value_begins(struct mcp_scan *s)
{
    s->wants_key = false;
    s->field = FIELD_OTHER;
    for (int i = FIELD_IS_ID; i <= FIELD_IS_ERROR; i++)
        if (str_eq(s->key, fields[i]))
            s->field = i;
    s->msg.has_result = s->msg.has_result || s->field == FIELD_IS_RESULT;
    s->msg.has_error = s->msg.has_error || s->field == FIELD_IS_ERROR;
}

/* A number, or null, which is no id. */
static void in_scalar(struct mcp_scan *s, char c)
{
    if (s->depth != s->level || s->level == 0 || s->wants_key || s->field != FIELD_IS_ID)
        return;
    if (s->n_id == 0 && c == 'n') {
        s->field = FIELD_OTHER;
        return;
    }
    if (s->n_id > 0 && s->msg.id[0] == '"')
        return;
    s->capture = CAPTURE_ID;
    copy(s, c);
    s->capture = CAPTURE_NOTHING;
}

static void opens(struct mcp_scan *s, char c)
{
    if (s->level == 0)
        s->level = c == '[' ? 2 : 1;
    s->depth++;
    if (c == '{' && s->depth == s->level)
        message_begins(s);
}

static void closes(struct mcp_scan *s, char c, mcp_scan_fn *fn, void *arg)
{
    if (s->depth == 0) {
        s->is_junk = true;
        return;
    }
    if (c == '}' && s->depth == s->level)
        fn(arg, &s->msg);
    s->depth--;
}

static void outside_string(struct mcp_scan *s, char c, mcp_scan_fn *fn, void *arg)
{
    bool at_level = s->depth == s->level && s->level > 0;

    switch (c) {
    case '"':
        string_begins(s);
        break;
    case '{':
    case '[':
        opens(s, c);
        break;
    case '}':
    case ']':
        closes(s, c, fn, arg);
        break;
    case ':':
        if (at_level && s->wants_key)
            value_begins(s);
        break;
    case ',':
        if (at_level)
            s->wants_key = true;
        break;
    case ' ':
    case '\t':
    case '\r':
        break;
    default:
        in_scalar(s, c);
        if (s->level == 0)
            s->is_junk = true;
        break;
    }
}

void mcp_scan_feed(struct mcp_scan *s, const char *data, size_t len, mcp_scan_fn *fn, void *arg)
{
    for (size_t i = 0; i < len && !s->is_junk; i++) {
        /* Most of a large line is text that is of no use here. */
        if (s->in_string && s->capture == CAPTURE_NOTHING && !s->escaped) {
            while (i < len && data[i] != '"' && data[i] != '\\')
                i++;
            if (i == len)
                return;
        }
        if (s->in_string)
            in_string(s, data[i]);
        else
            outside_string(s, data[i], fn, arg);
    }
}

static void scan_line(const char *line, size_t len, mcp_scan_fn *fn, void *arg)
{
    struct mcp_scan scan = {0};

    mcp_scan_feed(&scan, line, len, fn, arg);
}

/* Requests under way. */

struct mcp_pending {
    char id[MCP_ID_MAX];
    unsigned generation; /* of the server that asked */
    bool again;          /* it can be sent to another server: nothing has come of it */
    bool is_init, is_tools, is_page;
    char *line; /* owned; while `again` */
};

void mcp_requests_init(struct mcp_requests *b)
{
    memset(b, 0, sizeof(*b));
    buf_init(&b->init, MCP_LINE_MAX);
    buf_init(&b->initialized, MCP_LINE_MAX);
}

static void pending_forget(struct mcp_pending *list, size_t *n, size_t i)
{
    free(list[i].line);
    memmove(list + i, list + i + 1, (*n - i - 1) * sizeof(*list));
    (*n)--;
}

void mcp_requests_done(struct mcp_requests *b)
{
    while (b->n_asked > 0)
        pending_forget(b->asked, &b->n_asked, b->n_asked - 1);
    free(b->asked);
    free(b->called);
    free(b->twice);
    buf_done(&b->init);
    buf_done(&b->initialized);
    memset(b, 0, sizeof(*b));
}

static ssize_t pending_find(const struct mcp_pending *list, size_t n, const char *id)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq(list[i].id, id))
            return (ssize_t)i;
    return -1;
}

/* With so many under way the oldest is forgotten; the client still gets its answer if one comes. */
static struct mcp_pending *pending_add(struct mcp_pending **list, size_t *n, const char *id)
{
    if (*n == MCP_IN_FLIGHT_MAX)
        pending_forget(*list, n, 0);
    *list = xreallocarray(*list, *n + 1, sizeof(**list));
    struct mcp_pending *p = &(*list)[(*n)++];
    *p = (struct mcp_pending){0};
    (void)str_copy(p->id, sizeof(p->id), id);
    return p;
}

/* The client. */

struct client_reading {
    struct mcp_requests *book;
    const char *line;
    size_t len;
    size_t messages, stale; /* answers to a server that is gone */
};

static void keep_line(struct buf *b, const char *line, size_t len)
{
    buf_reset(b);
    (void)buf_append(b, line, len);
}

static void client_asks(struct client_reading *r, const struct mcp_msg *msg)
{
    static const char *const harmless[] = {"initialize", "server/discover", "ping"};
    struct mcp_requests *b = r->book;

    if (msg->id_cut)
        return; /* nothing that could be answered in its place */
    struct mcp_pending *p = pending_add(&b->asked, &b->n_asked, msg->id);
    for (size_t i = 0; i < ARRAY_SIZE(harmless); i++)
        p->again = p->again || str_eq(msg->method, harmless[i]);
    p->is_init = str_eq(msg->method, "initialize");
    p->is_tools = str_eq(msg->method, "tools/list");
    p->is_page = p->is_tools && memmem(r->line, r->len, "\"cursor\"", strlen("\"cursor\"")) != NULL;
    b->tools_asked = b->tools_asked || p->is_tools;
    if (p->again)
        p->line = xstrndup(r->line, r->len);
    if (!p->is_init)
        return;
    keep_line(&b->init, r->line, r->len);
    buf_reset(&b->initialized);
    (void)str_copy(b->init_id, sizeof(b->init_id), msg->id);
    b->init_answered = false;
}

static void client_answers(struct client_reading *r, const struct mcp_msg *msg)
{
    struct mcp_requests *b = r->book;
    ssize_t i = pending_find(b->called, b->n_called, msg->id);

    if (i < 0)
        return;
    if (b->called[i].generation != b->generation)
        r->stale++;
    pending_forget(b->called, &b->n_called, (size_t)i);
}

static void on_client(void *arg, const struct mcp_msg *msg)
{
    struct client_reading *r = arg;

    r->messages++;
    if (mcp_msg_is_request(msg))
        client_asks(r, msg);
    else if (mcp_msg_is_response(msg))
        client_answers(r, msg);
    else if (str_eq(msg->method, "notifications/initialized"))
        keep_line(&r->book->initialized, r->line, r->len);
}

enum mcp_verdict mcp_requests_from_client(struct mcp_requests *b, const char *line, size_t len)
{
    struct client_reading r = {.book = b, .line = line, .len = len};

    scan_line(line, len > 0 ? len - 1 : 0, on_client, &r);
    return r.messages > 0 && r.stale == r.messages ? MCP_DROP : MCP_PASS;
}

/* The server. */

enum mcp_verdict mcp_requests_from_server(struct mcp_requests *b, const struct mcp_msg *msg)
{
    if (mcp_msg_is_request(msg)) {
        if (!msg->id_cut)
            pending_add(&b->called, &b->n_called, msg->id)->generation = b->generation;
        return MCP_PASS;
    }
    if (!mcp_msg_is_response(msg))
        return MCP_PASS;
    if (b->replaying && str_eq(msg->id, b->init_id)) {
        b->answered_any = true;
        return MCP_DROP;
    }
    ssize_t i = pending_find(b->asked, b->n_asked, msg->id),
            again = pending_find(b->twice, b->n_twice, msg->id);
    if (i < 0 && again >= 0)
        pending_forget(b->twice, &b->n_twice, (size_t)again);
    if (i < 0)
        return again >= 0 ? MCP_TWICE : MCP_PASS;
    struct mcp_pending done = b->asked[i];
    b->answered_any = true;
    b->init_answered = b->init_answered || (done.is_init && msg->has_result);
    b->tools_more = done.is_page;
    pending_forget(b->asked, &b->n_asked, (size_t)i);
    if (done.is_tools) {
        b->tools_asked = false;
        for (size_t j = 0; j < b->n_asked; j++)
            b->tools_asked = b->tools_asked || b->asked[j].is_tools;
    }
    return done.is_tools ? MCP_TOOLS : MCP_PASS;
}

/* Ends and beginnings. */

static void on_sent_again(void *arg, const struct mcp_msg *msg)
{
    struct mcp_requests *b = arg;

    if (mcp_msg_is_request(msg) && !msg->id_cut)
        (void)pending_add(&b->twice, &b->n_twice, msg->id);
}

void mcp_requests_sent_again(struct mcp_requests *b, const char *line, size_t len)
{
    scan_line(line, len > 0 ? len - 1 : 0, on_sent_again, b);
}

void mcp_put_error(struct buf *out, const char *id, int code, const char *why)
{
    struct jw w = JW_INIT(out);

    if (buf_printf(out, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":", id) < 0)
        return;
    jw_object(&w);
    jw_kint(&w, "code", code);
    jw_kstr(&w, "message", why);
    jw_object_end(&w);
    if (jw_end(&w) >= 0)
        (void)buf_puts(out, "}\n");
}

void mcp_requests_server_died(struct mcp_requests *b, const char *why, struct buf *answers)
{
    for (size_t i = 0; i < b->n_asked; i++)
        if (!b->asked[i].again)
            mcp_put_error(answers, b->asked[i].id, MCP_SERVER_ERROR, why);
    for (size_t i = b->n_asked; i-- > 0;)
        if (!b->asked[i].again)
            pending_forget(b->asked, &b->n_asked, i);
    b->generation++;
    b->n_twice = 0;
    b->replaying = b->answered_any = b->tools_asked = false;
}

/* Requests that another server may get as well. */
static void put_unanswered(const struct mcp_requests *b, struct buf *ret)
{
    for (size_t i = 0; i < b->n_asked; i++)
        if (b->asked[i].again && b->asked[i].line != NULL)
            (void)buf_puts(ret, b->asked[i].line);
}

void mcp_requests_replay(struct mcp_requests *b, struct buf *ret)
{
    if (b->init_answered && b->init.len > 0) {
        (void)buf_append(ret, b->init.data, b->init.len);
        b->replaying = true;
        return;
    }
    put_unanswered(b, ret);
}

void mcp_requests_replayed(struct mcp_requests *b, struct buf *ret)
{
    b->replaying = false;
    if (b->initialized.len > 0)
        (void)buf_append(ret, b->initialized.data, b->initialized.len);
    put_unanswered(b, ret);
}

void mcp_requests_give_up(struct mcp_requests *b, const char *why, struct buf *answers)
{
    for (size_t i = 0; i < b->n_asked; i++)
        mcp_put_error(answers, b->asked[i].id, MCP_SERVER_ERROR, why);
    while (b->n_asked > 0)
        pending_forget(b->asked, &b->n_asked, b->n_asked - 1);
    if (b->init_answered)
        return;
    buf_reset(&b->init);
    buf_reset(&b->initialized);
}

struct refusing {
    const char *why;
    struct buf *answers;
};

static void on_refused(void *arg, const struct mcp_msg *msg)
{
    struct refusing *r = arg;

    if (mcp_msg_is_request(msg) && !msg->id_cut)
        mcp_put_error(r->answers, msg->id, MCP_SERVER_ERROR, r->why);
}

void mcp_requests_refuse(const char *line, size_t len, const char *why, struct buf *answers)
{
    struct refusing r = {.why = why, .answers = answers};

    scan_line(line, len, on_refused, &r);
}
