/* SPDX-License-Identifier: Apache-2.0 */

/* The opening handshake of a WebSocket, for both roles. */

#include "http/codec/ws.h"

#include <string.h>

#include "base/err.h"
#include "http/codec/crypto.h"
#include "http/codec/http1.h"

static const char accept_guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

static int ws_accept_for(const char *key, size_t len, char ret[static WS_ACCEPT_SIZE])
{
    return http_sha1_base64(key, len, accept_guid, sizeof(accept_guid) - 1, ret);
}

void ws_make_key(char ret[static WS_KEY_SIZE])
{
    http_random_base64(ret);
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
        return err_set(err, ERR_BACKEND, "peer switched to another protocol than WebSocket");
    if (http1_count(head, "Sec-WebSocket-Accept") != 1 ||
        ws_accept_for(key, strlen(key), accept) < 0 ||
        !http1_str_eq(http1_find(head, "Sec-WebSocket-Accept")->value, accept))
        return err_set(err, ERR_BACKEND, "Sec-WebSocket-Accept does not belong to our key");
    if (http1_find(head, "Sec-WebSocket-Extensions") != NULL)
        return err_set(err, ERR_BACKEND, "peer turned on an extension nobody offered");
    const struct http1_header *chosen = http1_find(head, "Sec-WebSocket-Protocol");
    if (chosen != NULL && (protocol == NULL || !http1_str_eq(chosen->value, protocol)))
        return err_set(err, ERR_BACKEND, "peer chose a sub-protocol nobody offered");
    return 0;
}
