/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/unit.h"

#include "loop/peer.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/str.h"

static int diag;

static int make_diag(void **state)
{
    diag = peer_socket();
    return diag < 0 ? -1 : 0;
}

struct pair {
    int ours, theirs, listener;
};

static socklen_t address(const char *text, uint16_t port, struct sockaddr_storage *ret)
{
    struct sockaddr_in *v4 = (void *)ret;
    struct sockaddr_in6 *v6 = (void *)ret;
    *ret = (struct sockaddr_storage){0};
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = port;
        return sizeof(*v4);
    }
    assert_int_equal(inet_pton(AF_INET6, text, &v6->sin6_addr), 1);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = port;
    return sizeof(*v6);
}

/* A server at one address, and somebody who connects to it by another. */
static struct pair open_pair(const char *server, const char *client)
{
    struct sockaddr_storage a, bound = {0};
    socklen_t len = address(server, 0, &a), bound_len = sizeof(bound);
    struct pair p = {.listener = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_int_equal(bind(p.listener, (struct sockaddr *)&a, len), 0);
    assert_int_equal(listen(p.listener, 4), 0);
    assert_int_equal(getsockname(p.listener, (struct sockaddr *)&bound, &bound_len), 0);
    uint16_t port = 0; /* both kinds have it there */
    memcpy(&port, (const char *)&bound + offsetof(struct sockaddr_in, sin_port), sizeof(port));
    len = address(client, port, &a);
    p.theirs = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(p.theirs, (struct sockaddr *)&a, len), 0);
    p.ours = accept(p.listener, NULL, NULL);
    assert_true(p.ours >= 0);
    return p;
}

static void close_pair(struct pair *p)
{
    (void)close(p->ours);
    if (p->theirs >= 0)
        (void)close(p->theirs);
    (void)close(p->listener);
}

static void loopback_tcp_tells_the_user(void **state)
{
    static const char *const ways[][2] = {{"127.0.0.1", "127.0.0.1"},
                                          {"127.0.0.9", "127.0.0.9"},
                                          {"::1", "::1"},
                                          {"::ffff:127.0.0.1", "127.0.0.1"},
                                          {"::", "127.0.0.1"},
                                          {"127.0.0.1", "::ffff:127.0.0.1"}};
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        struct pair p = open_pair(ways[i][0], ways[i][1]);
        struct peer peer;
        struct stat st;
        peer_identify(diag, p.ours, &peer);
        assert_true(peer.known);
        assert_int_equal(peer.uid, geteuid());
        assert_int_equal(fstat(p.theirs, &st), 0);
        assert_int_equal(peer.inode, st.st_ino);
        close_pair(&p);
    }
}

static void unix_socket_tells_the_user(void **state)
{
    int fds[2];
    struct peer peer;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    peer_identify(-1, fds[0], &peer); /* needs no netlink */
    assert_true(peer.known);
    assert_int_equal(peer.uid, geteuid());
    assert_int_equal(peer.pid, getpid());
    (void)close(fds[0]);
    (void)close(fds[1]);
}

/* The kernel has no owner for such a socket and says 0, which is root. */
static void peer_that_has_closed_is_nobody(void **state)
{
    struct pair p = open_pair("127.0.0.1", "127.0.0.1");
    struct pollfd gone = {.fd = p.ours, .events = POLLRDHUP};
    struct peer peer;
    assert_int_equal(send(p.theirs, "x", 1, 0), 1);
    (void)close(TAKE_FD(p.theirs));
    assert_int_equal(poll(&gone, 1, -1), 1);
    peer_identify(diag, p.ours, &peer);
    assert_false(peer.known);
    close_pair(&p);
}

/* One that has only nothing more to say is still there. */
static void peer_that_has_shut_down_is_known(void **state)
{
    struct pair p = open_pair("127.0.0.1", "127.0.0.1");
    struct pollfd gone = {.fd = p.ours, .events = POLLRDHUP};
    struct peer peer;
    assert_int_equal(shutdown(p.theirs, SHUT_WR), 0);
    assert_int_equal(poll(&gone, 1, -1), 1);
    peer_identify(diag, p.ours, &peer);
    assert_true(peer.known);
    close_pair(&p);
}

