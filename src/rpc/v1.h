/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The HTTP API of boxd, first part: sessions, exec (whole and streamed), receipts, doctor. Parse,
 * call core, answer; nothing is decided here. */

struct err;
struct http_server;
struct manager;

/* Adds the routes. The manager is borrowed for the life of the server. */
int v1_routes(struct http_server *server, struct manager *manager, struct err *err);
