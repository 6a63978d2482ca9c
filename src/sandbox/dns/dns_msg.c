/* SPDX-License-Identifier: Apache-2.0 */

/* Parses questions and answers, and writes questions, answers and errors. */

#include "sandbox/dns/dns_msg.h"

#include <errno.h>
#include <string.h>

#include "base/ipnet.h"
#include "base/str.h"

#define FLAG_QR 0x8000
#define FLAG_OPCODE 0x7800
#define FLAG_TC 0x0200
#define FLAG_RD 0x0100
#define FLAG_RA 0x0080
#define FLAG_RCODE 0x000f
#define CLASS_IN 1
#define LABEL_MAX 63
#define POINTER 0xc0
#define OPT_LEN 11 /* an OPT record without options */
#define RECORDS_MAX 512
#define SVC_IPV4HINT 4
#define SVC_IPV6HINT 6

/* Types that ask for transfers, for everything, or for nothing a client needs from a forwarder. */
#define TYPE_META_FIRST 128
#define TYPE_META_LAST 255

struct reader {
    const uint8_t *data;
    size_t len;
    size_t at;
};

static bool get16(struct reader *r, uint16_t *ret)
{
    if (r->len - r->at < 2)
        return false;
    *ret = (uint16_t)(r->data[r->at] << 8 | r->data[r->at + 1]);
    r->at += 2;
    return true;
}

static bool skip(struct reader *r, size_t n)
{
    if (r->len - r->at < n)
        return false;
    r->at += n;
    return true;
}

static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

/* A name as it stands in a question: no pointers. */
static bool get_plain_name(struct reader *r, uint8_t *ret, size_t *ret_len)
{
    size_t n = 0;

    for (;;) {
        if (r->at >= r->len)
            return false;
        size_t label = r->data[r->at];
        if (label > LABEL_MAX || n + label + 1 > DNS_NAME_MAX || r->len - r->at < label + 1)
            return false;
        memcpy(ret + n, r->data + r->at, label + 1);
        n += label + 1;
        r->at += label + 1;
        if (label == 0) {
            *ret_len = n;
            return true;
        }
    }
}

/* A name as it stands in a record. Where a pointer leads matters to the client that follows it;
 * here it must only lead back. */
static bool skip_name(struct reader *r)
{
    size_t n = 0;

    for (;;) {
        uint16_t pointer;

        if (r->at >= r->len)
            return false;
        size_t label = r->data[r->at];
        if ((label & POINTER) == POINTER) {
            size_t here = r->at;
            return get16(r, &pointer) && (pointer & 0x3fff) < here &&
                   (pointer & 0x3fff) >= DNS_HEADER;
        }
        n += label + 1;
        if (label > LABEL_MAX || n > DNS_NAME_MAX || !skip(r, label + 1))
            return false;
        if (label == 0)
            return true;
    }
}

static uint8_t lower(uint8_t c)
{
    return c >= 'A' && c <= 'Z' ? (uint8_t)(c + 'a' - 'A') : c;
}

/* Lengths of labels are below 'A', so that they may be compared like letters. */
static bool names_equal(const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len)
{
    if (a_len != b_len)
        return false;
    for (size_t i = 0; i < a_len; i++)
        if (lower(a[i]) != lower(b[i]))
            return false;
    return true;
}

/* The one additional record that a question may have, read from its root name on. */
static int parse_opt(struct reader *r, struct dns_query *q)
{
    uint16_t type, size, high, low, len;

    if (r->at >= r->len || r->data[r->at] != 0 || !skip(r, 1) || !get16(r, &type) ||
        type != DNS_TYPE_OPT || !get16(r, &size) || !get16(r, &high) || !get16(r, &low) ||
        !get16(r, &len) || !skip(r, len))
        return DNS_FORMERR;
    q->edns = true;
    if (size > q->udp_max)
        q->udp_max = size < DNS_UDP_MAX ? size : DNS_UDP_MAX;
    return DNS_NOERROR;
}

