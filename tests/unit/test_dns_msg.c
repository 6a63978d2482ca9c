/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"
#include "sandbox/dns/dns_msg.h"

struct msg {
    uint8_t data[2048];
    size_t len;
};

static void put(struct msg *m, const void *data, size_t len)
{
    assert_true(m->len + len <= sizeof(m->data));
    memcpy(m->data + m->len, data, len);
    m->len += len;
}

static void put8(struct msg *m, unsigned v)
{
    uint8_t b = (uint8_t)v;
    put(m, &b, 1);
}

static void put16(struct msg *m, unsigned v)
{
    put8(m, v >> 8);
    put8(m, v);
}

static void put_name(struct msg *m, const char *dotted)
{
    while (*dotted != '\0') {
        size_t n = strcspn(dotted, ".");
        put8(m, (unsigned)n);
        put(m, dotted, n);
        dotted += n + (dotted[n] == '.');
    }
    put8(m, 0);
}

/* id, flags, questions, answers, authorities, additional records */
static void put_header(struct msg *m, const unsigned v[6])
{
    for (size_t i = 0; i < 6; i++)
        put16(m, v[i]);
}

static void put_question(struct msg *m, const char *name, unsigned type, unsigned klass)
{
    put_name(m, name);
    put16(m, type);
    put16(m, klass);
}

static void put_opt(struct msg *m, unsigned size, unsigned rdlen)
{
    put8(m, 0);
    put16(m, 41);
    put16(m, size);
    put16(m, 0);
    put16(m, 0);
    put16(m, rdlen);
    for (unsigned i = 0; i < rdlen; i++)
        put8(m, 'o');
}

/* A record whose owner points to the question. */
static void put_record(struct msg *m, unsigned type, const void *rdata, size_t len)
{
    put16(m, 0xc00c);
    put16(m, type);
    put16(m, 1);
    put16(m, 0);
    put16(m, 60);
    put16(m, (unsigned)len);
    put(m, rdata, len);
}

static struct msg simple_query(const char *name, unsigned type)
{
    struct msg m = {.len = 0};

    put_header(&m, (unsigned[6]){0x1234, 0x0100, 1, 0, 0, 0});
    put_question(&m, name, type, 1);
    return m;
}

static struct dns_query parsed(const char *name, unsigned type)
{
    struct msg m = simple_query(name, type);
    struct dns_query q;

    assert_int_equal(dns_query_parse(m.data, m.len, &q), 0);
    return q;
}

static void plain_question_is_understood(void **state)
{
    struct dns_query q = parsed("www.example.com", 1);

    assert_int_equal(q.id, 0x1234);
    assert_true(q.recursion);
    assert_false(q.edns);
    assert_int_equal(q.udp_max, 512);
    assert_int_equal(q.type, 1);
    assert_int_equal(q.name_len, 17);
    assert_memory_equal(q.name, "\3www\7example\3com", 17);
}

static void edns_raises_the_size_within_bounds(void **state)
{
    static const unsigned sizes[][2] = {{0, 512}, {511, 512}, {1000, 1000}, {4096, 1232}};

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct msg m = {.len = 0};
        struct dns_query q;

        put_header(&m, (unsigned[6]){1, 0x0100, 1, 0, 0, 1});
        put_question(&m, "a.example", 1, 1);
        put_opt(&m, sizes[i][0], 12);
        assert_int_equal(dns_query_parse(m.data, m.len, &q), 0);
        assert_true(q.edns);
        assert_int_equal(q.udp_max, sizes[i][1]);
    }
}

static void every_prefix_of_a_question_is_refused(void **state)
{
    struct msg m = {.len = 0};
    struct dns_query q;

    put_header(&m, (unsigned[6]){1, 0x0100, 1, 0, 0, 1});
    put_question(&m, "www.example.com", 28, 1);
    put_opt(&m, 1232, 4);
    assert_int_equal(dns_query_parse(m.data, m.len, &q), 0);
    for (size_t i = 0; i < m.len; i++)
        assert_int_not_equal(dns_query_parse(m.data, i, &q), 0);
    put8(&m, 0);
    assert_int_equal(dns_query_parse(m.data, m.len, &q), DNS_FORMERR);
}

