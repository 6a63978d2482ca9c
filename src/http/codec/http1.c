/* SPDX-License-Identifier: Apache-2.0 */

/* HTTP/1.1 heads and bodies, read and written without I/O. */

#include "http/codec/http1.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/str.h"

/* Of a method or header name, RFC 9110 §5.6.2. Nearly all are letters. */
static bool is_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* Of a header value, RFC 9112 §2: blanks, visible ASCII, bytes above 0x7f. */
static bool is_text(char c)
{
    unsigned char byte = (unsigned char)c;

    return byte == '\t' || (byte >= ' ' && byte != 0x7f);
}

/* Value of a hexadecimal digit, -1 for anything else. */
static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* The byte that the escape "%xx" at `at` stands for; -1: it is none, or stands for NUL. */
static int escaped_byte(struct http1_str s, size_t at)
{
    int high = s.len - at < 3 ? -1 : hex_digit(s.p[at + 1]);
    int low = high < 0 ? -1 : hex_digit(s.p[at + 2]);

    return low < 0 || high + low == 0 ? -1 : high * 16 + low;
}

ssize_t http1_scan(struct http1_scan *s, const char *data, size_t len, size_t max)
{
    size_t end = len < max ? len : max;

    for (; s->pos < end; s->pos++) {
        if (is_text(data[s->pos]))
            continue;
        if (data[s->pos] != '\r')
            return -EBADMSG; /* a control byte, NUL, or a line feed with no return before it */
        if (s->pos + 1 >= end)
            break;
        if (data[s->pos + 1] != '\n')
            return -EBADMSG;
        bool empty = s->pos == s->line;
        bool first = s->line == 0;
        s->line = s->pos + 2;
        s->pos++;
        if (empty && !first)
            return (ssize_t)s->line;
    }
    return len >= max ? -E2BIG : 0;
}

static struct http1_str whole(const char *s)
{
    return (struct http1_str){s, strlen(s)};
}

bool http1_str_eq(struct http1_str s, const char *text)
{
    return s.len == strlen(text) && (s.len == 0 || memcmp(s.p, text, s.len) == 0);
}

bool http1_str_case_eq(struct http1_str s, const char *text)
{
    return s.len == strlen(text) && (s.len == 0 || strncasecmp(s.p, text, s.len) == 0);
}

/* Cuts the bytes before the first `stop` off the front of *rest, and the stop with them. */
static bool cut(struct http1_str *rest, char stop, struct http1_str *ret)
{
    const char *at = memchr(rest->p, stop, rest->len);
    if (at == NULL)
        return false;
    *ret = (struct http1_str){rest->p, (size_t)(at - rest->p)};
    rest->len -= ret->len + 1;
    rest->p = at + 1;
    return true;
}

static bool all_token(struct http1_str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!is_token(s.p[i]))
            return false;
    return s.len > 0;
}

static struct http1_str trim(struct http1_str s)
{
    while (s.len > 0 && (s.p[0] == ' ' || s.p[0] == '\t')) {
        s.p++;
        s.len--;
    }
    while (s.len > 0 && (s.p[s.len - 1] == ' ' || s.p[s.len - 1] == '\t'))
        s.len--;
    return s;
}

static int parse_version(struct http1_str s, unsigned *ret_minor)
{
    if (s.len != 8 || memcmp(s.p, "HTTP/", 5) != 0 || s.p[6] != '.')
        return -EBADMSG;
    if (s.p[5] < '0' || s.p[5] > '9' || s.p[7] < '0' || s.p[7] > '9')
        return -EBADMSG;
    if (s.p[5] != '1' || s.p[7] > '1')
        return -EPROTONOSUPPORT;
    *ret_minor = (unsigned)(s.p[7] - '0');
    return 0;
}

/* Only visible ASCII, no fragment, and escapes that decode to something other than NUL: a target
 * means the same wherever it is read later. */
static bool target_bytes_ok(struct http1_str s)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c <= ' ' || c >= 0x7f || c == '#')
            return false;
        if (c == '%' && escaped_byte(s, i) < 0)
            return false;
    }
    return s.len > 0;
}

