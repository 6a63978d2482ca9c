/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "load.h"

#define REQUEST_MAX 4096
#define CHUNK 4096
#define WS_BINARY 2
#define WS_CLOSE 8

int load_connect(const char *path, struct err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (str_copy(address.sun_path, sizeof(address.sun_path), path) < 0)
        return err_set(err, ERR_INVALID, "socket path '%s' is too long", path);
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_sys(err, errno, "socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return err_sys(err, errno, "connect '%s'", path);
    return TAKE_FD(fd);
}

static int send_all(int fd, const void *data, size_t len, struct err *err)
{
    int r = fd_write_all(fd, data, len);
    return r < 0 ? err_sys(err, -r, "send to boxd") : 0;
}

int load_http_send(int fd, const char *method, const char *target, const char *body,
                   struct err *err)
{
    char request[REQUEST_MAX];
    int r = body == NULL
                ? str_fmt(request, sizeof(request), "%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n",
                          method, target)
                : str_fmt(request, sizeof(request),
                          "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                          "Content-Length: %zu\r\n\r\n%s",
                          method, target, strlen(body), body);
    if (r < 0)
        return err_set(err, ERR_INVALID, "the request does not fit");
    return send_all(fd, request, strlen(request), err);
}

/* Reads more into *b; end of file is a failure. */
static int receive_more(int fd, struct buf *b, struct err *err)
{
    if (buf_reserve(b, CHUNK) < 0)
        return err_set(err, ERR_LIMIT, "boxd's answer is too long");
    ssize_t n = read(fd, b->data + b->len, CHUNK);
    if (n < 0)
        return err_sys(err, errno, "receive from boxd");
    if (n == 0)
        return err_set(err, ERR_BACKEND, "boxd closed the connection early");
    b->len += (size_t)n;
    b->data[b->len] = '\0'; /* there is always room for it */
    return 0;
}

/* Reads until the empty line; *ret_head is the length of the head with it. */
static int receive_head(int fd, struct buf *b, unsigned status, size_t *ret_head, struct err *err)
{
    char start[16];
    const char *end = NULL;
    buf_reset(b);
    while (end == NULL) {
        int r = receive_more(fd, b, err);
        if (r < 0)
            return r;
        end = strstr(b->data, "\r\n\r\n");
    }
    *ret_head = (size_t)(end + 4 - b->data);
    (void)str_fmt(start, sizeof(start), "HTTP/1.1 %u ", status);
    if (!str_starts(b->data, start))
        return err_set(err, ERR_BACKEND, "boxd answered: %.300s", b->data);
    return 0;
}

static size_t content_length(const char *head)
{
    static const char name[] = "\r\ncontent-length:";
    const char *at = strcasestr(head, name);
    size_t length = 0;
    if (at == NULL)
        return 0;
    at += strlen(name);
    at += strspn(at, " ");
    for (; *at >= '0' && *at <= '9' && length < (1U << 20); at++)
        length = length * 10 + (size_t)(*at - '0');
    return length;
}

int load_http_receive(int fd, struct buf *reply, unsigned status, struct err *err)
{
    size_t head;
    int r = receive_head(fd, reply, status, &head, err);
    if (r < 0)
        return r;
    size_t total = head + content_length(reply->data);
    while (reply->len < total) {
        r = receive_more(fd, reply, err);
        if (r < 0)
            return r;
    }
    buf_consume(reply, head);
    return 0;
}

int load_ws_send(int fd, const char *text, size_t len, struct err *err)
{
    unsigned char frame[LOAD_WS_MAX + 8];
    if (len > LOAD_WS_MAX)
        return err_set(err, ERR_INVALID, "the request does not fit");
    size_t head = len < 126 ? 2 : 4;
    frame[0] = 0x80 | LOAD_WS_TEXT;
    frame[1] = (unsigned char)(0x80 | (len < 126 ? len : 126));
    if (len >= 126) {
        frame[2] = (unsigned char)(len >> 8);
        frame[3] = (unsigned char)len;
    }
    memset(frame + head, 0, 4); /* a mask of zeros is a mask */
    memcpy(frame + head + 4, text, len);
    return send_all(fd, frame, head + 4 + len, err);
}

int load_ws_receive(int fd, struct buf *b, struct load_frame *ret, struct err *err)
{
    for (;;) {
        const unsigned char *p = (const unsigned char *)b->data;
        size_t head = b->len >= 2 && p[1] == 126 ? 4 : 2;
        if (b->len >= 2 && p[1] > 126)
            return err_set(err, ERR_BACKEND, "boxd sent a frame that is too long");
        if (b->len >= head) {
            size_t len = head == 2 ? p[1] : ((size_t)p[2] << 8 | p[3]);
            *ret = (struct load_frame){p[0] & 15U, b->data + head, len, head + len};
            if (b->len >= ret->total)
                return 0;
        }
        int r = receive_more(fd, b, err);
        if (r < 0)
            return r;
    }
}

/* Reads messages until the one that says how the command ended. */
static int ws_await_exit(int fd, struct buf *b, struct err *err)
{
    struct load_frame f = {0};
    bool output = false;
    for (;;) {
        int r = load_ws_receive(fd, b, &f, err);
        if (r < 0)
            return r;
        if (f.opcode == WS_BINARY)
            output = f.len == strlen(LOAD_EXPECTED) + 1 &&
                     memcmp(f.data + 1, LOAD_EXPECTED, f.len - 1) == 0;
        bool text = f.opcode == LOAD_WS_TEXT;
        if (text && memmem(f.data, f.len, "\"exit_code\":0", 13) != NULL)
            return output ? 0 : err_set(err, ERR_BACKEND, "the command printed something else");
        if ((text && memmem(f.data, f.len, "\"started\"", 9) == NULL) || f.opcode == WS_CLOSE)
            return err_set(err, ERR_BACKEND, "boxd said: %.*s", (int)(f.len % 300), f.data);
        buf_consume(b, f.total);
    }
}

int load_ws_open(const char *path, const char *target, const char *headers, struct buf *scratch,
                 struct err *err)
{
    char request[REQUEST_MAX];
    size_t head;
    AUTO_CLOSE int fd = load_connect(path, err);
    if (fd < 0)
        return fd;
    int r = str_fmt(request, sizeof(request),
                    "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
                    "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n%s"
                    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
                    target, headers);
    if (r < 0)
        return err_set(err, ERR_INVALID, "the request does not fit");
    r = send_all(fd, request, strlen(request), err);
    if (r == 0)
        r = receive_head(fd, scratch, 101, &head, err);
    if (r < 0)
        return r;
    buf_consume(scratch, head);
    return TAKE_FD(fd);
}

int load_ws_exec(const char *path, const char *request, struct buf *scratch, struct err *err)
{
    AUTO_CLOSE int fd = load_ws_open(path, "/v1/exec", "", scratch, err);
    if (fd < 0)
        return fd;
    int r = load_ws_send(fd, request, strlen(request), err);
    return r < 0 ? r : ws_await_exit(fd, scratch, err);
}
