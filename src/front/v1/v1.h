/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The HTTP API of boxd: sessions, exec (whole and streamed), processes, receipts, doctor, status.
 * Parse, call core, answer; nothing is decided here. */

#include "base/cleanup.h"

struct err;
struct events;
struct front;
struct http_server;
struct manager;
struct policy_service;
struct v1;

/* All borrowed, for the life of the object. */
struct v1_options {
    struct manager *manager;
    struct events *events;                /* that the manager tells */
    const struct policy_service *service; /* policy, records of what was done, kept outputs */
};

/* What the handlers share. It must outlive the server, and is freed before the manager. */
struct v1 *v1_new(const struct v1_options *options);
void v1_free(struct v1 *v);
DEFINE_CLEANUP(v1)

/* What other fronts share with this one; it lives as long. */
struct front *v1_front(struct v1 *v);

/* Adds the routes. */
int v1_routes(struct http_server *server, struct v1 *v, struct err *err);
