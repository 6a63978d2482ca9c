/* SPDX-License-Identifier: Apache-2.0 */

/* Both sides of the memory between PID 1 and boxd, and heads that no honest writer makes. */

#include "lib/unit.h"

#include "inside/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/compat.h"
#include "base/fd.h"
#include "base/str.h"
#include "inside/wire.h"

static struct ring_writer w;
static struct ring_reader r;
static int ring_fd, pipe_in, pipe_out;

static int setup(void **state)
{
    int ends[2];
    ring_fd = ring_writer_init(&w);
    assert_true(ring_fd >= 0);
    assert_int_equal(ring_reader_init(&r, ring_fd, 0, false), 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    pipe_out = ends[0];
    pipe_in = ends[1];
    return 0;
}

static int teardown(void **state)
{
    int fds[] = {ring_fd, pipe_in, pipe_out};
    fd_close_many(fds, 3);
    ring_writer_done(&w);
    ring_reader_done(&r);
    return 0;
}

/* The byte at an offset of the stream. */
static char byte_at(uint64_t at)
{
    return (char)(at * 31 + at / 251);
}

/* Puts n bytes of the stream into the pipe and as many as fit into the ring. */
static void put(size_t n)
{
    static uint64_t sent;
    char chunk[4096];
    if (w.out_end == 0)
        sent = 0;
    while (n > 0) {
        size_t len = n < sizeof(chunk) ? n : sizeof(chunk);
        for (size_t i = 0; i < len; i++)
            chunk[i] = byte_at(sent + i);
        assert_int_equal(write(pipe_in, chunk, len), len);
        assert_int_equal(ring_fill_out(&w, pipe_out), len);
        sent += len;
        n -= len;
    }
}

static void expect(uint64_t from, size_t n)
{
    static char got[RING_OUT_SIZE + 1];
    assert_int_equal(ring_read(&r, from, got, n), n);
    for (size_t i = 0; i < n; i++)
        if (got[i] != byte_at(from + i))
            fail_msg("byte %zu from %llu on", i, (unsigned long long)from);
}

static void bytes_come_out_as_they_went_in(void **state)
{
    char got[8];
    assert_int_equal(ring_reader_look(&r), 0);
    assert_int_equal(ring_read(&r, 0, got, sizeof(got)), 0);
    assert_int_equal(ring_fill_out(&w, pipe_out), -EAGAIN);
    put(1000);
    assert_int_equal(ring_read(&r, 0, got, sizeof(got)), 0); /* nobody has looked */
    assert_int_equal(ring_reader_look(&r), 1);
    assert_int_equal(ring_reader_look(&r), 0);
    expect(0, 1000);
    expect(999, 1);
    assert_int_equal(ring_read(&r, 1000, got, sizeof(got)), 0);
    assert_int_equal(ring_read(&r, 1001, got, sizeof(got)), -ERANGE);
    assert_int_equal(ring_reader_release(&r, 600), 0);
    assert_int_equal(ring_read(&r, 599, got, sizeof(got)), -ERANGE);
    assert_int_equal(ring_reader_release(&r, 599), -ERANGE);
    assert_int_equal(ring_reader_release(&r, 1001), -ERANGE);
    expect(600, 400);
}

static void full_ring_holds_back_and_loses_nothing(void **state)
{
    put(RING_OUT_SIZE);
    assert_int_equal(ring_room(&w), 0);
    assert_int_equal(write(pipe_in, "more", 4), 4);
    assert_int_equal(ring_fill_out(&w, pipe_out), -ENOBUFS);
    assert_int_equal(ring_reader_look(&r), 1);
    expect(0, RING_OUT_SIZE);
    /* The writer has said that it waits for room, until it has had some. */
    assert_int_equal(ring_reader_release(&r, 3), 1);
    assert_int_equal(ring_fill_out(&w, pipe_out), 3);
    assert_int_equal(w.head->held, 0);
    assert_int_equal(ring_fill_out(&w, pipe_out), -ENOBUFS);
    assert_int_equal(ring_reader_look(&r), 1);
    char got[4] = "";
    assert_int_equal(ring_read(&r, RING_OUT_SIZE, got, sizeof(got)), 3);
    assert_memory_equal(got, "more", 3);
    expect(3, RING_OUT_SIZE - 3);
}

static void ring_goes_round(void **state)
{
    uint64_t at = 0;
    /* Pieces that divide nothing evenly, with a different rest behind each time. */
    for (size_t i = 0; i < 600; i++) {
        size_t n = 1 + i * 977 % 4000;
        put(n);
        assert_int_equal(ring_reader_look(&r), 1);
        expect(at, (size_t)(r.end - at));
        at = i % 3 == 0 ? r.end : at + (r.end - at) / 2;
        assert_int_equal(ring_reader_release(&r, at), 0);
    }
    assert_true(w.out_end > 2 * RING_OUT_SIZE);
}

static void only_what_is_there_can_be_released(void **state)
{
    static const struct {
        uint64_t said, counts;
    } cases[] = {{101, 0}, {UINT64_MAX, 0}, {50, 50}, {49, 50}, {50, 50}, {0, 50}, {100, 100}};
    struct ring_tail *tail = (struct ring_tail *)((char *)w.head + RING_TAIL_AT);
    put(100);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        tail->begin = cases[i].said;
        assert_int_equal(ring_released(&w), cases[i].counts);
    }
    assert_int_equal(ring_room(&w), RING_OUT_SIZE);
}

