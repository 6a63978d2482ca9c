/* SPDX-License-Identifier: Apache-2.0 */

/* WebSocket frames and the opening handshake, without I/O. */

#include "http/codec/ws.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "http/codec/crypto.h"
#include "http/codec/http1.h"

static bool lead(struct ws_utf8 *u, uint8_t c)
{
    unsigned n = utf8_lead(c, &u->low, &u->high);

    u->need = (uint8_t)(n > 0 ? n - 1 : 0);
    return n > 0;
}

/* Length of the ASCII prefix, to a multiple of 32 bytes: most text is all of it. */
static size_t ascii_blocks(const char *s, size_t len)
{
    size_t i = 0;

    for (; len - i >= 32; i += 32) {
        uint64_t v[4];
        memcpy(v, s + i, sizeof(v));
        if (((v[0] | v[1] | v[2] | v[3]) & 0x8080808080808080ULL) != 0)
            break;
    }
    return i;
}

/* False as soon as the bytes cannot be UTF-8. The text may end where !u->need. */
static bool utf8_feed(struct ws_utf8 *u, const char *s, size_t len)
{
    size_t i = 0;

    while (i < len) {
        uint8_t c = (uint8_t)s[i];
        if (u->need > 0) {
            if (c < u->low || c > u->high)
                return false;
            *u = (struct ws_utf8){(uint8_t)(u->need - 1), 0x80, 0xbf};
        } else if (c < 0x80) {
            i += ascii_blocks(s + i, len - i);
            while (i < len && (uint8_t)s[i] < 0x80)
                i++;
            continue;
        } else if (!lead(u, c)) {
            return false;
        }
        i++;
    }
    return true;
}

/* RFC 6455 §7.4 and the IANA registry: 1004 to 1006 and 1015 are never on the wire. */
static bool code_may_be_sent(unsigned code)
{
    if (code >= 3000 && code <= 4999)
        return true;
    return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014);
}

/* Frames into messages, frame heads and close payloads. */

#define BIT_FIN 0x80u
#define BITS_RSV 0x70u
#define BITS_OPCODE 0x0fu
#define BIT_MASK 0x80u
#define BITS_LEN 0x7fu
#define LEN_16 126u
#define LEN_64 127u

void ws_decoder_init(struct ws_decoder *d, enum ws_role role, size_t max_message,
                     unsigned max_fragments)
{
    *d = (struct ws_decoder){
        .role = role,
        .max_message = max_message > 0 ? max_message : WS_MESSAGE_MAX,
        .max_fragments = max_fragments > 0 ? max_fragments : WS_FRAGMENTS_MAX,
        .head_need = 2,
    };
    buf_init(&d->message, d->max_message);
}

void ws_decoder_done(struct ws_decoder *d)
{
    buf_done(&d->message);
}

bool ws_decoder_partial(const struct ws_decoder *d)
{
    return d->head_len > 0 || d->opcode != 0;
}

static unsigned frame_opcode(const struct ws_decoder *d)
{
    return d->head[0] & BITS_OPCODE;
}

static bool frame_fin(const struct ws_decoder *d)
{
    return (d->head[0] & BIT_FIN) != 0;
}

static bool frame_is_control(const struct ws_decoder *d)
{
    return (frame_opcode(d) & 8u) != 0;
}

/* The first two bytes tell almost every violation; nothing more is read from such a peer. */
static int check_first_bytes(const struct ws_decoder *d)
{
    unsigned opcode = frame_opcode(d);
    bool masked = (d->head[1] & BIT_MASK) != 0;

    if ((d->head[0] & BITS_RSV) != 0 || masked != (d->role == WS_SERVER))
        return -EPROTO;
    switch (opcode) {
    case WS_CLOSE:
    case WS_PING:
    case WS_PONG:
        return frame_fin(d) && (d->head[1] & BITS_LEN) <= WS_CONTROL_MAX ? 0 : -EPROTO;
    case WS_TEXT:
    case WS_BINARY:
        return d->opcode == 0 ? 0 : -EPROTO; /* the last message has not ended */
    case WS_CONTINUATION:
        return d->opcode != 0 ? 0 : -EPROTO; /* nothing to continue */
    default:
        return -EPROTO;
    }
}

