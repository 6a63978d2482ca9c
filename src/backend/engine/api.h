/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The Docker Engine API of one engine (dockerd, or the Podman service, which speaks it too), over
 * its socket. No command line tool is ever run. Every call has a deadline, can be cancelled, and
 * never blocks; what an engine answers is bounded and parsed strictly, because an engine may be
 * broken or not be one. Callbacks run from the loop, never from inside a call of this interface. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/list.h"

struct engine_call;
struct err;
struct http_client;
struct json;
struct loop;
struct tls_files;

#define ENGINE_TIMEOUT_NS (30ULL * 1000000000ULL)
#define ENGINE_BODY_MAX (8U << 20)
#define ENGINE_LINE_MAX (256U << 10) /* of a stream of JSON objects */

struct engine_api {
    struct loop *loop;              /* borrowed */
    const char *name;               /* borrowed */
    char *endpoint;                 /* owned */
    struct http_client *client;     /* owned */
    LIST_HEAD(, engine_call) calls; /* owned until they are done */
    unsigned minor;                 /* of the version agreed on, 0: none yet */
    bool libpod;                    /* it was Podman that agreed */
    char version[16];               /* "1.41"; "" before the first answer */
};

/* `name` is what errors begin with ("docker"); borrowed. The endpoint is unix:///path, or
 * tcp://host:port, which may be under TLS (http/stream/tls.h); NULL: plain. */
int engine_api_new(struct loop *loop, const char *name, const char *endpoint,
                   const struct tls_files *tls, struct engine_api **ret, struct err *err);
/* Calls under way end without a callback. */
void engine_api_free(struct engine_api *api);
DEFINE_CLEANUP(engine_api)

struct engine_request {
    const char *method; /* NULL: GET */
    const char *target; /* "/containers/json", without the version; copied */
    const char *body;   /* copied; NULL: none */
    const char *type;   /* of the body, static; NULL: JSON */
    size_t body_len;
    uint64_t timeout_ns; /* for the whole call; 0: ENGINE_TIMEOUT_NS */
    /* A stream of JSON objects, one per line, in place of one answer: each is given here as it
     * comes (a negative result ends the call with that error), and timeout_ns is the longest
     * silence. */
    int (*line)(void *arg, const struct json *object, struct err *err);
    bool unversioned; /* "/_ping" */
};

/* The answer of a success (2xx, and 304 for what was so already); body NULL when it has none. On
 * failure err says why: ERR_NOT_FOUND for 404, ERR_CONFLICT for 409, ERR_INVALID for 400,
 * ERR_UNAVAILABLE for an engine that cannot be reached or does not answer (err->sys is not 0 then),
 * else ERR_BACKEND. */
typedef void engine_answer_fn(void *arg, const struct json *body, const struct err *err);

/* The call is gone once it was answered. */
struct engine_call *engine_call_start(struct engine_api *api, const struct engine_request *req,
                                      engine_answer_fn *answer, void *arg);
void engine_call_cancel(struct engine_call *call); /* no callback; NULL is fine */

/* Text as part of a path or a query: percent-encoded, to free. */
char *engine_quote(const char *text);
