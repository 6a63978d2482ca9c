/* SPDX-License-Identifier: Apache-2.0 */

/* The table of problem codes, each with its cause and remedy. */

#include "base/str.h"
#include "http/server/server_internal.h"

/* Every code that this program answers with, and what can be said about it wherever it comes from.
 * docs/reference/http.md lists them. */
/* clang-format off */
static const struct http_problem_text problems[] = {
    {"invalid", "the request is wrong; the same request will fail again", "correct the request and send it again"},
    {"not_found", "there is no such thing here, or it is not yours", "check the name and the path; GET /v1/openapi.json lists the paths"},
    {"conflict", "it exists already, or was made with other parameters", "use it as it is, choose another name, or remove it first"},
    {"state", "the right request at the wrong time", "try again"},
    {"limit", "a cap was reached", "lower the demand, raise the limit, or try again later"},
    {"denied", "the policy or the caller's scope says no", "change the request, or the policy in boxd's configuration"},
    {"unsupported", "this host cannot enforce what was asked for", "`box doctor` tells what this host lacks and how to get it"},
    {"backend", "the backend failed or is gone", "see boxd's log; `box doctor` checks the host"},
    {"system", "a system call failed", "see boxd's log; `box doctor` checks the host"},
    {"range", "the range lies outside of what is kept", "ask for what lies before the end"},
    {"key_reused", "this Idempotency-Key came with another request", "use a new key for each new request"},
    {"bad_request", "what was sent is not HTTP as RFC 9112 has it", "correct the request and send it again"},
    {"unauthorized", "there is no token, or not one that is known", "send 'Authorization: Bearer TOKEN', or use the unix socket"},
    {"forbidden", "the Host or Origin header names another address than boxd's own", "use the address that boxd listens on, and no Origin header"},
    {"user_not_served", "without a token boxd serves root, its own user, the members of socket_group (box), and those that allowed_users and allowed_groups name", "make the user a member of the group box (usermod -aG box USER), add it to allowed_users or one of its groups to allowed_groups in boxd's configuration, or set token_file and send a token"},
    {"method_not_allowed", "this path does not have that method", "use one that the Allow header names"},
    {"timeout", "the request did not arrive in time", "send it again, without pauses"},
    {"too_large", "the body is larger than this path takes", "send less at a time"},
    {"expectation_failed", "only 'Expect: 100-continue' is known", "leave the Expect header out"},
    {"bad_upgrade", "this path speaks WebSocket (RFC 6455, version 13)", "connect with a WebSocket client"},
    {"bad_gateway", "no server in the session answers on that port, or not as HTTP has it", "start a server in the session that listens on that port"},
    {"too_many_requests", "a cap was reached", "try again later"},
    {"head_too_large", "the head is larger than 8 KiB", "send shorter headers"},
    {"unsupported_transfer_coding", "only 'Transfer-Encoding: chunked' is known", "send the body as it is, or chunked"},
    {"unavailable", "boxd cannot serve this now", "try again later"},
    {"unsupported_version", "only versions 1.0 and 1.1 of HTTP are known", "use version 1.1"},
    {"refused", "the request was refused", "see boxd's log"},
};
/* clang-format on */

const struct http_problem_text *http_problem_text(const char *code)
{
    static const struct http_problem_text unknown = {NULL, "an error", "see boxd's log"};

    for (size_t i = 0; i < ARRAY_SIZE(problems); i++)
        if (str_eq(problems[i].code, code))
            return &problems[i];
    return &unknown;
}