static void reader_is_told_once_of_what_it_has_not_seen(void **state)
{
    put(1);
    assert_false(ring_must_tell(&w));          /* nobody waits */
    assert_int_equal(ring_reader_wait(&r), 1); /* it sees for itself what was there before */
    assert_int_equal(ring_reader_wait(&r), 0);
    assert_false(ring_must_tell(&w));
    put(1);
    assert_true(ring_must_tell(&w));
    ring_told(&w);
    put(1);
    assert_false(ring_must_tell(&w)); /* it is about to look */
    assert_int_equal(ring_reader_look(&r), 1);
    assert_false(ring_must_tell(&w)); /* it has not said how far it is */
    assert_int_equal(ring_reader_wait(&r), 0);
    assert_false(ring_must_tell(&w));
    /* The end is news like a byte. */
    fd_close_many(&pipe_in, 1);
    assert_int_equal(ring_fill_out(&w, pipe_out), 0);
    assert_true(ring_must_tell(&w));
    ring_told(&w);
    assert_int_equal(ring_reader_wait(&r), 1);
    assert_int_equal(ring_reader_wait(&r), 0);
    assert_false(ring_must_tell(&w));
}

static void next_reader_is_told_only_when_it_waits(void **state)
{
    assert_int_equal(ring_reader_wait(&r), 0);
    put(10);
    assert_true(ring_must_tell(&w));
    ring_told(&w);
    assert_int_equal(ring_reader_look(&r), 1);
    assert_int_equal(ring_reader_release(&r, 4), 0);
    ring_reader_left(&w);
    put(1);
    assert_false(ring_must_tell(&w));
    assert_int_equal(w.out_begin, 4);
    ring_reader_done(&r);
    assert_int_equal(ring_reader_init(&r, ring_fd, 4, false), 0);
    assert_false(ring_must_tell(&w));
    assert_int_equal(ring_reader_wait(&r), 0);
    put(1);
    assert_true(ring_must_tell(&w));
}

static void end_of_file_is_told_once(void **state)
{
    put(10);
    fd_close_many(&pipe_in, 1);
    assert_int_equal(ring_fill_out(&w, pipe_out), 0);
    assert_true(w.out_eof);
    assert_int_equal(ring_reader_look(&r), 1);
    assert_true(r.eof);
    assert_int_equal(r.end, 10);
    assert_int_equal(ring_reader_look(&r), 0);
    expect(0, 10);
}