static uint8_t head_size(const struct ws_decoder *d)
{
    unsigned len = d->head[1] & BITS_LEN;
    unsigned size = 2;

    if (len == LEN_16)
        size += 2;
    else if (len == LEN_64)
        size += 8;
    if ((d->head[1] & BIT_MASK) != 0)
        size += 4;
    return (uint8_t)size;
}

static int read_length(struct ws_decoder *d)
{
    unsigned len = d->head[1] & BITS_LEN;
    size_t bytes = len == LEN_16 ? 2 : len == LEN_64 ? 8 : 0;
    uint64_t value = bytes == 0 ? len : 0;

    for (size_t i = 0; i < bytes; i++)
        value = value << 8 | d->head[2 + i];
    /* Lengths have one spelling, the shortest, and 63 bits. */
    if ((bytes == 2 && value < LEN_16) || (bytes == 8 && (value < 65536 || value >> 63 != 0)))
        return -EPROTO;
    d->payload_len = value;
    d->payload_pos = 0;
    return 0;
}

static int begin_frame(struct ws_decoder *d)
{
    int r = read_length(d);
    if (r < 0)
        return r;
    if (d->role == WS_SERVER)
        memcpy(d->key, d->head + d->head_len - 4, 4);
    d->head_need = 0;
    d->control_len = 0;
    if (frame_is_control(d))
        return 0;

    if (d->opcode == 0) {
        d->opcode = (uint8_t)frame_opcode(d);
        d->fragments = 0;
        d->utf8 = (struct ws_utf8){0};
    }
    /* What is announced already counts: a frame that cannot fit is refused before it is read. */
    if (d->payload_len > d->max_message - d->message.len || ++d->fragments > d->max_fragments)
        return -EMSGSIZE;
    return 0;
}

/* Takes bytes of the head. 1 when it is complete, 0 when more are needed. */
static int read_head(struct ws_decoder *d, const char *data, size_t len, size_t *used)
{
    int r;

    while (*used < len) {
        d->head[d->head_len++] = (uint8_t)data[(*used)++];
        if (d->head_len < d->head_need)
            continue;
        if (d->head_len == 2) {
            r = check_first_bytes(d);
            if (r < 0)
                return r;
            d->head_need = head_size(d);
            if (d->head_need > 2)
                continue;
        }
        r = begin_frame(d);
        return r < 0 ? r : 1;
    }
    return 0;
}

static void end_frame(struct ws_decoder *d)
{
    d->head_len = 0;
    d->head_need = 2;
}

static int control_event(struct ws_decoder *d, struct ws_event *ret)
{
    static const enum ws_event_type types[] = {
        [WS_CLOSE] = WS_EVENT_CLOSE,
        [WS_PING] = WS_EVENT_PING,
        [WS_PONG] = WS_EVENT_PONG,
    };
    struct ws_utf8 utf8 = {0};

    *ret = (struct ws_event){
        .type = types[frame_opcode(d)],
        .opcode = (enum ws_opcode)frame_opcode(d),
        .data = d->control,
        .len = d->control_len,
    };
    if (ret->type != WS_EVENT_CLOSE)
        return 0;

    ret->code = WS_CODE_NONE;
    if (ret->len == 0)
        return 0;
    if (ret->len == 1)
        return -EPROTO;
    ret->code = (unsigned)((uint8_t)ret->data[0] << 8 | (uint8_t)ret->data[1]);
    ret->data += 2;
    ret->len -= 2;
    if (!code_may_be_sent(ret->code))
        return -EPROTO;
    if (!utf8_feed(&utf8, ret->data, ret->len) || utf8.need > 0)
        return -EILSEQ;
    return 0;
}

static int read_control(struct ws_decoder *d, char *data, size_t len, struct ws_event *ret)
{
    assert(len <= sizeof(d->control) - d->control_len);
    memcpy(d->control + d->control_len, data, len);
    d->control_len = (uint8_t)(d->control_len + len);
    if (d->payload_pos < d->payload_len)
        return 0;
    end_frame(d);
    return control_event(d, ret);
}

