/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Requests to netlink, as few as we need: a batch of messages is built in a fixed buffer, sent in
 * one call, and answered by one acknowledgement per message. */

#include <linux/netlink.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nl {
    _Alignas(NLMSG_ALIGNTO) uint8_t data[2048];
    size_t len;
    size_t msg;    /* where the message being built starts */
    unsigned msgs; /* finished ones */
    bool overflow; /* sticks; nl_send() then fails with -ENOBUFS */
};

void nl_init(struct nl *nl);

/* A message: begin (with its fixed header), attributes, end. NLM_F_REQUEST and NLM_F_ACK are
 * added. */
void nl_begin(struct nl *nl, uint16_t type, uint16_t flags, const void *header, size_t len);
void nl_attr(struct nl *nl, uint16_t type, const void *data, size_t len);
void nl_attr_u32(struct nl *nl, uint16_t type, uint32_t v);
void nl_attr_str(struct nl *nl, uint16_t type, const char *s);
/* Attributes added until the matching nl_nest_end() lie inside this one. `header` may be NULL. */
size_t nl_nest(struct nl *nl, uint16_t type, const void *header, size_t len);
void nl_nest_end(struct nl *nl, size_t nest);
void nl_end(struct nl *nl);

/* A socket of a family (NETLINK_ROUTE, ...) in the caller's current network namespace; it stays
 * there. */
int nl_socket(int family);

/* Sends the batch and reads its acknowledgements. The kernel carries out every message even when an
 * earlier one failed. 0, or the first error; *ret_failed (NULL is fine) is the number of that
 * message, counted from 0. The batch is empty afterwards. */
int nl_send(struct nl *nl, int sock, unsigned *ret_failed);

/* Sends the one request of the batch and calls fn for the payload of each message of the answer,
 * until it returns a negative errno. */
typedef int nl_entry_fn(void *arg, const void *data, size_t len);
int nl_dump(struct nl *nl, int sock, nl_entry_fn *fn, void *arg);

/* The index of an interface in the namespace of any socket. */
int nl_ifindex(int sock, const char *name);
