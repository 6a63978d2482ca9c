/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* HTTP/1.x, bytes in and structs out: no I/O, and no allocation in the parsers. The same codec
 * serves requests and talks to engines, so both roles are strict: whatever two implementations
 * could read differently is an error, never a guess.
 *
 * A head is read in two steps. http1_scan() finds its end and may be called again with more bytes;
 * http1_parse() then reads the complete head. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct buf;

#define HTTP1_HEAD_MAX 8192 /* bytes of a head, unless the caller says otherwise */
#define HTTP1_HEADERS_MAX 100
#define HTTP1_METHOD_MAX 32
#define HTTP1_TRAILERS_MAX 4096  /* bytes of all trailers of a chunked body */
#define HTTP1_CHUNK_LINE_MAX 256 /* bytes of one chunk-size line with its extensions */
#define HTTP1_CHUNK_EXCESS 16384 /* framing bytes tolerated beyond what the payload justifies */
#define HTTP1_CHUNK_HEAD_MAX 20  /* room for http1_chunk_head() */
#define HTTP1_CHUNK_END "0\r\n\r\n"

/* Bytes inside the input; not NUL-terminated. p is NULL when absent. */
struct http1_str {
    const char *p;
    size_t len;
};

struct http1_header {
    struct http1_str name;
    struct http1_str value; /* without leading and trailing blanks */
};

enum http1_role { HTTP1_REQUEST, HTTP1_RESPONSE };

enum http1_body_kind {
    HTTP1_BODY_NONE,
    HTTP1_BODY_LENGTH,
    HTTP1_BODY_CHUNKED,
    HTTP1_BODY_UNTIL_CLOSE, /* responses only */
};

enum http1_expect { HTTP1_EXPECT_NONE, HTTP1_EXPECT_CONTINUE, HTTP1_EXPECT_OTHER };

/* Every string points into the bytes that were parsed. */
struct http1_head {
    struct http1_str method; /* requests */
    struct http1_str target; /* as sent */
    struct http1_str path;   /* starts with '/', or "*"; empty stands for "/" (absolute form) */
    struct http1_str query;  /* without '?'; p NULL when there is none */
    struct http1_str host;   /* the authority of an absolute target, else the Host header */
    struct http1_str reason; /* responses */
    unsigned status;         /* responses */
    unsigned minor;          /* HTTP/1.minor, 0 or 1 */
    bool keep_alive;         /* by version and Connection */
    bool connection_upgrade; /* Connection lists "upgrade" */
    bool has_length;
    bool chunked;
    enum http1_expect expect;
    uint64_t content_length;
    size_t n_headers;
    struct http1_header headers[HTTP1_HEADERS_MAX];
};

/* How far the search for the end of a head got. Zero-initialise. */
struct http1_scan {
    size_t pos;
    size_t line; /* start of the current line */
};

/* Looks for the end of a head in data[0..len), going on where the last call stopped. `data` is the
 * same head from its first byte; it may have moved. One empty line before the head is skipped.
 * Returns its length (with the empty line that ends it), 0 when more bytes are needed, -EBADMSG on
 * a byte no head may hold, -E2BIG when the head does not end within `max` bytes. */
ssize_t http1_scan(struct http1_scan *s, const char *data, size_t len, size_t max);

/* Reads a head of exactly `len` bytes, as http1_scan() measured it. Returns 0, or
 *   -EBADMSG          malformed or ambiguous                              (400)
 *   -E2BIG            more than HTTP1_HEADERS_MAX headers                 (431)
 *   -EOPNOTSUPP       a transfer coding other than chunked                (501)
 *   -EPROTONOSUPPORT  a version other than HTTP/1.0 and HTTP/1.1          (505)
 * *ret is garbage on failure. */
int http1_parse(enum http1_role role, const char *data, size_t len, struct http1_head *ret);

/* The status a server answers to an error of the two functions above and of the body reader. */
unsigned http1_error_status(int error);

/* Which body follows. `to_head`: the request was a HEAD. */
enum http1_body_kind http1_request_body(const struct http1_head *head);
enum http1_body_kind http1_response_body(const struct http1_head *head, bool to_head);

/* The first header of that name (any case), NULL when absent. */
const struct http1_header *http1_find(const struct http1_head *head, const char *name);
size_t http1_count(const struct http1_head *head, const char *name);
/* Whether a header of that name lists the token, any case, over all its lines. */
bool http1_lists(const struct http1_head *head, const char *name, const char *token);

bool http1_str_eq(struct http1_str s, const char *text);
bool http1_str_case_eq(struct http1_str s, const char *text);

/* Steps through a comma-separated list: takes the next element, without blanks, off the front of
 * *list. False at the end. Empty elements are skipped. */
bool http1_next_element(struct http1_str *list, struct http1_str *ret);

/* Percent-decodes into ret[0..size), NUL-terminated. Returns the length; -EINVAL for a broken
 * escape or a decoded NUL, -ENOBUFS when it does not fit. `plus`: '+' is a blank (queries). */
ssize_t http1_percent_decode(struct http1_str s, bool plus, char *ret, size_t size);

/* Bodies ------------------------------------------------------------------------------------- */

struct http1_body {
    enum http1_body_kind kind;
    bool done;
    uint8_t state;     /* of the chunk parser */
    uint8_t digits;    /* of the chunk size */
    uint16_t line;     /* bytes of the current chunk line */
    uint16_t trailers; /* bytes of all trailers */
    uint32_t excess;   /* framing bytes not justified by payload */
    uint64_t left;     /* of the body or of the chunk */
};

void http1_body_init(struct http1_body *b, enum http1_body_kind kind, uint64_t length);

/* Takes bytes off the front of data and gives at most one piece of payload, which lies inside data.
 * Returns how many bytes were taken, or -EBADMSG. Call again while bytes are left and !b->done. */
ssize_t http1_body_read(struct http1_body *b, const char *data, size_t len,
                        struct http1_str *ret_part);

/* Takes all that is there of the body; its payload, *ret_size bytes, comes to lie at the front of
 * data, however small its chunks are. Returns how many bytes were taken, or -EBADMSG. */
ssize_t http1_body_gather(struct http1_body *b, char *data, size_t len, size_t *ret_size);

/* The peer closed: 0 when the body may end here, -EBADMSG when it was cut short. */
int http1_body_eof(struct http1_body *b);

/* Writing ------------------------------------------------------------------------------------ */

/* All return 0, -ENOBUFS, or -EINVAL for text that would break out of its place. */
int http1_put_status(struct buf *out, unsigned status);
int http1_put_request(struct buf *out, const char *method, const char *target);
int http1_put_header(struct buf *out, const char *name, const char *value);
int http1_put_length(struct buf *out, uint64_t length); /* Content-Length */
int http1_put_end(struct buf *out);                     /* the empty line */

/* "Not Found"; never NULL. */
const char *http1_reason(unsigned status);

/* The line before a chunk of `len` > 0 bytes; "\r\n" follows the bytes. Returns its length. */
size_t http1_chunk_head(char ret[static HTTP1_CHUNK_HEAD_MAX], size_t len);