/* A message that lies whole in the input is handed out where it lies; all others are joined. */
static int read_data(struct ws_decoder *d, char *data, size_t len, struct ws_event *ret)
{
    if (d->opcode == WS_TEXT && !utf8_feed(&d->utf8, data, len))
        return -EILSEQ;
    bool last = frame_fin(d) && d->payload_pos == d->payload_len;
    bool direct = last && d->message.len == 0;
    if (!direct && len > 0 && buf_append(&d->message, data, len) < 0)
        return -EMSGSIZE;
    if (d->payload_pos == d->payload_len)
        end_frame(d);
    if (!last)
        return 0;

    if (d->opcode == WS_TEXT && d->utf8.need > 0)
        return -EILSEQ;
    *ret = (struct ws_event){
        .type = WS_EVENT_MESSAGE,
        .opcode = (enum ws_opcode)d->opcode,
        .data = direct ? data : d->message.data,
        .len = direct ? len : d->message.len,
    };
    d->opcode = 0;
    d->given = !direct;
    return 0;
}

static int read_payload(struct ws_decoder *d, char *data, size_t len, struct ws_event *ret)
{
    if (d->role == WS_SERVER)
        ws_mask(data, len, d->key, d->payload_pos);
    d->payload_pos += len;
    return frame_is_control(d) ? read_control(d, data, len, ret) : read_data(d, data, len, ret);
}

ssize_t ws_decode(struct ws_decoder *d, char *data, size_t len, struct ws_event *ret)
{
    size_t used = 0;

    *ret = (struct ws_event){.type = WS_EVENT_NONE};
    if (d->given) {
        buf_done(&d->message);
        d->given = false;
    }
    while (ret->type == WS_EVENT_NONE) {
        int r = 1;
        if (d->head_need > 0)
            r = read_head(d, data, len, &used);
        if (r <= 0)
            return r < 0 ? r : (ssize_t)used;

        uint64_t left = d->payload_len - d->payload_pos;
        size_t n = left < len - used ? (size_t)left : len - used;
        if (n == 0 && left > 0)
            break;
        r = read_payload(d, data + used, n, ret);
        if (r < 0)
            return r;
        used += n;
    }
    return (ssize_t)used;
}

unsigned ws_error_code(int error)
{
    switch (-error) {
    case EILSEQ:
        return WS_CODE_INVALID_DATA;
    case EMSGSIZE:
        return WS_CODE_TOO_BIG;
    default:
        return WS_CODE_PROTOCOL;
    }
}

size_t ws_frame_head(uint8_t ret[static WS_FRAME_HEAD_MAX], enum ws_opcode opcode, bool fin,
                     uint64_t len, const uint8_t *key)
{
    size_t bytes = len < LEN_16 ? 0 : len < 65536 ? 2 : 8;
    size_t n = 2;

    ret[0] = (uint8_t)((fin ? BIT_FIN : 0) | (unsigned)opcode);
    ret[1] = (uint8_t)(bytes == 0 ? len : bytes == 2 ? LEN_16 : LEN_64);
    for (size_t i = bytes; i > 0; i--)
        ret[n++] = (uint8_t)(len >> (8 * (i - 1)));
    if (key != NULL) {
        ret[1] |= BIT_MASK;
        memcpy(ret + n, key, 4);
        n += 4;
    }
    return n;
}

/* Eight bytes at a time: a stdio chunk of 64 KiB costs a few microseconds, not sixty. */
void ws_mask(char *data, size_t len, const uint8_t key[static 4], uint64_t offset)
{
    uint8_t pattern[8];
    uint64_t word;
    size_t i = 0;

    for (size_t k = 0; k < sizeof(pattern); k++)
        pattern[k] = key[(offset + k) & 3];
    memcpy(&word, pattern, sizeof(word));
    for (; len - i >= 4 * sizeof(word); i += 4 * sizeof(word)) {
        uint64_t v[4];
        memcpy(v, data + i, sizeof(v));
        v[0] ^= word;
        v[1] ^= word;
        v[2] ^= word;
        v[3] ^= word;
        memcpy(data + i, v, sizeof(v));
    }
    for (; i < len; i++)
        data[i] = (char)((uint8_t)data[i] ^ pattern[i & 7]);
}

size_t ws_close_payload(char ret[static WS_CONTROL_MAX], unsigned code, const char *reason)
{
    size_t len = reason != NULL ? strlen(reason) : 0;

    if (!code_may_be_sent(code))
        return 0;
    ret[0] = (char)(code >> 8);
    ret[1] = (char)(code & 0xff);
    if (len > WS_REASON_MAX)
        len = utf8_boundary(reason, WS_REASON_MAX);
    if (len > 0)
        memcpy(ret + 2, reason, len);
    return len + 2;
}

