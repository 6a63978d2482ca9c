/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* JSON behind one file. Reading gives a tree of borrowed values under one owned root; writing is a
 * streaming emitter into a buf, with no tree. Strings may hold U+0000: use json_str_len() where
 * that matters. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct buf;
struct err;
struct json; /* a value; every pointer but the root is borrowed */

#define JSON_DEPTH_MAX 64
#define JSON_NODES_MAX 100000 /* counted before parsing, as structural bytes */

enum json_type { JSON_NULL, JSON_BOOL, JSON_INT, JSON_REAL, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* Strict RFC 8259: no trailing bytes, no duplicate keys, valid UTF-8, integers within int64: else
 * ERR_INVALID with a place and never the input. Depth and node count are capped: ERR_LIMIT, which
 * also says that there is no memory for it. */
int json_parse(const char *text, size_t len, struct json **ret, struct err *err);
void json_free(struct json *root); /* only what json_parse returned */
DEFINE_CLEANUP(json)

enum json_type json_type(const struct json *v); /* v NULL: JSON_NULL */
const struct json *json_get(const struct json *object,
                            const char *key); /* NULL when absent or not an object */
size_t json_len(const struct json *v);        /* elements of an array or object */
const struct json *json_at(const struct json *array, size_t i);
/* Walks an object in document order: `void *it = json_iter(o); it; it = json_iter_next(o, it)`. */
void *json_iter(const struct json *object);
void *json_iter_next(const struct json *object, void *it);
const char *json_iter_key(void *it);
const struct json *json_iter_value(void *it);

const char *json_str(const struct json *v); /* NULL when not a string */
size_t json_str_len(const struct json *v);
int64_t json_int(const struct json *v); /* 0 when not an int */
/* Ints too. The library behind this has a json_real() of its own: ours needs another symbol. */
double json_real(const struct json *v) __asm__("box_json_real");
bool json_bool(const struct json *v);

/* The emitter. Errors (buffer full) stick and are told by jw_end(). */
struct jw {
    struct buf *out; /* borrowed */
    int error;
    unsigned depth;
    bool comma;
};

void jw_init(struct jw *w, struct buf *out);
#define JW_INIT(buffer) ((struct jw){.out = (buffer)}) /* the same, where a local is declared */
int jw_end(struct jw *w);                              /* 0, or the first error */
void jw_object(struct jw *w);
void jw_object_end(struct jw *w);
void jw_array(struct jw *w);
void jw_array_end(struct jw *w);
void jw_key(struct jw *w, const char *key);
void jw_str(struct jw *w, const char *s); /* NULL writes null; invalid UTF-8 becomes U+FFFD */
void jw_strn(struct jw *w, const char *s, size_t len); /* same, NULs allowed */
void jw_int(struct jw *w, int64_t v);
void jw_u64(struct jw *w, uint64_t v);
void jw_real(struct jw *w, double v); /* shortest round trip, Python's spelling: 1.0, 1e+16 */
void jw_bool(struct jw *w, bool v);
void jw_null(struct jw *w);
void jw_value(struct jw *w, const struct json *v);       /* a parsed value, verbatim in meaning */
void jw_raw(struct jw *w, const char *text, size_t len); /* one value that is JSON already */

/* Key and value in one. jw_karray() and jw_kobject() open the value. */
void jw_karray(struct jw *w, const char *key);
void jw_kobject(struct jw *w, const char *key);
void jw_kstr(struct jw *w, const char *key, const char *s);
void jw_kstrn(struct jw *w, const char *key, const char *s, size_t len);
void jw_kvalue(struct jw *w, const char *key, const struct json *v);
void jw_kraw(struct jw *w, const char *key, const char *text, size_t len);
void jw_kint(struct jw *w, const char *key, int64_t v);
void jw_ku64(struct jw *w, const char *key, uint64_t v);
void jw_kreal(struct jw *w, const char *key, double v);
void jw_kbool(struct jw *w, const char *key, bool v);
void jw_knull(struct jw *w, const char *key);

/* JSON for a terminal: what utf8_unsafe() names, which only strings can hold, becomes \uxxxx. 0 or
 * -ENOBUFS. */
int json_plain(struct buf *out, const char *text, size_t len);
