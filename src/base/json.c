/* SPDX-License-Identifier: Apache-2.0 */

/* The only file that knows the JSON library. Some of its names are ours as well: they are renamed
 * while its header is read. */

#define json_type jansson_type
#define json_real jansson_real
#define JSON_OBJECT JANSSON_OBJECT
#define JSON_ARRAY JANSSON_ARRAY
#define JSON_STRING JANSSON_STRING
#define JSON_REAL JANSSON_REAL
#define JSON_NULL JANSSON_NULL
#include <jansson.h>
#undef json_type
#undef json_real
#undef JSON_OBJECT
#undef JSON_ARRAY
#undef JSON_STRING
#undef JSON_REAL
#undef JSON_NULL

#include "base/json.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/err.h"
#include "base/str.h"

#define COPIES 6U      /* of the text: four while it is parsed, two in what is made of it */
#define NODE_SIZE 192U /* bytes of one value with its key and its place */
#define SMALL_TEXT (64U * 1024)

/* Parsing allocates for every node, and the library's own depth limit is far above ours: both are
 * counted first, in one walk that understands nothing but strings. The library also swallows a NUL
 * that follows a number; none is allowed anywhere. */
static int check_text(const char *text, size_t len, size_t *ret_nodes, struct err *err)
{
    size_t depth = 0, nodes = 0;
    bool in_string = false;

    if (len > INT_MAX)
        return err_set(err, ERR_LIMIT, "JSON text is too long");
    const char *nul = len > 0 ? memchr(text, '\0', len) : NULL;
    if (nul)
        return err_set(err, ERR_INVALID, "JSON, byte %zu: a NUL", (size_t)(nul - text) + 1);
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"')
            in_string = true;
        else if (c == '[' || c == '{')
            depth++;
        else if ((c == ']' || c == '}') && depth > 0)
            depth--;
        nodes += c == '[' || c == '{' || c == ',' || c == ':';
        if (depth > JSON_DEPTH_MAX)
            return err_set(err, ERR_LIMIT, "JSON is nested deeper than %d levels (byte %zu)",
                           JSON_DEPTH_MAX, i + 1);
        if (nodes > JSON_NODES_MAX)
            return err_set(err, ERR_LIMIT, "JSON has more than %d values (byte %zu)",
                           JSON_NODES_MAX, i + 1);
    }
    *ret_nodes = nodes;
    return 0;
}

/* The library does not look whether its buffer could grow, and then reads and writes behind it. So
 * none of its allocations may fail: whether there is memory for all of them, and for the copies
 * that readers of the values will make, is found out before it begins. */
static int reserve(size_t len, size_t nodes, struct err *err)
{
    static bool set;
    if (!set)
        json_set_alloc_funcs(xmalloc, free);
    set = true;
    if (len < SMALL_TEXT)
        return 0;
    void *p = malloc(COPIES * len + NODE_SIZE * nodes);
    if (p == NULL)
        return err_sys(err, ENOMEM, "parse %zu bytes of JSON", len);
    free(p);
    return 0;
}

/* The library's own texts quote the input; a log or an answer must not. */
static const char *error_text(enum json_error_code code)
{
    static const char *const texts[] = {
        [json_error_invalid_utf8] = "not valid UTF-8",
        [json_error_premature_end_of_input] = "ends too early",
        [json_error_end_of_input_expected] = "more bytes after the value",
        [json_error_null_character] = "a NUL that is not allowed here",
        [json_error_null_byte_in_key] = "a NUL in a key",
        [json_error_duplicate_key] = "duplicate key",
        [json_error_numeric_overflow] = "number out of range (integers have 64 bits, signed)",
    };
    const char *text = (size_t)code < ARRAY_SIZE(texts) ? texts[code] : NULL;

    return text ? text : "syntax error";
}

int json_parse(const char *text, size_t len, struct json **ret, struct err *err)
{
    json_error_t error = {0};
    size_t nodes = 0;
    int r = check_text(text, len, &nodes, err);
    if (r == 0)
        r = reserve(len, nodes, err);
    if (r < 0)
        return r;
    if (len == 0)
        text = ""; /* nothing may come as NULL */

    json_t *root =
        json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!root) {
        enum json_error_code code = json_error_code(&error);
        if (code == json_error_out_of_memory)
            return err_sys(err, ENOMEM, "parse JSON");
        return err_set(err, ERR_INVALID, "JSON, line %d, column %d (byte %d): %s", error.line,
                       error.column, error.position, error_text(code));
    }
    *ret = (struct json *)root;
    return 0;
}

/* A struct json is a json_t under a name that hides its members. */
static json_t *unwrap(const struct json *v)
{
    return (json_t *)v;
}

static bool is(const struct json *v, jansson_type type)
{
    return v && json_typeof(unwrap(v)) == type;
}

void json_free(struct json *root)
{
    json_decref(unwrap(root));
}

enum json_type json_type(const struct json *v)
{
    if (!v)
        return JSON_NULL;
    switch (json_typeof(unwrap(v))) {
    case JANSSON_OBJECT:
        return JSON_OBJECT;
    case JANSSON_ARRAY:
        return JSON_ARRAY;
    case JANSSON_STRING:
        return JSON_STRING;
    case JSON_INTEGER:
        return JSON_INT;
    case JANSSON_REAL:
        return JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return JSON_BOOL;
    case JANSSON_NULL:
        break;
    }
    return JSON_NULL;
}

const struct json *json_get(const struct json *object, const char *key)
{
    return (const struct json *)json_object_get(unwrap(object), key); /* checks the type */
}

size_t json_len(const struct json *v)
{
    return is(v, JANSSON_ARRAY) ? json_array_size(unwrap(v)) : json_object_size(unwrap(v));
}

const struct json *json_at(const struct json *array, size_t i)
{
    return (const struct json *)json_array_get(unwrap(array), i);
}

void *json_iter(const struct json *object)
{
    return json_object_iter(unwrap(object));
}

void *json_iter_next(const struct json *object, void *it)
{
    return json_object_iter_next(unwrap(object), it);
}

const char *json_iter_key(void *it)
{
    return json_object_iter_key(it);
}

const struct json *json_iter_value(void *it)
{
    return (const struct json *)json_object_iter_value(it);
}

const char *json_str(const struct json *v)
{
    return json_string_value(unwrap(v));
}

size_t json_str_len(const struct json *v)
{
    return json_string_length(unwrap(v));
}

int64_t json_int(const struct json *v)
{
    return json_integer_value(unwrap(v));
}

double json_real(const struct json *v)
{
    return json_number_value(unwrap(v));
}

bool json_bool(const struct json *v)
{
    return is(v, JSON_TRUE);
}
