/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The HTTP API of chat sandboxes, /api/v1: parse, call core, answer; nothing is decided here. */

struct chat;
struct err;
struct http_server;
struct front;

/* Adds the routes to those of `v`, whose policy, scopes and records hold here too. The chat is
 * borrowed for the life of the server. */
int chat_routes(struct http_server *server, struct front *f, struct chat *chat, struct err *err);