static void next_reader_goes_on(void **state)
{
    struct ring_reader next;
    put(RING_OUT_SIZE);
    assert_int_equal(ring_reader_look(&r), 1);
    assert_true(ring_reader_release(&r, 7000) >= 0);
    put(5000);
    assert_int_equal(ring_reader_init(&next, ring_fd, 7000, false), 0);
    assert_int_equal(next.end, RING_OUT_SIZE + 5000);
    ring_reader_done(&r);
    r = next;
    expect(7000, RING_OUT_SIZE - 2000);
    /* From a place that cannot be, there is none. */
    assert_int_equal(ring_reader_init(&next, ring_fd, 4999, false), -EBADMSG);
    assert_int_equal(ring_reader_init(&next, ring_fd, RING_OUT_SIZE + 5001, false), -EBADMSG);
    assert_int_equal(ring_reader_init(&next, ring_fd, UINT64_MAX, false), -EBADMSG);
}

static void put_err(uint64_t from, size_t n)
{
    char chunk[4096];
    assert_true(n <= sizeof(chunk));
    for (size_t i = 0; i < n; i++)
        chunk[i] = byte_at(from + i);
    assert_int_equal(write(pipe_in, chunk, n), n);
    assert_int_equal(ring_fill_err(&w, pipe_out), n);
}

static void last_bytes_of_stderr_are_kept(void **state)
{
    char got[RING_ERR_SIZE * 2];
    uint64_t sent = 0;
    uint64_t at = 0;
    assert_int_equal(ring_read_err(&r, got, sizeof(got)), 0);
    assert_int_equal(ring_read_err_from(&r, &at, got, sizeof(got)), 0);
    assert_int_equal(ring_fill_err(&w, pipe_out), -EAGAIN);
    for (size_t i = 0; i < 50; i++) {
        size_t n = 1 + i * 977 % 4000;
        put_err(sent, n);
        sent += n;
        size_t kept = sent < RING_ERR_SIZE ? (size_t)sent : RING_ERR_SIZE;
        assert_int_equal(ring_read_err(&r, got, sizeof(got)), kept);
        for (size_t k = 0; k < kept; k++)
            if (got[k] != byte_at(sent - kept + k))
                fail_msg("byte %zu of %zu", k, kept);
        assert_int_equal(ring_read_err(&r, got, 1), 1);
        assert_int_equal(got[0], byte_at(sent - 1));
        /* One that follows sees each byte once; one that comes late sees what is left. */
        assert_int_equal(ring_read_err_from(&r, &at, got, sizeof(got)), n);
        assert_int_equal(at, sent);
        assert_int_equal(got[n - 1], byte_at(sent - 1));
        uint64_t late = 0;
        assert_int_equal(ring_read_err_from(&r, &late, got, 10), kept < 10 ? kept : 10);
        assert_int_equal(got[0], byte_at(sent - kept));
    }
    fd_close_many(&pipe_in, 1);
    assert_int_equal(ring_fill_err(&w, pipe_out), 0);
    assert_int_equal(ring_read_err(&r, got, sizeof(got)), RING_ERR_SIZE);
}

/* Heads of a PID 1 that was taken over. */

static void ends_that_make_no_sense_are_refused(void **state)
{
    static const uint64_t ends[] = {0,          99,         200 + RING_OUT_SIZE + 1,
                                    1ULL << 63, UINT64_MAX, UINT64_MAX - RING_OUT_SIZE};
    char got[16];
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
        struct ring_reader one;
        w.head->out_end = 300;
        assert_int_equal(ring_reader_init(&one, ring_fd, 200, false), 0);
        w.head->out_end = ends[i];
        assert_int_equal(ring_reader_look(&one), -EBADMSG);
        /* For good, with what was there before. */
        w.head->out_end = 301;
        assert_int_equal(ring_reader_look(&one), -EBADMSG);
        assert_int_equal(one.end, 300);
        assert_int_equal(ring_read(&one, 290, got, sizeof(got)), 10);
        assert_int_equal(ring_read(&one, UINT64_MAX, got, sizeof(got)), -ERANGE);
        ring_reader_done(&one);
    }
}

