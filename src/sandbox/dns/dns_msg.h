/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Just enough DNS to forward questions and to judge answers. Bytes in, struct out: no I/O, no
 * allocation. A question is taken apart and written anew, so that nothing of a session's message
 * but name and type leaves the host; an answer is walked to the end of its last record before any
 * of it is passed on. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DNS_HEADER 12
#define DNS_NAME_MAX 255
#define DNS_QUERY_MAX 512   /* of what we accept: a question needs far less */
#define DNS_UDP_MIN 512     /* what every client takes */
#define DNS_UDP_MAX 1232    /* what passes everywhere without fragments */
#define DNS_TCP_MAX 16384   /* of an answer by TCP */
#define DNS_FORWARD_MAX 512 /* room that dns_query_write() and dns_error_write() may need */

enum dns_rcode {
    DNS_NOERROR = 0,
    DNS_FORMERR = 1,
    DNS_SERVFAIL = 2,
    DNS_NXDOMAIN = 3,
    DNS_NOTIMP = 4,
    DNS_REFUSED = 5,
};

enum dns_type {
    DNS_TYPE_A = 1,
    DNS_TYPE_AAAA = 28,
    DNS_TYPE_OPT = 41,
    DNS_TYPE_SVCB = 64,
    DNS_TYPE_HTTPS = 65,
};

struct dns_query {
    uint16_t id;
    bool recursion;   /* desired */
    bool edns;        /* the client knows larger messages */
    uint16_t udp_max; /* that it takes, between DNS_UDP_MIN and DNS_UDP_MAX */
    uint16_t type;
    uint8_t name[DNS_NAME_MAX]; /* in wire format, without compression */
    size_t name_len;            /* 0: not known, the message was broken before it */
};

struct dns_answer {
    enum dns_rcode rcode;
    bool truncated;
    bool internal;      /* holds an address that is not the public internet's */
    uint16_t counts[3]; /* question, answers, authorities */
    size_t end;         /* of the last authority record */
};

/* A question of a client. 0: forward it. > 0: the enum dns_rcode to answer with at once. -EBADMSG:
 * not even worth an answer. *ret is always filled as far as the message could be read. */
int dns_query_parse(const uint8_t *data, size_t len, struct dns_query *ret);

/* Names that must not be asked outside: single labels, local and internal domains, reverse lookups
 * of internal addresses. 0, or the enum dns_rcode to answer with. */
int dns_query_judge(const struct dns_query *query);

/* The question as we ask it. Returns the length; `out` has DNS_FORWARD_MAX bytes. */
size_t dns_query_write(const struct dns_query *query, uint16_t id, uint8_t *out);

/* An answer without records. Returns the length; `out` has DNS_FORWARD_MAX bytes. */
size_t dns_error_write(const struct dns_query *query, enum dns_rcode rcode, bool truncated,
                       uint8_t *out);

/* What a server sent for our question with that id. -EBADMSG: not an answer to it, or broken. */
int dns_answer_parse(const uint8_t *data, size_t len, const struct dns_query *query, uint16_t id,
                     struct dns_answer *ret);

/* The answer as the client gets it: `data` is what was parsed, `max` what the client takes. One
 * that does not fit becomes an empty one marked as truncated. Returns the length; `out` has
 * max(max, DNS_FORWARD_MAX) bytes. */
size_t dns_answer_write(const struct dns_answer *answer, const uint8_t *data,
                        const struct dns_query *query, size_t max, uint8_t *out);
