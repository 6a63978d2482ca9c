/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A client of the MCP server whose messages go straight to the protocol, on the fake backend. */

#include "policy_stage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/tools.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "front/mcp/mcp_internal.h"
#include "front/v1/v1.h"
#include "policy/authz.h"
#include "session/process.h"

#define META                                                                                       \
    "\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\","                       \
    "\"io.modelcontextprotocol/clientCapabilities\":{}}"
#define INITIALIZE                                                                                 \
    "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\"protocolVersion\":"     \
    "\"2025-11-25\",\"capabilities\":{},\"clientInfo\":{\"name\":\"t\",\"version\":\"1\"}}}"

/* A client whose messages go straight to the protocol, and what it hears. */
struct scene {
    struct stage s;
    struct v1 *v1;
    struct mcp *mcp;
    struct mcp_place *place;
    int answers, silent, notes;
    enum mcp_code code;
    char text[256 << 10];
    char note[8192];
    struct json *last; /* owned; the last answer */
};

static inline void on_note(void *arg, const struct buf *message)
{
    struct scene *c = arg;
    c->notes++;
    (void)snprintf(c->note, sizeof(c->note), "%s", buf_str(message));
}

static inline void on_answer(void *arg, const struct buf *message, enum mcp_code code)
{
    struct scene *c = arg;
    struct err err = {0};
    c->code = code;
    if (message == NULL) {
        c->silent++;
        return;
    }
    c->answers++;
    assert_true(message->len < sizeof(c->text));
    assert_null(memchr(message->data, '\n', message->len)); /* one line on stdio */
    (void)snprintf(c->text, sizeof(c->text), "%s", buf_str(message));
    json_free(c->last);
    c->last = NULL;
    assert_int_equal(json_parse(buf_str(message), message->len, &c->last, &err), 0);
    assert_string_equal(json_str(json_get(c->last, "jsonrpc")), "2.0");
}

static const struct mcp_sink scene_sink = {on_note, on_answer};

static inline void scene_start(struct scene *c, const struct authz_scope *scope, const char *who)
{
    memset(c, 0, sizeof(*c));
    stage_start(&c->s, "{}");
    c->v1 = v1_new(c->s.f.m, NULL, &c->s.service);
    c->mcp = mcp_new(v1_front(c->v1));
    c->place = mcp_place_new(c->mcp, scope, who, "mcp-0");
}

static inline void scene_stop(struct scene *c)
{
    if (c->place != NULL)
        mcp_place_close(c->place);
    mcp_free(c->mcp);
    pump(&c->s.f);
    v1_free(c->v1);
    json_free(c->last);
    stage_stop(&c->s);
}

/* Sends, and lets everything happen that needs no time. */
static inline void tell(struct scene *c, const char *text)
{
    AUTO_DONE(mcp_message) struct mcp_message m = {0};
    struct mcp_error why;
    if (mcp_message_parse(text, strlen(text), &m, &why) < 0)
        mcp_refuse(m.id, &why, &scene_sink, c);
    else
        mcp_receive(c->place, &m, &scene_sink, c, NULL);
    pump(&c->s.f);
}

static inline void call(struct scene *c, const char *id, const char *tool, const char *arguments)
{
    AUTO_FREE char *text = xasprintf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"method\":\"tools/call\","
                                     "\"params\":{\"name\":\"%s\",\"arguments\":%s," META "}}",
                                     id, tool, arguments);
    tell(c, text);
}

static inline const struct json *result(const struct scene *c)
{
    const struct json *r = json_get(c->last, "result");
    if (r == NULL)
        fail_msg("no result: %s", c->text);
    return r;
}

static inline int64_t error_code(const struct scene *c)
{
    return json_int(json_get(json_get(c->last, "error"), "code"));
}

static inline const char *shown(const struct scene *c)
{
    return json_str(json_get(json_at(json_get(result(c), "content"), 0), "text"));
}

static inline bool says_no(const struct scene *c)
{
    return json_bool(json_get(result(c), "isError"));
}

static inline const struct json *structured(const struct scene *c)
{
    return json_get(result(c), "structuredContent");
}
