/* SPDX-License-Identifier: Apache-2.0 */

/* The forwarder between a client and two servers that this process plays, on loopback, with a clock
 * that stands still until it is told. */

#include "lib/unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "lib/fake_clock.h"
#include "loop/loop.h"
/* For what is private to it. */
#include "sandbox/dns/dns.c"

#define NAME "\3www\7example\3com"
#define NAME_LEN 17

struct fixture {
    struct fake_clock clock;
    struct loop *loop;
    struct dns *dns;
    struct dns_listener *listener;
    int server[2], server_tcp; /* 127.0.0.1 and 127.0.0.2 */
    uint16_t port;             /* of the servers */
    struct sockaddr_in resolver;
    char conf[64];
};

static struct sockaddr_in address(const char *ip, uint16_t port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};

    assert_int_equal(inet_pton(AF_INET, ip, &sa.sin_addr), 1);
    return sa;
}

static int bound(const char *ip, uint16_t port, int type)
{
    struct sockaddr_in sa = address(ip, port);
    int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_true(fd >= 0);
    if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
        close(fd);
        return -1;
    }
    if (type == SOCK_STREAM)
        assert_int_equal(listen(fd, 16), 0);
    return fd;
}

static struct sockaddr_in name_of(int fd)
{
    struct sockaddr_in sa;
    socklen_t len = sizeof(sa);

    assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    return sa;
}

static void write_conf(const struct fixture *f, const char *text)
{
    AUTO_CLOSE int fd = open(f->conf, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
}

/* A port that is free for UDP and TCP on one address and for UDP on the other. */
static void open_servers(struct fixture *f)
{
    for (int i = 0; i < 100; i++) {
        f->server[0] = bound("127.0.0.1", 0, SOCK_DGRAM);
        f->port = ntohs(name_of(f->server[0]).sin_port);
        f->server[1] = bound("127.0.0.2", f->port, SOCK_DGRAM);
        f->server_tcp = bound("127.0.0.1", f->port, SOCK_STREAM);
        if (f->server[1] >= 0 && f->server_tcp >= 0)
            return;
        fd_close_many(f->server, 2);
        if (f->server_tcp >= 0)
            close(f->server_tcp);
    }
    fail_msg("no free port");
}

static struct fixture *start(struct dns_options options)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct err err = {0};

    fake_clock_init(&f->clock);
    open_servers(f);
    assert_true(str_fmt(f->conf, sizeof(f->conf), "/tmp/test_dns_%d.conf", getpid()) >= 0);
    write_conf(f, "search corp.example\nnameserver 127.0.0.1\nnameserver 127.0.0.2\n");
    options.resolv_conf = f->conf;
    options.upstream_port = f->port;
    assert_int_equal(loop_new(&f->clock.clock, &f->loop, &err), 0);
    f->dns = dns_new(f->loop, &options);
    int udp = -1, tcp = -1;
    for (int i = 0; i < 1000 && tcp < 0; i++) { /* the one that is free here may be taken there */
        fd_close_many(&udp, 1);
        udp = bound("127.0.0.1", 0, SOCK_DGRAM);
        f->resolver = name_of(udp);
        tcp = bound("127.0.0.1", ntohs(f->resolver.sin_port), SOCK_STREAM);
    }
    assert_true(tcp >= 0);
    assert_int_equal(dns_listen(f->dns, udp, tcp, &f->listener, &err), 0);
    return f;
}

static void finish(struct fixture *f)
{
    dns_free(f->dns);
    loop_free(f->loop);
    fd_close_many(f->server, 2);
    close(f->server_tcp);
    (void)unlink(f->conf);
    free(f);
}

static size_t query(uint8_t *out, uint16_t id, uint16_t type)
{
    const uint8_t head[] = {(uint8_t)(id >> 8), (uint8_t)id, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0};
    const uint8_t tail[] = {(uint8_t)(type >> 8), (uint8_t)type, 0, 1};

    memcpy(out, head, 12);
    memcpy(out + 12, NAME, NAME_LEN);
    memcpy(out + 12 + NAME_LEN, tail, 4);
    return 12 + NAME_LEN + 4;
}

static int client(const struct fixture *f, int type)
{
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);

    assert_int_equal(connect(fd, (const struct sockaddr *)&f->resolver, sizeof(f->resolver)), 0);
    assert_int_equal(fd_set_nonblock(fd, true), 0);
    return fd;
}

static void ask(int fd, uint16_t id, uint16_t type)
{
    uint8_t out[512];
    size_t n = query(out, id, type);

    assert_int_equal(send(fd, out, n, 0), n);
}