/* The opening handshake, for both roles. */

static const char accept_guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

static int ws_accept_for(const char *key, size_t len, char ret[static WS_ACCEPT_SIZE])
{
    return http_sha1_base64(key, len, accept_guid, sizeof(accept_guid) - 1, ret);
}

/* Base64 of exactly 16 bytes: 21 free characters, one with two bits in use, and the padding. */
static bool key_ok(struct http1_str key)
{
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    if (key.len != WS_KEY_SIZE - 1 || memcmp(key.p + 22, "==", 2) != 0)
        return false;
    for (size_t i = 0; i < 22; i++)
        if (key.p[i] == '\0' || strchr(base64, key.p[i]) == NULL)
            return false;
    return strchr("AQgw", key.p[21]) != NULL;
}

static unsigned refuse(unsigned status, const char *why, const char **ret_why)
{
    *ret_why = why;
    return status;
}

unsigned ws_check_request(const struct http1_head *head, char ret_accept[static WS_ACCEPT_SIZE],
                          const char **ret_why)
{
    if (!http1_str_eq(head->method, "GET"))
        return refuse(405, "only GET can be upgraded to a WebSocket", ret_why);
    if (head->minor == 0)
        return refuse(400, "HTTP/1.0 cannot be upgraded", ret_why);
    if (!head->connection_upgrade || !http1_lists(head, "Upgrade", "websocket"))
        return refuse(400, "this is a WebSocket; send Connection: Upgrade and Upgrade: websocket",
                      ret_why);
    if (http1_count(head, "Sec-WebSocket-Version") != 1 ||
        !http1_str_eq(http1_find(head, "Sec-WebSocket-Version")->value, "13"))
        return refuse(426, "only WebSocket version 13 is spoken here", ret_why);
    if (http1_count(head, "Sec-WebSocket-Key") != 1)
        return refuse(400, "exactly one Sec-WebSocket-Key is needed", ret_why);
    struct http1_str key = http1_find(head, "Sec-WebSocket-Key")->value;
    if (!key_ok(key))
        return refuse(400, "Sec-WebSocket-Key is not the base64 of 16 bytes", ret_why);
    if (http1_request_body(head) != HTTP1_BODY_NONE)
        return refuse(400, "an upgrade request has no body", ret_why);
    if (ws_accept_for(key.p, key.len, ret_accept) < 0)
        return refuse(500, "no SHA-1 in this libcrypto", ret_why);
    return 101;
}

bool ws_offers_protocol(const struct http1_head *head, const char *protocol)
{
    /* Names of sub-protocols keep their case, unlike tokens of other headers. */
    for (size_t i = 0; i < head->n_headers; i++) {
        struct http1_str list = head->headers[i].value;
        struct http1_str element;
        if (!http1_str_case_eq(head->headers[i].name, "Sec-WebSocket-Protocol"))
            continue;
        while (http1_next_element(&list, &element))
            if (http1_str_eq(element, protocol))
                return true;
    }
    return false;
}

int ws_check_response(const struct http1_head *head, const char *key, const char *protocol,
                      struct err *err)
{
    char accept[WS_ACCEPT_SIZE];

    if (head->status != 101)
        return err_set(err, ERR_BACKEND, "WebSocket upgrade refused with status %u", head->status);
    if (!head->connection_upgrade || !http1_lists(head, "Upgrade", "websocket"))
        return err_set(err, ERR_BACKEND, "the peer switched to another protocol than WebSocket");
    if (http1_count(head, "Sec-WebSocket-Accept") != 1 ||
        ws_accept_for(key, strlen(key), accept) < 0 ||
        !http1_str_eq(http1_find(head, "Sec-WebSocket-Accept")->value, accept))
        return err_set(err, ERR_BACKEND, "Sec-WebSocket-Accept does not belong to our key");
    if (http1_find(head, "Sec-WebSocket-Extensions") != NULL)
        return err_set(err, ERR_BACKEND, "the peer turned on an extension that was not offered");
    const struct http1_header *chosen = http1_find(head, "Sec-WebSocket-Protocol");
    if (chosen != NULL && (protocol == NULL || !http1_str_eq(chosen->value, protocol)))
        return err_set(err, ERR_BACKEND, "the peer chose a sub-protocol that was not offered");
    return 0;
}