static void strange_headers_are_refused(void **state)
{
    static const struct {
        unsigned flags, qd, an, ns, ar;
        int result;
    } cases[] = {
        {0x8100, 1, 0, 0, 0, -EBADMSG},    /* an answer */
        {0x2900, 1, 0, 0, 0, DNS_NOTIMP},  /* update */
        {0x1100, 1, 0, 0, 0, DNS_NOTIMP},  /* status */
        {0x0300, 1, 0, 0, 0, DNS_FORMERR}, /* truncated */
        {0x0105, 1, 0, 0, 0, DNS_FORMERR}, /* with a result */
        {0x0100, 0, 0, 0, 0, DNS_FORMERR}, {0x0100, 2, 0, 0, 0, DNS_FORMERR},
        {0x0100, 1, 1, 0, 0, DNS_FORMERR}, {0x0100, 1, 0, 1, 0, DNS_FORMERR},
        {0x0100, 1, 0, 0, 2, DNS_FORMERR},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct msg m = {.len = 0};
        struct dns_query q;

        put_header(&m, (unsigned[6]){1, cases[i].flags, cases[i].qd, cases[i].an, cases[i].ns,
                                     cases[i].ar});
        put_question(&m, "a.example", 1, 1);
        assert_int_equal(dns_query_parse(m.data, m.len, &q), cases[i].result);
    }
}

static void strange_types_and_classes_are_refused(void **state)
{
    static const unsigned cases[][2] = {{252, 1}, {251, 1}, {255, 1}, {41, 1},
                                        {0, 1},   {249, 1}, {1, 3},   {1, 255}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct msg m = {.len = 0};
        struct dns_query q;

        put_header(&m, (unsigned[6]){1, 0x0100, 1, 0, 0, 0});
        put_question(&m, "a.example", cases[i][0], cases[i][1]);
        assert_int_equal(dns_query_parse(m.data, m.len, &q), DNS_REFUSED);
    }
}

static void broken_names_are_refused(void **state)
{
    struct msg pointer = {.len = 0}, longest = {.len = 0}, label = {.len = 0};
    struct dns_query q;

    put_header(&pointer, (unsigned[6]){1, 0x0100, 1, 0, 0, 0});
    put16(&pointer, 0xc00c);
    put16(&pointer, 1);
    put16(&pointer, 1);
    assert_int_equal(dns_query_parse(pointer.data, pointer.len, &q), DNS_FORMERR);

    /* 127 labels of one byte are 255 bytes; one more is too many. */
    for (int extra = 0; extra < 2; extra++) {
        longest.len = 0;
        put_header(&longest, (unsigned[6]){1, 0x0100, 1, 0, 0, 0});
        for (int i = 0; i < 127 + extra; i++)
            put(&longest, "\1a", 2);
        put8(&longest, 0);
        put16(&longest, 1);
        put16(&longest, 1);
        assert_int_equal(dns_query_parse(longest.data, longest.len, &q), extra ? DNS_FORMERR : 0);
    }
    put_header(&label, (unsigned[6]){1, 0x0100, 1, 0, 0, 0});
    put8(&label, 64);
    for (int i = 0; i < 64; i++)
        put8(&label, 'a');
    put8(&label, 0);
    put16(&label, 1);
    put16(&label, 1);
    assert_int_equal(dns_query_parse(label.data, label.len, &q), DNS_FORMERR);
}

static void oversized_question_is_dropped(void **state)
{
    struct msg m = simple_query("a.example", 1);
    struct dns_query q;

    m.len = DNS_QUERY_MAX + 1;
    assert_int_equal(dns_query_parse(m.data, m.len, &q), -EBADMSG);
}

static void forwarded_question_carries_name_and_type_only(void **state)
{
    struct msg m = {.len = 0};
    struct dns_query q, again;
    uint8_t out[DNS_FORWARD_MAX];

    put_header(&m, (unsigned[6]){0x1111, 0x0130, 1, 0, 0, 1}); /* with AD and CD */
    put_question(&m, "Www.Example.com", 16, 1);
    put_opt(&m, 4096, 20);
    assert_int_equal(dns_query_parse(m.data, m.len, &q), 0);
    size_t n = dns_query_write(&q, 0x2222, out);
    assert_int_equal(n, 12 + 17 + 4 + 11);
    assert_memory_equal(out, "\x22\x22\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01", 12);
    assert_int_equal(dns_query_parse(out, n, &again), 0);
    assert_memory_equal(again.name, q.name, q.name_len);
    assert_int_equal(again.type, 16);
}