/* Turns the loop until the descriptor is readable. */
static void until_readable(struct fixture *f, int fd)
{
    struct pollfd pfd = {.fd = fd, .events = POLLIN};

    for (int i = 0; i < 1000; i++) {
        if (poll(&pfd, 1, 0) == 1)
            return;
        assert_true(loop_turn(f->loop, 20) >= 0);
    }
    fail_msg("nothing came");
}

static void settle(struct fixture *f)
{
    for (int i = 0; i < 20; i++)
        assert_true(loop_turn(f->loop, 0) >= 0);
}

static void assert_quiet(struct fixture *f, int fd)
{
    struct pollfd pfd = {.fd = fd, .events = POLLIN};

    settle(f);
    assert_int_equal(poll(&pfd, 1, 0), 0);
}

static size_t receive(struct fixture *f, int fd, uint8_t *ret, size_t size)
{
    until_readable(f, fd);
    ssize_t n = recv(fd, ret, size, 0);
    assert_true(n > 0);
    return (size_t)n;
}

struct asked {
    uint8_t data[512];
    size_t len;
    struct sockaddr_in from;
};

static struct asked at_server(struct fixture *f, int fd)
{
    struct asked a;
    socklen_t len = sizeof(a.from);

    until_readable(f, fd);
    ssize_t n = recvfrom(fd, a.data, sizeof(a.data), 0, (struct sockaddr *)&a.from, &len);
    assert_true(n > 12);
    a.len = (size_t)n;
    return a;
}

/* What a server says: the question without its OPT record, and one address. */
static size_t answer_bytes(const struct asked *a, unsigned rcode, const char *ip, uint8_t *out)
{
    static const uint8_t record[] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4};
    size_t n = a->len - 11;

    memcpy(out, a->data, n);
    out[2] = 0x81;
    out[3] = (uint8_t)(0x80 | rcode);
    out[7] = ip != NULL;
    out[11] = 0;
    if (ip != NULL) {
        memcpy(out + n, record, sizeof(record));
        assert_int_equal(inet_pton(AF_INET, ip, out + n + sizeof(record)), 1);
        n += sizeof(record) + 4;
    }
    return n;
}

static void say(int fd, const struct asked *a, unsigned rcode, const char *ip)
{
    uint8_t out[600];
    size_t n = answer_bytes(a, rcode, ip, out);

    assert_int_equal(sendto(fd, out, n, 0, (const struct sockaddr *)&a->from, sizeof(a->from)), n);
}

static void question_goes_out_anew_and_the_answer_comes_back(void **state)
{
    struct fixture *f = start((struct dns_options){0});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    uint8_t in[512];

    ask(fd, 0x1234, 1);
    struct asked a = at_server(f, f->server[0]);
    assert_memory_equal(a.data + 12, NAME, NAME_LEN);
    say(f->server[0], &a, 0, "8.8.8.8");
    size_t n = receive(f, fd, in, sizeof(in));
    assert_int_equal(n, 12 + NAME_LEN + 4 + 16);
    assert_memory_equal(in, "\x12\x34\x81\x80\0\1\0\1", 8);
    assert_memory_equal(in + n - 4, "\x08\x08\x08\x08", 4);
    assert_int_equal(f->dns->stats.answered, 1);
    finish(f);
}

static void ids_and_ports_change_with_every_question(void **state)
{
    struct fixture *f = start((struct dns_options){0});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    unsigned same_port = 0, same_id = 0;
    struct asked last = {0};

    for (int i = 0; i < 16; i++) {
        uint8_t in[512];

        ask(fd, 0x1234, 1);
        struct asked a = at_server(f, f->server[0]);
        same_port += a.from.sin_port == last.from.sin_port;
        same_id += memcmp(a.data, last.data, 2) == 0;
        last = a;
        say(f->server[0], &a, 0, "8.8.8.8");
        (void)receive(f, fd, in, sizeof(in));
    }
    assert_in_range(same_port, 0, 2);
    assert_in_range(same_id, 0, 2);
    finish(f);
}

static void name_that_leads_inside_does_not_exist(void **state)
{
    struct fixture *f = start((struct dns_options){0});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    uint8_t in[512];

    ask(fd, 1, 1);
    struct asked a = at_server(f, f->server[0]);
    say(f->server[0], &a, 0, "169.254.169.254");
    size_t n = receive(f, fd, in, sizeof(in));
    assert_int_equal(in[3] & 15, DNS_NXDOMAIN);
    assert_int_equal(n, 12 + NAME_LEN + 4);
    assert_int_equal(f->dns->stats.refused_answer, 1);
    finish(f);
}

