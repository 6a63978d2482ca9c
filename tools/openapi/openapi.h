/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The OpenAPI document of the HTTP API, and the tables that it is written from: members, schemas,
 * parameters, routes. */

#include <stddef.h>

struct buf;
struct err;
struct http_server;
struct model;

/* The type of a member or parameter: "string", "integer", "number", "boolean", "object" (anything
 * in it), "Name" of a schema, "a|b|c" for one of these words; "[…]" is an array of it. In front of
 * it '?' stands for "or null" and '~' for "may be missing"; '~' comes first. */
struct oa_member {
    const char *name, *type, *doc;
};

/* What is answered; requests are described by their models. Tables end with {0}. */
struct oa_schema {
    const char *name, *doc;
    const struct oa_member *members;
};

struct oa_param {
    const char *name;
    const char *in; /* "query" or "header" */
    const char *type;
    const char *doc;
};

struct oa_answer {
    unsigned status;
    const char *doc;
    const char *schema; /* NULL: no body, or bytes */
    const char *type;   /* NULL: application/json where there is a schema */
};

#define OA_ANSWERS_MAX 4

struct oa_route {
    const char *method, *path;
    const char *id; /* operationId */
    const char *tag, *summary, *doc;
    const struct oa_param *params; /* NULL: none but those of the path */
    const struct model *body;      /* NULL: none, or body_name */
    const char *body_name;         /* a schema of ours */
    const char *body_type;         /* NULL: application/json */
    struct oa_answer answers[OA_ANSWERS_MAX];
};

extern const struct oa_schema oa_schemas[];
extern const struct oa_route oa_routes[];

/* The document, with a newline at its end: from the routes that handlers with this argument have in
 * the server, the models of their bodies, and the tables that say what each is for. ERR_STATE names
 * a route that is in one of them only. */
int oa_write(const struct http_server *server, const void *arg, struct buf *out, struct err *err);