static void split_query(struct http1_str s, struct http1_head *ret)
{
    struct http1_str path;

    ret->path = s;
    if (cut(&s, '?', &path)) {
        ret->path = path;
        ret->query = s;
    }
}

/* RFC 9112 §3.2: origin form, absolute form, and "*" for OPTIONS. CONNECT has no place here. */
static int parse_target(struct http1_str s, struct http1_head *ret)
{
    static const char scheme[] = "http://";
    const size_t scheme_len = sizeof(scheme) - 1;

    if (!target_bytes_ok(s))
        return -EBADMSG;
    ret->target = s;
    if (s.p[0] == '/') {
        split_query(s, ret);
        return 0;
    }
    if (http1_str_eq(s, "*") && http1_str_eq(ret->method, "OPTIONS")) {
        ret->path = s;
        return 0;
    }
    if (s.len <= scheme_len || strncasecmp(s.p, scheme, scheme_len) != 0)
        return -EBADMSG;
    s.p += scheme_len;
    s.len -= scheme_len;
    size_t n = 0;
    while (n < s.len && s.p[n] != '/' && s.p[n] != '?') {
        if (s.p[n] == '@')
            return -EBADMSG; /* user info in a request is meant to mislead readers of the log */
        n++;
    }
    if (n == 0)
        return -EBADMSG;
    ret->host = (struct http1_str){s.p, n};
    split_query((struct http1_str){s.p + n, s.len - n}, ret);
    return 0;
}

static int parse_request_line(struct http1_str line, struct http1_head *ret)
{
    struct http1_str target;
    int r;

    if (!cut(&line, ' ', &ret->method) || !all_token(ret->method) ||
        ret->method.len > HTTP1_METHOD_MAX)
        return -EBADMSG;
    if (!cut(&line, ' ', &target))
        return -EBADMSG;
    r = parse_version(line, &ret->minor);
    if (r < 0)
        return r;
    return parse_target(target, ret);
}

static int parse_status_line(struct http1_str line, struct http1_head *ret)
{
    struct http1_str version;
    int r;

    if (!cut(&line, ' ', &version))
        return -EBADMSG;
    r = parse_version(version, &ret->minor);
    if (r < 0)
        return r;
    if (line.len < 3 || line.p[0] < '1' || line.p[0] > '9')
        return -EBADMSG;
    for (size_t i = 0; i < 3; i++) {
        if (line.p[i] < '0' || line.p[i] > '9')
            return -EBADMSG;
        ret->status = ret->status * 10 + (unsigned)(line.p[i] - '0');
    }
    if (line.len == 3)
        return 0; /* the blank before an empty reason is often left out */
    if (line.p[3] != ' ')
        return -EBADMSG;
    ret->reason = (struct http1_str){line.p + 4, line.len - 4};
    return 0;
}

/* Headers that decide where a message ends or who it is for. A second one of these is always an
 * error, even when it says the same. */
static int on_length(struct http1_head *h, struct http1_str v)
{
    /* 18 digits are enough for an exabyte and cannot overflow. */
    if (h->has_length || v.len == 0 || v.len > 18)
        return -EBADMSG;
    for (size_t i = 0; i < v.len; i++) {
        if (v.p[i] < '0' || v.p[i] > '9')
            return -EBADMSG;
        h->content_length = h->content_length * 10 + (uint64_t)(v.p[i] - '0');
    }
    h->has_length = true;
    return 0;
}

static int on_transfer_encoding(struct http1_head *h, struct http1_str v)
{
    if (h->chunked)
        return -EBADMSG;
    if (!http1_str_case_eq(v, "chunked"))
        return -EOPNOTSUPP;
    h->chunked = true;
    return 0;
}

static int on_connection(struct http1_head *h, struct http1_str v)
{
    struct http1_str token;

    while (http1_next_element(&v, &token)) {
        if (http1_str_case_eq(token, "close"))
            h->keep_alive = false;
        else if (http1_str_case_eq(token, "keep-alive"))
            h->keep_alive = h->keep_alive || h->minor == 0;
        else if (http1_str_case_eq(token, "upgrade"))
            h->connection_upgrade = true;
    }
    return 0;
}