static void guessed_answers_are_ignored(void **state)
{
    struct fixture *f = start((struct dns_options){0});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    uint8_t in[512];

    ask(fd, 1, 1);
    struct asked a = at_server(f, f->server[0]), bad = a;
    bad.data[0] ^= 1;
    say(f->server[0], &bad, 0, "6.6.6.6");
    say(f->server[1], &a, 0, "6.6.6.6"); /* from an address that was not asked */
    assert_quiet(f, fd);
    say(f->server[0], &a, 0, "8.8.8.8");
    size_t n = receive(f, fd, in, sizeof(in));
    assert_memory_equal(in + n - 4, "\x08\x08\x08\x08", 4);
    finish(f);
}

static void silent_server_gives_way_to_the_next(void **state)
{
    struct fixture *f = start((struct dns_options){.attempt_ms = 1000});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    uint8_t in[512];

    ask(fd, 1, 1);
    (void)at_server(f, f->server[0]);
    fake_clock_advance(&f->clock, 1001 * NSEC_PER_MSEC);
    struct asked a = at_server(f, f->server[1]);
    say(f->server[1], &a, 0, "8.8.8.8");
    (void)receive(f, fd, in, sizeof(in));
    assert_int_equal(in[3] & 15, DNS_NOERROR);
    finish(f);
}

static void failing_server_gives_way_to_the_next(void **state)
{
    struct fixture *f = start((struct dns_options){0});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    uint8_t in[512];

    ask(fd, 1, 1);
    struct asked a = at_server(f, f->server[0]);
    say(f->server[0], &a, DNS_SERVFAIL, NULL);
    a = at_server(f, f->server[1]);
    say(f->server[1], &a, DNS_REFUSED, NULL);
    (void)receive(f, fd, in, sizeof(in));
    assert_int_equal(in[3] & 15, DNS_REFUSED);
    finish(f);
}

static void no_server_at_all_is_a_failure_in_bounded_time(void **state)
{
    struct fixture *f = start((struct dns_options){.attempt_ms = 1000});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    uint8_t in[512];

    ask(fd, 1, 1);
    for (int i = 0; i < 3; i++) {
        (void)at_server(f, f->server[i % 2]);
        fake_clock_advance(&f->clock, 1001 * NSEC_PER_MSEC);
    }
    (void)receive(f, fd, in, sizeof(in));
    assert_int_equal(in[3] & 15, DNS_SERVFAIL);
    assert_int_equal(f->dns->n_flights, 0);
    finish(f);
}

static void refused_servers_fail_at_once(void **state)
{
    struct fixture *f = start((struct dns_options){0});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    uint8_t in[512];

    fd_close_many(f->server, 2);
    ask(fd, 1, 1);
    (void)receive(f, fd, in, sizeof(in));
    assert_int_equal(in[3] & 15, DNS_SERVFAIL);
    finish(f);
}

static void rate_is_limited_and_recovers(void **state)
{
    struct fixture *f = start((struct dns_options){.rate = 10, .burst = 3});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    uint8_t in[512];

    for (int i = 0; i < 3; i++) {
        ask(fd, 1, 1);
        (void)at_server(f, f->server[0]);
    }
    ask(fd, 2, 1);
    (void)receive(f, fd, in, sizeof(in));
    assert_int_equal(in[3] & 15, DNS_REFUSED);
    assert_quiet(f, f->server[0]);
    fake_clock_advance(&f->clock, 101 * NSEC_PER_MSEC);
    ask(fd, 3, 1);
    (void)at_server(f, f->server[0]);
    assert_int_equal(f->dns->stats.refused_rate, 1);
    finish(f);
}

/* A session has all of 127.0.0.0/8 to ask from. */
static void another_source_address_is_no_way_round_the_limits(void **state)
{
    struct fixture *f = start((struct dns_options){.rate = 10, .burst = 3, .listener_flights = 2});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    AUTO_CLOSE int other = bound("127.0.0.9", 0, SOCK_DGRAM);
    uint8_t in[512];

    assert_int_equal(connect(other, (struct sockaddr *)&f->resolver, sizeof(f->resolver)), 0);
    for (int i = 0; i < 2; i++) {
        ask(fd, 1, 1);
        (void)at_server(f, f->server[0]);
    }
    for (int i = 0; i < 2; i++) { /* the first for those under way, the second for the pace */
        ask(other, 2, 1);
        (void)receive(f, other, in, sizeof(in));
        assert_int_equal(in[3] & 15, DNS_REFUSED);
    }
    assert_quiet(f, f->server[0]);
    finish(f);
}

