/* SPDX-License-Identifier: Apache-2.0 */

/* Services of the host that a session may reach. The inside of a session is the host's loopback
 * here: the backend of the test makes its listeners there, when the test says so. */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/str.h"
#include "base/strv.h"
#include "core_fixture.h"
#include "session/ports.h"

static struct asked {
    unsigned n;
    uint16_t port; /* of the last */
    backend_listening_fn *done;
    void *arg;
} asked;

static int listen_later(struct sandbox *sb, uint16_t port, backend_listening_fn *done, void *arg,
                        struct err *err)
{
    asked = (struct asked){asked.n + 1, port, done, arg};
    return 0;
}

struct scene {
    struct fixture f;
    struct backend_ops ops;
    int service; /* listens */
    int inside;  /* the same; boxd's once it was handed over */
    char address[SPEC_HOST_TEXT_MAX];
    struct sockaddr_in inside_at;
};

static int listener(struct sockaddr_in *ret)
{
    socklen_t len = sizeof(*ret);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *ret = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)ret, len), 0);
    assert_int_equal(listen(fd, 256), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)ret, &len), 0);
    return fd;
}

static bool is_own(void *arg, uint16_t port)
{
    return port == *(const uint16_t *)arg;
}

static void scene_start(struct scene *c, const struct manager_options *options)
{
    struct sockaddr_in at;
    *c = (struct scene){0};
    asked = (struct asked){0};
    fixture_start(&c->f, NULL, options);
    c->ops = *c->f.backend->ops;
    c->ops.listen = listen_later;
    c->f.backend->ops = &c->ops;
    c->service = listener(&at);
    c->inside = listener(&c->inside_at);
    (void)str_fmt(c->address, sizeof(c->address), "127.0.0.1:%u", ntohs(at.sin_port));
}

static void scene_stop(struct scene *c)
{
    fd_close_many(&c->service, 1);
    fd_close_many(&c->inside, 1);
    fixture_stop(&c->f);
}

static void ask_for(struct scene *c, struct heard *h)
{
    struct err err = {0};
    struct spec *spec = named_spec("s");
    strv_add(&spec->own.allow_hosts, c->address);
    assert_int_equal(acquire_spec(&c->f, spec, FIELD_BIT(SPEC_ALLOW_HOSTS), h, &err), 0);
    pump(&c->f);
}

/* The backend has made the listener. */
static void answer(struct scene *c)
{
    int fds[2] = {c->inside, -1};
    asked.done(asked.arg, fds, NULL);
    c->inside = fds[0];
    pump(&c->f);
}

static int connect_inside(struct scene *c)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&c->inside_at, sizeof(c->inside_at)), 0);
    return fd;
}

static unsigned connections(const struct session *s)
{
    struct host_map_info info;
    assert_true(session_host_at(s, 0, &info));
    assert_false(session_host_at(s, 1, &info));
    assert_true(session_host_at(s, 0, &info));
    return info.connections;
}

static void callers_wait_until_the_service_can_be_reached(void **state)
{
    struct scene c;
    struct heard first, second;
    char byte = 0;

    scene_start(&c, NULL);
    ask_for(&c, &first);
    ask_for(&c, &second); /* wakes neither */
    assert_int_equal(asked.n, 1);
    assert_int_equal(first.n + second.n, 0);
    answer(&c);
    assert_int_equal(c.inside, -1); /* taken */
    assert_ptr_equal(first.session, second.session);
    int client = connect_inside(&c);
    pump(&c.f);
    int server = accept4(c.service, NULL, NULL, SOCK_CLOEXEC);
    assert_true(server >= 0);
    pump(&c.f);
    assert_int_equal(write(client, "x", 1), 1);
    pump(&c.f);
    assert_int_equal(read(server, &byte, 1), 1);
    assert_int_equal(byte, 'x');
    assert_int_equal(connections(first.session), 1);
    session_release(first.session);
    session_release(second.session);
    delete_id(&c.f, "s", &first);
    pump(&c.f);
    assert_int_equal(read(server, &byte, 1), 0); /* it ends with the session */
    assert_int_equal(read(client, &byte, 1), 0);
    close(client);
    close(server);
    scene_stop(&c);
}

static void a_session_without_its_service_is_not_made(void **state)
{
    struct scene c;
    struct heard h;
    struct err err = {0};
    int none[2] = {-1, -1};

    scene_start(&c, NULL);
    ask_for(&c, &h);
    (void)err_set(&err, ERR_CONFLICT, "taken");
    asked.done(asked.arg, none, &err);
    pump(&c.f);
    assert_int_equal(h.n, 1);
    assert_string_equal(h.err.msg, "taken");
    assert_null(manager_find(c.f.m, "s"));
    assert_int_equal(fake_sandboxes(c.f.backend), 0);
    scene_stop(&c);
}

static void a_listener_that_comes_too_late_is_not_taken(void **state)
{
    struct scene c;
    struct heard h, gone;

    scene_start(&c, NULL);
    ask_for(&c, &h);
    delete_id(&c.f, "s", &gone);
    pump(&c.f);
    answer(&c);
    assert_true(c.inside >= 0);
    assert_int_equal(h.n, 1);
    assert_int_equal(h.err.code, ERR_STATE);
    assert_int_equal(gone.n, 1);
    scene_stop(&c);
}