int dns_query_parse(const uint8_t *data, size_t len, struct dns_query *ret)
{
    struct reader r = {.data = data, .len = len};
    uint16_t flags, counts[4] = {0}, klass;

    *ret = (struct dns_query){.udp_max = DNS_UDP_MIN};
    if (len < DNS_HEADER || len > DNS_QUERY_MAX || !get16(&r, &ret->id) || !get16(&r, &flags) ||
        (flags & FLAG_QR) != 0)
        return -EBADMSG;
    ret->recursion = (flags & FLAG_RD) != 0;
    for (size_t i = 0; i < 4; i++)
        (void)get16(&r, &counts[i]);
    if ((flags & FLAG_OPCODE) != 0)
        return DNS_NOTIMP;
    if ((flags & (FLAG_TC | FLAG_RCODE)) != 0 || counts[0] != 1 || counts[1] != 0 ||
        counts[2] != 0 || counts[3] > 1)
        return DNS_FORMERR;
    size_t name_len = 0;
    if (!get_plain_name(&r, ret->name, &name_len) || !get16(&r, &ret->type) || !get16(&r, &klass))
        return DNS_FORMERR;
    ret->name_len = name_len;
    if (counts[3] == 1 && parse_opt(&r, ret) != DNS_NOERROR)
        return DNS_FORMERR;
    if (r.at != len)
        return DNS_FORMERR;
    if (klass != CLASS_IN || ret->type == 0 || ret->type == DNS_TYPE_OPT ||
        (ret->type >= TYPE_META_FIRST && ret->type <= TYPE_META_LAST))
        return DNS_REFUSED;
    return 0;
}

static size_t put_header(uint8_t *out, uint16_t id, uint16_t flags, const uint16_t counts[4])
{
    put16(out, id);
    put16(out + 2, flags);
    for (size_t i = 0; i < 4; i++)
        put16(out + 4 + 2 * i, counts[i]);
    return DNS_HEADER;
}

static size_t put_question(uint8_t *out, const struct dns_query *q)
{
    if (q->name_len == 0)
        return 0;
    memcpy(out, q->name, q->name_len);
    put16(out + q->name_len, q->type);
    put16(out + q->name_len + 2, CLASS_IN);
    return q->name_len + 4;
}

/* No options of the client's, no DNSSEC: less to carry out and less to carry in. */
static size_t put_opt(uint8_t *out)
{
    memset(out, 0, OPT_LEN);
    put16(out + 1, DNS_TYPE_OPT);
    put16(out + 3, DNS_UDP_MAX);
    return OPT_LEN;
}

size_t dns_query_write(const struct dns_query *query, uint16_t id, uint8_t *out)
{
    const uint16_t counts[4] = {1, 0, 0, 1};
    size_t n = put_header(out, id, FLAG_RD, counts);

    n += put_question(out + n, query);
    return n + put_opt(out + n);
}

static uint16_t answer_flags(const struct dns_query *q, enum dns_rcode rcode, bool truncated)
{
    return (uint16_t)(FLAG_QR | FLAG_RA | (q->recursion ? FLAG_RD : 0) | (truncated ? FLAG_TC : 0) |
                      (unsigned)rcode);
}

size_t dns_error_write(const struct dns_query *query, enum dns_rcode rcode, bool truncated,
                       uint8_t *out)
{
    const uint16_t counts[4] = {query->name_len > 0, 0, 0, query->edns};
    size_t n = put_header(out, query->id, answer_flags(query, rcode, truncated), counts);

    n += put_question(out + n, query);
    return query->edns ? n + put_opt(out + n) : n;
}

static bool has_internal(const uint8_t *list, size_t len, size_t bytes)
{
    for (size_t i = 0; i + bytes <= len; i += bytes)
        if (ip_is_internal(list + i, bytes))
            return true;
    return false;
}

/* SVCB and HTTPS (RFC 9460): a priority, a name, and parameters, of which two are lists of
 * addresses that a client may use without asking for them. */