static void what_has_ended_does_not_go_on(void **state)
{
    w.head->out_end = 5;
    w.head->out_eof = 0x100; /* any bit will do */
    assert_int_equal(ring_reader_look(&r), 1);
    assert_true(r.eof);
    w.head->out_end = 6;
    assert_int_equal(ring_reader_look(&r), -EBADMSG);
    ring_reader_done(&r);
    w.head->out_end = 5;
    assert_int_equal(ring_reader_init(&r, ring_fd, 0, false), 0);
    w.head->out_eof = 0;
    assert_int_equal(ring_reader_look(&r), -EBADMSG);
}

static void offsets_at_the_end_of_the_numbers_are_only_numbers(void **state)
{
    char got[64];
    w.head->out_end = UINT64_MAX - 10;
    assert_int_equal(ring_reader_init(&r, ring_fd, UINT64_MAX - 30, false), 0);
    assert_int_equal(ring_read(&r, UINT64_MAX - 30, got, sizeof(got)), 20);
    w.head->out_end = UINT64_MAX;
    assert_int_equal(ring_reader_look(&r), 1);
    assert_int_equal(ring_read(&r, UINT64_MAX - 1, got, sizeof(got)), 1);
    assert_int_equal(ring_read(&r, UINT64_MAX, got, sizeof(got)), 0);
    assert_int_equal(ring_reader_release(&r, UINT64_MAX), 0);
    w.head->out_end = 20; /* past the last number */
    assert_int_equal(ring_reader_look(&r), -EBADMSG);
    ring_reader_done(&r);
    assert_int_equal(ring_reader_init(&r, ring_fd, 0, false), 0);
}

static void stderr_head_cannot_lead_astray(void **state)
{
    static const uint64_t values[] = {0,
                                      1,
                                      RING_ERR_SIZE - 1,
                                      RING_ERR_SIZE,
                                      RING_ERR_SIZE + 1,
                                      1ULL << 63,
                                      UINT64_MAX - 1,
                                      UINT64_MAX};
    char got[RING_ERR_SIZE + 1];
    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        for (size_t k = 0; k < ARRAY_SIZE(values); k++) {
            w.head->err_begin = values[i];
            w.head->err_end = values[k];
            assert_true(ring_read_err(&r, got, sizeof(got)) <= RING_ERR_SIZE);
            assert_true(ring_read_err(&r, got, 100) <= 100);
            uint64_t at = values[i] / 2;
            assert_true(ring_read_err_from(&r, &at, got, sizeof(got)) <= RING_ERR_SIZE);
            (void)ring_read_err(&r, got, 0);
        }
    }
}

