/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* WebSocket (RFC 6455), bytes in and events out: no I/O. Both roles. No extensions: a peer that
 * sets a reserved bit breaks the protocol, so there is no compression state and no bomb. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

struct err;
struct http1_head;

#define WS_MESSAGE_MAX (16u * 1024 * 1024) /* default cap of a joined message */
#define WS_FRAGMENTS_MAX 4096u             /* default cap of frames in one message */
#define WS_FRAME_HEAD_MAX 14
#define WS_CONTROL_MAX 125 /* payload of a control frame, by the RFC */
#define WS_REASON_MAX (WS_CONTROL_MAX - 2)
#define WS_KEY_SIZE 25    /* base64 of 16 bytes, with NUL */
#define WS_ACCEPT_SIZE 29 /* base64 of a SHA-1, with NUL */

enum ws_opcode {
    WS_CONTINUATION = 0,
    WS_TEXT = 1,
    WS_BINARY = 2,
    WS_CLOSE = 8,
    WS_PING = 9,
    WS_PONG = 10,
};

enum ws_code {
    WS_CODE_NORMAL = 1000,
    WS_CODE_GOING_AWAY = 1001,
    WS_CODE_PROTOCOL = 1002,
    WS_CODE_NONE = 1005,     /* the peer's close frame had no code; never sent */
    WS_CODE_ABNORMAL = 1006, /* no close frame at all; never sent */
    WS_CODE_INVALID_DATA = 1007,
    WS_CODE_POLICY = 1008,
    WS_CODE_TOO_BIG = 1009,
    WS_CODE_INTERNAL = 1011,
};

enum ws_role { WS_SERVER, WS_CLIENT }; /* ours; the client's frames are masked */

enum ws_event_type {
    WS_EVENT_NONE,    /* all input is taken, more is needed */
    WS_EVENT_MESSAGE, /* opcode is WS_TEXT (valid UTF-8) or WS_BINARY */
    WS_EVENT_PING,
    WS_EVENT_PONG,
    WS_EVENT_CLOSE, /* code, and the reason in data */
};

struct ws_event {
    enum ws_event_type type;
    enum ws_opcode opcode;
    unsigned code;    /* of a close; WS_CODE_NONE without one */
    const char *data; /* valid until the next call with the same decoder or input */
    size_t len;
};

/* Of a text that comes in pieces. */
struct ws_utf8 {
    uint8_t need; /* continuation bytes still to come */
    uint8_t low;  /* range of the next one */
    uint8_t high;
};

struct ws_decoder {
    enum ws_role role;
    size_t max_message;
    unsigned max_fragments;

    uint8_t head[WS_FRAME_HEAD_MAX]; /* of the current frame */
    uint8_t head_len;
    uint8_t head_need; /* 0: the head is complete and the payload follows */
    uint8_t key[4];
    uint8_t control_len;
    uint8_t opcode; /* of the message being joined, 0 when there is none */
    bool given;     /* `message` was handed out by the last event */
    struct ws_utf8 utf8;
    unsigned fragments;
    uint64_t payload_len;
    uint64_t payload_pos;
    struct buf message; /* pieces that came in earlier input; nothing while idle */
    char control[WS_CONTROL_MAX];
};

void ws_decoder_init(struct ws_decoder *d, enum ws_role role, size_t max_message,
                     unsigned max_fragments); /* 0: the defaults */
void ws_decoder_done(struct ws_decoder *d);

/* Takes bytes off the front of data, unmasking them in place, until one event or the end of the
 * input. Returns how many were taken, or -EPROTO, -EILSEQ (text is not UTF-8), -EMSGSIZE (a cap):
 * the decoder is then of no more use. Memory grows with what arrived, not with what a frame
 * promised. Call until WS_EVENT_NONE: that call also frees the last message. */
ssize_t ws_decode(struct ws_decoder *d, char *data, size_t len, struct ws_event *ret);

/* Whether part of a frame or message has been read. */
bool ws_decoder_partial(const struct ws_decoder *d);

/* The close code for an error of ws_decode(). */
unsigned ws_error_code(int error);

/* Writes the head of a frame; `key` masks (clients), NULL does not. Returns its length. */
size_t ws_frame_head(uint8_t ret[static WS_FRAME_HEAD_MAX], enum ws_opcode opcode, bool fin,
                     uint64_t len, const uint8_t *key);
/* Masks or unmasks; data[0] is byte `offset` of the payload. */
void ws_mask(char *data, size_t len, const uint8_t key[static 4], uint64_t offset);

/* Payload of a close frame: code and as much of the reason as fits on a character boundary. Returns
 * its length; 0 for WS_CODE_NONE. */
size_t ws_close_payload(char ret[static WS_CONTROL_MAX], unsigned code, const char *reason);

/* The handshake ------------------------------------------------------------------------------ */

/* Checks an upgrade request: 101 and the accept key, or the status to refuse with: 400, 405 (not
 * GET), 426 (version other than 13; the answer carries Sec-WebSocket-Version: 13). *ret_why is a
 * literal. */
unsigned ws_check_request(const struct http1_head *head, char ret_accept[static WS_ACCEPT_SIZE],
                          const char **ret_why);
/* Whether the client offered that sub-protocol. */
bool ws_offers_protocol(const struct http1_head *head, const char *protocol);

/* Checks the answer to our upgrade request; `protocol` is what we offered, or NULL. */
int ws_check_response(const struct http1_head *head, const char *key, const char *protocol,
                      struct err *err);
