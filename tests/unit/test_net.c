/* SPDX-License-Identifier: Apache-2.0 */

/* The parts of the network code that need no kernel: leases, rules as text, netlink messages. */

#include <errno.h>
#include <linux/rtnetlink.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/ipnet.h"
#include "base/str.h"
#include "sandbox/net/net.h"
/* For what is private to it. */
#include "sandbox/net/net_host.c"
#include "sandbox/net/netlink.h"

static void tags_and_pools_are_checked(void **state)
{
    static const char *const bad_tags[] = {"", "A", "a_", "a*", "toolong", "a\"b", "a b"};
    static const char *const bad_pools[] = {"", "10.0.0.0", "10.0.0.0/7", "10.0.0.0/29", "x/8"};
    struct net_config c;
    struct err err = {0};

    for (size_t i = 0; i < ARRAY_SIZE(bad_tags); i++) {
        assert_true(net_config_init(&c, bad_tags[i], NULL, &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad_pools); i++) {
        assert_true(net_config_init(&c, "a", bad_pools[i], &err) < 0);
        assert_int_equal(err.code, ERR_INVALID);
    }
}

static void default_pool_lies_in_the_benchmark_range(void **state)
{
    static const char *const tags[] = {"a", "b", "prod", "test", "x1", "0"};
    struct net_config c;
    struct err err = {0};

    for (size_t i = 0; i < ARRAY_SIZE(tags); i++) {
        assert_int_equal(net_config_init(&c, tags[i], NULL, &err), 0);
        assert_int_equal(c.pool & 0xfffe0000U, 0xc6120000U);
        assert_int_equal(c.pool & 0x1fff, 0);
        assert_int_equal(c.prefix, 19);
    }
}

static void leases_are_disjoint_and_inside_the_pool(void **state)
{
    struct net_config c;
    struct net_lease lease;
    struct err err = {0};

    assert_int_equal(net_config_init(&c, "ab", "10.1.2.0/28", &err), 0);
    assert_int_equal(net_lease_max(&c), 7);
    assert_true(net_lease_init(&lease, &c, 0, &err) < 0);
    assert_true(net_lease_init(&lease, &c, 8, &err) < 0);
    assert_int_equal(err.code, ERR_LIMIT);
    for (uint32_t i = 1; i <= 7; i++) {
        assert_int_equal(net_lease_init(&lease, &c, i, &err), 0);
        assert_int_equal(lease.host, c.pool + 2 * i);
        assert_int_equal(lease.guest, lease.host + 1);
        assert_in_range(lease.guest, c.pool + 2, c.pool + 15);
    }
    assert_string_equal(lease.ifname, "bxab_7");
    assert_int_equal(net_config_init(&c, "abcde", "10.0.0.0/8", &err), 0);
    assert_int_equal(net_lease_init(&lease, &c, net_lease_max(&c), &err), 0);
    assert_string_equal(lease.ifname, "bxabcde_65535");
}

static void rules_name_every_internal_range(void **state)
{
    struct net_config c;
    struct err err = {0};
    AUTO_DONE(buf) struct buf host, guest;

    buf_init(&host, 16384);
    buf_init(&guest, 16384);
    assert_int_equal(net_config_init(&c, "ab", "11.1.0.0/16", &err), 0);
    assert_int_equal(net_rules_host(&c, "12.0.0.0/24, 13.0.0.0/8", &host), 0);
    assert_int_equal(net_rules_guest("11.9.9.9", "2001:db8::9", &guest), 0);
    for (size_t i = 0; i < ip_internal_count; i++) {
        if (ip_internal[i].bytes == 4)
            assert_non_null(strstr(buf_str(&host), ip_internal[i].text));
        assert_non_null(strstr(buf_str(&guest), ip_internal[i].text));
    }
    assert_non_null(strstr(buf_str(&host), "11.1.0.0/16"));
    assert_non_null(strstr(buf_str(&host), "{ 12.0.0.0/24, 13.0.0.0/8 }"));
    assert_non_null(strstr(buf_str(&host), "ip daddr @onlink4 goto refuse"));
    assert_non_null(strstr(buf_str(&guest), ", 11.9.9.9 }"));
    assert_non_null(strstr(buf_str(&guest), ", 2001:db8::9 }"));
    /* Every base chain accepts by default: other traffic is not ours to judge. */
    assert_null(strstr(buf_str(&host), "policy drop"));
}

static void netlink_messages_are_well_formed(void **state)
{
    const struct ifinfomsg none = {.ifi_family = 0};
    struct nlmsghdr h;
    struct nlattr a;
    struct nl nl;

    nl_init(&nl);
    nl_begin(&nl, RTM_NEWLINK, NLM_F_CREATE, &none, sizeof(none));
    nl_attr_str(&nl, IFLA_IFNAME, "abc");
    size_t nest = nl_nest(&nl, IFLA_LINKINFO, NULL, 0);
    nl_attr_u32(&nl, 7, 9);
    nl_nest_end(&nl, nest);
    nl_end(&nl);
    memcpy(&h, nl.data, sizeof(h));
    assert_int_equal(h.nlmsg_len, nl.len);
    assert_int_equal(h.nlmsg_len, sizeof(h) + sizeof(none) + 8 + 4 + 8);
    assert_int_equal(h.nlmsg_flags, NLM_F_CREATE | NLM_F_REQUEST | NLM_F_ACK);
    assert_int_equal(h.nlmsg_seq, 1);
    memcpy(&a, nl.data + nest, sizeof(a));
    assert_int_equal(a.nla_len, 12);
    nl_begin(&nl, RTM_DELLINK, 0, &none, sizeof(none));
    nl_end(&nl);
    assert_int_equal(nl.msgs, 2);
}

static void netlink_overflow_sticks_and_nothing_is_sent(void **state)
{
    static const char large[1000];
    const struct ifinfomsg none = {.ifi_family = 0};
    struct nl nl;

    nl_init(&nl);
    nl_begin(&nl, RTM_NEWLINK, 0, &none, sizeof(none));
    for (int i = 0; i < 3; i++)
        nl_attr(&nl, 1, large, sizeof(large));
    nl_attr_u32(&nl, 1, 1);
    nl_end(&nl);
    assert_true(nl.overflow);
    assert_true(nl.len <= sizeof(nl.data));
    assert_int_equal(nl_send(&nl, -1, NULL), -ENOBUFS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tags_and_pools_are_checked),
        cmocka_unit_test(default_pool_lies_in_the_benchmark_range),
        cmocka_unit_test(leases_are_disjoint_and_inside_the_pool),
        cmocka_unit_test(rules_name_every_internal_range),
        cmocka_unit_test(netlink_messages_are_well_formed),
        cmocka_unit_test(netlink_overflow_sticks_and_nothing_is_sent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