static void without_netlink_or_connection_nobody_is_known(void **state)
{
    struct pair p = open_pair("127.0.0.1", "127.0.0.1");
    struct peer peer;
    peer_identify(-1, p.ours, &peer);
    assert_false(peer.known);
    peer_identify(diag, p.listener, &peer);
    assert_false(peer.known);
    peer_identify(diag, -1, &peer);
    assert_false(peer.known);
    close_pair(&p);
}

/* An answer that nobody read must not be taken for the next one's. */
static void stale_answers_are_dropped(void **state)
{
    struct pair p = open_pair("127.0.0.1", "127.0.0.1"), q = open_pair("::1", "::1");
    struct peer peer;
    struct stat st;
    peer_identify(diag, p.ours, &peer);
    peer_identify(diag, q.ours, &peer);
    assert_int_equal(fstat(q.theirs, &st), 0);
    assert_int_equal(peer.inode, st.st_ino);
    close_pair(&p);
    close_pair(&q);
}

static void process_is_found_with_its_directory(void **state)
{
    char before[PATH_MAX];
    struct pair p = open_pair("127.0.0.1", "127.0.0.1");
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir("/usr"), 0);
    AUTO_DONE(peer_process) struct peer_process found = {.cwd = -1};
    struct err err = {0};
    int r = peer_find_process(diag, p.ours, peer_mnt_ns(), &found, &err);
    assert_string_equal(err.msg, "");
    assert_int_equal(r, 0);
    assert_string_equal(found.path, "/usr");
    assert_true(found.cwd >= 0);
    assert_int_equal(found.gid, getegid());
    assert_int_equal(chdir(before), 0);
    close_pair(&p);
}

static void other_files_are_not_taken_for_ours(void **state)
{
    struct pair p = open_pair("127.0.0.1", "127.0.0.1");
    AUTO_DONE(peer_process) struct peer_process found = {.cwd = -1};
    struct err err = {0};
    assert_true(peer_find_process(diag, p.ours, peer_mnt_ns() + 1, &found, &err) < 0);
    assert_non_null(strstr(err.msg, "sees other files than boxd does"));
    close_pair(&p);
}

static void several_holders_in_several_places_are_nobody(void **state)
{
    struct pair p = open_pair("127.0.0.1", "127.0.0.1");
    int up[2], down[2];
    char byte;
    assert_int_equal(pipe(up) | pipe(down), 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(down[1]);
        _exit(chdir("/usr") < 0 || write(up[1], "x", 1) != 1 || read(down[0], &byte, 1) < 0);
    }
    assert_int_equal(read(up[0], &byte, 1), 1);
    AUTO_DONE(peer_process) struct peer_process found = {.cwd = -1};
    struct err err = {0};
    assert_true(peer_find_process(diag, p.ours, peer_mnt_ns(), &found, &err) < 0);
    assert_int_equal(err.code, ERR_CONFLICT);
    for (int i = 0; i < 2; i++) {
        (void)close(up[i]);
        (void)close(down[i]);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback_tcp_tells_the_user),
        cmocka_unit_test(unix_socket_tells_the_user),
        cmocka_unit_test(peer_that_has_closed_is_nobody),
        cmocka_unit_test(peer_that_has_shut_down_is_known),
        cmocka_unit_test(without_netlink_or_connection_nobody_is_known),
        cmocka_unit_test(stale_answers_are_dropped),
        cmocka_unit_test(process_is_found_with_its_directory),
        cmocka_unit_test(other_files_are_not_taken_for_ours),
        cmocka_unit_test(several_holders_in_several_places_are_nobody),
    };
    return cmocka_run_group_tests(tests, make_diag, NULL);
}
