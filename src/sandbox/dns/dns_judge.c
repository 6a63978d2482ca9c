/* SPDX-License-Identifier: Apache-2.0 */

/* Which names are nobody's business outside, or would tell a session about the inside. */

#include <string.h>

#include "base/ipnet.h"
#include "base/str.h"
#include "sandbox/dns/dns_msg.h"

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
