/* SPDX-License-Identifier: Apache-2.0 */

/* The MCP server on the fake backend: each line of the input is a message of one client; a line
 * that starts with a digit lets that many seconds pass. Whatever comes, every answer is a proper
 * one and on one line, no request is answered twice, and nothing is left behind. */

#include <assert.h>
#include <string.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "fake/fake.h"
#include "front/mcp/mcp_internal.h"
#include "front/v1/v1.h"
#include "fuzz.h"
#include "loop/loop.h"
#include "policy/error_ring.h"
#include "policy/policy.h"
#include "session/manager.h"

#define TURNS_MAX 2000

static uint64_t now;
static size_t requests, answers;

static uint64_t now_ns(void *arg)
{
    return now;
}

static struct json *check(const struct buf *message)
{
    struct json *v = NULL;
    struct err err = {0};
    assert(message->len <= MCP_ANSWER_MAX);
    assert(memchr(message->data, '\n', message->len) == NULL);
    assert(json_parse(message->data, message->len, &v, &err) == 0);
    assert(str_eq(json_str(json_get(v, "jsonrpc")), "2.0"));
    return v;
}

static void notify(void *arg, const struct buf *message)
{
    struct json *v = check(message);
    assert(str_eq(json_str(json_get(v, "method")), "notifications/progress"));
    assert(json_get(v, "id") == NULL);
    json_free(v);
}

static void answer(void *arg, const struct buf *message, enum mcp_code code)
{
    answers++;
    assert(answers <= requests);
    if (message == NULL)
        return;
    struct json *v = check(message);
    const struct json *error = json_get(v, "error");
    assert((error != NULL) != (json_get(v, "result") != NULL));
    assert((error != NULL) == (code != MCP_OK));
    if (error != NULL)
        assert(json_int(json_get(error, "code")) == code && json_str(json_get(error, "message")));
    json_free(v);
}

static const struct mcp_sink sink = {notify, answer};

static void turn(struct loop *loop)
{
    for (int i = 0; i < TURNS_MAX && loop_turn(loop, 0) > 0; i++)
        continue;
}

static void say(struct mcp_place *place, const char *data, size_t len)
{
    struct mcp_message m = {0};
    struct mcp_error why = {0};
    if (mcp_message_parse(data, len, &m, &why) < 0) {
        assert(why.code != MCP_OK && why.text[0] != '\0');
        requests++;
        mcp_refuse(m.id, &why, &sink, NULL);
    } else {
        assert(m.kind != MCP_REQUEST || (m.id != NULL && m.method != NULL));
        requests += m.kind == MCP_REQUEST ? 1 : 0;
        mcp_receive(place, &m, &sink, NULL, NULL);
    }
    mcp_message_done(&m);
}

static void feed(struct loop *loop, struct mcp_place *place, const char *data, size_t size)
{
    while (size > 0) {
        const char *end = memchr(data, '\n', size);
        size_t n = end != NULL ? (size_t)(end - data) : size;
        if (n > 0 && data[0] >= '0' && data[0] <= '9') {
            turn(loop);
            now += (uint64_t)(data[0] - '0') * NSEC_PER_SEC;
            turn(loop);
        } else {
            say(place, data, n);
        }
        data += n + (end != NULL);
        size -= n + (end != NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct fake_options fake = {.create_ns = NSEC_PER_SEC, .destroy_ns = NSEC_PER_SEC};
    static const struct manager_options options = {.max_sessions = 5,
                                                   .max_processes = 5,
                                                   .max_exited = 5,
                                                   .exited_ns = 10 * NSEC_PER_SEC,
                                                   .ttl_ns = 20 * NSEC_PER_SEC};
    static const struct policy_options settings = {.cwd = "/"};
    const struct clock clock = {now_ns, now_ns, now_ns, NULL};
    struct loop *loop = NULL;
    struct backend *backend = NULL;
    struct manager *m = NULL;
    struct policy *policy = NULL;
    struct err err = {0};

    now = 1794745180 * NSEC_PER_SEC;
    requests = answers = 0;
    assert(loop_new(&clock, &loop, &err) == 0 && fake_new(loop, &fake, &backend, &err) == 0 &&
           manager_new(loop, backend, &options, &m, &err) == 0 &&
           policy_new(&settings, &policy, &err) == 0);
    struct error_ring *errors = error_ring_new();
    const struct policy_service service = {.policy = policy, .manager = m, .errors = errors};
    struct v1 *v1 = v1_new(m, NULL, &service);
    struct mcp *mcp = mcp_new(v1_front(v1));
    struct mcp_place *place = mcp_place_new(mcp, NULL, "fuzz", "mcp-0");
    place->ephemeral = true;
    feed(loop, place, (const char *)data, size);
    turn(loop);
    mcp_place_close(place);
    for (int i = 0; i < 30; i++) { /* whoever waits is told before the manager goes */
        turn(loop);
        now += NSEC_PER_SEC;
    }
    assert(fake_sandboxes(backend) == 0);
    mcp_free(mcp);
    v1_free(v1);
    backend->ops->free(backend);
    manager_free(m);
    policy_free(policy);
    error_ring_free(errors);
    loop_free(loop);
    return 0;
}
