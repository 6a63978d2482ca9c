/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Writes the OpenAPI document of the HTTP API. */

struct buf;
struct err;
struct http_server;

/* The document, with a newline at its end: from the routes that handlers with this argument have in
 * the server, the models of their bodies, and the tables that say what each is for. ERR_STATE names
 * a route that is in one of them only. */
int v1_openapi_write(const struct http_server *server, const void *arg, struct buf *out,
                     struct err *err);