static int on_expect(struct http1_head *h, struct http1_str v)
{
    bool known = h->expect == HTTP1_EXPECT_NONE && http1_str_case_eq(v, "100-continue");
    h->expect = known ? HTTP1_EXPECT_CONTINUE : HTTP1_EXPECT_OTHER;
    return 0;
}

static const struct {
    const char *name;
    int (*fn)(struct http1_head *h, struct http1_str value);
} known_headers[] = {
    {"Content-Length", on_length},
    {"Transfer-Encoding", on_transfer_encoding},
    {"Connection", on_connection},
    {"Expect", on_expect},
};

static int parse_header(struct http1_str line, struct http1_head *ret)
{
    struct http1_header *h = &ret->headers[ret->n_headers];

    /* A blank first is a folded line, a blank before the colon is a classic of smuggling; neither
     * is a token byte. */
    if (!cut(&line, ':', &h->name) || !all_token(h->name))
        return -EBADMSG;
    h->value = trim(line);
    ret->n_headers++;
    for (size_t i = 0; i < ARRAY_SIZE(known_headers); i++)
        if (http1_str_case_eq(h->name, known_headers[i].name))
            return known_headers[i].fn(ret, h->value);
    return 0;
}

/* What can only be judged once all headers are known. */
static int check_head(enum http1_role role, struct http1_head *h)
{
    if (h->chunked && (h->has_length || h->minor == 0))
        return -EBADMSG;
    if (role == HTTP1_RESPONSE)
        return 0;

    size_t hosts = http1_count(h, "Host");
    if (hosts > 1 || (hosts == 0 && h->minor > 0))
        return -EBADMSG;
    if (hosts == 0)
        return 0;
    struct http1_str host = http1_find(h, "Host")->value;
    /* An absolute target overrides Host; two different names are a disguise. */
    if (h->host.p != NULL &&
        (h->host.len != host.len || strncasecmp(h->host.p, host.p, host.len) != 0))
        return -EBADMSG;
    h->host = host;
    return 0;
}

/* The next line of a head, without its end. http1_scan() saw to it that every line has one. */
static bool next_line(struct http1_str *rest, struct http1_str *ret)
{
    if (!cut(rest, '\r', ret) || rest->len == 0 || rest->p[0] != '\n')
        return false;
    rest->p++;
    rest->len--;
    return true;
}

int http1_parse(enum http1_role role, const char *data, size_t len, struct http1_head *ret)
{
    struct http1_str rest = {data, len};
    struct http1_str line;
    int r;

    memset(ret, 0, offsetof(struct http1_head, headers));
    if (!next_line(&rest, &line) || (line.len == 0 && !next_line(&rest, &line)))
        return -EBADMSG;
    if (role == HTTP1_REQUEST)
        r = parse_request_line(line, ret);
    else
        r = parse_status_line(line, ret);
    if (r < 0)
        return r;

    ret->keep_alive = ret->minor > 0;
    for (;;) {
        if (!next_line(&rest, &line))
            return -EBADMSG;
        if (line.len == 0)
            break;
        if (ret->n_headers == HTTP1_HEADERS_MAX)
            return -E2BIG;
        r = parse_header(line, ret);
        if (r < 0)
            return r;
    }
    if (rest.len > 0)
        return -EBADMSG;
    return check_head(role, ret);
}

unsigned http1_error_status(int error)
{
    static const struct {
        int error;
        unsigned status;
    } map[] = {{E2BIG, 431}, {EOPNOTSUPP, 501}, {EPROTONOSUPPORT, 505}, {ENOBUFS, 413}};

    for (size_t i = 0; i < ARRAY_SIZE(map); i++)
        if (map[i].error == -error)
            return map[i].status;
    return 400;
}

enum http1_body_kind http1_request_body(const struct http1_head *head)
{
    if (head->chunked)
        return HTTP1_BODY_CHUNKED;
    return head->content_length > 0 ? HTTP1_BODY_LENGTH : HTTP1_BODY_NONE;
}

