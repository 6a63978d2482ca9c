/* SPDX-License-Identifier: Apache-2.0 */

/* `box port` and the option -p: ports of the host that lead to servers in sessions. */

#include "cli/port.h"

#include <arpa/inet.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "cli/args/args.h"
#include "cli/io/app.h"
#include "cli/io/text.h"
#include "spec/spec.h"

#define LOOPBACK "127.0.0.1"
#define SPELLING "[ADDRESS:][HOST_PORT:]PORT, such as 8080:3000 or 127.0.0.1:8080:3000"
#define TARGET_MAX 4096U
#define BODY_MAX 65536U
#define PORT_ADDRESS_TEXT 64

struct port_words {
    char address[PORT_ADDRESS_TEXT]; /* without brackets; 127.0.0.1 when it was left out */
    uint16_t host_port;              /* 0: any that is free */
    uint16_t port;
};

static bool read_number(const char *text, uint16_t *ret)
{
    uint64_t n;

    if (str_to_u64(text, &n) < 0 || n == 0 || n > UINT16_MAX)
        return false;
    *ret = (uint16_t)n;
    return true;
}

static bool is_address(const char *text)
{
    struct in6_addr ignored;

    return inet_pton(AF_INET, text, &ignored) == 1 || inet_pton(AF_INET6, text, &ignored) == 1;
}

/* Cuts a protocol off. */
static int check_protocol(char *text, struct err *err)
{
    char *slash = strchr(text, '/');

    if (slash == NULL)
        return 0;
    *slash++ = '\0';
    return str_eq(slash, "tcp") ? 0
                                : err_set(err, ERR_UNSUPPORTED,
                                          "only TCP ports can be published, not /%.16s", slash);
}

/* "[::1]" or "127.0.0.1", up to the colon before the host's port. */
static bool cut_address(char *text, struct port_words *ret)
{
    size_t len = strlen(text);

    if (len >= 2 && text[0] == '[' && text[len - 1] == ']') {
        text[len - 1] = '\0';
        text++;
    }
    return is_address(text) && str_copy(ret->address, sizeof(ret->address), text) >= 0;
}

static int port_words_parse(const char *text, struct port_words *ret, struct err *err)
{
    AUTO_FREE char *copy = xstrdup(text);
    struct port_words words = {.address = LOOPBACK};
    int r = check_protocol(copy, err);

    if (r < 0)
        return r;
    char *inner = strrchr(copy, ':');
    bool good = read_number(inner != NULL ? inner + 1 : copy, &words.port);
    if (good && inner != NULL) {
        *inner = '\0';
        char *host = strrchr(copy, ':');
        const char *number = host != NULL ? host + 1 : copy;
        good = (host != NULL && number[0] == '\0') || read_number(number, &words.host_port);
        if (good && host != NULL) {
            *host = '\0';
            good = cut_address(copy, &words);
        }
    }
    if (!good)
        return err_set(err, ERR_INVALID, "port '%.80s' must be %s", text, SPELLING);
    *ret = words;
    return 0;
}

static void write_words(struct jw *w, const struct port_words *words)
{
    jw_object(w);
    jw_kint(w, "port", words->port);
    jw_kstr(w, "host", words->address);
    jw_kint(w, "host_port", words->host_port);
    jw_object_end(w);
}

/* run -p. */

int port_args_check(const struct args *args, struct err *err)
{
    struct port_words words;
    int r = 0;

    for (size_t i = 0; r == 0 && args->publish != NULL && args->publish[i] != NULL; i++)
        r = port_words_parse(args->publish[i], &words, err);
    return r;
}

void port_args_write(const struct args *args, struct jw *w)
{
    struct port_words words;

    if (args->publish == NULL)
        return;
    jw_karray(w, "ports");
    for (size_t i = 0; args->publish[i] != NULL; i++)
        if (port_words_parse(args->publish[i], &words, NULL) == 0)
            write_words(w, &words);
    jw_array_end(w);
}

void port_numbers_read(const struct json *ports, uint16_t ret[static PORT_NUMBERS_MAX])
{
    for (size_t i = 0; i < PORT_NUMBERS_MAX; i++) {
        int64_t n = json_int(json_get(json_at(ports, i), "host_port"));
        ret[i] = n > 0 && n <= UINT16_MAX ? (uint16_t)n : 0;
    }
}

