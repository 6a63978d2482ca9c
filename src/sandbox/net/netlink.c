/* SPDX-License-Identifier: Apache-2.0 */

/* Builds, sends and reads netlink messages. */

#include "sandbox/net/netlink.h"

#include <assert.h>
#include <errno.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"

/* The kernel answers within sendmsg(2); this only bounds the damage should it ever not. */
#define ANSWER_TIMEOUT_S 5

void nl_init(struct nl *nl)
{
    nl->len = 0;
    nl->msg = 0;
    nl->msgs = 0;
    nl->overflow = false;
}

static void put(struct nl *nl, const void *data, size_t len)
{
    size_t padded = NLMSG_ALIGN(len);

    if (nl->overflow || sizeof(nl->data) - nl->len < padded) {
        nl->overflow = true;
        return;
    }
    if (len > 0)
        memcpy(nl->data + nl->len, data, len);
    memset(nl->data + nl->len + len, 0, padded - len);
    nl->len += padded;
}

void nl_begin(struct nl *nl, uint16_t type, uint16_t flags, const void *header, size_t len)
{
    struct nlmsghdr h = {
        .nlmsg_type = type,
        .nlmsg_flags = (uint16_t)(flags | NLM_F_REQUEST | NLM_F_ACK),
        .nlmsg_seq = nl->msgs + 1,
    };

    nl->msg = nl->len;
    put(nl, &h, sizeof(h));
    put(nl, header, len);
}

void nl_end(struct nl *nl)
{
    struct nlmsghdr h;

    if (nl->overflow)
        return;
    memcpy(&h, nl->data + nl->msg, sizeof(h));
    h.nlmsg_len = (uint32_t)(nl->len - nl->msg);
    memcpy(nl->data + nl->msg, &h, sizeof(h));
    nl->msgs++;
}

void nl_attr(struct nl *nl, uint16_t type, const void *data, size_t len)
{
    struct nlattr a = {.nla_len = (uint16_t)(sizeof(a) + len), .nla_type = type};

    assert(len < 1024);
    put(nl, &a, sizeof(a));
    put(nl, data, len);
}

void nl_attr_u32(struct nl *nl, uint16_t type, uint32_t v)
{
    nl_attr(nl, type, &v, sizeof(v));
}

void nl_attr_str(struct nl *nl, uint16_t type, const char *s)
{
    nl_attr(nl, type, s, strlen(s) + 1);
}

size_t nl_nest(struct nl *nl, uint16_t type, const void *header, size_t len)
{
    size_t at = nl->len;

    nl_attr(nl, type, header, len);
    return at;
}

void nl_nest_end(struct nl *nl, size_t nest)
{
    struct nlattr a;

    if (nl->overflow)
        return;
    memcpy(&a, nl->data + nest, sizeof(a));
    a.nla_len = (uint16_t)(nl->len - nest);
    memcpy(nl->data + nest, &a, sizeof(a));
}

int nl_socket(int family)
{
    const struct timeval timeout = {.tv_sec = ANSWER_TIMEOUT_S};
    const int on = 1;
    AUTO_CLOSE int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, family);

    if (fd < 0)
        return -errno;
    /* Acknowledgements without a copy of the request. */
    if (setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof(on)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0)
        return -errno;
    return TAKE_FD(fd);
}

static ssize_t receive(int sock, uint8_t *data, size_t size)
{
    ssize_t n;

    do
        n = recv(sock, data, size, 0);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

/* Reads one datagram of acknowledgements; counts them in *seen. Answers with data are skipped. */
static int read_acks(int sock, unsigned *seen, int *ret_error, unsigned *ret_failed)
{
    _Alignas(NLMSG_ALIGNTO) uint8_t data[16384];
    ssize_t n = receive(sock, data, sizeof(data));

    if (n < 0)
        return (int)n;
    for (size_t at = 0; at + sizeof(struct nlmsghdr) <= (size_t)n;) {
        struct nlmsghdr h;
        struct nlmsgerr e;

        memcpy(&h, data + at, sizeof(h));
        if (h.nlmsg_len < sizeof(h) || h.nlmsg_len > (size_t)n - at)
            return -EBADMSG;
        if (h.nlmsg_type == NLMSG_ERROR && h.nlmsg_len >= sizeof(h) + sizeof(e)) {
            memcpy(&e, data + at + sizeof(h), sizeof(e));
            (*seen)++;
            if (e.error != 0 && *ret_error == 0) {
                *ret_error = e.error;
                *ret_failed = h.nlmsg_seq - 1;
            }
        }
        at += NLMSG_ALIGN(h.nlmsg_len);
    }
    return 0;
}

static int send_batch(struct nl *nl, int sock)
{
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    size_t len = nl->len;
    bool overflow = nl->overflow;

    nl_init(nl);
    if (overflow)
        return -ENOBUFS;
    if (sendto(sock, nl->data, len, 0, (struct sockaddr *)&kernel, sizeof(kernel)) < 0)
        return -errno;
    return 0;
}

int nl_send(struct nl *nl, int sock, unsigned *ret_failed)
{
    unsigned want = nl->msgs, seen = 0, failed = 0;
    int error = 0;
    int sent = send_batch(nl, sock);

    if (sent < 0)
        return sent;
    while (seen < want) {
        int r = read_acks(sock, &seen, &error, &failed);

        if (r < 0)
            return r;
    }
    if (error != 0 && ret_failed != NULL)
        *ret_failed = failed;
    return error;
}

/* 1: that was the last message. */
static int visit_messages(const uint8_t *data, size_t n, nl_entry_fn *fn, void *arg)
{
    int r = 0;

    for (size_t at = 0; at + sizeof(struct nlmsghdr) <= n && r == 0;) {
        struct nlmsghdr h;
        int error = 0;

        memcpy(&h, data + at, sizeof(h));
        if (h.nlmsg_len < sizeof(h) || h.nlmsg_len > n - at)
            return -EBADMSG;
        size_t len = h.nlmsg_len - sizeof(h);
        const uint8_t *body = data + at + sizeof(h);
        if (h.nlmsg_type == NLMSG_DONE || h.nlmsg_type == NLMSG_ERROR) {
            memcpy(&error, body, len < sizeof(error) ? 0 : sizeof(error));
            return error < 0 ? error : 1;
        }
        r = fn(arg, body, len);
        at += NLMSG_ALIGN(h.nlmsg_len);
    }
    return r;
}

int nl_dump(struct nl *nl, int sock, nl_entry_fn *fn, void *arg)
{
    _Alignas(NLMSG_ALIGNTO) uint8_t data[32768];
    int r = send_batch(nl, sock);

    while (r == 0) {
        ssize_t n = receive(sock, data, sizeof(data));

        r = n < 0 ? (int)n : visit_messages(data, (size_t)n, fn, arg);
    }
    return r < 0 ? r : 0;
}

int nl_ifindex(int sock, const char *name)
{
    struct ifreq req = {0};

    if (str_copy(req.ifr_name, sizeof(req.ifr_name), name) < 0)
        return -ENODEV;
    if (ioctl(sock, SIOCGIFINDEX, &req) < 0)
        return -errno;
    return req.ifr_ifindex;
}
