/* SPDX-License-Identifier: Apache-2.0 */

/* The text of our packet rules. Pure: bytes out, no system calls. */

#include "base/buf.h"
#include "base/ipnet.h"
#include "sandbox/net/net.h"
#include "sandbox/net/net_internal.h"

#define MAIL_PORTS "{ 25, 465, 587, 2525 }"

/* An answer at once for the program inside, instead of a time-out. The kernel sends no more than
 * about one ICMP error per second to one address, hence the reset for TCP. */
#define REFUSE "goto refuse"
#define REFUSE_CHAIN                                                                               \
    "  chain refuse {\n"                                                                           \
    "    meta l4proto tcp reject with tcp reset\n"                                                 \
    "    reject with icmpx type admin-prohibited\n  }\n"

static void put_addr(struct buf *out, uint32_t addr)
{
    (void)buf_printf(out, "%u.%u.%u.%u", addr >> 24, addr >> 16 & 255, addr >> 8 & 255, addr & 255);
}

static void put_pool(struct buf *out, const struct net_config *c)
{
    put_addr(out, c->pool);
    (void)buf_printf(out, "/%u", c->prefix);
}

static void put_internal(struct buf *out, size_t bytes, const struct net_config *c,
                         const char *more)
{
    const char *separator = "";

    (void)buf_printf(out,
                     "  set internal%s {\n    type %s; flags interval; auto-merge\n"
                     "    elements = { ",
                     bytes == 4 ? "4" : "6", bytes == 4 ? "ipv4_addr" : "ipv6_addr");
    for (size_t i = 0; i < ip_internal_count; i++) {
        if (ip_internal[i].bytes != bytes)
            continue;
        (void)buf_printf(out, "%s%s", separator, ip_internal[i].text);
        separator = ", ";
    }
    if (c != NULL) {
        (void)buf_puts(out, ", ");
        put_pool(out, c);
    }
    if (more[0] != '\0')
        (void)buf_printf(out, ", %s", more);
    (void)buf_puts(out, " }\n  }\n");
}

/* Of what is new only; counted per session, by its address. A pace need not be remembered longer
 * than its burst takes to fill up again, which is two seconds. */
static void put_limits(struct buf *out, const struct net_config *c)
{
    (void)buf_printf(
        out,
        "    update @rates { ip saddr limit rate over %u/second burst %u packets } " REFUSE
        "\n    add @conns { ip saddr ct count over %u } " REFUSE "\n    accept\n",
        c->conn_rate, c->conn_rate * 2, c->conn_max);
}

/* Spoofed and IPv6 packets are dropped before connection tracking spends memory on them. The
 * reverse route of an interface leads to one address: its session's. */
static void put_prerouting(struct buf *out, const struct net_config *c)
{
    (void)buf_puts(out, "  chain prerouting {\n"
                        "    type filter hook prerouting priority raw; policy accept;\n");
    (void)buf_printf(out, "    iifname \"bx%s_*\" jump spoofed\n  }\n", c->tag);
    (void)buf_puts(out, "  chain spoofed {\n"
                        "    meta nfproto != ipv4 drop\n"
                        "    ip saddr != ");
    put_pool(out, c);
    (void)buf_puts(out, " drop\n"
                        "    fib saddr . iif oif missing drop\n  }\n");
}

static void put_forward(struct buf *out, const struct net_config *c)
{
    (void)buf_printf(out,
                     "  chain forward {\n"
                     "    type filter hook forward priority filter - 10; policy accept;\n"
                     "    iifname \"bx%s_*\" jump from_box\n"
                     "    oifname \"bx%s_*\" jump to_box\n"
                     "    ip daddr ",
                     c->tag, c->tag);
    /* Late answers to a session that is gone: nobody else's business, on no other interface. */
    put_pool(out, c);
    (void)buf_puts(out, " drop\n  }\n");
    (void)buf_printf(out,
                     "  chain from_box {\n"
                     "    oifname \"bx%s_*\" " REFUSE "\n"
                     "    ip daddr @internal4 " REFUSE "\n"
                     "    ip daddr @onlink4 " REFUSE "\n"
                     "    fib daddr type != unicast drop\n"
                     "    tcp flags syn tcp option maxseg size set rt mtu\n"
                     "    ct state established,related accept\n"
                     "    ct state invalid drop\n"
                     "    tcp dport " MAIL_PORTS " " REFUSE "\n",
                     c->tag);
    put_limits(out, c);
    (void)buf_puts(out, "  }\n"
                        "  chain to_box {\n"
                        "    ct state established,related accept\n"
                        "    drop\n  }\n");
}

static void put_input(struct buf *out, const struct net_config *c)
{
    (void)buf_printf(out,
                     "  chain input {\n"
                     "    type filter hook input priority filter - 10; policy accept;\n"
                     "    iifname \"bx%s_*\" jump host_box\n  }\n"
                     "  chain host_box {\n"
                     "    ct state established,related accept\n"
                     "    " REFUSE "\n  }\n",
                     c->tag);
}

static void put_nat(struct buf *out, const struct net_config *c)
{
    (void)buf_puts(out, "  chain postrouting {\n"
                        "    type nat hook postrouting priority srcnat; policy accept;\n"
                        "    ip saddr ");
    put_pool(out, c);
    (void)buf_printf(out, " oifname != \"lo\" oifname != \"bx%s_*\" masquerade\n  }\n", c->tag);
}

static void put_onlink(struct buf *out, const char *onlink)
{
    (void)buf_puts(out, "  set onlink4 {\n    type ipv4_addr; flags interval; auto-merge\n");
    if (onlink[0] != '\0')
        (void)buf_printf(out, "    elements = { %s }\n", onlink);
    (void)buf_puts(out, "  }\n");
}

int net_rules_onlink(const struct net_config *c, const char *onlink, struct buf *out)
{
    int r = buf_printf(out, "flush set inet box_%s onlink4\n", c->tag);

    if (r == 0 && onlink[0] != '\0')
        r = buf_printf(out, "add element inet box_%s onlink4 { %s }\n", c->tag, onlink);
    return r;
}

int net_rules_host(const struct net_config *c, const char *onlink, struct buf *out)
{
    /* Naming the table first makes deleting it right whether or not it was there. */
    (void)buf_printf(out,
                     "table inet box_%s\ndelete table inet box_%s\n"
                     "table inet box_%s {\n"
                     "  set rates { type ipv4_addr; size 65535; flags dynamic; timeout 5s; }\n"
                     "  set conns { type ipv4_addr; size 65535; flags dynamic; }\n",
                     c->tag, c->tag, c->tag);
    (void)buf_puts(out, REFUSE_CHAIN);
    put_internal(out, 4, c, "");
    put_onlink(out, onlink);
    put_prerouting(out, c);
    put_forward(out, c);
    put_input(out, c);
    put_nat(out, c);
    return buf_puts(out, "}\n");
}

int net_rules_guest(const char *addrs4, const char *addrs6, struct buf *out)
{
    (void)buf_puts(out, "table inet box\ndelete table inet box\ntable inet box {\n" REFUSE_CHAIN);
    put_internal(out, 4, NULL, addrs4);
    put_internal(out, 16, NULL, addrs6);
    (void)buf_puts(out, "  chain output {\n"
                        "    type filter hook output priority filter; policy accept;\n"
                        "    oifname \"lo\" accept\n"
                        "    ip daddr @internal4 " REFUSE "\n"
                        "    ip6 daddr @internal6 " REFUSE "\n"
                        "    tcp dport " MAIL_PORTS " " REFUSE "\n  }\n");
    return buf_puts(out, "}\n");
}