static void only_sealed_memory_of_the_right_size_is_read(void **state)
{
    struct ring_reader one;
    static const struct {
        off_t size;
        int seals;
    } bad[] = {{RING_SIZE, 0},
               {RING_SIZE, F_SEAL_GROW},
               {RING_SIZE, F_SEAL_SHRINK},
               {RING_SIZE - 1, F_SEAL_GROW | F_SEAL_SHRINK},
               {RING_SIZE + 4096, F_SEAL_GROW | F_SEAL_SHRINK},
               {0, F_SEAL_GROW | F_SEAL_SHRINK}};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        AUTO_CLOSE int fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_int_equal(ftruncate(fd, bad[i].size), 0);
        assert_true(bad[i].seals == 0 || fcntl(fd, F_ADD_SEALS, bad[i].seals) == 0);
        assert_int_equal(ring_reader_init(&one, fd, 0, false), -EBADMSG);
    }
    AUTO_CLOSE int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(ring_reader_init(&one, file, 0, false), -EBADMSG);
    assert_int_equal(ring_reader_init(&one, -1, 0, false), -EBADMSG);
    /* And the writer's own can neither grow nor shrink. */
    /* Memory that we may not write to could not be answered. */
    char path[64];
    (void)str_fmt(path, sizeof(path), "/proc/self/fd/%d", ring_fd);
    AUTO_CLOSE int readable = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(readable >= 0);
    assert_int_equal(ring_reader_init(&one, readable, 0, false), -EBADMSG);
    assert_int_equal(ftruncate(ring_fd, 0), -1);
    assert_int_equal(ftruncate(ring_fd, RING_SIZE + 1), -1);
    assert_int_equal(fcntl(ring_fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
}

/* Whole records, newest last, of which the oldest are gone; and what a reader that was late
 * sees. */
static void log_keeps_its_last_records(void **state)
{
    struct inside_log head;
    char record[sizeof(head) + INSIDE_LOG_MAX], text[5000];
    uint64_t at, n = 0;
    r.log = true;
    for (unsigned i = 0; i < 200; i++) {
        size_t len = 100 + i * 24;
        memset(text, (int)('a' + i % 26), len);
        assert_int_equal(write(pipe_in, text, len), len);
        assert_int_equal(ring_fill_log(&w, pipe_out, i % 2), len);
        assert_int_equal(ring_fill_log(&w, pipe_out, i % 2), -EAGAIN); /* costs nothing */
        assert_true(ring_reader_look(&r) > 0);
    }
    at = ring_reader_begin(&r);
    assert_true(at > 0 && r.end - at > RING_OUT_SIZE - 2 * sizeof(record));
    assert_int_equal(ring_read(&r, 0, record, sizeof(record)), -ERANGE);
    for (; at < r.end; n++) {
        ssize_t got = ring_read(&r, at, record, sizeof(record));
        assert_true(got > (ssize_t)sizeof(head));
        memcpy(&head, record, sizeof(head));
        size_t size = inside_log_size(&head, (size_t)got);
        unsigned i = (head.len - 100) / 24;
        assert_true(size > 0 && head.stream == i % 2 && head.time_ns > 0);
        assert_int_equal(record[sizeof(head)], 'a' + i % 26);
        assert_int_equal(record[size - 1], 'a' + i % 26);
        at += size;
    }
    assert_true(at == r.end && n > 50);
    assert_int_equal(ring_reader_release(&r, r.end), -ERANGE); /* no client takes a log away */
    ring_end_log(&w);
    assert_true(ring_reader_look(&r) > 0 && r.eof);
}

/* A head of a record that makes no sense costs the log, not more. */
static void log_survives_a_head_that_makes_no_sense(void **state)
{
    char *ring = (char *)w.head + RING_HEAD_SIZE;
    char text[4096] = {0};
    r.log = true;
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(write(pipe_in, text, sizeof(text)), sizeof(text));
        if (i == 50)
            memset(ring, 0xff, sizeof(struct inside_log)); /* of the oldest */
        assert_int_equal(ring_fill_log(&w, pipe_out, 0), sizeof(text));
        assert_true(ring_reader_look(&r) > 0);
        assert_true(ring_reader_begin(&r) <= r.end);
    }
    w.head->log_begin = UINT64_MAX; /* beyond the end: nothing is there */
    assert_int_equal(ring_read(&r, r.end - 1, text, 1), -ERANGE);
    w.head->log_begin = 0; /* more than fits */
    assert_int_equal(ring_reader_look(&r), -EBADMSG);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(bytes_come_out_as_they_went_in),
        TEST(full_ring_holds_back_and_loses_nothing),
        TEST(ring_goes_round),
        TEST(only_what_is_there_can_be_released),
        TEST(reader_is_told_once_of_what_it_has_not_seen),
        TEST(next_reader_is_told_only_when_it_waits),
        TEST(end_of_file_is_told_once),
        TEST(next_reader_goes_on),
        TEST(last_bytes_of_stderr_are_kept),
        TEST(ends_that_make_no_sense_are_refused),
        TEST(what_has_ended_does_not_go_on),
        TEST(offsets_at_the_end_of_the_numbers_are_only_numbers),
        TEST(stderr_head_cannot_lead_astray),
        TEST(only_sealed_memory_of_the_right_size_is_read),
        TEST(log_keeps_its_last_records),
        TEST(log_survives_a_head_that_makes_no_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
