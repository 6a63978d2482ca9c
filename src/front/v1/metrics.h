/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* GET /metrics: what boxd counts, in the text format of Prometheus (0.0.4);
 * docs/how-to/operators.md. */

struct err;
struct http_answer;
struct http_server;
struct manager;
struct v1;

/* Adds the route. Asks for the call `metrics` in the scope of a token. */
int metrics_routes(struct http_server *server, struct v1 *v, struct err *err);

/* For http_server_opts.answered: counts the request and writes the access log. */
void metrics_answered(struct manager *m, const struct http_answer *answer);
