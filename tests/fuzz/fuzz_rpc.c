/* SPDX-License-Identifier: Apache-2.0 */

/* The LangBot front on the fake backend: each line of the input is a message; a line that starts
 * with a digit lets that many seconds pass. Whatever comes, every reply is a proper one, nobody's
 * text passes for a class of errors that is not meant, and nothing is left behind. */

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "command/policy_service.h"
#include "fake/fake.h"
#include "front/langbot/langbot_internal.h"
#include "fuzz.h"
#include "loop/loop.h"
#include "policy/error_ring.h"
#include "policy/policy.h"
#include "session/manager.h"

#define TURNS_MAX 2000

static uint64_t now;

static uint64_t now_ns(void *arg)
{
    return now;
}

/* How often a client would find a name of a class in the message. */
static unsigned count_markers(const char *message)
{
    unsigned n = 0;
    for (int i = LANGBOT_ADMISSION; i <= LANGBOT_BACKEND_UNAVAILABLE; i++) {
        char marker[64];
        (void)snprintf(marker, sizeof(marker), "%s:", langbot_class_name((enum langbot_class)i));
        for (const char *at = message; (at = strstr(at, marker)) != NULL; at++)
            n++;
    }
    return n;
}

static void hear(void *arg, const char *text, size_t len)
{
    struct json *v = NULL;
    struct err err = {0};
    assert(len <= LANGBOT_MESSAGE_MAX);
    assert(json_parse(text, len, &v, &err) == 0);
    assert(json_get(v, "seq_id") != NULL);
    assert(json_type(json_get(v, "code")) == JSON_INT);
    assert(json_type(json_get(v, "message")) == JSON_STRING);
    assert(json_type(json_get(v, "data")) == JSON_OBJECT);
    assert(str_eq(json_str(json_get(v, "chunk_status")), "continue"));
    if (json_int(json_get(v, "code")) != 0)
        assert(count_markers(json_str(json_get(v, "message"))) <= 1);
    json_free(v);
}

static void turn(struct loop *loop)
{
    for (int i = 0; i < TURNS_MAX && loop_turn(loop, 0) > 0; i++)
        continue;
}

static void feed(struct loop *loop, struct langbot_conn *conn, const char *data, size_t size)
{
    while (size > 0) {
        const char *end = memchr(data, '\n', size);
        size_t n = end != NULL ? (size_t)(end - data) : size;
        if (n > 0 && data[0] >= '0' && data[0] <= '9') {
            turn(loop);
            now += (uint64_t)(data[0] - '0') * NSEC_PER_SEC;
            turn(loop);
        } else {
            langbot_conn_message(conn, data, n);
        }
        data += n + (end != NULL);
        size -= n + (end != NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct langbot_transport transport = {.send = hear};
    static const struct fake_options fake = {.create_ns = NSEC_PER_SEC, .destroy_ns = NSEC_PER_SEC};
    static const struct manager_options options = {.max_sessions = 5,
                                                   .max_processes = 5,
                                                   .max_exited = 5,
                                                   .exited_ns = 10 * NSEC_PER_SEC,
                                                   .ttl_ns = 20 * NSEC_PER_SEC};
    const struct clock clock = {now_ns, now_ns, now_ns, NULL};
    struct loop *loop = NULL;
    struct backend *backend = NULL;
    struct manager *m = NULL;
    struct langbot *rpc = NULL;
    struct policy *policy = NULL;
    struct err err = {0};

    if (size == 0)
        return 0;
    now = 1794745180 * NSEC_PER_SEC;
    assert(loop_new(&clock, &loop, &err) == 0 && fake_new(loop, &fake, &backend, &err) == 0 &&
           manager_new(loop, backend, &options, &m, &err) == 0 &&
           policy_new(&(struct policy_options){.cwd = "/"}, &policy, &err) == 0);
    const struct policy_service service = {
        .policy = policy, .manager = m, .errors = error_ring_new()};
    const struct langbot_options o = {.manager = m,
                                      .service = &service,
                                      .instance = "i",
                                      .spool_fd = -1,
                                      .unsafe_storage = data[0] & 1};
    assert(langbot_new(&o, &rpc, &err) == 0);
    struct langbot_conn *conn =
        langbot_conn_new(rpc, &transport, NULL, data[0] & 2 ? LANGBOT_CONN_BARE : 0);
    feed(loop, conn, (const char *)data + 1, size - 1);
    turn(loop);
    langbot_conn_free(conn);
    turn(loop);
    langbot_free(rpc);
    backend->ops->free(backend);
    manager_free(m);
    error_ring_free(service.errors);
    policy_free(policy);
    loop_free(loop);
    return 0;
}