void port_args_tell(const struct args *args, const uint16_t host_ports[static PORT_NUMBERS_MAX])
{
    struct port_words words;

    for (size_t i = 0; args->publish != NULL && args->publish[i] != NULL && i < PORT_NUMBERS_MAX;
         i++)
        if (host_ports[i] > 0 && port_words_parse(args->publish[i], &words, NULL) == 0 &&
            words.host_port == 0)
            text_say("port %u of the session is at %s:%u", words.port, words.address,
                     host_ports[i]);
}

/* box port. */

static void put_address(struct text_table *t, const struct json *item)
{
    const char *host = json_str(json_get(item, "host"));
    AUTO_FREE char *text =
        xasprintf(host != NULL && strchr(host, ':') != NULL ? "[%s]:%lld" : "%s:%lld",
                  host != NULL ? host : "", (long long)json_int(json_get(item, "host_port")));

    text_table_cell(t, text);
}

static int list(struct app *app, const struct args *args, const char *target, struct err *err)
{
    static const char *const titles[] = {"PORT", "HOST", "STATE", "CONNECTIONS"};
    AUTO(text_table) struct text_table *t = text_table_new(titles, ARRAY_SIZE(titles));
    AUTO_DONE(buf) struct buf body = BUF_INIT(APP_BODY_MAX);
    AUTO(json) struct json *item = NULL;
    struct items it;
    int r = app_call(app, "GET", target, &body, err);

    if (r >= 0 && args->json)
        return text_print_json(&body, err);
    if (r >= 0)
        r = items_init(&it, buf_str(&body), body.len, "ports", err);
    while (r >= 0 && (r = items_next(&it, &item, err)) > 0) {
        text_table_number(t, json_get(item, "port"));
        put_address(t, item);
        text_table_cell(t, json_bool(json_get(item, "listening")) ? "listening" : "not available");
        text_table_number(t, json_get(item, "connections"));
    }
    return r < 0 ? r : text_table_print(t, err);
}

static int add(struct app *app, const char *target, const char *text, struct err *err)
{
    AUTO_DONE(buf) struct buf body = BUF_INIT(BODY_MAX);
    AUTO_DONE(buf) struct buf answer = BUF_INIT(BODY_MAX);
    AUTO(json) struct json *port = NULL;
    struct jw w = JW_INIT(&body);
    struct port_words words;
    int r = port_words_parse(text, &words, err);

    if (r < 0)
        return r;
    write_words(&w, &words);
    (void)jw_end(&w);
    const struct app_request req = {.method = "POST",
                                    .target = target,
                                    .type = "application/json",
                                    .body = body.data,
                                    .body_len = body.len};
    r = app_send(app, &req, &answer, err);
    if (r >= 0)
        r = json_parse(buf_str(&answer), answer.len, &port, err);
    if (r < 0)
        return r;
    buf_reset(&answer);
    bool v6 = strchr(words.address, ':') != NULL;
    (void)buf_printf(&answer, "%s%s%s:%lld\n", v6 ? "[" : "", words.address, v6 ? "]" : "",
                     (long long)json_int(json_get(port, "host_port")));
    return text_print(&answer, err);
}

static int drop(struct app *app, const char *target, const char *text, struct err *err)
{
    AUTO_DONE(buf) struct buf place = BUF_INIT(TARGET_MAX);
    AUTO_DONE(buf) struct buf answer = BUF_INIT(BODY_MAX);
    struct port_words words;
    int r = port_words_parse(text, &words, err);

    if (r < 0)
        return r;
    (void)buf_printf(&place, "%s/%u?host_port=%u", target, words.port, words.host_port);
    return app_call(app, "DELETE", buf_str(&place), &answer, err);
}

int verb_port(struct app *app, const struct args *args, struct err *err)
{
    const char *id = args->names[0], *word = args->names[1];
    AUTO_DONE(buf) struct buf target = BUF_INIT(TARGET_MAX);
    bool adds = str_eq(word, "add"), drops = str_eq(word, "rm");

    if (spec_check_id(id, err) < 0)
        return err_wrap(err, "session '%s'", id);
    if (word != NULL && ((!adds && !drops) || args->names[2] == NULL))
        return err_set(err, ERR_INVALID, "box port SESSION [add|rm PORT...]; a port is %s",
                       SPELLING);
    int r = app_connect(app, DAEMON_RUNNING, err);
    (void)buf_printf(&target, "/v1/sessions/%s/ports", id);
    if (r >= 0 && word == NULL)
        return list(app, args, buf_str(&target), err);
    for (size_t i = 2; r >= 0 && args->names[i] != NULL; i++)
        r = adds ? add(app, buf_str(&target), args->names[i], err)
                 : drop(app, buf_str(&target), args->names[i], err);
    return r < 0 ? r : 0;
}
