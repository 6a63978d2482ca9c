/* SPDX-License-Identifier: Apache-2.0 */

/* The first byte says what the rest is: a client's question or a server's answer. What is passed on
 * must be understood by our own parsers, and must not be internal. */

#include <assert.h>
#include <string.h>

#include "base/str.h"
#include "fuzz.h"
#include "sandbox/dns/dns_msg.h"

static void question(const uint8_t *data, size_t size)
{
    struct dns_query q, again;
    uint8_t out[DNS_FORWARD_MAX];
    int r = dns_query_parse(data, size, &q);

    if (r < 0)
        return;
    assert(dns_error_write(&q, DNS_REFUSED, false, out) <= sizeof(out));
    if (r > 0)
        return;
    (void)dns_query_judge(&q);
    size_t n = dns_query_write(&q, 7, out);
    assert(n <= sizeof(out));
    r = dns_query_parse(out, n, &again);
    assert(r == 0 && again.id == 7 && again.type == q.type && again.name_len == q.name_len);
    assert(memcmp(again.name, q.name, q.name_len) == 0);
}

static void answer(const uint8_t *data, size_t size)
{
    static const size_t sizes[] = {DNS_UDP_MIN, DNS_UDP_MAX, DNS_TCP_MAX};
    static const uint8_t name[] = "\1a\2bc";
    struct dns_query q = {.id = 9, .type = DNS_TYPE_A, .name_len = sizeof(name), .recursion = true};
    struct dns_answer a, again;
    uint8_t out[DNS_TCP_MAX];

    memcpy(q.name, name, sizeof(name));
    q.edns = size % 2 == 1;
    if (dns_answer_parse(data, size, &q, 0x4142, &a) < 0)
        return;
    assert(a.end <= size);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        size_t n = dns_answer_write(&a, data, &q, sizes[i], out);
        assert(n <= sizes[i]);
        int r = dns_answer_parse(out, n, &q, 9, &again);
        assert(r == 0 && !again.internal);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] & 1)
        answer(data + 1, size - 1);
    else
        question(data + 1, size - 1);
    return 0;
}
