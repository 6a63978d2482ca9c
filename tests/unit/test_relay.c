/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "lib/fake_clock.h"
#include "loop/loop.h"
#include "loop/relay.h"

static struct fake_clock fake;
static struct loop *loop;
static struct relay *relay;
static int left, right; /* our ends */
static unsigned ended;

static void on_ended(void *arg)
{
    ended++;
}

static int set_up(void **state)
{
    struct err err = {0};
    int a[2], b[2];

    fake_clock_init(&fake);
    ended = 0;
    if (loop_new(&fake.clock, &loop, &err) < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, a) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, b) < 0 ||
        relay_new(loop, a[1], b[1], on_ended, NULL, &relay) < 0)
        return -1;
    left = a[0];
    right = b[0];
    return 0;
}

static int tear_down(void **state)
{
    relay_free(relay);
    fd_close_many(&left, 1);
    fd_close_many(&right, 1);
    loop_free(loop);
    return 0;
}

static void turn(void)
{
    while (loop_turn(loop, 0) > 0)
        ;
}

static void bytes_go_both_ways(void **state)
{
    char got[8] = "";

    assert_int_equal(write(left, "ping", 4), 4);
    turn();
    assert_int_equal(read(right, got, sizeof(got)), 4);
    assert_memory_equal(got, "ping", 4);
    assert_int_equal(write(right, "pong", 4), 4);
    turn();
    assert_int_equal(read(left, got, sizeof(got)), 4);
    assert_memory_equal(got, "pong", 4);
    assert_int_equal(ended, 0);
}

/* Sends from the left until nothing is taken; the number of bytes. */
static size_t fill(void)
{
    static const char block[4096];
    size_t total = 0;

    for (int idle = 0; idle < 3; idle++)
        for (ssize_t n; (n = send(left, block, sizeof(block), MSG_DONTWAIT)) > 0; idle = 0) {
            total += (size_t)n;
            turn();
        }
    return total;
}

static void a_side_that_does_not_read_holds_the_other_back(void **state)
{
    int size = 16384;
    char got[65536];
    size_t total = 0;

    (void)setsockopt(left, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    (void)setsockopt(right, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    size_t sent = fill();
    assert_in_range(sent, 1, 4U << 20); /* what the kernel holds, and one chunk */
    assert_int_equal(shutdown(left, SHUT_WR), 0);
    for (ssize_t n = 1; n != 0;) {
        turn();
        n = recv(right, got, sizeof(got), MSG_DONTWAIT);
        assert_true(n >= 0 || errno == EAGAIN);
        total += n > 0 ? (size_t)n : 0;
    }
    assert_int_equal(total, sent);
}

static void the_end_of_one_side_leaves_the_other_open(void **state)
{
    char got[8];

    assert_int_equal(write(left, "last", 4), 4);
    assert_int_equal(shutdown(left, SHUT_WR), 0);
    turn();
    assert_int_equal(read(right, got, sizeof(got)), 4);
    assert_int_equal(read(right, got, sizeof(got)), 0);
    assert_int_equal(ended, 0);
    assert_int_equal(write(right, "answer", 6), 6);
    turn();
    assert_int_equal(read(left, got, sizeof(got)), 6);
    assert_int_equal(shutdown(right, SHUT_WR), 0);
    turn();
    assert_int_equal(read(left, got, sizeof(got)), 0);
    assert_int_equal(ended, 1);
}

static void a_side_that_goes_away_ends_it(void **state)
{
    char got;

    fd_close_many(&right, 1);
    turn();
    assert_int_equal(write(left, "x", 1), 1);
    turn();
    assert_int_equal(ended, 1);
    assert_int_equal(recv(left, &got, 1, MSG_DONTWAIT), 0);
}

static void half_closed_and_silent_it_ends_in_time(void **state)
{
    assert_int_equal(shutdown(left, SHUT_WR), 0);
    turn();
    fake_clock_advance(&fake, RELAY_STALL_NS - 1);
    turn();
    assert_int_equal(ended, 0);
    fake_clock_advance(&fake, 2);
    turn();
    assert_int_equal(ended, 1);
}

static void open_and_silent_it_stays(void **state)
{
    char got[4];

    fake_clock_advance(&fake, 10 * RELAY_STALL_NS);
    turn();
    assert_int_equal(ended, 0);
    assert_int_equal(write(left, "x", 1), 1);
    turn();
    assert_int_equal(read(right, got, sizeof(got)), 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bytes_go_both_ways),
        TEST(a_side_that_does_not_read_holds_the_other_back),
        TEST(the_end_of_one_side_leaves_the_other_open),
        TEST(a_side_that_goes_away_ends_it),
        TEST(half_closed_and_silent_it_ends_in_time),
        TEST(open_and_silent_it_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
