/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/engine/engine_internal.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"

/* The connection to a supervisor, which runs beside hostile code: frames of any shape. */

static struct {
    char dir[64];
    int dir_fd;
    struct loop *loop;
    struct engine_link link;
    unsigned connected, lost, drained, frames;
    struct guest_head last;
    char body[64];
    bool close_in_frame;
} t;

static void on_connected(void *arg)
{
    t.connected++;
}

static void on_frame(void *arg, const struct guest_head *head, const char *body)
{
    t.frames++;
    t.last = *head;
    memset(t.body, 0, sizeof(t.body));
    memcpy(t.body, body, head->len < sizeof(t.body) ? head->len : sizeof(t.body) - 1);
    if (t.close_in_frame)
        engine_link_close(&t.link);
}

static void on_lost(void *arg)
{
    t.lost++;
}

static void on_drained(void *arg)
{
    t.drained++;
}

static const struct engine_link_handlers handlers = {on_connected, on_frame, on_lost, on_drained};

static int setup(void **state)
{
    struct err err = {0};
    memset(&t, 0, sizeof(t));
    (void)snprintf(t.dir, sizeof(t.dir), "/tmp/box-link-XXXXXX");
    assert_non_null(mkdtemp(t.dir));
    t.dir_fd = open(t.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(loop_new(&clock_system, &t.loop, &err), 0);
    engine_link_init(&t.link, t.loop, &handlers, NULL);
    assert_int_equal(engine_link_open(&t.link, t.dir_fd, "session", &err), 0);
    return 0;
}

static int teardown(void **state)
{
    engine_link_close(&t.link);
    loop_free(t.loop);
    (void)unlinkat(t.dir_fd, "session", AT_REMOVEDIR);
    (void)close(t.dir_fd);
    assert_int_equal(rmdir(t.dir), 0); /* nothing is left */
    return 0;
}

static void pump(void)
{
    for (int i = 0; i < 10000; i++)
        if (loop_turn(t.loop, 0) == 0)
            return;
    fail_msg("the loop does not come to rest");
}

static int join(void)
{
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)snprintf(sun.sun_path, sizeof(sun.sun_path), "%s/session/s", t.dir);
    assert_int_equal(connect(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
    pump();
    return fd;
}

static void say(int fd, uint32_t type, uint32_t len, const char *body, size_t body_len)
{
    struct guest_head head = {.type = type, .id = 5, .flags = 1, .len = len};
    (void)send(fd, &head, sizeof(head), MSG_NOSIGNAL);
    if (body_len > 0)
        (void)send(fd, body, body_len, MSG_NOSIGNAL);
    pump();
}

static void the_socket_is_for_the_container_alone(void **state)
{
    struct stat st;
    assert_int_equal(fstatat(t.dir_fd, "session", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(st.st_mode & 0777, 0711);
    assert_int_equal(fstatat(t.dir_fd, "session/s", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(st.st_mode & 0777, 0666);
}

static void frames_arrive_whole_however_they_are_cut(void **state)
{
    char bytes[sizeof(struct guest_head) + 3];
    struct guest_head head = {.type = GUEST_OUTPUT, .id = 5, .len = 3};
    int fd = join();
    assert_int_equal(t.connected, 1);
    memcpy(bytes, &head, sizeof(head));
    memcpy(bytes + sizeof(head), "abc", 3);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        assert_int_equal(t.frames, 0);
        assert_int_equal(send(fd, bytes + i, 1, MSG_NOSIGNAL), 1);
        pump();
    }
    assert_int_equal(t.frames, 1);
    assert_string_equal(t.body, "abc");
    say(fd, GUEST_END, 0, "", 0);
    assert_int_equal(t.frames, 2);
    (void)close(fd);
    pump();
    assert_int_equal(t.lost, 1);
}

static void a_frame_that_is_too_long_ends_the_connection(void **state)
{
    static const uint32_t lengths[] = {GUEST_ANSWER_MAX + 1, 0x7fffffff, 0xffffffff};
    for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
        int fd = join();
        say(fd, GUEST_OUTPUT, lengths[i], "x", 1);
        assert_int_equal(t.lost, i + 1);
        assert_int_equal(t.frames, 0);
        (void)close(fd);
    }
    assert_int_equal(t.connected, 3); /* listening goes on */
}

static void only_one_is_listened_to(void **state)
{
    int first = join(), second = join();
    assert_int_equal(t.connected, 1);
    say(second, GUEST_END, 0, "", 0);
    assert_int_equal(t.frames, 0);
    say(first, GUEST_END, 0, "", 0);
    assert_int_equal(t.frames, 1);
    (void)close(first);
    pump(); /* now it is the turn of the other, and of what it said */
    assert_int_equal(t.lost, 1);
    assert_int_equal(t.connected, 2);
    (void)close(second);
}

static void a_link_can_be_closed_from_a_frame(void **state)
{
    int fd = join();
    t.close_in_frame = true;
    say(fd, GUEST_END, 0, "", 0);
    say(fd, GUEST_END, 0, "", 0);
    assert_int_equal(t.frames, 1);
    assert_int_equal(t.lost, 0);
    (void)close(fd);
}

static void what_is_sent_waits_for_a_slow_peer(void **state)
{
    static char data[1 << 20];
    struct guest_head head = {.type = GUEST_INPUT, .id = 1};
    size_t got = 0;
    assert_int_equal(engine_link_send(&t.link, &head, data, 1, NULL, 0), -EPIPE);
    int fd = join();
    for (int i = 0; i < 32; i++)
        assert_int_equal(engine_link_send(&t.link, &head, data, sizeof(data), NULL, 0), 0);
    assert_true(t.link.out.len > t.link.out_pos);
    for (int i = 0; i < 100000 && got < 32 * (sizeof(data) + sizeof(head)); i++) {
        static char sink[1 << 20];
        ssize_t n = recv(fd, sink, sizeof(sink), MSG_DONTWAIT);
        got += n > 0 ? (size_t)n : 0;
        (void)loop_turn(t.loop, 0);
    }
    assert_int_equal(got, 32 * (sizeof(data) + sizeof(head)));
    pump();
    assert_int_equal(t.link.out.len, t.link.out_pos);
    assert_int_equal(t.drained, 1);
    int r = 0;
    for (int i = 0; i < 100 && r == 0; i++)
        r = engine_link_send(&t.link, &head, data, sizeof(data), NULL, 0);
    assert_int_equal(r, -ENOBUFS);
    (void)close(fd);
}

/* A user's own engine, where nobody named one. */
static void the_usual_places_are_looked_at(void **state)
{
    char path[96];
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    (void)unsetenv("CONTAINER_HOST");
    (void)unsetenv("DOCKER_HOST");
    assert_true(engine_kind_known("docker") && engine_kind_known("podman"));
    assert_false(engine_kind_known("native"));
    AUTO_FREE char *given = engine_find_endpoint("podman", "/x/y.sock");
    assert_string_equal(given, "unix:///x/y.sock");
    assert_int_equal(setenv("DOCKER_HOST", "tcp://127.0.0.1:1", 1), 0);
    AUTO_FREE char *named = engine_find_endpoint("docker", NULL);
    assert_string_equal(named, "tcp://127.0.0.1:1");
    (void)unsetenv("DOCKER_HOST");
    if (access("/run/podman/podman.sock", F_OK) == 0)
        print_message("skipped: a Podman of this machine is in the way\n"), skip();
    assert_int_equal(setenv("XDG_RUNTIME_DIR", t.dir, 1), 0);
    assert_int_equal(mkdirat(t.dir_fd, "podman", 0700), 0);
    (void)snprintf(sun.sun_path, sizeof(sun.sun_path), "%s/podman/podman.sock", t.dir);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
    AUTO_FREE char *found = engine_find_endpoint("podman", NULL);
    (void)snprintf(path, sizeof(path), "unix://%s/podman/podman.sock", t.dir);
    assert_string_equal(found, path);
    (void)close(fd);
    (void)unlink(sun.sun_path);
    (void)unlinkat(t.dir_fd, "podman", AT_REMOVEDIR);
    AUTO_FREE char *none = engine_find_endpoint("podman", "");
    assert_string_equal(none, "unix:///run/podman/podman.sock");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_socket_is_for_the_container_alone),
        TEST(frames_arrive_whole_however_they_are_cut),
        TEST(a_frame_that_is_too_long_ends_the_connection),
        TEST(only_one_is_listened_to),
        TEST(a_link_can_be_closed_from_a_frame),
        TEST(what_is_sent_waits_for_a_slow_peer),
        TEST(the_usual_places_are_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
