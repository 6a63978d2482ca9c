/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The HTTP API of boxd: sessions, exec (whole and streamed), processes, receipts, doctor, status.
 * Parse, call core, answer; nothing is decided here. */

#include "base/cleanup.h"

struct err;
struct events;
struct front;
struct http_answer;
struct http_server;
struct manager;
struct policy_service;
struct v1;

/* State that the handlers share. It must outlive the server, and is freed before the manager. All
 * members are borrowed: the manager, its events, the policy, the records and the kept outputs. */
struct v1 *v1_new(struct manager *m, struct events *events, const struct policy_service *service);
void v1_free(struct v1 *v);
DEFINE_CLEANUP(v1)

/* State that other fronts share with this one; it lives as long. */
struct front *v1_front(struct v1 *v);

/* For http_server_opts.answered: counts the request for GET /metrics and writes the access log. */
void metrics_answered(struct manager *m, const struct http_answer *answer);

/* Adds the routes. */
int v1_routes(struct http_server *server, struct v1 *v, struct err *err);
