/* SPDX-License-Identifier: Apache-2.0 */

/* Writes request lines, status lines and headers of HTTP/1.1. */

#include "http/codec/http1.h"

#include <errno.h>
#include <inttypes.h>

#include "base/buf.h"
#include "http/codec/http1_internal.h"

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
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Unknown";
}

static bool all_token(const char *s)
{
    const char *p = s;
    while (*p != '\0' && http1_is_token(*p))
        p++;
    return *p == '\0' && p != s;
}

int http1_put_status(struct buf *out, unsigned status)
{
    if (status < 100 || status > 999)
        return -EINVAL;
    return buf_printf(out, "HTTP/1.1 %u %s\r\n", status, http1_reason(status));
}

int http1_put_request(struct buf *out, const char *method, const char *target)
{
    if (!all_token(method) || *target == '\0')
        return -EINVAL;
    for (const char *p = target; *p != '\0'; p++)
        if (*p <= ' ' || *p >= 0x7f || *p == '#')
            return -EINVAL;
    return buf_printf(out, "%s %s HTTP/1.1\r\n", method, target);
}

int http1_put_header(struct buf *out, const char *name, const char *value)
{
    if (!all_token(name))
        return -EINVAL;
    for (const char *p = value; *p != '\0'; p++)
        if (!http1_is_text(*p))
            return -EINVAL;
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
    return buf_puts(out, "\r\n");
}