static void questions_under_way_are_capped(void **state)
{
    struct fixture *f = start((struct dns_options){.listener_flights = 2});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    uint8_t in[512];

    for (int i = 0; i < 2; i++) {
        ask(fd, 1, 1);
        (void)at_server(f, f->server[0]);
    }
    ask(fd, 2, 1);
    (void)receive(f, fd, in, sizeof(in));
    assert_int_equal(in[3] & 15, DNS_REFUSED);
    finish(f);
}

static void malformed_questions_reach_nobody(void **state)
{
    struct fixture *f = start((struct dns_options){0});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    uint8_t in[512], out[600] = {0};

    assert_int_equal(send(fd, out, 5, 0), 5);
    assert_int_equal(send(fd, out, sizeof(out), 0), sizeof(out));
    assert_int_equal(send(fd, out, 0, 0), 0);
    assert_quiet(f, fd);
    size_t n = query(out, 9, 252);
    assert_int_equal(send(fd, out, n, 0), n);
    (void)receive(f, fd, in, sizeof(in));
    assert_int_equal(in[3] & 15, DNS_REFUSED);
    assert_quiet(f, f->server[0]);
    assert_int_equal(f->dns->stats.malformed, 4);
    finish(f);
}

static void configuration_is_read_again_when_it_changes(void **state)
{
    struct fixture *f = start((struct dns_options){0});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);

    ask(fd, 1, 1);
    (void)at_server(f, f->server[0]);
    write_conf(f, "# changed\nnameserver 127.0.0.2 # the other\n");
    fake_clock_advance(&f->clock, 1001 * NSEC_PER_MSEC);
    ask(fd, 2, 1);
    (void)at_server(f, f->server[1]);
    assert_int_equal(unlink(f->conf), 0);
    fake_clock_advance(&f->clock, 1001 * NSEC_PER_MSEC);
    ask(fd, 3, 1);
    (void)at_server(f, f->server[1]);
    finish(f);
}

static int accept_at_server(struct fixture *f)
{
    until_readable(f, f->server_tcp);
    int fd = accept4(f->server_tcp, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(fd >= 0);
    return fd;
}

static void receive_all(struct fixture *f, int fd, uint8_t *ret, size_t len)
{
    for (size_t at = 0; at < len;)
        at += receive(f, fd, ret + at, len - at);
}

static void tcp_clients_are_served_by_tcp(void **state)
{
    struct fixture *f = start((struct dns_options){0});
    AUTO_CLOSE int fd = client(f, SOCK_STREAM);
    uint8_t out[700], in[700];
    size_t n = query(out + 2, 0x77, 1);

    out[0] = 0;
    out[1] = (uint8_t)n;
    for (int round = 0; round < 2; round++) {
        /* In pieces, to see that nothing depends on how it arrives. */
        for (size_t i = 0; i < n + 2; i += 7) {
            size_t piece = n + 2 - i < 7 ? n + 2 - i : 7;
            assert_int_equal(send(fd, out + i, piece, 0), piece);
            settle(f);
        }
        AUTO_CLOSE int server = accept_at_server(f);
        struct asked a;
        receive_all(f, server, in, 2);
        a.len = in[1];
        receive_all(f, server, a.data, a.len);
        uint8_t reply[600];
        size_t len = answer_bytes(&a, 0, "8.8.8.8", reply + 2);
        reply[0] = (uint8_t)(len >> 8);
        reply[1] = (uint8_t)len;
        assert_int_equal(send(server, reply, 3, 0), 3);
        settle(f);
        assert_int_equal(send(server, reply + 3, len - 1, 0), len - 1);
        receive_all(f, fd, in, 2);
        assert_int_equal(in[1], len);
        receive_all(f, fd, in, len);
        assert_memory_equal(in, "\0\x77\x81\x80", 4);
        assert_memory_equal(in + len - 4, "\x08\x08\x08\x08", 4);
    }
    finish(f);
}

static void hung_up(struct fixture *f, int fd)
{
    uint8_t byte;

    until_readable(f, fd);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
}

static void silent_and_rude_tcp_clients_are_dropped(void **state)
{
    struct fixture *f = start((struct dns_options){.idle_ms = 1000, .listener_conns = 2});
    AUTO_CLOSE int silent = client(f, SOCK_STREAM);
    AUTO_CLOSE int rude = client(f, SOCK_STREAM);
    settle(f);
    AUTO_CLOSE int third = client(f, SOCK_STREAM);

    hung_up(f, third);
    assert_int_equal(send(rude, "\xff\xff", 2, 0), 2);
    hung_up(f, rude);
    fake_clock_advance(&f->clock, 1001 * NSEC_PER_MSEC);
    hung_up(f, silent);
    assert_int_equal(f->dns->n_conns, 0);
    finish(f);
}

static void client_that_hangs_up_leaves_nothing_behind(void **state)
{
    struct fixture *f = start((struct dns_options){0});
    uint8_t out[600];
    int fd = client(f, SOCK_STREAM);
    size_t n = query(out + 2, 1, 1);
    struct linger hard = {.l_onoff = 1};

    out[0] = 0;
    out[1] = (uint8_t)n;
    assert_int_equal(send(fd, out, n + 2, 0), n + 2);
    AUTO_CLOSE int server = accept_at_server(f);
    assert_true(server >= 0);
    assert_int_equal(f->dns->n_flights, 1);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)), 0);
    close(fd); /* by reset */
    for (int i = 0; i < 100 && f->dns->n_conns > 0; i++)
        assert_true(loop_turn(f->loop, 20) >= 0);
    assert_int_equal(f->dns->n_conns, 0);
    assert_int_equal(f->dns->n_flights, 0);
    finish(f);
}

