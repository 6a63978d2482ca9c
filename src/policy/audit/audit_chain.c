/* SPDX-License-Identifier: Apache-2.0 */

/* Hashes lines of the audit log and verifies the chain over its files. */

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include "http/codec/crypto.h"
#include "policy/audit/audit_internal.h"

#define CHUNK (64U << 10)

const char audit_no_head[] = "0000000000000000000000000000000000000000000000000000000000000000";

int audit_line_hash(const char *line, size_t len, char ret[static AUDIT_HASH_LEN + 1])
{
    return http_sha256_hex(line, len, ret);
}

int audit_line_place(const char *line, size_t len, struct audit_place *ret)
{
    AUTO(json) struct json *v = NULL;

    if (json_parse(line, len, &v, NULL) < 0)
        return -EBADMSG;
    const struct json *seq = json_get(v, "seq"), *lost = json_get(v, "lost");
    const char *prev = json_str(json_get(v, "prev"));
    if (json_type(seq) != JSON_INT || json_int(seq) < 1 || json_int(lost) < 0 || prev == NULL ||
        strlen(prev) != AUDIT_HASH_LEN || strspn(prev, "0123456789abcdef") != AUDIT_HASH_LEN)
        return -EBADMSG;
    ret->seq = (uint64_t)json_int(seq);
    ret->lost = (uint64_t)json_int(lost);
    return str_copy(ret->prev, sizeof(ret->prev), prev);
}

static const char *wrong_with(const struct audit_chain *c, const char *line, size_t len,
                              struct audit_place *ret)
{
    if (len > AUDIT_LINE_MAX)
        return "the line is too long";
    if (audit_line_place(line, len, ret) < 0)
        return "the line is no record";
    if (c->last == 0)
        return ret->seq == 1 && !str_eq(ret->prev, audit_no_head)
                   ? "the first record names one before it"
                   : NULL;
    if (!str_eq(ret->prev, c->head))
        return "the record does not follow from the line before";
    if (ret->seq != c->last + 1)
        return "the number does not follow from the line before";
    return NULL;
}

/* 0: it is right; 1: it is not. */
static int check_line(struct audit_chain *c, const char *line, size_t len)
{
    struct audit_place place = {0};

    c->bad_line++;
    c->bad_reason = wrong_with(c, line, len, &place);
    if (c->bad_reason == NULL && audit_line_hash(line, len, c->head) < 0)
        c->bad_reason = "the digest cannot be computed";
    if (c->bad_reason != NULL)
        return 1;
    if (c->first == 0)
        c->first = place.seq;
    c->last = place.seq;
    c->lost += place.lost;
    c->found = c->found || (c->wanted != NULL && str_eq(c->wanted, c->head));
    return 0;
}

/* Whole lines of what has been read; the rest stays. */
static int check_lines(struct audit_chain *c, struct buf *text)
{
    size_t at = 0;
    int r = 0;

    while (r == 0) {
        const char *end = memchr(text->data + at, '\n', text->len - at);
        if (end == NULL)
            break;
        size_t len = (size_t)(end - (text->data + at));
        r = check_line(c, text->data + at, len);
        at += len + 1;
    }
    buf_consume(text, at);
    return r;
}

static int check_rest(struct audit_chain *c, const struct buf *text)
{
    if (text->len == 0)
        return 0;
    c->bad_line++;
    c->bad_reason =
        text->len > AUDIT_LINE_MAX ? "the line is too long" : "the last line is not complete";
    return 1;
}

int audit_verify(struct audit_chain *chain, int fd, const char *name, struct err *err)
{
    AUTO_DONE(buf) struct buf text;
    int r = 0;

    buf_init(&text, AUDIT_LINE_MAX + 1 + CHUNK);
    chain->bad_line = 0;
    while (r == 0 && text.len <= AUDIT_LINE_MAX) {
        r = buf_reserve(&text, CHUNK);
        if (r < 0)
            return err_sys(err, -r, "read '%s'", name);
        ssize_t n = fd_read_full(fd, text.data + text.len, CHUNK);
        if (n < 0)
            return err_sys(err, (int)-n, "read '%s'", name);
        text.len += (size_t)n;
        r = n == 0 ? 2 : check_lines(chain, &text);
    }
    if (r != 1)
        r = check_rest(chain, &text);
    if (r == 1)
        chain->bad_file = name;
    return r;
}
