/* SPDX-License-Identifier: Apache-2.0 */

/* Keeps the requests under way, replays the handshake, and answers what a dead server cannot. */

#include "cli/mcp/requests.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/str.h"

#define SERVER_ERROR (-32000) /* of those that JSON-RPC leaves to implementations */

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

static void forget(struct mcp_pending *list, size_t *n, size_t i)
{
    free(list[i].line);
    memmove(list + i, list + i + 1, (*n - i - 1) * sizeof(*list));
    (*n)--;
}

void mcp_requests_done(struct mcp_requests *b)
{
    while (b->n_asked > 0)
        forget(b->asked, &b->n_asked, b->n_asked - 1);
    free(b->asked);
    free(b->called);
    free(b->twice);
    buf_done(&b->init);
    buf_done(&b->initialized);
    memset(b, 0, sizeof(*b));
}

static ssize_t find(const struct mcp_pending *list, size_t n, const char *id)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq(list[i].id, id))
            return (ssize_t)i;
    return -1;
}

/* Whoever has so many under way loses sight of the oldest; it still gets its answer if there is
 * one. */
static struct mcp_pending *note(struct mcp_pending **list, size_t *n, const char *id)
{
    if (*n == MCP_IN_FLIGHT_MAX)
        forget(*list, n, 0);
    *list = xreallocarray(*list, *n + 1, sizeof(**list));
    struct mcp_pending *p = &(*list)[(*n)++];
    *p = (struct mcp_pending){0};
    (void)str_copy(p->id, sizeof(p->id), id);
    return p;
}

/* The client. */

struct reading {
    struct mcp_requests *book;
    const char *line;
    size_t len;
    size_t messages, stale; /* answers to a server that is gone */
};

static void keep(struct buf *b, const char *line, size_t len)
{
    buf_reset(b);
    (void)buf_append(b, line, len);
}

static void client_asks(struct reading *r, const struct mcp_msg *msg)
{
    static const char *const harmless[] = {"initialize", "server/discover", "ping"};
    struct mcp_requests *b = r->book;

    if (msg->id_cut)
        return; /* nothing that could be answered in its place */
    struct mcp_pending *p = note(&b->asked, &b->n_asked, msg->id);
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
    keep(&b->init, r->line, r->len);
    buf_reset(&b->initialized);
    (void)str_copy(b->init_id, sizeof(b->init_id), msg->id);
    b->init_answered = false;
}

static void client_answers(struct reading *r, const struct mcp_msg *msg)
{
    struct mcp_requests *b = r->book;
    ssize_t i = find(b->called, b->n_called, msg->id);

    if (i < 0)
        return;
    if (b->called[i].generation != b->generation)
        r->stale++;
    forget(b->called, &b->n_called, (size_t)i);
}

static void on_client(void *arg, const struct mcp_msg *msg)
{
    struct reading *r = arg;

    r->messages++;
    if (mcp_msg_is_request(msg))
        client_asks(r, msg);
    else if (mcp_msg_is_response(msg))
        client_answers(r, msg);
    else if (str_eq(msg->method, "notifications/initialized"))
        keep(&r->book->initialized, r->line, r->len);
}

enum mcp_verdict mcp_requests_from_client(struct mcp_requests *b, const char *line, size_t len)
{
    struct mcp_scan scan;
    struct reading r = {.book = b, .line = line, .len = len};

    mcp_scan_reset(&scan);
    mcp_scan_feed(&scan, line, len > 0 ? len - 1 : 0, on_client, &r);
    return r.messages > 0 && r.stale == r.messages ? MCP_DROP : MCP_PASS;
}

/* The server. */

enum mcp_verdict mcp_requests_from_server(struct mcp_requests *b, const struct mcp_msg *msg)
{
    if (mcp_msg_is_request(msg)) {
        if (!msg->id_cut)
            note(&b->called, &b->n_called, msg->id)->generation = b->generation;
        return MCP_PASS;
    }
    if (!mcp_msg_is_response(msg))
        return MCP_PASS;
    if (b->replaying && str_eq(msg->id, b->init_id)) {
        b->answered_any = true;
        return MCP_DROP;
    }
    ssize_t i = find(b->asked, b->n_asked, msg->id), again = find(b->twice, b->n_twice, msg->id);
    if (i < 0 && again >= 0)
        forget(b->twice, &b->n_twice, (size_t)again);
    if (i < 0)
        return again >= 0 ? MCP_TWICE : MCP_PASS;
    struct mcp_pending done = b->asked[i];
    b->answered_any = true;
    b->init_answered = b->init_answered || (done.is_init && msg->has_result);
    b->tools_more = done.is_page;
    forget(b->asked, &b->n_asked, (size_t)i);
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
        (void)note(&b->twice, &b->n_twice, msg->id);
}

void mcp_requests_sent_again(struct mcp_requests *b, const char *line, size_t len)
{
    struct mcp_scan scan;

    mcp_scan_reset(&scan);
    mcp_scan_feed(&scan, line, len > 0 ? len - 1 : 0, on_sent_again, b);
}

static void put_answer(struct buf *out, const char *id, const char *why)
{
    struct jw w;

    if (buf_printf(out, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"error\":", id) < 0)
        return;
    jw_init(&w, out);
    jw_object(&w);
    jw_kint(&w, "code", SERVER_ERROR);
    jw_kstr(&w, "message", why);
    jw_object_end(&w);
    if (jw_end(&w) >= 0)
        (void)buf_puts(out, "}\n");
}

void mcp_requests_server_died(struct mcp_requests *b, const char *why, struct buf *answers)
{
    for (size_t i = 0; i < b->n_asked; i++)
        if (!b->asked[i].again)
            put_answer(answers, b->asked[i].id, why);
    for (size_t i = b->n_asked; i-- > 0;)
        if (!b->asked[i].again)
            forget(b->asked, &b->n_asked, i);
    b->generation++;
    b->n_twice = 0;
    b->replaying = b->answered_any = b->tools_asked = false;
}

void mcp_requests_replay(struct mcp_requests *b, struct buf *ret)
{
    if (b->init_answered && b->init.len > 0) {
        (void)buf_append(ret, b->init.data, b->init.len);
        b->replaying = true;
        return;
    }
    for (size_t i = 0; i < b->n_asked; i++)
        if (b->asked[i].again && b->asked[i].line != NULL)
            (void)buf_puts(ret, b->asked[i].line);
}

void mcp_requests_replayed(struct mcp_requests *b, struct buf *ret)
{
    b->replaying = false;
    if (b->initialized.len > 0)
        (void)buf_append(ret, b->initialized.data, b->initialized.len);
    for (size_t i = 0; i < b->n_asked; i++)
        if (b->asked[i].again && b->asked[i].line != NULL)
            (void)buf_puts(ret, b->asked[i].line);
}

void mcp_requests_give_up(struct mcp_requests *b, const char *why, struct buf *answers)
{
    for (size_t i = 0; i < b->n_asked; i++)
        put_answer(answers, b->asked[i].id, why);
    while (b->n_asked > 0)
        forget(b->asked, &b->n_asked, b->n_asked - 1);
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
        put_answer(r->answers, msg->id, r->why);
}

void mcp_requests_refuse(const char *line, size_t len, const char *why, struct buf *answers)
{
    struct mcp_scan scan;
    struct refusing r = {.why = why, .answers = answers};

    mcp_scan_reset(&scan);
    mcp_scan_feed(&scan, line, len, on_refused, &r);
}