static void unlisten_drops_what_is_under_way(void **state)
{
    struct fixture *f = start((struct dns_options){0});
    AUTO_CLOSE int fd = client(f, SOCK_DGRAM);
    AUTO_CLOSE int stream = client(f, SOCK_STREAM);

    assert_true(stream >= 0);
    ask(fd, 1, 1);
    struct asked a = at_server(f, f->server[0]);
    settle(f);
    dns_unlisten(f->listener);
    assert_int_equal(f->dns->n_flights, 0);
    assert_int_equal(f->dns->n_conns, 0);
    say(f->server[0], &a, 0, "8.8.8.8");
    settle(f);
    finish(f);
}

static void only_nameserver_lines_count(void **state)
{
    struct dns_servers s;

    dns_servers_parse("nameserver 1.1.1.1\nnameserver\t::1 \n", 53, &s);
    assert_int_equal(s.n, 2);
    assert_int_equal(s.list[0].addr.ss_family, AF_INET);
    assert_int_equal(s.list[1].addr.ss_family, AF_INET6);
    dns_servers_parse("nameserver bad\n#nameserver 1.1.1.1\nnameservers 1.1.1.1\nsearch a\n"
                      "nameserver 1.1.1.1.1\nnameserver\n nameserver 2.2.2.2",
                      53, &s);
    assert_int_equal(s.n, 1); /* the C library's default */
    struct sockaddr_in in;
    memcpy(&in, &s.list[0].addr, sizeof(in));
    assert_int_equal(in.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    dns_servers_parse("nameserver 1.1.1.1\nnameserver 2.2.2.2\nnameserver 3.3.3.3\n"
                      "nameserver 4.4.4.4",
                      53, &s);
    assert_int_equal(s.n, DNS_SERVERS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(question_goes_out_anew_and_the_answer_comes_back),
        cmocka_unit_test(ids_and_ports_change_with_every_question),
        cmocka_unit_test(name_that_leads_inside_does_not_exist),
        cmocka_unit_test(guessed_answers_are_ignored),
        cmocka_unit_test(silent_server_gives_way_to_the_next),
        cmocka_unit_test(failing_server_gives_way_to_the_next),
        cmocka_unit_test(no_server_at_all_is_a_failure_in_bounded_time),
        cmocka_unit_test(refused_servers_fail_at_once),
        cmocka_unit_test(rate_is_limited_and_recovers),
        cmocka_unit_test(another_source_address_is_no_way_round_the_limits),
        cmocka_unit_test(questions_under_way_are_capped),
        cmocka_unit_test(malformed_questions_reach_nobody),
        cmocka_unit_test(configuration_is_read_again_when_it_changes),
        cmocka_unit_test(tcp_clients_are_served_by_tcp),
        cmocka_unit_test(silent_and_rude_tcp_clients_are_dropped),
        cmocka_unit_test(client_that_hangs_up_leaves_nothing_behind),
        cmocka_unit_test(unlisten_drops_what_is_under_way),
        cmocka_unit_test(only_nameserver_lines_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
