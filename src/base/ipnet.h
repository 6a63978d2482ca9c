/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Address ranges that are not the public internet: everything that IANA's registries of
 * special-purpose addresses do not call globally reachable (private networks, loopback, link-local,
 * documentation, benchmarks, ...), multicast, what carries an IPv4 address inside an IPv6 one, and
 * cloud metadata services in and outside of them. One table for all that filter: packet rules and
 * answers of the resolver must not drift apart. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ip_net {
    uint8_t bytes; /* 4 or 16 */
    uint8_t prefix;
    uint8_t addr[16];
    const char *text; /* the same, as people and nft write it */
};

extern const struct ip_net ip_internal[];
extern const size_t ip_internal_count;

/* `addr` in network order; `bytes` is 4 or 16. */
bool ip_net_has(const struct ip_net *net, const uint8_t *addr, size_t bytes);
bool ip_is_internal(const uint8_t *addr, size_t bytes);

/* An IPv4 network in prefix notation ("198.19.0.0/16"), host order; host bits must be zero. 0 or
 * -EINVAL. */
int ip4_net_parse(const char *text, uint32_t *ret_addr, unsigned *ret_prefix);
