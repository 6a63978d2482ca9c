/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fd.h"
#include "lib/fault.h"

static size_t count_fds(void)
{
    size_t n = 0;
    DIR *dir = opendir("/proc/self/fd");

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    (void)closedir(dir);
    return n;
}

/* A file without a name, at its start. */
static int temp_file(const char *text)
{
    int fd = memfd_create("test", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(fd_write_all(fd, text, strlen(text)), 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    return fd;
}

static void proc_path(int fd, char *ret, size_t size)
{
    (void)snprintf(ret, size, "/proc/self/fd/%d", fd);
}

static void all_is_written_in_small_steps(void **state)
{
    char text[100], back[100];
    AUTO_CLOSE int fd = temp_file("");

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)i;
    fault_short(7);
    assert_int_equal(fd_write_all(fd, text, sizeof(text)), 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_int_equal(fd_read_full(fd, back, sizeof(back)), sizeof(back));
    assert_memory_equal(text, back, sizeof(text));
    assert_int_equal(fd_read_full(fd, back, sizeof(back)), 0);
    fault_reset();
}

static void interruptions_are_not_seen(void **state)
{
    char back[8];
    AUTO_CLOSE int fd = temp_file("");

    fault_short(1);
    for (long nth = 1; nth <= 4; nth++) {
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        fault_set(FAULT_WRITE, nth, EINTR);
        assert_int_equal(fd_write_all(fd, "abcd", 4), 0);
        assert_false(fault_missed());
        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        fault_set(FAULT_READ, nth, EINTR);
        assert_int_equal(fd_read_full(fd, back, sizeof(back)), 4);
        assert_false(fault_missed());
        assert_memory_equal(back, "abcd", 4);
    }
    fault_reset();
}

static void failures_are_told(void **state)
{
    char back[8];
    AUTO_CLOSE int fd = temp_file("abcd");

    fault_set(FAULT_WRITE, 1, ENOSPC);
    assert_int_equal(fd_write_all(fd, "abcd", 4), -ENOSPC);
    fault_set(FAULT_READ, 1, EIO);
    assert_int_equal(fd_read_full(fd, back, sizeof(back)), -EIO);
    fault_reset();
    assert_int_equal(fd_write_all(-1, "x", 1), -EBADF);
    assert_int_equal(fd_write_all(-1, "", 0), 0);
}

static void nonblock_goes_on_and_off(void **state)
{
    int p[2];

    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    assert_int_equal(fd_set_nonblock(p[0], true), 0);
    assert_true(fcntl(p[0], F_GETFL) & O_NONBLOCK);
    assert_int_equal(fd_set_nonblock(p[0], true), 0);
    assert_int_equal(fd_set_nonblock(p[0], false), 0);
    assert_false(fcntl(p[0], F_GETFL) & O_NONBLOCK);
    assert_int_equal(fd_set_nonblock(-1, true), -EBADF);
    fd_close_many(p, 2);
    assert_int_equal(p[0], -1);
}

static void a_buffer_takes_a_file_up_to_its_maximum(void **state)
{
    AUTO_CLOSE int fd = temp_file("hello");

    for (size_t max = 0; max < 8; max++) {
        AUTO_DONE(buf) struct buf b;
        buf_init(&b, max);
        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        assert_int_equal(fd_read_to_buf(fd, &b), max >= 5 ? 0 : -ENOBUFS);
        assert_int_equal(b.len, max >= 5 ? 5 : max);
        assert_memory_equal(buf_str(&b), "hello", b.len);
    }
}

static void what_was_read_before_a_failure_stays(void **state)
{
    AUTO_CLOSE int fd = temp_file("hello");
    AUTO_DONE(buf) struct buf b;

    buf_init(&b, 100);
    fault_short(2);
    fault_set(FAULT_READ, 2, EIO);
    assert_int_equal(fd_read_to_buf(fd, &b), -EIO);
    assert_string_equal(buf_str(&b), "he");
    fault_set(FAULT_MALLOC, 1, ENOMEM);
    buf_done(&b);
    assert_int_equal(fd_read_to_buf(fd, &b), -ENOBUFS);
    fault_reset();
}

static void small_files_fit_or_fail(void **state)
{
    char path[64], text[16];
    AUTO_CLOSE int fd = temp_file("12345\n");

    proc_path(fd, path, sizeof(path));
    assert_int_equal(fd_read_file_at(AT_FDCWD, path, text, sizeof(text)), 6);
    assert_string_equal(text, "12345\n");
    assert_int_equal(fd_read_file_at(AT_FDCWD, path, text, 7), 6);
    assert_int_equal(fd_read_file_at(AT_FDCWD, path, text, 6), -E2BIG);
    assert_string_equal(text, "");
    assert_int_equal(fd_read_file_at(AT_FDCWD, path, text, 0), -E2BIG);
    assert_int_equal(fd_read_file_at(AT_FDCWD, "/nonexistent", text, sizeof(text)), -ENOENT);
    fault_set(FAULT_OPENAT, 1, EINTR);
    assert_int_equal(fd_read_file_at(AT_FDCWD, path, text, sizeof(text)), 6);
    assert_false(fault_missed());
}

static void kernel_files_get_one_write(void **state)
{
    char path[64], text[16];
    AUTO_CLOSE int fd = temp_file("");

    proc_path(fd, path, sizeof(path));
    assert_int_equal(fd_write_file_at(AT_FDCWD, path, "max"), 0);
    assert_int_equal(fd_read_file_at(AT_FDCWD, path, text, sizeof(text)), 3);
    assert_string_equal(text, "max");
    assert_int_equal(fd_write_file_at(AT_FDCWD, "/nonexistent", "x"), -ENOENT);
    fault_short(1);
    assert_int_equal(fd_write_file_at(AT_FDCWD, path, "max"), -EIO);
    fault_reset();
    fault_set(FAULT_WRITE, 1, EBUSY);
    assert_int_equal(fd_write_file_at(AT_FDCWD, path, "max"), -EBUSY);
}

static void numbers_in_files(void **state)
{
    static const struct {
        const char *text;
        int r;
        uint64_t value;
    } rows[] = {
        {"0\n", 0, 0},
        {"18446744073709551615\n", 0, UINT64_MAX},
        {"7", 0, 7},
        {"max\n", -EINVAL, 0},
        {"", -EINVAL, 0},
        {"1\n\n", -EINVAL, 0},
        {"18446744073709551616\n", -ERANGE, 0},
        {"0000000000000000000000000000000000000000000000000000000000000000000000001", -EINVAL, 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char path[64];
        uint64_t value = 42;
        AUTO_CLOSE int fd = temp_file(rows[i].text);
        proc_path(fd, path, sizeof(path));
        assert_int_equal(fd_read_u64_at(AT_FDCWD, path, &value), rows[i].r);
        assert_true(value == (rows[i].r < 0 ? 42 : rows[i].value));
    }
}

static void a_sealed_memfd_never_changes(void **state)
{
    char text[8] = "";
    AUTO_CLOSE int fd = fd_sealed_memfd("plan", "abc", 3);

    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(fd_read_full(fd, text, sizeof(text)), 3);
    assert_string_equal(text, "abc");
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(ftruncate(fd, 100), -1);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
    assert_ptr_equal(mmap(NULL, 3, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
}

static void a_memfd_that_fails_leaves_nothing(void **state)
{
    size_t before = count_fds();

    /* The flag that a kernel before 6.3 refuses. */
    fault_set(FAULT_MEMFD, 1, EINVAL);
    int fd = fd_sealed_memfd("plan", "abc", 3);
    assert_true(fd >= 0);
    (void)close(fd);
    fault_set(FAULT_MEMFD, 1, EMFILE);
    assert_int_equal(fd_sealed_memfd("plan", "abc", 3), -EMFILE);
    fault_set(FAULT_WRITE, 1, ENOSPC);
    assert_int_equal(fd_sealed_memfd("plan", "abc", 3), -ENOSPC);
    fault_set(FAULT_FCNTL, 1, EPERM);
    assert_int_equal(fd_sealed_memfd("plan", "abc", 3), -EPERM);
    fault_reset();
    assert_int_equal(count_fds(), before);
}

static void descriptors_travel(void **state)
{
    int s[2], fds[FD_PASS_MAX], same[FD_PASS_MAX];
    char text[8];
    size_t before = count_fds(), n = FD_PASS_MAX;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
    for (size_t i = 0; i < FD_PASS_MAX; i++)
        same[i] = s[0];
    fault_set(FAULT_SENDMSG, 1, EINTR);
    assert_int_equal(fd_send_msg(s[0], "hello", 5, same, FD_PASS_MAX, 0), 5);
    fault_set(FAULT_RECVMSG, 1, EINTR);
    assert_int_equal(fd_recv_msg(s[1], text, sizeof(text), fds, &n, 0), 5);
    assert_memory_equal(text, "hello", 5);
    assert_int_equal(n, FD_PASS_MAX);
    for (size_t i = 0; i < n; i++)
        assert_true(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
    fd_close_many(fds, n);
    assert_int_equal(fd_send_msg(s[0], "x", 1, same, FD_PASS_MAX + 1, 0), -EINVAL);

    /* Without any, and the end. */
    assert_int_equal(fd_send_msg(s[0], "x", 1, NULL, 0, 0), 1);
    n = 3;
    assert_int_equal(fd_recv_msg(s[1], text, sizeof(text), fds, &n, 0), 1);
    assert_int_equal(n, 0);
    (void)close(s[0]);
    assert_int_equal(fd_recv_msg(s[1], text, sizeof(text), NULL, NULL, 0), 0);
    assert_int_equal(fd_send_msg(s[1], "x", 1, NULL, 0, 0), -EPIPE); /* and no SIGPIPE */
    (void)close(s[1]);
    assert_int_equal(count_fds(), before);
}

/* What a peer that does not keep to FD_PASS_MAX can send. */
static void send_raw(int sock, const char *text, size_t len, int fd, size_t n)
{
    char control[CMSG_SPACE(253 * sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec iov = {.iov_base = (void *)text, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control};

    msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(n * sizeof(int));
    for (size_t i = 0; i < n; i++)
        memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(int));
    assert_int_equal(sendmsg(sock, &msg, 0), len);
}

static void what_does_not_fit_is_dropped_and_closed(void **state)
{
    int s[2], fds[253];
    char text[8];
    size_t n;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
    size_t before = count_fds();

    /* More than the capacity, more than any capacity, more bytes, none wanted, no bytes at all. */
    send_raw(s[0], "x", 1, s[0], 3);
    n = 2;
    assert_int_equal(fd_recv_msg(s[1], text, sizeof(text), fds, &n, 0), -EMSGSIZE);
    assert_int_equal(n, 0);
    send_raw(s[0], "x", 1, s[0], 253);
    n = 253;
    assert_int_equal(fd_recv_msg(s[1], text, sizeof(text), fds, &n, 0), -EMSGSIZE);
    send_raw(s[0], "123456789", 9, s[0], 1);
    n = FD_PASS_MAX;
    assert_int_equal(fd_recv_msg(s[1], text, sizeof(text), fds, &n, 0), -EMSGSIZE);
    send_raw(s[0], "x", 1, s[0], 1);
    assert_int_equal(fd_recv_msg(s[1], text, sizeof(text), NULL, NULL, 0), -EMSGSIZE);
    send_raw(s[0], "", 0, s[0], 1);
    n = FD_PASS_MAX;
    assert_int_equal(fd_recv_msg(s[1], text, sizeof(text), fds, &n, 0), -EBADMSG);

    assert_int_equal(count_fds(), before);
    n = FD_PASS_MAX;
    assert_int_equal(fd_recv_msg(s[1], text, sizeof(text), fds, &n, MSG_DONTWAIT), -EAGAIN);
    fd_close_many(s, 2);
}

static void credentials_beside_descriptors_are_no_truncation(void **state)
{
    int s[2], on = 1, fds[FD_PASS_MAX], same[FD_PASS_MAX];
    char text[8];
    size_t n = FD_PASS_MAX;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
    assert_int_equal(setsockopt(s[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
    for (size_t i = 0; i < FD_PASS_MAX; i++)
        same[i] = s[0];
    assert_int_equal(fd_send_msg(s[0], "x", 1, same, FD_PASS_MAX, 0), 1);
    assert_int_equal(fd_recv_msg(s[1], text, sizeof(text), fds, &n, 0), 1);
    assert_int_equal(n, FD_PASS_MAX);
    fd_close_many(fds, n);
    fd_close_many(s, 2);
}

static int reset_faults(void **state)
{
    fault_reset();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(all_is_written_in_small_steps, reset_faults),
        cmocka_unit_test_teardown(interruptions_are_not_seen, reset_faults),
        cmocka_unit_test_teardown(failures_are_told, reset_faults),
        cmocka_unit_test(nonblock_goes_on_and_off),
        cmocka_unit_test(a_buffer_takes_a_file_up_to_its_maximum),
        cmocka_unit_test_teardown(what_was_read_before_a_failure_stays, reset_faults),
        cmocka_unit_test_teardown(small_files_fit_or_fail, reset_faults),
        cmocka_unit_test_teardown(kernel_files_get_one_write, reset_faults),
        cmocka_unit_test(numbers_in_files),
        cmocka_unit_test(a_sealed_memfd_never_changes),
        cmocka_unit_test_teardown(a_memfd_that_fails_leaves_nothing, reset_faults),
        cmocka_unit_test_teardown(descriptors_travel, reset_faults),
        cmocka_unit_test(what_does_not_fit_is_dropped_and_closed),
        cmocka_unit_test(credentials_beside_descriptors_are_no_truncation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
