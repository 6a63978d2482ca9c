/* SPDX-License-Identifier: Apache-2.0 */

/* Parses and checks the head of an HTTP/1.1 message, and finds headers in it. */

#include "http/codec/http1.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "http/codec/http1_internal.h"

/* clang-format off */
/* Sets of bytes, RFC 9110 §5.6.2 and RFC 9112 §2. */
const uint8_t http1_bytes[256] = {
    ['\t'] = HTTP1_C_TEXT,
    [' '] = HTTP1_C_TEXT,
    ['!'] = HTTP1_C_TOKEN | HTTP1_C_TEXT,
    ['"'] = HTTP1_C_TEXT,
    ['#' ... '\''] = HTTP1_C_TOKEN | HTTP1_C_TEXT,
    ['(' ... ')'] = HTTP1_C_TEXT,
    ['*' ... '+'] = HTTP1_C_TOKEN | HTTP1_C_TEXT,
    [','] = HTTP1_C_TEXT,
    ['-' ... '.'] = HTTP1_C_TOKEN | HTTP1_C_TEXT,
    ['/'] = HTTP1_C_TEXT,
    ['0' ... '9'] = HTTP1_C_TOKEN | HTTP1_C_TEXT,
    [':' ... '@'] = HTTP1_C_TEXT,
    ['A' ... 'Z'] = HTTP1_C_TOKEN | HTTP1_C_TEXT,
    ['[' ... ']'] = HTTP1_C_TEXT,
    ['^' ... 'z'] = HTTP1_C_TOKEN | HTTP1_C_TEXT,
    ['{'] = HTTP1_C_TEXT,
    ['|'] = HTTP1_C_TOKEN | HTTP1_C_TEXT,
    ['}'] = HTTP1_C_TEXT,
    ['~'] = HTTP1_C_TOKEN | HTTP1_C_TEXT,
    [0x80 ... 0xff] = HTTP1_C_TEXT,
};
/* clang-format on */

ssize_t http1_scan(struct http1_scan *s, const char *data, size_t len, size_t max)
{
    size_t end = len < max ? len : max;

    for (; s->pos < end; s->pos++) {
        if (http1_is_text(data[s->pos]))
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
        if (!http1_is_token(s.p[i]))
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
 * means the same to everyone who looks at it later. */
static bool target_bytes_ok(struct http1_str s)
{
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c <= ' ' || c >= 0x7f || c == '#')
            return false;
        if (c != '%')
            continue;
        if (s.len - i < 3)
            return false;
        int high = http1_hex(s.p[i + 1]);
        int low = http1_hex(s.p[i + 2]);
        if (high < 0 || low < 0 || high + low == 0)
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
            return -EBADMSG; /* user info in a request is a trick on whoever reads the log */
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
    for (size_t i = 0; i < sizeof(known_headers) / sizeof(known_headers[0]); i++)
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

ssize_t http1_head(enum http1_role role, const char *data, size_t len, size_t max,
                   struct http1_head *ret)
{
    struct http1_scan scan = {0};
    ssize_t n = http1_scan(&scan, data, len, max);
    if (n <= 0)
        return n;
    int r = http1_parse(role, data, (size_t)n, ret);
    return r < 0 ? r : n;
}

unsigned http1_error_status(int error)
{
    static const struct {
        int error;
        unsigned status;
    } map[] = {{E2BIG, 431}, {EOPNOTSUPP, 501}, {EPROTONOSUPPORT, 505}, {ENOBUFS, 413}};

    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++)
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
            if (s.len - i < 3)
                return -EINVAL;
            int high = http1_hex(s.p[i + 1]);
            int low = http1_hex(s.p[i + 2]);
            if (high < 0 || low < 0)
                return -EINVAL;
            c = (char)(high * 16 + low);
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
