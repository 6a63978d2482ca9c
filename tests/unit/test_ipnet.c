/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/ipnet.h"
#include "base/str.h"

static bool internal(const char *text)
{
    uint8_t addr[16];

    if (inet_pton(AF_INET, text, addr) == 1)
        return ip_is_internal(addr, 4);
    assert_int_equal(inet_pton(AF_INET6, text, addr), 1);
    return ip_is_internal(addr, 16);
}

static void every_row_says_the_same_in_text_and_bytes(void **state)
{
    for (size_t i = 0; i < ip_internal_count; i++) {
        const struct ip_net *n = &ip_internal[i];
        char text[64];
        uint8_t addr[16] = {0};
        uint64_t prefix = n->bytes * 8U;

        assert_int_equal(str_copy(text, sizeof(text), n->text), 0);
        char *slash = strchr(text, '/');
        if (slash != NULL) {
            *slash = '\0';
            assert_int_equal(str_to_u64(slash + 1, &prefix), 0);
        }
        assert_int_equal(inet_pton(n->bytes == 4 ? AF_INET : AF_INET6, text, addr), 1);
        assert_memory_equal(addr, n->addr, n->bytes);
        assert_int_equal(prefix, n->prefix);
    }
}

static void internal_addresses_are_internal(void **state)
{
    static const char *const list[] = {
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.0",
        "100.100.100.200",
        "100.127.255.255",
        "127.0.0.1",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "192.0.2.1",
        "192.88.99.1",
        "198.51.100.255",
        "203.0.113.7",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:10.0.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::a00:1",
        "64:ff9b:1::a00:1",
        "::10.0.0.1",
        "100::1",
        "100:0:0:1::1",
        "2001::1",
        "2001:2::1",
        "2001:10::1",
        "2001:1ff:ffff::1",
        "2001:db8:ffff::1",
        "2002:a00:1::",
        "3fff:fff::1",
        "5f00::1",
        "fd00:ec2::254",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
    };

    for (size_t i = 0; i < ARRAY_SIZE(list); i++)
        if (!internal(list[i]))
            fail_msg("%s passes as public", list[i]);
}

static void public_addresses_are_not(void **state)
{
    static const char *const list[] = {
        "1.1.1.1",        "8.8.8.8",         "9.255.255.255",   "11.0.0.0",
        "100.63.255.255", "100.128.0.0",     "126.255.255.255", "128.0.0.0",
        "168.63.129.15",  "168.63.129.17",   "169.253.0.1",     "172.15.255.255",
        "172.32.0.0",     "192.0.1.0",       "192.167.255.255", "198.17.255.255",
        "198.20.0.0",     "223.255.255.255", "2606:4700::1111", "2001:4860:4860::8888",
        "64:ff9b:2::1",   "192.0.3.0",       "192.88.98.255",   "198.51.99.255",
        "203.0.114.0",    "100:0:0:2::1",    "2001:200::1",     "2001:db7::1",
        "2001:db9::1",    "3fff:1000::1",    "5f01::1",
    };

    for (size_t i = 0; i < ARRAY_SIZE(list); i++)
        if (internal(list[i]))
            fail_msg("%s passes as internal", list[i]);
}

static void networks_are_parsed_strictly(void **state)
{
    static const char *const bad[] = {"",
                                      "10.0.0.0",
                                      "10.0.0.0/",
                                      "10.0.0.0/33",
                                      "10.0.0.1/8",
                                      "10.0.0.0/0",
                                      "10.0.0/8",
                                      "10.0.0.0/-1",
                                      "::/8",
                                      "10.0.0.0/8 ",
                                      " 10.0.0.0/8",
                                      "10.0.0.0/8/8",
                                      "1000.100.100.1000000/8"};
    uint32_t addr;
    unsigned prefix;

    assert_int_equal(ip4_net_parse("198.19.0.0/16", &addr, &prefix), 0);
    assert_int_equal(addr, 0xc6130000);
    assert_int_equal(prefix, 16);
    assert_int_equal(ip4_net_parse("1.2.3.4/32", &addr, &prefix), 0);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(ip4_net_parse(bad[i], &addr, &prefix), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_says_the_same_in_text_and_bytes),
        cmocka_unit_test(internal_addresses_are_internal),
        cmocka_unit_test(public_addresses_are_not),
        cmocka_unit_test(networks_are_parsed_strictly),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