enum http1_body_kind http1_response_body(const struct http1_head *head, bool to_head)
{
    if (to_head || head->status < 200 || head->status == 204 || head->status == 304)
        return HTTP1_BODY_NONE;
    if (head->chunked)
        return HTTP1_BODY_CHUNKED;
    if (head->has_length)
        return head->content_length > 0 ? HTTP1_BODY_LENGTH : HTTP1_BODY_NONE;
    return HTTP1_BODY_UNTIL_CLOSE;
}

const struct http1_header *http1_find(const struct http1_head *head, const char *name)
{
    for (size_t i = 0; i < head->n_headers; i++)
        if (http1_str_case_eq(head->headers[i].name, name))
            return &head->headers[i];
    return NULL;
}

size_t http1_count(const struct http1_head *head, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < head->n_headers; i++)
        n += http1_str_case_eq(head->headers[i].name, name);
    return n;
}

bool http1_next_element(struct http1_str *list, struct http1_str *ret)
{
    while (list->len > 0) {
        struct http1_str element;
        if (!cut(list, ',', &element)) {
            element = *list;
            list->len = 0;
        }
        *ret = trim(element);
        if (ret->len > 0)
            return true;
    }
    return false;
}

bool http1_lists(const struct http1_head *head, const char *name, const char *token)
{
    for (size_t i = 0; i < head->n_headers; i++) {
        if (!http1_str_case_eq(head->headers[i].name, name))
            continue;
        struct http1_str list = head->headers[i].value;
        struct http1_str element;
        while (http1_next_element(&list, &element))
            if (http1_str_case_eq(element, token))
                return true;
    }
    return false;
}

