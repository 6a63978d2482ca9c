/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the source files of the resolver share: servers, listeners, clients, questions under way. */

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "loop/loop.h"
#include "sandbox/dns/dns.h"
#include "sandbox/dns/dns_msg.h"

#define DNS_SERVERS_MAX 3

struct dns_conn;
struct dns_flight;

struct dns_server {
    struct sockaddr_storage addr;
    socklen_t len;
};

struct dns_servers {
    struct dns_server list[DNS_SERVERS_MAX];
    size_t n;
};

struct dns_listener {
    struct dns *dns; /* borrowed */
    int udp, tcp;    /* owned */
    struct loop_io udp_io, tcp_io;
    struct loop_timer tcp_pause;
    uint64_t paid_until_ns; /* how far ahead of its allowed pace it is */
    struct dns_listener *prev, *next;
};

/* Who asked. */
struct dns_client {
    struct dns_listener *listener; /* borrowed */
    struct dns_conn *conn;         /* borrowed; NULL: by UDP */
    struct sockaddr_storage addr;
    socklen_t addr_len;
};

struct dns {
    struct loop *loop; /* borrowed */
    struct dns_options options;
    char *resolv_conf; /* owned */
    struct dns_servers servers;
    struct stat conf_stat; /* of what the servers were read from */
    uint64_t conf_checked_ns;
    bool conf_read;
    struct dns_listener *listeners; /* owned */
    struct dns_conn *conns;         /* owned */
    struct dns_flight *flights;     /* owned */
    unsigned n_conns, n_flights;
    struct dns_stats stats;
};

/* dns.c */
/* Judges a question and answers it, now or later. */
void dns_ask(struct dns *dns, const struct dns_client *client, const uint8_t *data, size_t len);
void dns_reply(struct dns *dns, const struct dns_client *client, const uint8_t *data, size_t len);

/* dns_conf.c */
void dns_servers_parse(const char *text, uint16_t port, struct dns_servers *ret);
void dns_servers_refresh(struct dns *dns); /* cheap: looks at the file once a second */

/* dns_flight.c: one question under way to a server. */
void dns_flight_start(struct dns *dns, const struct dns_client *client,
                      const struct dns_query *query);
unsigned dns_flight_count(const struct dns *dns, const struct dns_listener *listener);
void dns_flight_cancel(struct dns *dns, const struct dns_listener *listener,
                       const struct dns_conn *conn); /* those of either; NULL matches none */

/* dns_conn.c: TCP clients. */
int dns_conn_accept(struct dns_listener *listener); /* < 0: try again later */
void dns_conn_reply(struct dns_conn *conn, const uint8_t *data, size_t len);
void dns_conn_close_all(struct dns *dns, const struct dns_listener *listener); /* NULL: all */
