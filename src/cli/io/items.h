/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The objects of a list, one at a time: a boxd with thousands of sessions lists more than
 * json_parse() takes in one piece. */

#include <stddef.h>

struct buf;
struct err;
struct json;

struct items {
    const char *at;
    const char *end;
};

/* `text` is a JSON object with an array of objects as its member `key`, which comes before any text
 * that could be taken for it. Borrows the text. */
int items_init(struct items *it, const char *text, size_t len, const char *key, struct err *err);
/* 1 and the next object, which the caller owns; 0 at the end. */
int items_next(struct items *it, struct json **ret, struct err *err);