static bool parse_service(const uint8_t *rdata, size_t len, bool *internal)
{
    struct reader r = {.data = rdata, .len = len};
    uint8_t name[DNS_NAME_MAX];
    uint16_t key, size;
    size_t name_len;

    if (!skip(&r, 2) || !get_plain_name(&r, name, &name_len))
        return false;
    while (r.at < r.len) {
        if (!get16(&r, &key) || !get16(&r, &size))
            return false;
        const uint8_t *value = rdata + r.at;
        const size_t bytes = key == SVC_IPV4HINT ? 4 : key == SVC_IPV6HINT ? 16 : 0;
        if (!skip(&r, size) || (bytes > 0 && size % bytes != 0))
            return false;
        if (bytes > 0)
            *internal = *internal || has_internal(value, size, bytes);
    }
    return true;
}

/* One record. An address record of any other length than its type's is no address record. */
static bool parse_record(struct reader *r, bool *internal)
{
    uint16_t type, klass, len;

    if (!skip_name(r) || !get16(r, &type) || !get16(r, &klass) || !skip(r, 4) || !get16(r, &len))
        return false;
    const uint8_t *rdata = r->data + r->at;
    if (!skip(r, len))
        return false;
    if (type == DNS_TYPE_A || type == DNS_TYPE_AAAA) {
        if (len != (type == DNS_TYPE_A ? 4 : 16))
            return false;
        *internal = *internal || ip_is_internal(rdata, len);
    }
    return (type != DNS_TYPE_SVCB && type != DNS_TYPE_HTTPS) || parse_service(rdata, len, internal);
}

int dns_answer_parse(const uint8_t *data, size_t len, const struct dns_query *query, uint16_t id,
                     struct dns_answer *ret)
{
    struct reader r = {.data = data, .len = len};
    struct dns_answer a = {0};
    uint8_t name[DNS_NAME_MAX];
    uint16_t got_id, flags, counts[4] = {0}, type, klass;
    size_t name_len;

    if (len < DNS_HEADER || !get16(&r, &got_id) || got_id != id || !get16(&r, &flags) ||
        (flags & FLAG_QR) == 0 || (flags & FLAG_OPCODE) != 0)
        return -EBADMSG;
    for (size_t i = 0; i < 4; i++)
        (void)get16(&r, &counts[i]);
    /* The question must come back as it was: that is what ties the answer to it, besides id and
     * port, and what keeps pointers right when the message is passed on. */
    if (counts[0] != 1 || !get_plain_name(&r, name, &name_len) || !get16(&r, &type) ||
        !get16(&r, &klass) || !names_equal(name, name_len, query->name, query->name_len) ||
        type != query->type || klass != CLASS_IN)
        return -EBADMSG;
    if (counts[1] + counts[2] > RECORDS_MAX)
        return -EBADMSG;
    a.truncated = (flags & FLAG_TC) != 0;
    a.rcode = (enum dns_rcode)(flags & FLAG_RCODE);
    /* What follows in a truncated message may be cut anywhere: none of it is used. */
    for (int i = 0; i < counts[1] + counts[2] && !a.truncated; i++)
        if (!parse_record(&r, &a.internal))
            return -EBADMSG;
    memcpy(a.counts, counts, sizeof(a.counts));
    a.end = r.at;
    *ret = a;
    return 0;
}

size_t dns_answer_write(const struct dns_answer *answer, const uint8_t *data,
                        const struct dns_query *query, size_t max, uint8_t *out)
{
    size_t opt = query->edns ? OPT_LEN : 0;

    if (answer->internal)
        return dns_error_write(query, DNS_NXDOMAIN, false, out);
    if (answer->truncated || answer->end + opt > max)
        return dns_error_write(query, DNS_NOERROR, true, out);
    const uint16_t counts[4] = {answer->counts[0], answer->counts[1], answer->counts[2],
                                query->edns};
    size_t n = put_header(out, query->id, answer_flags(query, answer->rcode, false), counts);
    /* The client's own spelling of the name, of the same length as the server's. */
    n += put_question(out + n, query);
    memcpy(out + n, data + n, answer->end - n);
    n = answer->end;
    return query->edns ? n + put_opt(out + n) : n;
}