static void inside_names_are_not_asked_outside(void **state)
{
    static const char *const refused[] = {
        "localhost",
        "db",
        "",
        "printer.local",
        "METADATA.google.INTERNAL",
        "a.b.localhost",
        "router.lan",
        "nas.home.arpa",
        "x.onion",
        "1.0.0.10.in-addr.arpa",
        "254.169.254.169.in-addr.arpa",
        "10.in-addr.arpa",
        "16.172.in-addr.arpa",
        "1.1.168.192.IN-ADDR.ARPA",
        "in-addr.arpa",
        "x.8.8.8.in-addr.arpa",
        "999.8.8.8.in-addr.arpa",
        "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa",
        "d.f.ip6.arpa",
    };
    static const char *const fine[] = {
        "example.com", "local.example.com", "internal.example", "8.8.8.8.in-addr.arpa",
        "mylocal.com", "x.localx",          "a.arpa",           "1.1.1.1.7.4.6.0.6.2.ip6.arpa",
    };

    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        struct dns_query q = parsed(refused[i], 1);
        if (dns_query_judge(&q) != DNS_NXDOMAIN)
            fail_msg("%s passes", refused[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(fine); i++) {
        struct dns_query q = parsed(fine[i], 1);
        if (dns_query_judge(&q) != 0)
            fail_msg("%s is refused", fine[i]);
    }
}

static struct msg answer_to(const struct dns_query *q, unsigned id, unsigned flags, unsigned an,
                            unsigned ns, unsigned ar)
{
    struct msg m = {.len = 0};

    put_header(&m, (unsigned[6]){id, flags, 1, an, ns, ar});
    put(&m, q->name, q->name_len);
    put16(&m, q->type);
    put16(&m, 1);
    return m;
}

static void good_answer_passes_without_additional_records(void **state)
{
    struct dns_query q = parsed("www.example.com", 1);
    struct msg m = answer_to(&q, 7, 0x8180, 2, 1, 2);
    struct dns_answer a;
    uint8_t out[DNS_TCP_MAX];

    put_record(&m, 5, "\1x\xc0\x10", 4);
    put_record(&m, 1, "\x08\x08\x08\x08", 4);
    put_record(&m, 6, "soa", 3);
    size_t end = m.len;
    put_record(&m, 1, "\x0a\x00\x00\x01", 4); /* glue: dropped, whatever it says */
    put_opt(&m, 1232, 0);
    assert_int_equal(dns_answer_parse(m.data, m.len, &q, 7, &a), 0);
    assert_false(a.internal);
    assert_int_equal(a.end, end);
    size_t n = dns_answer_write(&a, m.data, &q, 512, out);
    assert_int_equal(n, end);
    assert_memory_equal(out, "\x12\x34\x81\x80\x00\x01\x00\x02\x00\x01\x00\x00", 12);
    assert_memory_equal(out + 12, m.data + 12, end - 12);
    q.edns = true;
    n = dns_answer_write(&a, m.data, &q, 512, out);
    assert_int_equal(n, end + 11);
    assert_int_equal(out[11], 1);
}

static void internal_addresses_turn_the_answer_into_nxdomain(void **state)
{
    static const struct {
        unsigned type;
        const char *rdata;
        size_t len;
    } cases[] = {
        {1, "\x0a\x00\x00\x01", 4},
        {1, "\xa9\xfe\xa9\xfe", 4},
        {1, "\x7f\x00\x00\x01", 4},
        {28, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1", 16},
        {28, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\1", 16},
        {28, "\xfd\0\x0e\xc2\0\0\0\0\0\0\0\0\0\0\2\x54", 16},
        /* HTTPS and SVCB: priority, target, parameters; alpn, then hints. */
        {65, "\0\1\0\0\1\0\3\2h2\0\4\0\x8\x08\x08\x08\x08\x0a\0\0\1", 22},
        {64, "\0\1\1x\0\0\4\0\4\xa9\xfe\xa9\xfe", 13},
        {65, "\0\1\0\0\6\0\x10\xfd\0\x0e\xc2\0\0\0\0\0\0\0\0\0\0\2\x54", 23},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct dns_query q = parsed("rebind.example.com", cases[i].type);
        struct msg m = answer_to(&q, 7, 0x8180, 2, 0, 0);
        struct dns_answer a;
        uint8_t out[DNS_FORWARD_MAX];

        put_record(&m, 1, "\x08\x08\x08\x08", 4);
        put_record(&m, cases[i].type, cases[i].rdata, cases[i].len);
        assert_int_equal(dns_answer_parse(m.data, m.len, &q, 7, &a), 0);
        assert_true(a.internal);
        size_t n = dns_answer_write(&a, m.data, &q, 512, out);
        assert_int_equal(out[3] & 15, DNS_NXDOMAIN);
        assert_memory_equal(out + 4, "\x00\x01\x00\x00\x00\x00\x00\x00", 8);
        assert_int_equal(n, 12 + q.name_len + 4);
    }
}

static void services_with_public_hints_pass(void **state)
{
    static const char good[] = "\0\1\0\0\1\0\3\2h2\0\4\0\4\x08\x08\x08\x08";
    static const struct {
        const char *rdata;
        size_t len;
    } bad[] = {
        {"\0", 1},                                  /* no priority */
        {"\0\1", 2},                                /* no target */
        {"\0\1\xc0\x0c", 4},                        /* a pointer for a target */
        {"\0\1\0\0\4", 5},                          /* half a parameter */
        {"\0\1\0\0\4\0\5\x0a\0\0\1", 11},           /* longer than the record */
        {"\0\1\0\0\4\0\5\x08\x08\x08\x08\x08", 12}, /* no list of addresses */
    };
    struct dns_query q = parsed("www.example.com", 65);
    struct msg m = answer_to(&q, 7, 0x8180, 1, 0, 0);
    struct dns_answer a;

    put_record(&m, 65, good, sizeof(good) - 1);
    assert_int_equal(dns_answer_parse(m.data, m.len, &q, 7, &a), 0);
    assert_false(a.internal);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        m = answer_to(&q, 7, 0x8180, 1, 0, 0);
        put_record(&m, 65, bad[i].rdata, bad[i].len);
        assert_int_equal(dns_answer_parse(m.data, m.len, &q, 7, &a), -EBADMSG);
    }
}

static void answers_to_something_else_are_ignored(void **state)
{
    struct dns_query q = parsed("www.example.com", 1), other = parsed("www.example.org", 1);
    struct msg good = answer_to(&q, 7, 0x8180, 0, 0, 0);
    struct msg name = answer_to(&other, 7, 0x8180, 0, 0, 0);
    struct msg query = answer_to(&q, 7, 0x0100, 0, 0, 0);
    struct msg upper = good;
    struct dns_answer a;

    assert_int_equal(dns_answer_parse(good.data, good.len, &q, 7, &a), 0);
    assert_int_equal(dns_answer_parse(good.data, good.len, &q, 8, &a), -EBADMSG);
    assert_int_equal(dns_answer_parse(name.data, name.len, &q, 7, &a), -EBADMSG);
    assert_int_equal(dns_answer_parse(query.data, query.len, &q, 7, &a), -EBADMSG);
    other = q;
    other.type = 28;
    assert_int_equal(dns_answer_parse(good.data, good.len, &other, 7, &a), -EBADMSG);
    upper.data[13] = 'W';
    assert_int_equal(dns_answer_parse(upper.data, upper.len, &q, 7, &a), 0);
}

static void every_prefix_of_an_answer_is_refused(void **state)
{
    struct dns_query q = parsed("www.example.com", 1);
    struct msg m = answer_to(&q, 7, 0x8180, 2, 0, 0);
    struct dns_answer a;

    put_record(&m, 5, "\1x\xc0\x10", 4);
    put_record(&m, 1, "\x08\x08\x08\x08", 4);
    for (size_t i = 0; i < m.len; i++)
        assert_int_equal(dns_answer_parse(m.data, i, &q, 7, &a), -EBADMSG);
    assert_int_equal(dns_answer_parse(m.data, m.len, &q, 7, &a), 0);
}

static void lying_records_are_refused(void **state)
{
    struct dns_query q = parsed("www.example.com", 1);
    struct msg length = answer_to(&q, 7, 0x8180, 1, 0, 0);
    struct msg forward = answer_to(&q, 7, 0x8180, 1, 0, 0);
    struct msg many = answer_to(&q, 7, 0x8180, 0xffff, 0xffff, 0);
    struct dns_answer a;

    put_record(&length, 1, "\x08\x08\x08\x08\x08", 5);
    assert_int_equal(dns_answer_parse(length.data, length.len, &q, 7, &a), -EBADMSG);
    size_t at = forward.len;
    put_record(&forward, 1, "\x08\x08\x08\x08", 4);
    assert_int_equal(dns_answer_parse(forward.data, forward.len, &q, 7, &a), 0);
    forward.data[at + 1] = (uint8_t)at; /* the owner points to itself */
    assert_int_equal(dns_answer_parse(forward.data, forward.len, &q, 7, &a), -EBADMSG);
    forward.data[at + 1] = 0; /* into the header */
    assert_int_equal(dns_answer_parse(forward.data, forward.len, &q, 7, &a), -EBADMSG);
    assert_int_equal(dns_answer_parse(many.data, many.len, &q, 7, &a), -EBADMSG);
}

static void answers_that_do_not_fit_are_marked_truncated(void **state)
{
    static const uint8_t text[400];
    struct dns_query q = parsed("www.example.com", 16);
    struct msg m = answer_to(&q, 7, 0x8180, 2, 0, 0);
    struct dns_answer a;
    uint8_t out[DNS_TCP_MAX];

    put_record(&m, 16, text, sizeof(text));
    put_record(&m, 16, text, sizeof(text));
    assert_int_equal(dns_answer_parse(m.data, m.len, &q, 7, &a), 0);
    size_t n = dns_answer_write(&a, m.data, &q, 512, out);
    assert_int_equal(n, 12 + q.name_len + 4);
    assert_int_equal(out[2] & 2, 2);
    n = dns_answer_write(&a, m.data, &q, DNS_TCP_MAX, out);
    assert_int_equal(n, m.len);
    assert_int_equal(out[2] & 2, 0);
}

static void truncated_answer_may_be_cut_anywhere(void **state)
{
    struct dns_query q = parsed("www.example.com", 1);
    struct msg m = answer_to(&q, 7, 0x8380, 9, 0, 0);
    struct dns_answer a;
    uint8_t out[DNS_FORWARD_MAX];

    put8(&m, 0xc0);
    assert_int_equal(dns_answer_parse(m.data, m.len, &q, 7, &a), 0);
    assert_true(a.truncated);
    assert_int_equal(dns_answer_write(&a, m.data, &q, 512, out), 12 + q.name_len + 4);
    assert_int_equal(out[2] & 2, 2);
}

static void errors_echo_what_was_understood(void **state)
{
    struct dns_query q = parsed("www.example.com", 1), none = {.id = 0x4321};
    uint8_t out[DNS_FORWARD_MAX];

    assert_int_equal(dns_error_write(&q, DNS_REFUSED, false, out), 12 + q.name_len + 4);
    assert_memory_equal(out, "\x12\x34\x81\x85\x00\x01\x00\x00\x00\x00\x00\x00", 12);
    assert_int_equal(dns_error_write(&none, DNS_FORMERR, false, out), 12);
    assert_memory_equal(out, "\x43\x21\x80\x81\x00\x00\x00\x00\x00\x00\x00\x00", 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_question_is_understood),
        cmocka_unit_test(edns_raises_the_size_within_bounds),
        cmocka_unit_test(every_prefix_of_a_question_is_refused),
        cmocka_unit_test(strange_headers_are_refused),
        cmocka_unit_test(strange_types_and_classes_are_refused),
        cmocka_unit_test(broken_names_are_refused),
        cmocka_unit_test(oversized_question_is_dropped),
        cmocka_unit_test(forwarded_question_carries_name_and_type_only),
        cmocka_unit_test(inside_names_are_not_asked_outside),
        cmocka_unit_test(good_answer_passes_without_additional_records),
        cmocka_unit_test(internal_addresses_turn_the_answer_into_nxdomain),
        cmocka_unit_test(services_with_public_hints_pass),
        cmocka_unit_test(answers_to_something_else_are_ignored),
        cmocka_unit_test(every_prefix_of_an_answer_is_refused),
        cmocka_unit_test(lying_records_are_refused),
        cmocka_unit_test(answers_that_do_not_fit_are_marked_truncated),
        cmocka_unit_test(truncated_answer_may_be_cut_anywhere),
        cmocka_unit_test(errors_echo_what_was_understood),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
