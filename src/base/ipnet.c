/* SPDX-License-Identifier: Apache-2.0 */

/* The table of internal ranges, and parsing and matching of networks. */

#include "base/ipnet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "base/str.h"

/* clang-format off */
const struct ip_net ip_internal[] = {
    {4, 8,  {0},                    "0.0.0.0/8"},       /* this host */
    {4, 8,  {10},                   "10.0.0.0/8"},
    {4, 10, {100, 64},              "100.64.0.0/10"},   /* carrier NAT; Alibaba metadata */
    {4, 8,  {127},                  "127.0.0.0/8"},
    {4, 32, {168, 63, 129, 16},     "168.63.129.16"},   /* Azure's wire server, in a public range */
    {4, 16, {169, 254},             "169.254.0.0/16"},  /* metadata of most clouds */
    {4, 12, {172, 16},              "172.16.0.0/12"},
    {4, 24, {192, 0, 0},            "192.0.0.0/24"},    /* protocols; Oracle metadata */
    {4, 24, {192, 0, 2},            "192.0.2.0/24"},    /* documentation */
    {4, 24, {192, 88, 99},          "192.88.99.0/24"},  /* relays of 6to4, given up */
    {4, 16, {192, 168},             "192.168.0.0/16"},
    {4, 15, {198, 18},              "198.18.0.0/15"},   /* benchmarks; our own pool */
    {4, 24, {198, 51, 100},         "198.51.100.0/24"}, /* documentation */
    {4, 24, {203, 0, 113},          "203.0.113.0/24"},  /* documentation */
    {4, 4,  {224},                  "224.0.0.0/4"},     /* multicast */
    {4, 4,  {240},                  "240.0.0.0/4"},     /* reserved, broadcast */
    {16, 96, {0},                   "::/96"},           /* unspecified, loopback, IPv4-compatible */
    {16, 96, {[10] = 0xff, [11] = 0xff}, "::ffff:0:0/96"}, /* IPv4-mapped */
    {16, 96, {0, 0x64, 0xff, 0x9b}, "64:ff9b::/96"},    /* NAT64 */
    {16, 48, {0, 0x64, 0xff, 0x9b, 0, 1}, "64:ff9b:1::/48"},
    {16, 64, {0x01},                "100::/64"},        /* discard */
    {16, 64, {0x01, [7] = 1},       "100:0:0:1::/64"},  /* dummy prefix */
    {16, 23, {0x20, 0x01},          "2001::/23"},       /* protocols: Teredo, benchmarks, ORCHID */
    {16, 32, {0x20, 0x01, 0x0d, 0xb8}, "2001:db8::/32"}, /* documentation */
    {16, 16, {0x20, 0x02},          "2002::/16"},       /* 6to4: carries an IPv4 address */
    {16, 20, {0x3f, 0xff},          "3fff::/20"},       /* documentation */
    {16, 16, {0x5f},                "5f00::/16"},       /* segment routing */
    {16, 7,  {0xfc},                "fc00::/7"},        /* unique local; AWS metadata */
    {16, 10, {0xfe, 0x80},          "fe80::/10"},
    {16, 10, {0xfe, 0xc0},          "fec0::/10"},       /* site-local */
    {16, 8,  {0xff},                "ff00::/8"},        /* multicast */
};
/* clang-format on */

const size_t ip_internal_count = ARRAY_SIZE(ip_internal);

bool ip_net_has(const struct ip_net *net, const uint8_t *addr, size_t bytes)
{
    size_t whole = net->prefix / 8U;
    unsigned rest = net->prefix % 8U;

    if (net->bytes != bytes || memcmp(net->addr, addr, whole) != 0)
        return false;
    return rest == 0 || (net->addr[whole] ^ addr[whole]) >> (8 - rest) == 0;
}

bool ip_is_internal(const uint8_t *addr, size_t bytes)
{
    for (size_t i = 0; i < ip_internal_count; i++)
        if (ip_net_has(&ip_internal[i], addr, bytes))
            return true;
    return false;
}

int ip4_net_parse(const char *text, uint32_t *ret_addr, unsigned *ret_prefix)
{
    char host[INET_ADDRSTRLEN];
    const char *slash = strchr(text, '/');
    struct in_addr in;
    uint64_t prefix;

    if (slash == NULL || (size_t)(slash - text) >= sizeof(host))
        return -EINVAL;
    memcpy(host, text, (size_t)(slash - text));
    host[slash - text] = '\0';
    if (inet_pton(AF_INET, host, &in) != 1 || str_to_u64(slash + 1, &prefix) < 0 || prefix == 0 ||
        prefix > 32)
        return -EINVAL;
    uint32_t addr = ntohl(in.s_addr);
    if (prefix < 32 && addr << prefix != 0)
        return -EINVAL;
    *ret_addr = addr;
    *ret_prefix = (unsigned)prefix;
    return 0;
}
