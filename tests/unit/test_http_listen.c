/* SPDX-License-Identifier: Apache-2.0 */
#include "http_fixture.h"

#include "loop/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

static bool let_in = true;
static struct peer asked;

static void get_hello(struct http_request *req, void *arg)
{
    http_reply(req, 200, "text/plain", "hello", 5);
}

static const struct http_route routes[] = {{"GET", "/", get_hello, 0, 0}, {0}};

static bool accept_peer(void *arg, const struct peer *peer)
{
    asked = *peer;
    return let_in;
}

static char dir[64];
static char path[96];

static int make_dir(void **state)
{
    (void)str_copy(dir, sizeof(dir), "/tmp/box-listen-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return -1;
    return str_fmt(path, sizeof(path), "%s/s", dir);
}

static int remove_dir(void **state)
{
    (void)unlink(path);
    return rmdir(dir);
}

static void start(struct fixture *f, const struct http_server_opts *opts)
{
    fixture_start(f, opts, routes, NULL);
}

static int connect_unix(const char *to)
{
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_int_equal(str_copy(sun.sun_path, sizeof(sun.sun_path), to), 0);
    if (connect(fd, (struct sockaddr *)&sun, sizeof(sun)) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static int connect_tcp(int port)
{
    struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    return fd;
}

/* Over TCP bytes take their time: runs the loop until something arrived. */
static char *ask_tcp(struct fixture *f, int fd, const char *text)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    for (int i = 0; i < 1000 && poll(&p, 1, 0) == 0; i++)
        (void)loop_turn(f->loop, 10);
    return hear(fd);
}

static void a_unix_socket_is_private_from_the_start(void **state)
{
    struct fixture f;
    struct stat st;
    start(&f, NULL);
    mode_t before = umask(0);

    assert_int_equal(http_server_listen_unix(f.server, path, 0, &f.err), 0);
    (void)umask(before);
    assert_int_equal(lstat(path, &st), 0);
    assert_int_equal(st.st_mode, S_IFSOCK | 0600);
    int fd = connect_unix(path);
    pump(&f);
    say(&f, fd, "GET / HTTP/1.1\r\nHost: anything\r\n\r\n");
    assert_int_equal(status_of(hear(fd)), 200);
    (void)close(fd);
    fixture_stop(&f);
    assert_int_equal(lstat(path, &st), -1);
}

static void who_comes_while_the_server_holds_waits(void **state)
{
    struct fixture f;
    start(&f, NULL);

    http_server_hold(f.server, true);
    assert_int_equal(http_server_listen_unix(f.server, path, 0, &f.err), 0);
    int fd = connect_unix(path); /* the kernel keeps it for us */
    assert_true(fd >= 0);
    say(&f, fd, "GET / HTTP/1.1\r\nHost: anything\r\n\r\n");
    assert_int_equal(http_server_count(f.server), 0);
    http_server_hold(f.server, false);
    pump(&f);
    assert_int_equal(status_of(hear(fd)), 200);
    http_server_hold(f.server, true);
    int late = connect_unix(path);
    pump(&f);
    assert_int_equal(http_server_count(f.server), 1);
    (void)close(late);
    (void)close(fd);
    fixture_stop(&f);
}

static void a_long_path_is_reached_through_its_directory(void **state)
{
    struct fixture f;
    struct stat st;
    char name[120], deep[256], file[300];
    start(&f, NULL);

    memset(name, 'd', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(str_fmt(deep, sizeof(deep), "%s/%s", dir, name), 0);
    assert_int_equal(str_fmt(file, sizeof(file), "%s/s", deep), 0);
    assert_int_equal(mkdir(deep, 0700), 0);
    assert_int_equal(http_server_listen_unix(f.server, file, 0, &f.err), 0);
    assert_int_equal(lstat(file, &st), 0);
    assert_int_equal(st.st_mode, S_IFSOCK | 0600);
    fixture_stop(&f);
    assert_int_equal(rmdir(deep), 0);
}

static void only_a_dead_socket_is_replaced(void **state)
{
    struct fixture f;
    struct stat st;
    char other[128];
    start(&f, NULL);
    assert_int_equal(str_fmt(other, sizeof(other), "%s/other", dir), 0);

    /* A symlink, also one that leads to a dead socket or to nothing. */
    assert_int_equal(symlink(other, path), 0);
    assert_true(http_server_listen_unix(f.server, path, 0, &f.err) < 0);
    assert_int_equal(f.err.code, ERR_CONFLICT);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(lstat(other, &st), -1);
    assert_int_equal(unlink(path), 0);

    /* A file. */
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    (void)close(fd);
    assert_true(http_server_listen_unix(f.server, path, 0, &f.err) < 0);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_int_equal(unlink(path), 0);

    /* A socket somebody listens on. */
    struct sockaddr_un sun = {.sun_family = AF_UNIX};
    (void)str_copy(sun.sun_path, sizeof(sun.sun_path), path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_true(http_server_listen_unix(f.server, path, 0, &f.err) < 0);
    assert_int_equal(f.err.code, ERR_CONFLICT);

    /* And its corpse. */
    (void)close(fd);
    assert_int_equal(lstat(path, &st), 0);
    assert_int_equal(http_server_listen_unix(f.server, path, 0, &f.err), 0);
    fd = connect_unix(path);
    assert_true(fd >= 0);
    (void)close(fd);
    fixture_stop(&f);
}

static void a_socket_that_is_no_longer_ours_stays(void **state)
{
    struct fixture f;
    struct stat st;
    start(&f, NULL);

    assert_int_equal(http_server_listen_unix(f.server, path, 0, &f.err), 0);
    assert_int_equal(unlink(path), 0);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    (void)close(fd);
    fixture_stop(&f);
    assert_int_equal(lstat(path, &st), 0);
}

static void peers_can_be_turned_away(void **state)
{
    const struct http_server_opts opts = {.accept_peer = accept_peer};
    struct fixture f;
    start(&f, &opts);

    assert_int_equal(http_server_listen_unix(f.server, path, 0, &f.err), 0);
    let_in = false;
    int fd = connect_unix(path);
    pump(&f);
    assert_true(is_closed(fd));
    (void)close(fd);
    assert_int_equal(asked.uid, getuid());
    let_in = true;
    fd = connect_unix(path);
    pump(&f);
    assert_false(is_closed(fd));
    (void)close(fd);
    fixture_stop(&f);
}

/* recv(2) on a stream socket never installs descriptors it has no room for: the kernel drops them
 * with the message. This holds us to using it. */
static void descriptors_sent_to_us_do_not_stay(void **state)
{
    struct fixture f;
    start(&f, NULL);
    int fd = peer_new(&f);
    int fds[8];

    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        fds[i] = fd;
    size_t before = count_open_fds();
    for (int i = 0; i < 10000; i++) {
        static const char text[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_int_equal(fd_send_msg(fd, text, sizeof(text) - 1, fds, ARRAY_SIZE(fds), 0),
                         sizeof(text) - 1);
        if (i % 16 == 0) {
            pump(&f);
            (void)hear(fd);
        }
    }
    pump(&f);
    assert_int_equal(count_open_fds(), before);
    (void)close(fd);
    fixture_stop(&f);
}

static void running_out_of_descriptors_is_survived(void **state)
{
    struct fixture f;
    struct rlimit old, low;
    int fds[64];
    int n = 0;
    start(&f, NULL);

    assert_int_equal(http_server_listen_unix(f.server, path, 0, &f.err), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = old;
    /* Clients first, so that all of them wait in the backlog. */
    for (; n < 20; n++) {
        fds[n] = connect_unix(path);
        assert_true(fds[n] >= 0);
        low.rlim_cur = (rlim_t)fds[n] + 6;
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    int turns = 0;
    while (loop_turn(f.loop, 0) > 0 && turns < 100)
        turns++;
    /* No spinning: the loop came to rest although the backlog is not empty. */
    assert_in_range(turns, 0, 20);
    size_t served = http_server_count(f.server);
    assert_in_range(served, 1, 6);
    /* Time passes, the strangers that hold descriptors give way and all get their turn. */
    for (int i = 0; i < 200; i++)
        pass(&f, 100 * NSEC_PER_MSEC);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    for (int i = 0; i < n; i++)
        (void)close(fds[i]);
    for (int i = 0; i < 5; i++)
        pass(&f, 100 * NSEC_PER_MSEC);
    int fd = connect_unix(path);
    pump(&f);
    say(&f, fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(status_of(hear(fd)), 200);
    (void)close(fd);
    fixture_stop(&f);
}

static void tcp_wants_a_host_that_is_ours(void **state)
{
    static const struct {
        const char *host;
        unsigned status;
    } rows[] = {
        {"localhost", 200},
        {"LocalHost:5410", 200},
        {"127.0.0.1", 200},
        {"127.9.9.9:1", 200},
        {"[::1]:80", 200},
        {"box.example", 200},
        {"box.example:99", 200},
        {"port.example:7", 200},
        {"[fd00::1]", 200},
        {"evil.example", 403},
        {"port.example", 403},
        {"port.example:8", 403},
        {"10.0.0.1", 403},
        {"localhost.evil", 403},
        {"127.0.0.1.evil", 403},
        {"localhost:", 403},
        {"localhost:x", 403},
        {"localhost:123456", 403},
        {"", 403},
        {"[::1", 403},
        {"[::1]x", 403},
        {"::1", 403},
        {"2130706433", 403},
        {"[fd00::2]", 403},
    };
    static const char *const hosts[] = {"box.example", "port.example:7", "[fd00::1]", NULL};
    const struct http_server_opts opts = {.hosts = hosts};
    struct fixture f;
    start(&f, &opts);
    int port = http_server_listen_tcp(f.server, "127.0.0.1", 0, &f.err);

    assert_true(port > 0);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char text[128];
        int fd = connect_tcp(port);
        (void)str_fmt(text, sizeof(text), "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", rows[i].host);
        unsigned status = status_of(ask_tcp(&f, fd, text));
        if (status != rows[i].status)
            fail_msg("'%s' got %u", rows[i].host, status);
        (void)close(fd);
    }
    int fd = connect_tcp(port);
    assert_int_equal(status_of(ask_tcp(&f, fd, "GET / HTTP/1.0\r\n\r\n")), 403);
    (void)close(fd);
    fixture_stop(&f);
}

static void tcp_without_a_token_is_for_loopback_only(void **state)
{
    struct fixture f;
    start(&f, NULL);

    assert_true(http_server_listen_tcp(f.server, "0.0.0.0", 0, &f.err) < 0);
    assert_int_equal(f.err.code, ERR_DENIED);
    assert_true(http_server_listen_tcp(f.server, "::", 0, &f.err) < 0);
    assert_int_equal(f.err.code, ERR_DENIED);
    assert_true(http_server_listen_tcp(f.server, "localhost", 0, &f.err) < 0);
    assert_int_equal(f.err.code, ERR_INVALID);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_unix_socket_is_private_from_the_start, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(who_comes_while_the_server_holds_waits, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(a_long_path_is_reached_through_its_directory, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(only_a_dead_socket_is_replaced, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_socket_that_is_no_longer_ours_stays, make_dir,
                                        remove_dir),
        cmocka_unit_test_setup_teardown(peers_can_be_turned_away, make_dir, remove_dir),
        cmocka_unit_test(descriptors_sent_to_us_do_not_stay),
        cmocka_unit_test_setup_teardown(running_out_of_descriptors_is_survived, make_dir,
                                        remove_dir),
        cmocka_unit_test(tcp_wants_a_host_that_is_ours),
        cmocka_unit_test(tcp_without_a_token_is_for_loopback_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