static void a_session_has_so_many_connections_and_makes_so_many_in_a_while(void **state)
{
    struct scene c;
    struct heard h;
    int fds[HOST_CONNS_MAX + 8];
    size_t n = ARRAY_SIZE(fds);

    scene_start(&c, NULL);
    ask_for(&c, &h);
    answer(&c);
    for (size_t i = 0; i < n; i++)
        fds[i] = connect_inside(&c);
    pump(&c.f);
    assert_int_equal(connections(h.session), 32);
    for (int i = 0; i < 8; i++)
        pass(&c.f, 20000000ULL);
    assert_int_equal(connections(h.session), HOST_CONNS_MAX);
    /* One that leaves makes room for one that waits. Its server has to leave, too. */
    close(fds[0]);
    int server = accept4(c.service, NULL, NULL, SOCK_CLOEXEC);
    close(server);
    for (int i = 0; i < 8; i++)
        pass(&c.f, 20000000ULL);
    assert_int_equal(connections(h.session), HOST_CONNS_MAX);
    for (size_t i = 1; i < n; i++)
        close(fds[i]);
    session_release(h.session);
    scene_stop(&c);
}

static void only_loopback_and_what_the_operator_names_may_be_reached(void **state)
{
    static const struct {
        const char *text;
        enum err_code code;
    } cases[] = {
        {"127.0.0.1:80", ERR_NONE},         {"[::1]:80", ERR_NONE},
        {"127.0.0.1:5410", ERR_DENIED},     {"[::1]:5410", ERR_DENIED},
        {"127.0.0.2:5410", ERR_NONE},       {"10.0.0.5:5432", ERR_NONE},
        {"10.0.0.5:5432:80", ERR_NONE},     {"10.0.0.5:5433", ERR_DENIED},
        {"169.254.169.254:80", ERR_DENIED},
    };
    char *named[] = {xstrdup("10.0.0.5:5432"), xstrdup("127.0.0.2:5410"), NULL};
    uint16_t own = 5410;
    struct scene c;

    scene_start(&c, &(struct manager_options){.max_sessions = 10,
                                              .allow_hosts = named,
                                              .own_port = is_own,
                                              .own_port_arg = &own});
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct err err = {0};
        struct host_service at;
        assert_true(host_service_parse(cases[i].text, &at));
        (void)manager_may_allow(c.f.m, &at, &err);
        assert_int_equal(err.code, cases[i].code);
    }
    scene_stop(&c);
    free(named[0]);
    free(named[1]);
}

static void services_of_the_host_have_one_spelling(void **state)
{
    static const struct {
        const char *text, *whole, *service; /* NULL: it is refused */
        bool loopback;
    } cases[] = {
        {"127.0.0.1:5432", "127.0.0.1:5432", "127.0.0.1:5432", true},
        {"127.0.0.1:5432:5432", "127.0.0.1:5432", "127.0.0.1:5432", true},
        {"localhost:1:65535", "127.0.0.1:1:65535", "127.0.0.1:1", true},
        {"127.9.9.9:65535", "127.9.9.9:65535", "127.9.9.9:65535", true},
        {"[0:0::1]:80:81", "[::1]:80:81", "[::1]:80", true},
        {"[::ffff:127.0.0.1]:80", "127.0.0.1:80", "127.0.0.1:80", true},
        {"128.0.0.1:80", "128.0.0.1:80", "128.0.0.1:80", false},
        {"0.0.0.0:80", "0.0.0.0:80", "0.0.0.0:80", false},
        {"[::]:80", "[::]:80", "[::]:80", false},
        {.text = ""},
        {.text = "127.0.0.1"},
        {.text = "127.0.0.1:"},
        {.text = "127.0.0.1:0"},
        {.text = "127.0.0.1:65536"},
        {.text = "127.0.0.1:80:"},
        {.text = "127.0.0.1:80:0"},
        {.text = "127.0.0.1:80:65536"},
        {.text = "127.0.0.1:80:81:82"},
        {.text = "127.0.0.1:+80"},
        {.text = "127.0.0.1: 80"},
        {.text = "127.1:80"},
        {.text = ":80"},
        {.text = "::1:80"},
        {.text = "[::1]"},
        {.text = "[::1]80"},
        {.text = "[::1"},
        {.text = "[127.0.0.1]:80"},
        {.text = "[localhost]:80"},
        {.text = "example.org:80"},
        {.text = "[fe80::1%lo]:80"},
        {.text = "127.0.0.1:0000000000000000000000000000000000000000000000000000080"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct host_service at, again;
        char text[SPEC_HOST_TEXT_MAX];
        bool ok = host_service_parse(cases[i].text, &at);
        if (ok != (cases[i].whole != NULL))
            fail_msg("%s", cases[i].text);
        if (!ok)
            continue;
        assert_int_equal(at.loopback, cases[i].loopback);
        host_service_write(&at, false, text);
        assert_string_equal(text, cases[i].service);
        host_service_write(&at, true, text);
        assert_string_equal(text, cases[i].whole);
        assert_true(host_service_parse(text, &again));
        assert_memory_equal(&again, &at, sizeof(at));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callers_wait_until_the_service_can_be_reached),
        cmocka_unit_test(a_session_without_its_service_is_not_made),
        cmocka_unit_test(a_listener_that_comes_too_late_is_not_taken),
        cmocka_unit_test(a_session_has_so_many_connections_and_makes_so_many_in_a_while),
        cmocka_unit_test(services_of_the_host_have_one_spelling),
        cmocka_unit_test(only_loopback_and_what_the_operator_names_may_be_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