ssize_t http1_percent_decode(struct http1_str s, bool plus, char *ret, size_t size)
{
    size_t n = 0;

    for (size_t i = 0; i < s.len; i++) {
        char c = s.p[i];
        if (c == '%') {
            int byte = escaped_byte(s, i);
            if (byte < 0)
                return -EINVAL;
            c = (char)byte;
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        if (c == '\0')
            return -EINVAL;
        if (n + 1 >= size)
            return -ENOBUFS;
        ret[n++] = c;
    }
    if (size == 0)
        return -ENOBUFS;
    ret[n] = '\0';
    return (ssize_t)n;
}

/* A chunked body, RFC 9112 §7.1, one byte at a time outside the payload:
 *
 *   SIZE ─┬────────── CR ──> SIZE_LF ── n > 0 ──> DATA ──> DATA_CR ──> DATA_LF ──> SIZE
 *         └─ ';' ─> EXT ─ CR ─┘ └────── n = 0 ──> TRAILER ─┬─ CR ──> END_LF ──> done
 *                                                  ^       └─> NAME ─ ':' ─> VALUE ─ CR ─> VALUE_LF
 *                                                  └──────────────────────────────────────────┘
 */
enum chunk_state {
    CHUNK_SIZE,
    CHUNK_EXT,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER, /* first byte of a line */
    CHUNK_NAME,
    CHUNK_VALUE,
    CHUNK_VALUE_LF,
    CHUNK_END_LF,
};

void http1_body_init(struct http1_body *b, enum http1_body_kind kind, uint64_t length)
{
    *b = (struct http1_body){.kind = kind};
    if (kind == HTTP1_BODY_LENGTH)
        b->left = length;
    b->done = kind == HTTP1_BODY_NONE || (kind == HTTP1_BODY_LENGTH && length == 0);
}

static int expect(struct http1_body *b, char c, char wanted, enum chunk_state next)
{
    if (c != wanted)
        return -EBADMSG;
    b->state = (uint8_t)next;
    return 0;
}

static int size_byte(struct http1_body *b, char c)
{
    int digit = hex_digit(c);

    if (digit >= 0) {
        if (b->digits == 15) /* 60 bits; nothing can overflow */
            return -EBADMSG;
        b->digits++;
        b->left = b->left * 16 + (uint64_t)digit;
        return 0;
    }
    if (b->digits == 0)
        return -EBADMSG;
    if (c == ';') {
        b->state = CHUNK_EXT;
        return 0;
    }
    return expect(b, c, '\r', CHUNK_SIZE_LF);
}

/* The end of a chunk line. A peer may cut its payload small or add extensions, but not make us
 * read many framing bytes per byte of payload. */
static int size_line_end(struct http1_body *b, char c)
{
    uint64_t excess = (uint64_t)b->excess + b->line;
    uint64_t justified = 16 + 2 * b->left;

    excess = excess > justified ? excess - justified : 0;
    if (excess > HTTP1_CHUNK_EXCESS)
        return -EBADMSG;
    b->excess = (uint32_t)excess;
    b->line = 0;
    b->digits = 0;
    return expect(b, c, '\n', b->left > 0 ? CHUNK_DATA : CHUNK_TRAILER);
}

static int text_byte(struct http1_body *b, char c, enum chunk_state at_end)
{
    if (is_text(c))
        return 0;
    return expect(b, c, '\r', at_end);
}

static int name_byte(struct http1_body *b, char c)
{
    if (is_token(c)) {
        b->state = CHUNK_NAME;
        return 0;
    }
    if (b->state == CHUNK_TRAILER)
        return expect(b, c, '\r', CHUNK_END_LF);
    return expect(b, c, ':', CHUNK_VALUE);
}

static int end_byte(struct http1_body *b, char c)
{
    b->done = c == '\n';
    return b->done ? 0 : -EBADMSG;
}

static int framing_byte(struct http1_body *b, char c)
{
    if (b->state <= CHUNK_SIZE_LF && ++b->line > HTTP1_CHUNK_LINE_MAX)
        return -EBADMSG;
    if (b->state >= CHUNK_TRAILER && ++b->trailers > HTTP1_TRAILERS_MAX)
        return -EBADMSG;

    switch ((enum chunk_state)b->state) {
    case CHUNK_SIZE:
        return size_byte(b, c);
    case CHUNK_EXT:
        return text_byte(b, c, CHUNK_SIZE_LF);
    case CHUNK_SIZE_LF:
        return size_line_end(b, c);
    case CHUNK_DATA_CR:
        return expect(b, c, '\r', CHUNK_DATA_LF);
    case CHUNK_DATA_LF:
        return expect(b, c, '\n', CHUNK_SIZE);
    case CHUNK_TRAILER:
    case CHUNK_NAME:
        return name_byte(b, c);
    case CHUNK_VALUE:
        return text_byte(b, c, CHUNK_VALUE_LF);
    case CHUNK_VALUE_LF:
        return expect(b, c, '\n', CHUNK_TRAILER);
    case CHUNK_END_LF:
        return end_byte(b, c);
    case CHUNK_DATA:
        break; /* handled by the caller */
    }
    return -EBADMSG;
}

/* Payload up to the end of the body or chunk. */
static size_t take_payload(struct http1_body *b, const char *data, size_t len,
                           struct http1_str *ret_part)
{
    size_t n = len < b->left ? len : (size_t)b->left;

    *ret_part = (struct http1_str){data, n};
    b->left -= n;
    return n;
}

static ssize_t read_chunked(struct http1_body *b, const char *data, size_t len,
                            struct http1_str *ret_part)
{
    size_t used = 0;

    while (used < len && !b->done) {
        if (b->state == CHUNK_DATA) {
            used += take_payload(b, data + used, len - used, ret_part);
            if (b->left == 0)
                b->state = CHUNK_DATA_CR;
            return (ssize_t)used;
        }
        int r = framing_byte(b, data[used++]);
        if (r < 0)
            return r;
    }
    return (ssize_t)used;
}

ssize_t http1_body_read(struct http1_body *b, const char *data, size_t len,
                        struct http1_str *ret_part)
{
    *ret_part = (struct http1_str){data, 0};
    if (b->done || len == 0)
        return 0;

    switch (b->kind) {
    case HTTP1_BODY_CHUNKED:
        return read_chunked(b, data, len, ret_part);
    case HTTP1_BODY_LENGTH: {
        size_t n = take_payload(b, data, len, ret_part);
        b->done = b->left == 0;
        return (ssize_t)n;
    }
    case HTTP1_BODY_UNTIL_CLOSE:
        ret_part->len = len;
        return (ssize_t)len;
    case HTTP1_BODY_NONE:
        break;
    }
    return 0;
}

ssize_t http1_body_gather(struct http1_body *b, char *data, size_t len, size_t *ret_size)
{
    struct http1_str part;
    size_t used = 0;
    ssize_t n;

    *ret_size = 0;
    while ((n = http1_body_read(b, data + used, len - used, &part)) > 0) {
        memmove(data + *ret_size, part.p, part.len);
        *ret_size += part.len;
        used += (size_t)n;
    }
    return n < 0 ? n : (ssize_t)used;
}

int http1_body_eof(struct http1_body *b)
{
    if (b->kind == HTTP1_BODY_UNTIL_CLOSE)
        b->done = true;
    return b->done ? 0 : -EBADMSG;
}

size_t http1_chunk_head(char ret[static HTTP1_CHUNK_HEAD_MAX], size_t len)
{
    static const char hex[] = "0123456789abcdef";
    size_t digits = 1;

    for (size_t v = len >> 4; v > 0; v >>= 4)
        digits++;
    for (size_t i = digits; i > 0; i--) {
        ret[i - 1] = hex[len & 15];
        len >>= 4;
    }
    ret[digits] = '\r';
    ret[digits + 1] = '\n';
    return digits + 2;
}

/* Writing. A failure stays in the buffer (buf_error()), so that callers check once, at the end. */

static const struct {
    unsigned status;
    const char *reason;
} reasons[] = {
    {100, "Continue"},
    {101, "Switching Protocols"},
    {200, "OK"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {206, "Partial Content"},
    {301, "Moved Permanently"},
    {302, "Found"},
    {304, "Not Modified"},
    {307, "Temporary Redirect"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {406, "Not Acceptable"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {410, "Gone"},
    {411, "Length Required"},
    {412, "Precondition Failed"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {416, "Range Not Satisfiable"},
    {417, "Expectation Failed"},
    {422, "Unprocessable Content"},
    {423, "Locked"},
    {424, "Failed Dependency"},
    {426, "Upgrade Required"},
    {428, "Precondition Required"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {502, "Bad Gateway"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
    {507, "Insufficient Storage"},
};

const char *http1_reason(unsigned status)
{
    for (size_t i = 0; i < ARRAY_SIZE(reasons); i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Unknown";
}

int http1_put_status(struct buf *out, unsigned status)
{
    if (status < 100 || status > 999)
        return buf_fail(out, -EINVAL);
    return buf_printf(out, "HTTP/1.1 %u %s\r\n", status, http1_reason(status));
}

int http1_put_request(struct buf *out, const char *method, const char *target)
{
    if (!all_token(whole(method)) || *target == '\0')
        return buf_fail(out, -EINVAL);
    for (const char *p = target; *p != '\0'; p++)
        if (*p <= ' ' || *p >= 0x7f || *p == '#')
            return buf_fail(out, -EINVAL);
    return buf_printf(out, "%s %s HTTP/1.1\r\n", method, target);
}

int http1_put_header(struct buf *out, const char *name, const char *value)
{
    if (!all_token(whole(name)))
        return buf_fail(out, -EINVAL);
    for (const char *p = value; *p != '\0'; p++)
        if (!is_text(*p))
            return buf_fail(out, -EINVAL);
    /* On the way of every answer: without printf, and still all or nothing. */
    size_t before = out->len;
    if (buf_puts(out, name) == 0 && buf_append(out, ": ", 2) == 0 && buf_puts(out, value) == 0 &&
        buf_append(out, "\r\n", 2) == 0)
        return 0;
    out->len = before;
    return -ENOBUFS;
}

int http1_put_length(struct buf *out, uint64_t length)
{
    return buf_printf(out, "Content-Length: %" PRIu64 "\r\n", length);
}

int http1_put_end(struct buf *out)
{
    (void)buf_puts(out, "\r\n");
    return buf_error(out);
}
