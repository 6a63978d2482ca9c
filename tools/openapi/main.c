/* SPDX-License-Identifier: Apache-2.0 */

/* Writes docs/api/openapi.json to standard output, from the tables of the server itself. */

#include <stdio.h>

#include "backend/backend.h"
#include "backend/choice.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "command/policy_service.h"
#include "front/chat/chat_http.h"
#include "front/v1/v1.h"
#include "http/server/server.h"
#include "loop/loop.h"
#include "openapi.h"
#include "session/manager.h"

#define DOCUMENT_MAX (1U << 20)

static int write_document(struct loop *loop, struct manager *m, struct buf *out, struct err *err)
{
    static const struct policy_service service = {0}; /* no request comes */
    AUTO(http_server) struct http_server *server = NULL;
    AUTO(v1) struct v1 *v = v1_new(m, NULL, &service);
    int r = http_server_new(loop, NULL, &server, err);

    if (r == 0)
        r = v1_routes(server, v, err);
    if (r == 0)
        r = chat_routes(server, v1_front(v), NULL, err);
    return r < 0 ? r : oa_write(server, v, out, err);
}

int main(void)
{
    static const struct choice_candidate none = {.name = "none"}; /* no session is made */
    static const struct choice_options one = {.candidates = &none, .n = 1};
    static const struct manager_options options = {.max_sessions = 1};
    AUTO(loop) struct loop *loop = NULL;
    AUTO_DONE(buf) struct buf out;
    struct err err = {0};

    buf_init(&out, DOCUMENT_MAX);
    int r = loop_new(&clock_system, &loop, &err);
    if (r == 0) {
        struct backend *backend = choice_new(loop, &one);
        AUTO(manager) struct manager *m = NULL;
        r = manager_new(loop, backend, &options, &m, &err);
        if (r == 0)
            r = write_document(loop, m, &out, &err);
        backend->ops->free(backend);
    }
    if (r < 0) {
        (void)fprintf(stderr, "gen-openapi: %s\n", err.msg);
        return 1;
    }
    return fwrite(out.data, 1, out.len, stdout) == out.len ? 0 : 1;
}