/* Which names must not be asked for outside, or would tell a session about the inside. */

#define LABELS_MAX 128 /* a name of 255 bytes has at most 127 */

struct labels {
    const uint8_t *at[LABELS_MAX]; /* each starts with its length byte */
    size_t n;
};

static void split(const struct dns_query *q, struct labels *ret)
{
    ret->n = 0;
    for (size_t i = 0; i < q->name_len && q->name[i] != 0 && ret->n < LABELS_MAX;
         i += q->name[i] + 1U)
        ret->at[ret->n++] = q->name + i;
}

static bool label_is(const uint8_t *label, const char *text)
{
    size_t n = strlen(text);

    if (label[0] != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((label[i + 1] | 0x20) != (uint8_t)text[i])
            return false;
    return true;
}

/* Whether the name is `top`, or `second.top`, or below. */
static bool is_below(const struct labels *l, const char *second, const char *top)
{
    size_t own = second != NULL ? 2 : 1;

    return l->n >= own && label_is(l->at[l->n - 1], top) &&
           (second == NULL || label_is(l->at[l->n - 2], second));
}

static bool label_number(const uint8_t *label, unsigned *ret)
{
    unsigned v = 0;

    if (label[0] == 0 || label[0] > 3)
        return false;
    for (size_t i = 1; i <= label[0]; i++) {
        if (label[i] < '0' || label[i] > '9')
            return false;
        v = v * 10 + (label[i] - '0');
    }
    *ret = v;
    return v < 256;
}

static bool label_nibble(const uint8_t *label, unsigned *ret)
{
    uint8_t c = label[1] | 0x20;

    if (label[0] != 1)
        return false;
    if (c >= 'a' && c <= 'f')
        *ret = c - 'a' + 10U;
    else if (label[1] >= '0' && label[1] <= '9')
        *ret = label[1] - (unsigned)'0';
    else
        return false;
    return true;
}

/* Reverse names carry the address backwards; a prefix of it is judged as if zeroes followed. */
static bool is_internal_reverse4(const struct labels *l)
{
    uint8_t addr[4] = {0};
    size_t n = l->n - 2;

    for (size_t i = 0; i < n && i < 4; i++) {
        unsigned v;

        if (!label_number(l->at[n - 1 - i], &v))
            return true;
        addr[i] = (uint8_t)v;
    }
    return ip_is_internal(addr, sizeof(addr));
}

static bool is_internal_reverse6(const struct labels *l)
{
    uint8_t addr[16] = {0};
    size_t n = l->n - 2;

    for (size_t i = 0; i < n && i < 32; i++) {
        unsigned v;

        if (!label_nibble(l->at[n - 1 - i], &v))
            return true;
        addr[i / 2] |= (uint8_t)(i % 2 == 0 ? v << 4 : v);
    }
    return ip_is_internal(addr, sizeof(addr));
}

int dns_query_judge(const struct dns_query *query)
{
    static const struct {
        const char *second, *top;
    } internal[] = {
        {NULL, "localhost"}, {NULL, "local"},       {NULL, "internal"}, {NULL, "lan"},
        {NULL, "intranet"},  {NULL, "localdomain"}, {NULL, "onion"},    {"home", "arpa"},
    };
    struct labels l;

    split(query, &l);
    /* A single label means something only together with the host's search domains. */
    if (l.n < 2)
        return DNS_NXDOMAIN;
    for (size_t i = 0; i < ARRAY_SIZE(internal); i++)
        if (is_below(&l, internal[i].second, internal[i].top))
            return DNS_NXDOMAIN;
    if (is_below(&l, "in-addr", "arpa") && is_internal_reverse4(&l))
        return DNS_NXDOMAIN;
    if (is_below(&l, "ip6", "arpa") && is_internal_reverse6(&l))
        return DNS_NXDOMAIN;
    return 0;
}
