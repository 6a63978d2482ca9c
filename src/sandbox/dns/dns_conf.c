/* SPDX-License-Identifier: Apache-2.0 */

/* The host's resolvers, from resolv.conf(5). Of the file only "nameserver" is used: search domains
 * and options are the host's own. */

#include <arpa/inet.h>
#include <fcntl.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "sandbox/dns/dns_internal.h"

#define CONF_MAX 16384
#define BLANKS " \t\r"

static bool parse_server(const char *text, uint16_t port, struct dns_server *ret)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)&ret->addr;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&ret->addr;

    *ret = (struct dns_server){0};
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        ret->len = sizeof(*v4);
        return true;
    }
    if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        ret->len = sizeof(*v6);
        return true;
    }
    return false;
}

static void parse_line(const char *line, size_t len, uint16_t port, struct dns_servers *ret)
{
    static const char keyword[] = "nameserver";
    char word[INET6_ADDRSTRLEN];
    size_t at = strlen(keyword);

    if (len <= at || memcmp(line, keyword, at) != 0 || strchr(BLANKS, line[at]) == NULL)
        return;
    at += strspn(line + at, BLANKS);
    size_t n = strcspn(line + at, BLANKS "\n#;");
    if (n == 0 || n >= sizeof(word) || ret->n == DNS_SERVERS_MAX)
        return;
    memcpy(word, line + at, n);
    word[n] = '\0';
    if (parse_server(word, port, &ret->list[ret->n]))
        ret->n++;
}

void dns_servers_parse(const char *text, uint16_t port, struct dns_servers *ret)
{
    *ret = (struct dns_servers){0};
    for (const char *line = text; *line != '\0';) {
        const char *end = strchrnul(line, '\n');

        parse_line(line, (size_t)(end - line), port, ret);
        line = *end == '\n' ? end + 1 : end;
    }
    /* What the C library does. */
    if (ret->n == 0 && parse_server("127.0.0.1", port, &ret->list[0]))
        ret->n = 1;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

void dns_servers_refresh(struct dns *dns)
{
    char text[CONF_MAX];
    struct stat st = {0};
    uint64_t now = loop_now(dns->loop);

    if (dns->conf_read && now - dns->conf_checked_ns < NSEC_PER_SEC)
        return;
    dns->conf_checked_ns = now;
    /* A file that is gone or being replaced: go on with what we have. */
    if (stat(dns->resolv_conf, &st) < 0 && dns->conf_read)
        return;
    if (dns->conf_read && same_file(&st, &dns->conf_stat))
        return;
    if (fd_read_file_at(AT_FDCWD, dns->resolv_conf, text, sizeof(text)) < 0) {
        if (dns->conf_read)
            return;
        text[0] = '\0';
    }
    dns_servers_parse(text, dns->options.upstream_port, &dns->servers);
    dns->conf_stat = st;
    dns->conf_read = true;
}
